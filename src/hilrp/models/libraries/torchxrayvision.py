"""torchxrayvision: its architectures for radiographs, with random weights."""

from __future__ import annotations

from typing import Any

import torchxrayvision as xrv
from torch import Tensor, nn

from hilrp.models.libraries.small import Small, Table


def _densenet() -> nn.Module:
    model: nn.Module = xrv.models.DenseNet(weights=None, num_classes=18, in_channels=1)
    return model


def _reconstruction(output: Any) -> Tensor:
    found: Tensor = output["out"].flatten(1).mean(1)
    return found


#: Its other classifiers can't be made without their weights, which are downloaded.
_TABLE = Table("torchxrayvision", {
    "DenseNet": Small(_densenet, (1, 224, 224)),
    "ResNetAE50": Small(xrv.autoencoders.ResNetAE50, (1, 224, 224), _reconstruction),
})  # fmt: skip
names, kinds, find, recipe = _TABLE.names, _TABLE.kinds, _TABLE.find, _TABLE.recipe
trained, load = _TABLE.trained, _TABLE.load
