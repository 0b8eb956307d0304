"""The zoo: small models of every family, trained on scenes, that come with the package."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_bytes
from torch import Tensor, nn

from hilrp import checkpoints
from hilrp.errors import InputError
from hilrp.libraries.loaded import Loaded, Preprocess
from hilrp.libraries.recipe import Recipe, images
from hilrp.scenes import CLASSES
from hilrp.zoo.architectures import ARCHITECTURES, SIZE

_WEIGHTS = files("hilrp.zoo") / "weights"


def names() -> list[str]:
    """All families."""
    return list(ARCHITECTURES)


def trained() -> list[str]:
    """All of them."""
    return names()


def find(name: str) -> str | None:
    """The name itself, if the zoo has it."""
    return name if name in ARCHITECTURES else None


@cache
def card(name: str) -> dict[str, Any]:
    """What is known of a model: architecture, seed, accuracy, date, checksum."""
    found: dict[str, Any] = json.loads((_WEIGHTS / f"{name}.json").read_text())
    return found


def model(name: str) -> nn.Module:
    """A model with its weights, which are checked against their card."""
    data = (_WEIGHTS / f"{name}.safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != card(name)["sha256"]:
        raise InputError(f"zoo/{name}: its weights are not those that were shipped. Install hilrp again.")
    made = ARCHITECTURES[name].make()
    made.load_state_dict(load_bytes(data))
    return made


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """A model of the zoo; always a trained one, for images of 128 x 128."""
    if size not in (None, SIZE):
        raise InputError(f"zoo/{name} takes images of {SIZE} x {SIZE}.")
    return Recipe(model(name), images(SIZE))


def load(name: str, checkpoint: str | Path | None = None) -> Loaded:
    """A model of the zoo with its own weights, or those of a checkpoint."""
    preprocess = Preprocess(_preprocess, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    if checkpoint is None:
        return Loaded(f"zoo/{name}", model(name), preprocess, list(CLASSES), "the zoo's own weights")
    found = checkpoints.fitted(ARCHITECTURES[name].make, checkpoints.read(checkpoint), name, checkpoint)
    return Loaded(f"zoo/{name}", found, preprocess, list(CLASSES))


def _preprocess(image: Any) -> Tensor:
    """Short side to 128 pixels, the middle of it, values from -1 to 1; a scene stays as it is."""
    from PIL import ImageOps

    fitted = image if image.size == (SIZE, SIZE) else ImageOps.fit(image, (SIZE, SIZE))
    pixels = torch.from_numpy(np.array(fitted.convert("RGB"))).permute(2, 0, 1)
    return pixels.float() / 127.5 - 1
