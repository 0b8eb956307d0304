"""What a model computed on an input, operation by operation, for passes that are relative to that input.

In a chain each state is the input of one step and the reference of the next, and all chains begin with the same
reference. So what a pass computes is kept, in order, and the next one is handed the results instead of running every
operation on its reference once more.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hilrp.util.errors import ModelError
from hilrp.util.nested import map_tensors, tensors


class OtherWay(ModelError):
    """The model ran other operations than those that were kept: they have to run once more."""


@dataclass
class Tape:
    """The operations of a pass, in order: what they were called with (see `described`), and their results."""

    entries: list[tuple[Hashable, Any]] = field(default_factory=list)

    def keep(self, call: Hashable, output: Any) -> None:
        """Adds an operation; its result is kept without a graph."""
        self.entries.append((call, map_tensors(Tensor.detach, output)))


@dataclass
class Names:
    """Names for the tensors of a pass that are the same in every pass of the model.

    The number of the result that a tensor is, which parameter or buffer, or else its form. So a call can be told from
    another one that has the same numbers and is given other tensors.
    """

    held: frozenset[int] = frozenset()
    _results: dict[int, tuple[weakref.ref[Tensor], int]] = field(default_factory=dict)
    _count: int = 0

    def add(self, output: Any) -> None:
        """Numbers the results of an operation."""
        for t in tensors(output):
            self._results[id(t)] = weakref.ref(t), self._count
            self._count += 1

    def of(self, t: Tensor) -> Hashable:
        """The name of a tensor."""
        found = self._results.get(id(t))
        if found is not None and found[0]() is t:
            return found[1]
        if id(t) in self.held:
            return "held", id(t), t._version
        return tuple(t.shape), str(t.dtype)


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

    @property
    def used(self) -> bool:
        """Whether there is anything to play or to keep."""
        return not (self.played is self.inputs is self.references is None)

    def begin(self) -> None:
        """Begins anew: the model may have to run a second time."""
        self._place = 0
        for kept in (self.inputs, self.references):
            if kept is not None:
                kept.entries.clear()

    def end(self) -> None:
        """Raises if the model ran fewer operations than those that were kept."""
        if self.played is not None and self._place != len(self.played.entries):
            raise OtherWay("The model took a shorter way than on the reference, where it ran before.")

    def next(self, call: Hashable) -> Any:
        """The result of the next operation on the reference."""
        assert self.played is not None
        if self._place >= len(self.played.entries) or self.played.entries[self._place][0] != call:
            raise OtherWay("The model took another way than on the reference, where it ran before.")
        self._place += 1
        return self.played.entries[self._place - 1][1]


def described(name: str, args: Any, kwargs: Any, names: Names) -> Hashable:
    """An operation, and what it was given: numbers as they are, tensors by name."""

    def plain(tree: Any) -> Hashable:
        if isinstance(tree, Tensor):
            return names.of(tree)
        if isinstance(tree, (tuple, list)):
            return tuple(map(plain, tree))
        if isinstance(tree, slice):
            return "slice", plain(tree.start), plain(tree.stop), plain(tree.step)
        if isinstance(tree, (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)):
            return tree
        return "...", type(tree).__name__

    return name, plain(args), tuple((key, plain(value)) for key, value in kwargs.items())
