"""Libraries whose models are built from arguments: a table of small ones with random weights, one of each family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.models.libraries.loaded import Loaded
from hilrp.models.libraries.recipe import Recipe, strongest
from hilrp.util.errors import InputError


@dataclass(frozen=True)
class Small:
    """A small model.

    Attributes:
        make: Makes it, with random weights.
        shape: Of a sample that it takes.
        target: What of its output is explained.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    target: Callable[[Any], Tensor] = strongest


@dataclass(frozen=True)
class Table:
    """The functions of a library (see `hilrp.models.libraries`) whose models are those of a table.

    Attributes:
        library: Its name.
        models: Name -> model.
    """

    library: str
    models: Mapping[str, Small]

    def names(self) -> list[str]:
        """All models."""
        return list(self.models)

    kinds = names

    def trained(self) -> list[str]:
        """None: their weights are random."""
        return []

    def find(self, name: str) -> str | None:
        """The name as it is in the table, however it is capitalised."""
        return next((each for each in self.models if each.lower() == name.lower()), None)

    def recipe(self, name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
        """A small random model."""
        small = self.models[name]
        if pretrained:
            raise InputError(self._without_weights(name))
        if size not in (None, small.shape[-1]):
            raise InputError(
                f"{self.library}/{name} is a small model for inputs of {' x '.join(map(str, small.shape[1:]))}."
            )
        return Recipe(small.make(), lambda batch: torch.randn(batch, *small.shape), small.target)

    def load(self, name: str, checkpoint: str | Path | None = None) -> Loaded:
        """None can be loaded: an error that says what to do."""
        raise InputError(self._without_weights(name))

    def _without_weights(self, name: str) -> str:
        return (
            f"{self.library}/{name} is a small model for audits, with random weights. Build the one that you trained, "
            "load its weights, and call hilrp.explain(model, x); a function of yours (module:factory) that returns "
            "(model, inputs) can be audited, too."
        )
