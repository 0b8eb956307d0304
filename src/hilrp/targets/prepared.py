"""Targets that need to see the input, or what the model makes of another one, before it is explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Needs(Protocol):
    """A target that becomes a function of the output once the input is known."""

    def prepare(self, x: Any, run: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
        """The function, for an input; ``run`` is the model, without a graph."""
        ...


def settled(target: Any, x: Any, run: Callable[[Any], Any]) -> Any:
    """A target as a function of the output, where it needs the input to be one."""
    return target.prepare(x, run) if isinstance(target, Needs) else target
