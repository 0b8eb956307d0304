"""What a model computed on an input, operation by operation, for passes that are relative to that input.

In a chain each state is the input of one step and the reference of the next, and all chains begin with the same
reference. So what a pass computes is kept, in order, and the next one is handed the results instead of running every
operation on its reference once more.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hilrp.util.errors import ModelError
from hilrp.util.nested import map_tensors


class OtherWay(ModelError):
    """The model ran other operations than those that were kept: they have to run once more."""


@dataclass
class Tape:
    """The operations of a pass, in order: what they were called with besides tensors, and their results."""

    entries: list[tuple[Hashable, Any]] = field(default_factory=list)

    def keep(self, call: Hashable, output: Any) -> None:
        """Adds an operation; its result is kept without a graph."""
        self.entries.append((call, map_tensors(Tensor.detach, output)))


@dataclass
class Tapes:
    """What a pass relative to a reference is handed, and what it is to keep.

    Attributes:
        played: What the model computed on the reference, if it has run on it before.
        inputs: Where to keep what it computes on the input.
        references: Where to keep what it computes on the reference, if it has to.
    """

    played: Tape | None = None
    inputs: Tape | None = None
    references: Tape | None = None
    _place: int = 0

    def begin(self) -> None:
        """Begins anew: the model may have to run a second time."""
        self._place = 0
        for kept in (self.inputs, self.references):
            if kept is not None:
                kept.entries.clear()

    def next(self, call: Hashable) -> Any:
        """The result of the next operation on the reference."""
        assert self.played is not None
        if self._place >= len(self.played.entries) or self.played.entries[self._place][0] != call:
            raise OtherWay("The model took another way than on the reference, where it ran before.")
        self._place += 1
        return self.played.entries[self._place - 1][1]


def described(name: str, args: Any, kwargs: Any) -> Hashable:
    """An operation, and the numbers that it was given besides tensors."""
    return name, _numbers(args), _numbers(tuple(kwargs.values())) if kwargs else ()


def _numbers(tree: Any) -> Hashable:
    if isinstance(tree, (tuple, list)):
        return tuple(map(_numbers, tree))
    return tree if isinstance(tree, (int, float, str)) else None
