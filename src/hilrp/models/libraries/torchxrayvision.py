"""torchxrayvision: its architectures for radiographs with random weights, and its published classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
import torchxrayvision as xrv
from PIL import Image
from torch import Tensor, nn

from hilrp.models import checkpoint_files, weights
from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.models.libraries.recipe import Recipe, download
from hilrp.models.libraries.small import Small, Table


def _densenet(classes: int = 18) -> nn.Module:
    model: nn.Module = xrv.models.DenseNet(weights=None, num_classes=classes, in_channels=1)
    return model


def _reconstruction(output: Any) -> Tensor:
    found: Tensor = output["out"].flatten(1).mean(1)
    return found


#: Its other classifiers can't be made without their weights, which are downloaded.
_TABLE = Table("torchxrayvision", {
    "DenseNet": Small(_densenet, (1, 224, 224)),
    "ResNetAE50": Small(xrv.autoencoders.ResNetAE50, (1, 224, 224), _reconstruction),
})  # fmt: skip
names, kinds = _TABLE.names, _TABLE.kinds
#: What the published classifiers are called (the ResNet can't be made without a pickle of it), the side of their
#: pictures, and between minus and plus what radiographs lie.
_KIND, _SIDE, _RANGE = "densenet121-", 224, 1024.0


def trained() -> list[str]:
    """The published weights (``densenet121-res224-all``)."""
    return [name for name in xrv.models.model_urls if name.startswith(_KIND)]


def find(name: str) -> str | None:
    """A network of the table, or published weights."""
    return _TABLE.find(name) or next((each for each in trained() if each == name.lower()), None)


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """A small random network; or the network of published weights, with or without these."""
    if name not in trained():
        return _TABLE.recipe(name, pretrained, size)
    side = size or _SIDE
    model = _published(name) if pretrained else _densenet()
    return Recipe(model, lambda n: torch.rand(n, 1, side, side) * 2 * _RANGE - _RANGE)


def load(name: str, checkpoint: str | Path | None = None) -> Loaded:
    """A classifier of radiographs with published weights, or those of a checkpoint; its scores are logits.

    What the library makes of these besides (a sigmoid, and a scale by operating points) comes after what is explained.
    """
    if name not in trained():
        return _TABLE.load(name, checkpoint)
    if checkpoint is None:
        model: Any = _published(name)
    else:
        model = weights.fitted(lambda n: _densenet(n or 18), checkpoint_files.read(checkpoint), name, checkpoint)
    # From -1024 to 1024, seen as from 0 to 1: one channel, shown as three.
    preprocess = Preprocess(_prepared, (0.5,) * 3, (1 / (2 * _RANGE),) * 3)
    return Loaded(f"torchxrayvision/{name}", model, preprocess, xrv.models.model_urls[name]["labels"])


def _published(name: str) -> Any:
    """The published weights in a network that returns logits.

    They are pickles of whole models: read with torch's restricted loading, in which nothing but layers can be made.
    """

    def read() -> Any:
        file = xrv.models.get_weights(name)
        with torch.serialization.safe_globals(_layers()):
            held = torch.load(file, map_location="cpu", weights_only=True)
        made = _densenet(len(xrv.models.model_urls[name]["labels"]))
        made.load_state_dict(held.state_dict() if isinstance(held, nn.Module) else held)
        return made

    return download(name, read, xrv.models.model_urls[name]["weights_url"])


def _layers() -> list[Any]:
    """The classes that a pickled network consists of: torch's layers, and the library's and torchvision's blocks."""
    modules = (nn, xrv.models, torchvision.models.densenet)
    found = [each for module in modules for each in vars(module).values()]
    return [each for each in found if isinstance(each, type) and issubclass(each, nn.Module)] + [set]


def _prepared(picture: Any) -> Tensor:
    """A radiograph in grey, its middle square, scaled to the side of the network's pictures."""
    grey = picture.convert("L")
    short = min(grey.size)
    left, top = (grey.width - short) // 2, (grey.height - short) // 2
    square = grey.crop((left, top, left + short, top + short)).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    return (torch.from_numpy(np.array(square)).float() / 255 * 2 - 1)[None] * _RANGE
