"""Chains: more truth for more passes, with every unit of relevance still in the books.

Let ``x`` be an input, ``x0`` its reference, and ``m`` a mask from 0 to 1. Relevance of ``x0 + m (x - x0)`` relative to
``x0`` sums to the difference of their scores, and relevance of ``x`` relative to it sums to the rest. So the two
together are a map that sums to ``f(x) - f(x0)``, whatever the mask; and so is the sum along any chain of states that
begins with the reference and ends with the input. `Chains` draws such chains at random, and their mean is the map.

With one step it is the map of one pass. With as many steps as cells it is the estimate of the cells' Shapley values
from the same orders. In between, each step says what its part of the picture adds to what is already there.

Chains come in pairs: the second takes the parts of the first in the opposite order (antithetic sampling). How far the
pairs are apart says how sure the map is: see `hilrp.attribution.error_bars`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from hilrp.attribution.combined import weighted
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.kinds import Kind, main_input, places
from hilrp.method.ledger import REFERENCE, Ledger
from hilrp.util.errors import InputError
from hilrp.util.nested import map_tensors, tensors

#: Steps and cells by the least number of passes that they are taken from.
BUDGETS: tuple[tuple[int, int, int], ...] = ((2, 2, 7), (32, 4, 7))
#: How wide the border between two steps is, as a part of the area of one step: hard borders show in the map.
SOFTNESS = 1.0
_SEED_LIMIT = 2**63 - 1


@dataclass(frozen=True, eq=False)
class Chains:
    """How chains from the reference to the input are drawn.

    Attributes:
        steps: Into how many steps a chain is cut. Each is one pass.
        draws: How many chains are drawn: one, or an even number, since they come in pairs.
        cells: How many patches of random height lie along the shorter side of a picture; a step is what lies between
            two heights, with soft borders. Or cells of your own, as numbers from 0: ``[H,W]``, or ``[B,H,W]``, or in
            whatever form a map has. They are taken whole, in a random order; with as many steps as cells the result is
            an estimate of their Shapley values.
        fill: What the states between hold where a part is not there yet: the reference, or one of its own, in any form
            that ``reference=`` takes.
        seed: Chains depend on this and on the sample, and on nothing else: not on the batch, nor on the target.

    Example:
        >>> Chains.of(8)
        Chains(steps=2, draws=4, cells=7)
    """

    steps: int = 2
    draws: int = 4
    cells: int | Tensor = 7
    fill: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("draws", 1), ("seed", 0)):
            value = getattr(self, name)
            if not _is_whole(value) or value < least:
                raise InputError(f"Chains({name}={value!r}): give a whole number, {least} or more.")
        if self.draws > 1 and self.draws % 2:
            raise InputError(f"Chains(draws={self.draws}): give 1 or an even number, since chains come in pairs.")
        if isinstance(self.cells, Tensor):
            _check_cells(self.cells, self.steps)
        elif not _is_whole(self.cells) or self.cells < 1:
            raise InputError(f"Chains(cells={self.cells!r}): give a whole number, or a tensor of cell numbers [H,W].")

    def __repr__(self) -> str:
        cells = tuple(self.cells.shape) if isinstance(self.cells, Tensor) else self.cells
        fill = tuple(self.fill.shape) if isinstance(self.fill, Tensor) else self.fill
        others = [] if fill is None else [f"fill={fill!r}"]
        others += [f"seed={self.seed}"] if self.seed else []
        return f"Chains({', '.join([f'steps={self.steps}', f'draws={self.draws}', f'cells={cells}', *others])})"

    @property
    def passes(self) -> int:
        """How many passes they take."""
        return self.steps * self.draws

    @staticmethod
    def of(passes: Any) -> Chains:
        """The chains for a number of passes; chains are returned as they are."""
        if isinstance(passes, Chains):
            return passes
        if not _is_whole(passes) or passes < 1:
            raise InputError(f"passes={passes!r}: give a whole number, 1 or more, or hilrp.Chains(...).")
        if passes == 1:
            return Chains(steps=1, draws=1)
        steps, cells = next((steps, cells) for least, steps, cells in reversed(BUDGETS) if passes >= least)
        if passes == steps or passes % (2 * steps) == 0:
            return Chains(steps, passes // steps, cells)
        below = passes - passes % (2 * steps) or 2
        raise InputError(
            f"passes={passes}: chains come in pairs of {steps} steps each. Give {below} or "
            f"{passes - passes % (2 * steps) + 2 * steps}, or hilrp.Chains(steps=, draws=)."
        )

    @staticmethod
    def fewest(pairs: int) -> int:
        """The least power of two of passes that is at least so many pairs of chains.

        Example:
            >>> Chains.fewest(2), Chains.fewest(4)
            (8, 16)
        """
        passes = 2
        while Chains.of(passes).draws < 2 * pairs:
            passes *= 2
        return passes

    def chain(
        self, x: Any, reference: Any, fill: Any, batch: int, draw: int, kind: Kind | None = None
    ) -> Iterator[Any]:
        """The states of one chain, from the reference to the input, which may be of a kind that was said."""
        main = main_input(x, kind, batch)

        def axes(t: Tensor) -> tuple[int, ...]:
            if main is None or t is not main[0]:
                return places(t)
            # Cells of features and of tokens are in the form of the map, too.
            return main[1].axes(tuple(t.shape)) or ((1,) if isinstance(self.cells, Tensor) else ())

        own = [(i, t) for i, t in enumerate(tensors(x)) if _is_varied(t, batch)]
        orders = {id(t): (self._order(t, axes(t), i, draw // 2), bool(axes(t))) for i, t in own}
        columns = list(zip(tensors(x), tensors(fill), strict=True))
        yield reference
        for step in range(1, self.steps):
            state = {id(t): self._between(t, t0, orders.get(id(t)), step, draw % 2) for t, t0 in columns}
            yield map_tensors(lambda t, state=state: state[id(t)], x)  # type: ignore[misc]
        yield x

    def _between(self, x: Tensor, fill: Tensor, order: tuple[Tensor, bool] | None, step: int, turned: int) -> Tensor:
        """A state; the second chain of a pair takes what the first one leaves."""
        if order is None:
            return x
        mask = 1 - self._mask(*order, self.steps - step) if turned else self._mask(*order, step)
        mask = mask.to(x)
        # Where nothing is hidden the state is the input to the bit, and where all is, the fill.
        state = torch.where(mask == 1, x, torch.where(mask == 0, fill, fill + mask * (x - fill)))
        # In memory as the input is, which the model may view.
        return torch.empty_like(x).copy_(state)

    def _mask(self, order: Tensor, has_places: bool, step: int) -> Tensor:
        """How much of each place has joined after so many steps."""
        there = (step / self.steps - order) * self.steps
        if isinstance(self.cells, Tensor) or not has_places:
            return (there > 0).to(order)
        return (0.5 + there / SOFTNESS).clamp(0, 1)

    def _order(self, t: Tensor, axes: tuple[int, ...], number: int, pair: int) -> Tensor:
        """When each place of an input joins the chain, from 0 to 1, in a form that fits the input."""
        generators = [_generator(self.seed, own, number, pair) for own in _keys(t)]
        if not axes:
            # What has no places joins by the entry of its second axis: a token, a feature; a number alone.
            drawn = [torch.rand(t.shape[1:2] or (1,), generator=each) for each in generators]
            return torch.stack(drawn).to(t.device).reshape(t.shape[:2] + (1,) * (t.ndim - 2))
        if isinstance(self.cells, Tensor):
            return self._order_of_cells(self.cells, t, axes, generators)
        heights = _heights([t.shape[axis] for axis in axes], self.cells, generators).to(t.device)
        spread = [t.shape[axis] if axis in (0, *axes) else 1 for axis in range(t.ndim)]
        return _evenly(heights.flatten(1)).reshape(spread)

    @staticmethod
    def _order_of_cells(cells: Tensor, t: Tensor, axes: tuple[int, ...], generators: list[torch.Generator]) -> Tensor:
        size = tuple(t.shape[axis] for axis in axes)
        if tuple(cells.shape) not in (size, (1, *size), (len(t), *size)):
            raise InputError(
                f"Chains(cells=...) has the shape {tuple(cells.shape)}, the input {tuple(t.shape)}: give {size}, or "
                f"one for each sample, {(len(t), *size)}."
            )
        count = int(cells.max()) + 1
        drawn = torch.stack([torch.randperm(count, generator=each) for each in generators]).to(t.device)
        labels = cells.to(t.device).long().expand(len(t), *size).flatten(1)
        spread = [t.shape[axis] if axis in (0, *axes) else 1 for axis in range(t.ndim)]
        return ((drawn.gather(1, labels) + 0.5) / count).reshape(spread)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _check_cells(cells: Tensor, steps: int) -> None:
    if cells.is_floating_point() or cells.is_complex() or cells.dtype == torch.bool or not 1 <= cells.ndim <= 4:
        raise InputError(
            f"Chains(cells=...) is a tensor of {cells.dtype} of shape {tuple(cells.shape)}: give cell numbers, whole "
            "and from 0, [H,W] or [B,H,W] (of volumes [D,H,W])."
        )
    if not cells.numel() or int(cells.min()) < 0:
        raise InputError("Chains(cells=...) holds no cell, or a negative number: cells are counted from 0.")
    if int(cells.max()) + 1 < steps:
        raise InputError(f"Chains(steps={steps}): there are {int(cells.max()) + 1} cells. Take at most as many steps.")


def _is_varied(t: Tensor, batch: int) -> bool:
    """Whether an input has a reference of its own; others are held fixed."""
    return t.is_floating_point() and t.shape[:1] == (batch,)


def _keys(t: Tensor) -> list[int]:
    """A number for each sample, by its values: the same on every device and in every batch."""
    values = t.detach().float().reshape(len(t), -1).contiguous().view(torch.int32).long()
    weights = torch.arange(values.shape[1], device=t.device) * 0x1E3779B97F4A7C15 * 2 + 1
    return ((values * weights).sum(1) & _SEED_LIMIT).tolist()


def _generator(*numbers: int) -> torch.Generator:
    """Random numbers of their own for each seed, sample, input and pair."""
    state = 0
    for number in numbers:  # the finaliser of splitmix64
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return torch.Generator().manual_seed(state & _SEED_LIMIT)


def _heights(size: Sequence[int], cells: int, generators: list[torch.Generator]) -> Tensor:
    """A random landscape over each sample: heights at the corners of patches, which lie anywhere, and between them."""
    side = min(size[-2:]) / cells
    counts = [int(length / side) + 3 for length in size]
    found = []
    for generator in generators:
        corners = torch.rand(1, 1, *counts, generator=generator)
        shift = torch.rand(len(size), generator=generator)
        # Each axis in turn: interpolation is a product of those along the axes.
        for axis, (length, count) in enumerate(zip(size, counts, strict=True), start=2):
            at = (torch.arange(length) + 0.5) / side + shift[axis - 2]
            below = at.floor().long().clamp(0, count - 2)
            part = (at - below).reshape(-1, *[1] * (len(size) + 1 - axis))
            corners = corners.index_select(axis, below) * (1 - part) + corners.index_select(axis, below + 1) * part
        found.append(corners[0, 0])
    return torch.stack(found)


def _evenly(values: Tensor) -> Tensor:
    """The rank of each number in its row, from 0 to 1: however they are spread, ranks are spread evenly."""
    ranks = values.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    return (ranks + 0.5) / values.shape[1]


def summed(steps: Sequence[Explanation]) -> Explanation:
    """The explanations of the steps of a chain as one of its last state relative to its first.

    The trace of a step is a sum; that of the chain is relative to the difference.
    """
    ledger, last = Ledger.of_chain([each.ledger for each in steps]), steps[-1]
    whole = weighted(steps, [1.0] * len(steps))
    return replace(
        whole,
        input=last.input,
        score=last.score,
        target=last.target,
        against=last.against,
        output=last.output,
        trace={name: t / ledger.explained for name, t in whole.trace.items()},
        ledger=ledger,
        reference=steps[0].reference,
    )


def mean_of_draws(draws: Sequence[Any]) -> Any:
    """The mean relevance, rounded once."""
    columns = list(zip(*map(tensors, draws), strict=True))
    found = {
        id(own[0]): torch.stack(own).to(torch.promote_types(own[0].dtype, torch.float32)).mean(0).to(own[0].dtype)
        for own in columns
        if own[0].is_floating_point()
    }
    return map_tensors(lambda t: found.get(id(t), t), draws[0])


def pairs_of(draws: Sequence[Any], batch: int, kind: Kind | None = None) -> Any:
    """The relevance of each pair of draws, in the form of the input, ``[B,pairs,...]``; ``None`` with fewer than two.

    Of the input that an explanation's map is of, it is such a map; ``kind`` says what kind of thing that is.
    """
    if len(draws) < 4:
        return None
    columns = list(zip(*map(tensors, draws), strict=True))
    main = main_input(draws[0], kind, batch)

    def of_input(own: tuple[Tensor, ...]) -> Tensor:
        if not _is_varied(own[0], batch):
            return own[0]
        is_main = main is not None and own[0] is main[0]
        maps = torch.stack([main[1].map_of(t) if main is not None and is_main else t for t in own], 1)
        return (maps[:, 0::2] + maps[:, 1::2]) / 2

    found = {id(own[0]): of_input(own) for own in columns}
    return map_tensors(lambda t: found[id(t)], draws[0])


def check_ends_meet(steps: Sequence[Explanation]) -> None:
    """Raises if a state has another score as the end of one step than as the beginning of the next."""
    for before, after in pairwise(steps):
        ended, began = before.ledger.score, after.ledger.entries[REFERENCE]
        largest = torch.stack([each.ledger.scale for each in steps])
        apart = (ended - began).abs() > after.tolerance * largest.amax(0)
        if bool(apart.any()):
            sample = int(apart.nonzero()[0])
            raise InputError(
                f"passes: a state between reference and input has the score {float(ended[sample]):.6g} as an input and "
                f"{float(began[sample]):.6g} as a reference (sample {sample}). The target chooses what it asks for by "
                "the input, or the model isn't deterministic. Name what is explained (target=label), or use passes=1."
            )
