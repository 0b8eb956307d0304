"""Slices, frames, bands and spectrograms beside each other, as what a figure draws of a sample that is no picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hilrp.attribution.error_bars import share_text
from hilrp.attribution.kinds import Kind
from hilrp.attribution.marking import smoothed
from hilrp.attribution.panels import Label, Panel

if TYPE_CHECKING:
    from hilrp.attribution.explanation import Explanation

#: At most so many frames and bands are drawn, so many beside each other.
_TILES, _COLUMNS = 8, 4
#: Pixels between tiles, and above each for its label.
_GAP, _HEAD = 8, 20
#: A sum that is less than this part of what it is made of is rounding.
_NOTHING = 1e-6


@dataclass(frozen=True)
class Tile:
    """A part of a sample, as an image.

    Attributes:
        picture: What the model saw there, ``[h,w,3]`` from 0 to 1.
        relevance: The smoothed map of it, ``[h,w]``.
        region: What is drawn around, ``[h,w]``.
        label: What part it is.
    """

    picture: np.ndarray
    relevance: np.ndarray
    region: np.ndarray | None
    label: str


def montage(explanation: Explanation, sample: int, region: Tensor | None, height: int) -> Panel:
    """What is drawn of a volume, a video, bands or a spectrogram.

    Args:
        explanation: The explanation.
        sample: Which sample.
        region: What is drawn around, in the form of the sample's map.
        height: How many pixels high the whole is, about.
    """
    relevance, kind = explanation.main_of(explanation.relevance)
    x = explanation.main_of(explanation.input)[0][sample].detach().float().cpu()
    own = relevance[sample].detach().float().cpu()
    held = explanation.map[sample].detach().float().cpu()
    around = None if region is None else torch.as_tensor(region).detach().float().cpu()
    axes = [axis - 1 for axis in kind.axes(tuple(relevance.shape))]
    # Channels last.
    x = x.permute(*axes, *(axis for axis in range(x.ndim) if axis not in axes))
    x = x if x.ndim > len(axes) else x[..., None]
    shown = smoothed(held)
    limit = _limit(shown)
    if kind is Kind.VOLUME:
        tiles = _slices(x, shown, around)
    elif kind in (Kind.VIDEO, Kind.FRAMES):
        tiles = _frames(x, held, shown, around)
    elif kind is Kind.BANDS:
        each = smoothed(own)
        limit = _limit(each)
        tiles = _bands(x, own, each, around)
    else:
        tiles = [_spectrogram(x, shown, around)]
    return _laid_out(tiles, limit, kind, height)


def _limit(shown: Tensor) -> float:
    """The relevance from which on colours are the strongest."""
    strength = shown.abs().flatten()
    # Of the largest, in order: torch's own quantile takes no more than 16 million numbers.
    count = len(strength) - int(0.995 * (len(strength) - 1))
    return float(strength.topk(count).values[-1]) or float(strength.max()) or 1.0


def _slices(x: Tensor, relevance: Tensor, region: Tensor | None) -> list[Tile]:
    """Three slices of a volume through its strongest voxel, and the strongest of each column of voxels."""
    place = np.unravel_index(int(relevance.abs().argmax()), relevance.shape)
    grey = _grey(x)
    found = []
    for axis, at in enumerate(place):
        own = None if region is None else region.select(axis, int(at)).numpy()
        label = f"axis {axis + 1}, slice {int(at) + 1} of {relevance.shape[axis]}"
        found.append(Tile(grey.select(axis, int(at)).numpy(), relevance.select(axis, int(at)).numpy(), own, label))
    strongest = relevance.gather(0, relevance.abs().argmax(0, keepdim=True))[0]
    return [*found, Tile(grey.amax(0).numpy(), strongest.numpy(), None, "the strongest along axis 1")]


def _frames(x: Tensor, own: Tensor, relevance: Tensor, region: Tensor | None) -> list[Tile]:
    """Frames of a video, evenly spread."""
    count = len(relevance)
    chosen = sorted({round(i) for i in np.linspace(0, count - 1, min(count, _TILES))})
    picture = _coloured(x)
    return [
        Tile(
            picture[i].numpy(),
            relevance[i].numpy(),
            None if region is None else region[i].numpy(),
            f"frame {i + 1} of {count}{_share(own[i], own)}",
        )
        for i in chosen
    ]


def _bands(x: Tensor, own: Tensor, relevance: Tensor, region: Tensor | None) -> list[Tile]:
    """The bands that hold most, in their order, each with its own relevance."""
    strength = own.abs().flatten(1).sum(1)
    chosen = sorted(strength.topk(min(len(own), _TILES)).indices.tolist())
    around = None if region is None else region.numpy()
    return [
        Tile(
            _grey(x[..., i : i + 1]).numpy(),
            relevance[i].numpy(),
            around,
            f"band {i + 1} of {len(own)}{_share(own[i], own)}",
        )
        for i in chosen
    ]


def _spectrogram(x: Tensor, relevance: Tensor, region: Tensor | None) -> Tile:
    """A spectrogram, with time from left to right and the first frequency or channel at the bottom.

    The longer axis is time.
    """

    def upright(t: Tensor) -> np.ndarray:
        first_is_time = relevance.shape[0] > relevance.shape[1]
        return (t.transpose(0, 1) if first_is_time else t).flip(0).contiguous().numpy()

    own = None if region is None else upright(region)
    time, frequency = (1, 2) if relevance.shape[0] > relevance.shape[1] else (2, 1)
    label = f"time (axis {time}) from left to right, axis {frequency} (frequency or channel) from bottom to top"
    return Tile(upright(_grey(x)), upright(relevance), own, label)


def _share(part: Tensor, whole: Tensor) -> str:
    """How much of a map lies in a part of it; nothing is said of a map whose sum is rounding."""
    total = float(whole.double().sum())
    if abs(total) <= _NOTHING * float(whole.double().abs().sum()):
        return ""
    return f": {share_text(float(part.double().sum()) / total, None)}"


def _grey(x: Tensor) -> Tensor:
    """Values ``[...,C]`` as greys ``[...,3]`` from 0 to 1: the mean over channels, stretched to its range."""
    mean = x.mean(-1, keepdim=True)
    low, high = float(mean.min()), float(mean.max())
    grey: Tensor = ((mean - low) / (high - low or 1.0)).expand(*mean.shape[:-1], 3)
    return grey


def _coloured(x: Tensor) -> Tensor:
    """Frames ``[...,C]`` as colours ``[...,3]``, stretched to the range of the whole."""
    if x.shape[-1] != 3:
        return _grey(x)
    low, high = float(x.min()), float(x.max())
    stretched: Tensor = (x - low) / (high - low or 1.0)
    return stretched


def _laid_out(tiles: Sequence[Tile], limit: float, kind: Kind, height: int) -> Panel:
    """Tiles in rows, each with its label above, enlarged together until the whole is high enough."""
    columns = 2 if kind is Kind.VOLUME else min(_COLUMNS, len(tiles))
    rows = -(-len(tiles) // columns)
    tallest, widest = (max(tile.relevance.shape[side] for tile in tiles) for side in (0, 1))
    factor = max(1.0, (height - rows * (_HEAD + _GAP)) / (rows * tallest))
    cell = round(tallest * factor), max(round(widest * factor), 190)
    size = rows * (cell[0] + _HEAD + _GAP) - _GAP, columns * (cell[1] + _GAP) - _GAP
    picture, relevance = np.ones((*size, 3), np.float32), np.zeros(size, np.float32)
    region = None if tiles[0].region is None else np.zeros(size, np.float32)
    blank, labels = np.ones(size, bool), []
    for i, tile in enumerate(tiles):
        top, left = (i // columns) * (cell[0] + _HEAD + _GAP), (i % columns) * (cell[1] + _GAP)
        labels.append(Label(top + 2, left, tile.label))
        high, wide = (max(1, round(side * factor)) for side in tile.relevance.shape)
        place = np.s_[top + _HEAD : top + _HEAD + high, left : left + wide]
        picture[place] = _enlarged(tile.picture, high, wide).clip(0, 1)
        relevance[place] = _enlarged(tile.relevance, high, wide)
        if region is not None and tile.region is not None:
            region[place] = _enlarged(tile.region, high, wide)
        blank[place] = False
    return Panel(picture, relevance, limit, region, np.zeros(size, bool), kind.place, blank=blank, labels=tuple(labels))


def _enlarged(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """An image ``[h,w]`` or ``[h,w,3]`` in another size."""
    t = torch.from_numpy(np.ascontiguousarray(values, np.float32))
    t = t[None, None] if t.ndim == 2 else t.permute(2, 0, 1)[None]
    made = F.interpolate(t, (rows, columns), mode="bilinear", align_corners=False, antialias=True)[0]
    return np.asarray(made[0] if values.ndim == 2 else made.permute(1, 2, 0))
