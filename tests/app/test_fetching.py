"""Weights are fetched by a process that ends with the tab that waits for them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import hilrp
from hilrp.app import fetching
from hilrp.app.models import Models
from hilrp.app.stopping import Stopped
from hilrp.util.errors import InputError

ENDLESS = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"


def program(monkeypatch, text: str) -> None:
    monkeypatch.setattr(fetching, "_COMMAND", [sys.executable, "-c", text])


def ended(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_it_ends_with_the_tab(monkeypatch, tmp_path):
    program(monkeypatch, ENDLESS)
    gone, note = threading.Event(), tmp_path / "process"
    threading.Timer(1.0, gone.set).start()
    started = time.monotonic()
    with pytest.raises(Stopped):
        fetching.fetch(str(note), gone)
    assert time.monotonic() - started < 10
    assert ended(int(note.read_text()))


def test_what_went_wrong_is_said(monkeypatch):
    program(monkeypatch, "print('some_model: no connection.'); raise SystemExit(1)")
    with pytest.raises(InputError, match="some_model: no connection"):
        fetching.fetch("some_model", threading.Event())
    program(monkeypatch, "raise SystemExit(9)")
    with pytest.raises(InputError, match="some_model: its weights could not be fetched"):
        fetching.fetch("some_model", threading.Event())


def test_only_what_is_not_in_a_cache_is_fetched(monkeypatch, tmp_path):
    """The page's own process fetches nothing; what the other one has fetched is loaded from the cache."""
    from hilrp.models.libraries.connection import unreachable

    asked, fetched = [], []

    def load(name, device):
        asked.append(unreachable("http://127.0.0.1:9/weights"))
        if not fetched and name == "resnet18":
            raise InputError("not in the cache")
        return name

    monkeypatch.setattr("hilrp.app.models.load", load)
    monkeypatch.setattr("hilrp.app.models.fetch", lambda name, gone: fetched.append(name))
    assert Models().get("resnet18") == "resnet18"
    assert fetched == ["resnet18"]
    assert "is not asked" in asked[0]
    assert "is not asked" not in asked[1]
    Models().get("zoo/swin")
    assert fetched == ["resnet18"]


def test_it_ends_with_the_server():
    """Whose end of standard input is then closed."""
    command = [sys.executable, "-m", "hilrp.app.fetching", "zoo/swin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        process.stdin.close()
        assert process.wait(60) == 1


def test_what_lies_in_the_folder_is_no_library(monkeypatch, tmp_path):
    """A file of that name where the page was started is not run, even where PYTHONPATH ends with a colon."""
    monkeypatch.setenv("PYTHONPATH", str(Path(hilrp.__file__).parents[1]) + os.pathsep)
    for name in ("timm", "hilrp", "huggingface_hub"):
        (tmp_path / f"{name}.py").write_text("open('was_run', 'w').close()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="published weights could not be loaded"):
        fetching.fetch("resnet10t", threading.Event())
    assert not (tmp_path / "was_run").exists()
