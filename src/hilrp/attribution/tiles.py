"""Inputs that are larger than a model's window: where its tiles lie, and how their outputs become one.

The tiles, their weights and their margins are those of MONAI's `sliding_window_inference`, so that what is explained is
what a user of it predicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.attribution.forward_backward import call_plainly
from hilrp.attribution.kinds import Kind, main_input
from hilrp.targets import logits_of
from hilrp.util.errors import InputError
from hilrp.util.nested import map_tensors, tensors

#: What margins are filled with.
_PADDINGS = ("constant", "replicate", "reflect", "circular")
#: Names of the ways to put tiles together; MONAI calls the mean "constant".
_BLENDS = ("mean", "constant", "gaussian", "max")
#: No place of a tile weighs less than this (as in MONAI).
_LEAST_WEIGHT = 1e-3


@dataclass(frozen=True)
class Tiles:
    """How an input that is larger than a model's window is cut into tiles, and how their outputs become one.

    The tiles are those of MONAI's `sliding_window_inference`. Of a model that says something of every place (a
    segmentation), their outputs are laid beside each other, weighed where they overlap. Of a classifier the logits of
    all tiles are pooled.

    Attributes:
        window: The side of a tile, or one for each axis of places (``(height, width)``, ``(depth, height, width)``);
            zero or less for the input's own.
        overlap: Which part of a tile its neighbour covers as well, from 0 to below 1, or one for each axis.
        blend: Where tiles overlap, ``"mean"`` (MONAI's ``"constant"``, which is taken, too) or ``"gaussian"``, which
            weighs their middles more. Of a classifier ``"mean"`` or ``"max"`` of the tiles' logits, or a function of
            all of them, ``[B,tiles,classes]``, that returns ``[B,classes]``.
        batch: How many tiles go through the model at once.
        padding: What is around an input that is smaller than a tile: ``"constant"``, ``"replicate"``, ``"reflect"`` or
            ``"circular"``.
        value: What a constant padding is.
        sigma: The width of the bell of ``"gaussian"``, as a part of the tile's side.

    Example:
        >>> import torch, hilrp
        >>> model = torch.nn.Conv2d(3, 2, 3, padding=1).eval()
        >>> whole = hilrp.targets.Region(1)
        >>> explanation = hilrp.explain(model, torch.rand(1, 3, 40, 50), whole, tiles=hilrp.Tiles(16, overlap=0.5))
        >>> explanation.map.shape, bool(explanation.ledger.residual < 1e-5)
        (torch.Size([1, 40, 50]), True)
    """

    window: int | Sequence[int]
    overlap: float | Sequence[float] = 0.25
    blend: str | Callable[[Tensor], Tensor] = "mean"
    batch: int = 4
    padding: str = "constant"
    value: float = 0.0
    sigma: float = 0.125

    def __post_init__(self) -> None:
        sides = self.window if isinstance(self.window, (tuple, list)) else [self.window]
        if not sides or not all(isinstance(side, int) and not isinstance(side, bool) for side in sides):
            raise InputError(f"Tiles(window={self.window!r}): give the side of a tile, or one for each axis.")
        parts = self.overlap if isinstance(self.overlap, (tuple, list)) else [self.overlap]
        if not parts or not all(isinstance(part, (int, float)) and 0 <= part < 1 for part in parts):
            raise InputError(f"Tiles(overlap={self.overlap!r}): give a part of a tile, from 0 to below 1.")
        if not callable(self.blend) and self.blend not in _BLENDS:
            raise InputError(
                f"Tiles(blend={self.blend!r}): use {', '.join(map(repr, _BLENDS))}, or a function of the logits of all "
                "tiles, [B,tiles,classes], that returns [B,classes]."
            )
        if isinstance(self.batch, bool) or not isinstance(self.batch, int) or self.batch < 1:
            raise InputError(f"Tiles(batch={self.batch!r}): give how many tiles to run at once, 1 or more.")
        if self.padding not in _PADDINGS:
            raise InputError(f"Tiles(padding={self.padding!r}): use one of {', '.join(map(repr, _PADDINGS))}.")
        if not math.isfinite(self.value):
            raise InputError(f"Tiles(value={self.value!r}) isn't a finite number.")
        if not 0 < self.sigma < math.inf:
            raise InputError(f"Tiles(sigma={self.sigma!r}): give a part of the tile's side, above 0.")


class Place(NamedTuple):
    """A tile: of which sample, which of its tiles, and where it begins along each axis of places."""

    sample: int
    number: int
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Where the tiles of an input lie.

    Attributes:
        tiles: What was asked for.
        batch: The number of samples.
        axes: The axes of the input along which it has places.
        size: How long it is along these.
        window: The sides of a tile.
        starts: Along each axis, where tiles begin in the padded input.
    """

    tiles: Tiles
    batch: int
    axes: tuple[int, ...]
    size: tuple[int, ...]
    window: tuple[int, ...]
    starts: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(tiles: Tiles, t: Tensor, kind: Kind) -> Plan:
        """The plan for an input."""
        axes = kind.axes(tuple(t.shape))
        if not axes:
            raise InputError(
                f"Tiles: an input of shape {tuple(t.shape)} ({kind}) has no places that tiles could cover."
            )
        size = tuple(t.shape[axis] for axis in axes)
        given = _for_each(tiles.window, len(axes), "window")
        window = tuple(side if side > 0 else own for side, own in zip(given, size, strict=True))
        overlap = _for_each(tiles.overlap, len(axes), "overlap")
        starts = tuple(map(_starts, map(max, size, window), window, overlap))
        return Plan(tiles, len(t), axes, size, window, starts)

    @property
    def padded(self) -> tuple[int, ...]:
        """The size of the input with its margins."""
        return tuple(map(max, self.size, self.window))

    @property
    def before(self) -> tuple[int, ...]:
        """How wide the margin is at the beginning of each axis: half of what is missing."""
        return tuple((whole - own) // 2 for whole, own in zip(self.padded, self.size, strict=True))

    @property
    def count(self) -> int:
        """How many tiles a sample has."""
        return math.prod(map(len, self.starts))

    def places(self) -> Iterator[Place]:
        """All tiles, sample by sample."""
        for sample in range(self.batch):
            for number, starts in enumerate(product(*self.starts)):
                yield Place(sample, number, starts)

    def pad(self, t: Tensor) -> Tensor:
        """An input with its margins."""
        if self.padded == self.size:
            return t
        if self.tiles.padding == "constant":
            sides = [0] * 2 * (t.ndim - self.axes[0])
            for axis, whole, own, before in zip(self.axes, self.padded, self.size, self.before, strict=True):
                sides[2 * (t.ndim - 1 - axis)] = before
                sides[2 * (t.ndim - 1 - axis) + 1] = whole - own - before
            return F.pad(t, sides, value=self.tiles.value)
        for axis, source in zip(self.axes, self._sources(), strict=True):
            t = t.index_select(axis, source.to(t.device))
        return t

    def unpad(self, relevance: Tensor) -> tuple[Tensor, Tensor]:
        """The relevance of an input of that with its margins, and what is left on these, ``[B]``.

        What lies on a copy belongs to what it is a copy of; a constant margin keeps its own.
        """
        if self.padded == self.size:
            return relevance, torch.zeros(len(relevance), dtype=torch.float64, device=relevance.device)
        margins = relevance.clone()
        inner = margins
        for axis, source, own, before in zip(self.axes, self._sources(), self.size, self.before, strict=True):
            inner = inner.narrow(axis, before, own)
            if self.tiles.padding == "constant":
                relevance = relevance.narrow(axis, before, own)
            else:
                shape = [own if i == axis else length for i, length in enumerate(relevance.shape)]
                relevance = relevance.new_zeros(shape).index_add(axis, source.to(relevance.device), relevance)
        (inner if self.tiles.padding == "constant" else margins).zero_()
        return relevance.contiguous(), sums(margins)

    def _sources(self) -> list[Tensor]:
        """Along each axis, which place of the input each place with margins is a copy of."""
        found = []
        for whole, own, before in zip(self.padded, self.size, self.before, strict=True):
            index = torch.arange(whole) - before
            if self.tiles.padding == "reflect":
                if whole - own - before >= own:
                    raise InputError(
                        f'Tiles(padding="reflect"): a margin of {whole - own - before} has no reflection in an input '
                        f'of {own}. Use "replicate" or "constant", or a smaller window.'
                    )
                index = index.abs()
                index = torch.where(index >= own, 2 * (own - 1) - index, index)
            elif self.tiles.padding == "circular":
                index = index.remainder(own)
            found.append(index.clamp(0, own - 1))
        return found

    def cut(self, t: Tensor, place: Place) -> Tensor:
        """A tile ``[1,...]`` of what has the form of the padded input."""
        t = t[place.sample : place.sample + 1]
        for axis, start, side in zip(self.axes, place.starts, self.window, strict=True):
            t = t.narrow(axis, start, side)
        return t

    def weights(self, like: Tensor) -> Tensor:
        """How much each place of a tile's output counts, where tiles overlap: in the form of an output."""
        axes, tiles = like.ndim - 2, self.tiles
        weights = torch.ones((), dtype=torch.float32)
        for side in self.window:
            bell = torch.ones(side)
            if tiles.blend == "gaussian":
                bell = torch.exp((torch.arange(side) - (side - 1) / 2).square() / (-2 * (side * tiles.sigma) ** 2))
            weights = weights.unsqueeze(-1) * bell
        weights = weights.clamp_min(max(float(weights.min()), _LEAST_WEIGHT)).reshape(1, 1, *self.window).to(like)
        same = tuple(like.shape[2:]) == self.window
        return weights if same or not axes else F.interpolate(weights, like.shape[2:], mode="nearest-exact")


class Layout(NamedTuple):
    """How the outputs of tiles lie in that of the whole, where there is one for each place.

    Attributes:
        weights: How much each place of a tile counts.
        total: The sum of these, over all tiles.
        plan: Where the tiles lie.
    """

    weights: Tensor
    total: Tensor
    plan: Plan

    @staticmethod
    def of(plan: Plan, output: Tensor) -> Layout:
        """The layout for outputs like that of some tiles."""
        weights = plan.weights(output)
        whole = [
            side * whole // own for side, whole, own in zip(output.shape[2:], plan.padded, plan.window, strict=True)
        ]
        layout = Layout(weights, weights.new_zeros(1, 1, *whole), plan)
        for starts in product(*plan.starts):
            layout.cut(layout.total, starts).add_(weights)
        return layout

    def cut(self, t: Tensor, starts: Sequence[int]) -> Tensor:
        """The part of the whole that a tile covers, a view."""
        for axis, (start, side, own) in enumerate(zip(starts, self.weights.shape[2:], self.plan.window, strict=True)):
            t = t.narrow(axis + 2, start * side // own, side)
        return t

    def crop(self, t: Tensor) -> Tensor:
        """The whole without margins, a view."""
        for axis, (start, length) in enumerate(self._kept()):
            t = t.narrow(axis + 2, start, length)
        return t

    def uncrop(self, t: Tensor) -> Tensor:
        """The same with zeros for margins."""
        if t.shape[2:] == self.total.shape[2:]:
            return t
        whole = t.new_zeros(*t.shape[:2], *self.total.shape[2:])
        self.crop(whole).copy_(t)
        return whole

    def _kept(self) -> Iterator[tuple[int, int]]:
        """Where the whole without margins begins along each axis, and how long it is; rounded as MONAI does."""
        plan, sides, lengths = self.plan, self.weights.shape[2:], self.total.shape[2:]
        for side, own, size, before, length in zip(sides, plan.window, plan.size, plan.before, lengths, strict=True):
            start = round(before * side / own)
            yield start, min(length, round((before + size) * side / own)) - start


class Sample(NamedTuple):
    """What a model made of the first tile.

    Attributes:
        output: ``[1,...]``.
        beside: How many tiles ran at once.
        others: The shapes of what else it returned.
    """

    output: Tensor
    beside: int
    others: tuple[tuple[int, ...], ...]


class Swept(NamedTuple):
    """What a model makes of all tiles.

    Attributes:
        output: Stitched, ``[B,classes,...]``; of a classifier the logits of all tiles, ``[B,tiles,classes]``.
        layout: How the tiles lie in it; ``None`` of a classifier.
        first: What it made of the first tile.
    """

    output: Tensor
    layout: Layout | None
    first: Sample


class Stitched(nn.Module):
    """A model that runs tile by tile, on inputs of any size.

    What it returns of a segmentation is what MONAI's `sliding_window_inference` returns. With a graph it keeps that of
    all tiles; `hilrp.explain(tiles=)` needs that of some.

    Args:
        model: What takes a tile.
        tiles: How the input is cut.
        kind: What kind of thing the input is, where that was said.
    """

    def __init__(self, model: nn.Module, tiles: Tiles, kind: Kind | str | None = None) -> None:
        super().__init__()
        if not isinstance(tiles, Tiles):
            raise InputError(f"tiles={tiles!r}: give hilrp.Tiles(window=..., overlap=...).")
        self.model, self.tiles, self.kind = model, tiles, Kind.named(kind)
        for name in ("pretrained_cfg", "input_names", "main_input_name"):  # what else is asked of a model
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))
        self.training = model.training  # of this module alone: what the model's own are in is theirs

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the model makes of a larger input, of positional or of named ones."""
        return self.pooled(self.sweep(kwargs or (args[0] if len(args) == 1 else args)))

    def main(self, tree: Any) -> tuple[int, Plan]:
        """Which of the inputs' tensors is cut, and where its tiles lie."""
        batch = len(next(t for t in tensors(tree) if t.is_floating_point() and t.ndim))
        found = main_input(tree, self.kind, batch, self.model)
        if found is None:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors(tree))
            raise InputError(f"Tiles: no input has places that tiles could cover (the shapes are {shapes}).")
        number = next(i for i, t in enumerate(tensors(tree)) if t is found[0])
        return number, Plan.of(self.tiles, *found)

    def inputs(self, tree: Any, number: int, plan: Plan, places: Sequence[Place]) -> Any:
        """What the model is given for some tiles, of inputs whose main one has its margins.

        Where they are alike (those of a plain reference), they lie in memory once.
        """
        main, owners = tensors(tree)[number], [place.sample for place in places]
        device = next((p.device for p in self.model.parameters()), main.device)
        alike = len(set(owners)) == 1 and all(main.stride(axis) == 0 for axis in plan.axes)

        def pick(t: Tensor) -> Tensor:
            if t is main:
                if alike:
                    return plan.cut(t, places[0]).to(device).expand(len(places), *(-1,) * (t.ndim - 1))
                return torch.cat([plan.cut(t, place) for place in places]).to(device)
            return (t[owners] if t.shape[:1] == (plan.batch,) else t).to(device)

        return map_tensors(pick, tree)

    def sweep(self, tree: Any) -> Swept:
        """What the model makes of all tiles."""
        number, plan = self.main(tree)
        tree, home = padded(tree, number, plan), tensors(tree)[number].device
        places, layout, whole = list(plan.places()), None, None
        logits: list[Tensor] = []
        sample: Sample | None = None
        for first in range(0, len(places), self.tiles.batch):
            some = places[first : first + self.tiles.batch]
            made = call_plainly(self.model, self.inputs(tree, number, plan, some))
            output = self._checked(logits_of(made), plan, some)
            if sample is None:
                sample = Sample(output.detach()[:1], len(some), _others(made, output))
            if output.ndim == 2:
                logits.append(output.to(home))
                continue
            output = output.to(home)
            if whole is None or layout is None:
                layout = Layout.of(plan, output.detach())
                whole = output.new_zeros(plan.batch, output.shape[1], *layout.total.shape[2:])
            weighed = output * layout.weights
            for place, each in zip(some, weighed, strict=True):
                layout.cut(whole[place.sample : place.sample + 1], place.starts).add_(each)
        assert sample is not None
        if whole is None or layout is None:
            return Swept(torch.cat(logits).unflatten(0, (plan.batch, plan.count)), None, sample)
        return Swept(layout.crop(whole.div_(layout.total)), layout, sample)

    def alone(self, tree: Any) -> Tensor:
        """What the model makes of the first tile, with no other beside it."""
        number, plan = self.main(tree)
        some = [next(plan.places())]
        given = self.inputs(padded(tree, number, plan), number, plan, some)
        return self._checked(logits_of(call_plainly(self.model, given)), plan, some)

    def pooled(self, swept: Swept) -> Tensor:
        """The output of the whole."""
        return swept.output if swept.layout is not None else Pool(self.tiles.blend)(swept.output)

    def _checked(self, output: Tensor, plan: Plan, places: Sequence[Place]) -> Tensor:
        """An output that tiles can be put together of; ``[tiles,classes]`` of a classifier."""
        axes, blend = len(plan.axes), self.tiles.blend
        if output.ndim == 1 and len(output) == len(places):
            output = output.unsqueeze(1)
        dense = output.ndim == axes + 2
        if len(output) != len(places) or not (dense or output.ndim == 2):
            form = ", ".join(["classes", *"dhw"[-axes:]])
            raise InputError(
                f"Tiles: the model made an output of shape {tuple(output.shape)} of {len(places)} tiles. Tiles can be "
                f"put together of [tiles, {form}] (a segmentation) and of [tiles, classes]."
            )
        if dense and blend not in ("mean", "constant", "gaussian"):
            raise InputError(
                f"Tiles(blend={blend!r}): the model has an output for each place, {tuple(output.shape)}, which is put "
                'together with blend="mean" or "gaussian".'
            )
        if not dense and blend == "gaussian":
            raise InputError(
                'Tiles(blend="gaussian"): the model has one score for each class of a tile, and not of each place. Use '
                'blend="mean" or "max".'
            )
        return output


class Pool(nn.Module):
    """The logits of a classifier's tiles, ``[B,tiles,classes]``, as those of the whole."""

    def __init__(self, blend: str | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.blend = blend

    def forward(self, logits: Tensor) -> Tensor:
        """``[B,classes]``."""
        if not callable(self.blend):
            return logits.amax(1) if self.blend == "max" else logits.mean(1)
        found = self.blend(logits)
        if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != len(logits):
            said = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(f"Tiles: the function of blend= returned {said}; it must return [{len(logits)}, classes].")
        return found


def padded(tree: Any, number: int, plan: Plan) -> Any:
    """An input whose main tensor has its margins."""
    main = tensors(tree)[number]
    return map_tensors(lambda t: plan.pad(t) if t is main else t, tree)


def _others(made: Any, output: Tensor) -> tuple[tuple[int, ...], ...]:
    """The shapes of what a model returned beside an output; not of what a mapping or an object has by name."""
    if not isinstance(made, (tuple, list)) or any(hasattr(made, name) for name in ("logits", "out")):
        return ()
    return tuple(tuple(t.shape) for t in tensors(made) if t.is_floating_point())[1:]


def sums(t: Tensor) -> Tensor:
    """The sum over each sample, ``[B]``, without a copy in float64."""
    return t.flatten(1).sum(1, dtype=torch.float64)


def _for_each(value: Any, axes: int, name: str) -> tuple[Any, ...]:
    """What is given for all axes, or for each."""
    found = tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes
    if len(found) != axes:
        raise InputError(f"Tiles({name}={value!r}): the input has {axes} axes of places; give one number, or {axes}.")
    return found


def _starts(size: int, window: int, overlap: float) -> tuple[int, ...]:
    """Where tiles begin along an axis; the last one ends with it."""
    step = window if size == window else max(1, int(window * (1 - overlap)))
    last = math.ceil((size - window) / step)
    return tuple(min(i * step, size - window) for i in range(last + 1))
