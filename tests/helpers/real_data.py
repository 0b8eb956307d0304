"""Real checkpoints and photographs of the shared material, which is not a part of the checkout."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from helpers.paths import ROOT

SHARED = Path(os.environ.get("HILRP_SHARED") or ROOT.parent / "shared")


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
    "vit_small_patch14_dinov2": {"img_size": 112},
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
