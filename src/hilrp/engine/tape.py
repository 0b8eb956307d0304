"""What a model computed on an input, operation by operation, for passes that are relative to that input.

In a chain each state is the input of one step and the reference of the next, and all chains begin with the same
reference. So what a pass computes is kept, in order, and the next one is handed the results instead of running every
operation on its reference once more.

Where all samples of a batch have the same reference, it is run as one sample (`Tapes.alone`), and its results are laid
out beside those of the batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hilrp.util.errors import ModelError
from hilrp.util.nested import map_tensors, tensors

#: Operations whose numbers are sizes, which grow with the number of samples. The last two are the engine's own.
_OF_SIZES = frozenset(["view", "reshape", "unflatten", "expand", "broadcast_to", "as_strided", "laid_out", "write"])


class OtherWay(ModelError):
    """The model ran other operations than those that were kept: they have to run once more."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that does not depend on the input, and is none of the model's own: it may be another for more samples.

    Attributes:
        value: What it is; a copy, where it is kept.
    """

    value: Tensor

    def is_same_for(self, other: Tensor, batch: int, compares: bool) -> bool:
        """Whether another one is the same for every sample of a batch; without ``compares``, by its form alone."""
        one = self.value
        if (one.dtype, one.device, one.ndim) != (other.dtype, other.device, other.ndim):
            return False
        if any(a != b and (a, b) != (1, batch) for a, b in zip(one.shape, other.shape, strict=True)):
            return False
        return not compares or torch.equal(one.expand_as(other), other)


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

    Attributes:
        held: The model's own tensors.
        varies: Whether a tensor depends on the input. Where this is given, other tensors go by their values.
        copies: Whether these are copied, since the model may write to them.
    """

    held: frozenset[int] = frozenset()
    varies: Callable[[Tensor], bool] | None = None
    copies: bool = False
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
            return f"result {found[1]}"
        if id(t) in self.held:
            return f"held {id(t)} {t._version}"
        if self.varies is None:
            return tuple(t.shape), str(t.dtype)
        if self.varies(t):
            return t.ndim, str(t.dtype)
        return Constant(t.detach().clone() if self.copies else t.detach())


@dataclass
class Tapes:
    """What a pass relative to a reference is handed, and what it is to keep.

    Attributes:
        played: What the model computed on the reference, if it has run on it before.
        inputs: Where to keep what it computes on the input.
        references: Where to keep what it computes on the reference, if it has to.
        alone: Whether the input is the reference itself, and nothing but values is asked for.
        batch: How many samples of the input there are for each one that was played.
        compares: Whether constants of the two are compared by value, which asks the device for an answer.
    """

    played: Tape | None = None
    inputs: Tape | None = None
    references: Tape | None = None
    alone: bool = False
    batch: int = 1
    compares: bool = True
    _place: int = 0

    @property
    def used(self) -> bool:
        """Whether there is anything to play or to keep."""
        return not (self.played is self.inputs is self.references is None)

    @property
    def one_for_all(self) -> bool:
        """Whether one sample of the reference stands for all samples of the input, in this pass or in the next."""
        return self.alone or self.batch > 1

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
        if self._place >= len(self.played.entries) or not self._agree(self.played.entries[self._place][0], call):
            raise OtherWay("The model took another way than on the reference, where it ran before.")
        self._place += 1
        return self.played.entries[self._place - 1][1]

    def _agree(self, kept: Any, now: Any) -> bool:
        """Whether a call is the one that was kept; for more samples, sizes may be larger."""
        if self.batch == 1:
            return bool(kept == now)
        return self._same(kept, now, self.batch if kept[0] in _OF_SIZES else 1)

    def _same(self, kept: Any, now: Any, growth: int) -> bool:
        if isinstance(kept, Constant):
            return isinstance(now, Constant) and kept.is_same_for(now.value, self.batch, self.compares)
        if isinstance(kept, tuple) and isinstance(now, tuple):
            return len(kept) == len(now) and all(self._same(*pair, growth) for pair in zip(kept, now, strict=True))
        return bool(kept == now) or (type(kept) is type(now) is int and now == kept * growth)


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


def of_steps(steps: int, start: Tape | None) -> Iterator[Tapes]:
    """The tapes of each step of a chain: each is handed what the step before has kept.

    The first one is handed what is kept of the chain's first state, or keeps it there; without a tape for it, all run
    on their own.
    """
    played = start if start is not None and start.entries else None
    for step in range(steps):
        kept = Tape() if start is not None and step + 1 < steps else None
        yield Tapes(played, kept, start if step == 0 and played is None else None)
        played = kept
