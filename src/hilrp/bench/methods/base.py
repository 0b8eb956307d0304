"""What an attribution method is to the benchmark: a function from a model, inputs and classes to maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hilrp.errors import HilrpError

#: From a model in evaluation mode, inputs ``[B,3,H,W]`` and a class for each, ``[B]``, to maps ``[B,H,W]``; perhaps with options.
Function = Callable[..., Tensor]


#: Images that go through a method at once.
_BATCH = 16


class Undefined(HilrpError):
    """The method has no meaning on this model: the benchmark shows a dash instead of inventing something."""


@dataclass(frozen=True)
class Method:
    """A method of the benchmark.

    Attributes:
        name: Its name on the command line.
        title: Its name in tables.
        kind: ``"cam"``, ``"attention"``, ``"gradient"``, ``"perturbation"``, ``"relevance"`` or ``"control"``.
        function: What it does.
        rules: The preset, of a relevance method.
        options: What is not as it is by default.
        signed: Whether negative values speak against the class; else only the order of the values counts.
    """

    name: str
    title: str
    kind: str
    function: Function
    signed: bool = True
    rules: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        """The maps ``[B,H,W]`` of the classes ``target`` of the inputs ``x``; raises `Undefined` where it has no meaning."""
        parts = zip(x.split(_BATCH), target.split(_BATCH), strict=True)
        return torch.cat([self.function(model, a, b, **dict(self.options)).detach() for a, b in parts])


def one_by_one(function: Function) -> Function:
    """A function of single images as one of batches: what it draws by chance is then the same whatever else is in the batch."""

    @wraps(function)
    def batched(model: nn.Module, x: Tensor, target: Tensor, **options: Any) -> Tensor:
        found = []
        for i in range(len(x)):
            with seeded(x.device):
                found.append(function(model, x[i : i + 1], target[i : i + 1], **options))
        return torch.cat(found)

    return batched


@contextmanager
def seeded(device: torch.device) -> Iterator[None]:
    """Chance that is the same in every run, and leaves the caller's alone."""
    # captum draws from numpy's global generator too.
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
