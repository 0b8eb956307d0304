"""Collections whose members are drawn when they are asked for, each from its own number."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar, overload

import numpy as np

from hilrp.util.errors import InputError

_Member = TypeVar("_Member")


class Numbered(Sequence[_Member], Generic[_Member]):
    """Number ``i`` of a seed is always the same, however many there are and whatever came before.

    Args:
        seed: Which collection.
        count: How many.
    """

    #: What a member is called.
    what: ClassVar[str]

    def __init__(self, seed: int, count: int) -> None:
        if seed < 0:
            raise InputError(f"seed={seed}: give a number from 0 on.")
        self.seed, self._length = seed, count

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[_Member]:
        return (self[i] for i in range(self._length))

    @overload
    def __getitem__(self, index: int) -> _Member: ...
    @overload
    def __getitem__(self, index: slice) -> list[_Member]: ...
    def __getitem__(self, index: Any) -> Any:
        """Member ``index``."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        number = index + self._length if index < 0 else index
        if not 0 <= number < self._length:
            raise IndexError(f"{self.what} {index} of {self._length}")
        return self._make(np.random.default_rng([self.seed, number]))

    @abstractmethod
    def _make(self, rng: np.random.Generator) -> _Member:
        """Draws a member."""
