"""Calls of torch's kernels and the memory that they hold, counted on a CPU, where no allocator keeps a record."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Count(TorchDispatchMode):
    """Counts calls, and the memory that they allocated and that is alive.

    Attributes:
        calls: How many calls there were.
        alive: Bytes that are held now.
        peak: The most bytes that were held at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.alive = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # What was there before, weights above all, may come out again as a view, and was not allocated here.
        self._note((args, kwargs), ours=False)
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        self._note(out, ours=True)
        self.peak = max(self.peak, self.alive)
        return out

    def _note(self, values: Any, ours: bool) -> None:
        for t in tree_leaves(values):
            storage = t.untyped_storage() if isinstance(t, torch.Tensor) else None
            if storage is None or storage._cdata in self._known:
                continue
            self._known[storage._cdata] = storage.nbytes() if ours else 0
            self.alive += self._known[storage._cdata]
            weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, key: int) -> None:
        self.alive -= self._known.pop(key, 0)
