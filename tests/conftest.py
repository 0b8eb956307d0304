"""What several tests share: seeds, small models, models that fail, the page's controller and scenes."""

from __future__ import annotations

import gc
import os
import sys

import pytest
import torch


def pytest_collection_finish() -> None:
    """Of the libraries that were imported nothing is ever freed: looking for cycles in them takes a minute in all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def swin() -> torch.nn.Module:
    """A small Swin for images of 64 x 64."""
    from helpers.models import small_swin

    return small_swin()


@pytest.fixture
def x() -> torch.Tensor:
    """Three images of 64 x 64."""
    return torch.randn(3, 3, 64, 64)


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """Factories of models that pass, fail, crash, hang and eat memory."""
    (tmp_path / "zoo_of_trouble.py").write_text(
        "import os, signal, time, torch\n"
        "X = torch.ones(1, 3, 4, 4)\n"
        "def good(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2)), X\n"
        "class Odd(torch.nn.Module):\n"
        "    def forward(self, x): return torch.special.i0(x).flatten(1)\n"
        "def odd(): return Odd(), X\n"
        "def broken(): raise RuntimeError('no such layer')\n"
        "def crash(): os.kill(os.getpid(), signal.SIGSEGV)\n"
        "def killed(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "def hang(): time.sleep(600)\n"
        "def large(): raise MemoryError\n"
        "def noted_hang(): open('pid', 'w').write(str(os.getpid())); time.sleep(600)\n"
        "def lasting(): time.sleep(4); return good()\n"
        "def slow(): time.sleep(30)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    return lambda *names: [f"zoo_of_trouble:{name}" for name in names]


@pytest.fixture(scope="module")
def browser():
    """Chromium, driven by Playwright."""
    pytest.importorskip("playwright")
    from helpers.browser import chromium

    if chromium.find() is None:
        pytest.skip("there is no Chromium, and none could be installed: scripts/chromium.py")
    with chromium.opened() as found:
        yield found


@pytest.fixture(scope="session")
def controller():
    """Who explains what is asked on the page."""
    from hilrp.app.controller import Controller
    from hilrp.app.models import Models

    return Controller(Models())


@pytest.fixture(scope="session")
def scenes():
    """Some scenes: the picture, the name of a class that is in it, and where that is, as files."""
    from helpers.runs import some_scenes

    return some_scenes()
