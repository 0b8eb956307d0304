"""What several tests share: small models, real checkpoints and photographs, and the model's own output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

SHARED = Path(os.environ.get("HILRP_SHARED") or Path(__file__).resolve().parents[2] / "shared")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def swin() -> torch.nn.Module:
    """A small Swin for images of 64 x 64."""
    from models import small_swin

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


def shared(*parts: str) -> Path:
    """A file of the shared material, or a skip that says what is missing."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is not there: put the shared material beside the checkout or set HILRP_SHARED")
    return path


CHECKPOINTS = {
    "deit_tiny_patch16_224": {},
    "tiny_vit_5m_224": {"num_classes": 1000},
    "mobilenetv2_100": {},
    "vit_small_patch14_dinov2": {"img_size": 224},
}


def load_checkpoint(name: str) -> tuple[torch.nn.Module, object]:
    """A real pretrained model and its preprocessing."""
    import timm
    from safetensors.torch import load_file
    from timm.models.vision_transformer import checkpoint_filter_fn

    weights = load_file(shared("checkpoints", f"{name}.safetensors"))
    model = timm.create_model(name, **CHECKPOINTS[name]).eval()
    if "img_size" in CHECKPOINTS[name]:  # the position embedding is resampled to the smaller image
        weights = checkpoint_filter_fn(weights, model)
    model.load_state_dict(weights)
    config = timm.data.resolve_data_config({}, model=model)
    size = CHECKPOINTS[name].get("img_size", config["input_size"][-1])
    return model, timm.data.create_transform(**{**config, "input_size": (3, size, size)})


def photographs(transform: object, count: int) -> torch.Tensor:
    """The first photographs of the shared ImageNet sample, preprocessed."""
    from PIL import Image

    index = json.loads(shared("images", "imagenet_val", "index.json").read_text())
    files = [shared("images", "imagenet_val", item["file"]) for item in index[:count]]
    return torch.stack([transform(Image.open(file).convert("RGB")) for file in files])


@pytest.fixture(scope="session")
def desk():
    """Who explains what is asked on the page."""
    from hilrp.app.controller import Desk
    from hilrp.app.models import Models

    return Desk(Models())


@pytest.fixture(scope="session")
def scenes():
    """Some scenes: the picture, the name of a class that is in it, and where that is, as files."""
    from runs import some_scenes

    return some_scenes()
