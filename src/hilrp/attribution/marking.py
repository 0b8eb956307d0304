"""The part of a picture that most of the evidence comes from: what figures draw around, and sentences speak of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hilrp.attribution.error_bars import RegionSum, region_sum
from hilrp.attribution.kinds import Kind

#: The part of the evidence that a marked region holds.
HALF = 0.5
#: What it is called in sentences.
MARKED = "the marked region"
#: What a region is called that is asked about: a part of the picture, the box of a detection.
DRAWN_AROUND = "what is drawn around"
#: So many pairs of chains say how sure they are of what a region holds; of the one that half of them choose, twice as
#: many.
PAIRS = 2


@dataclass(frozen=True)
class Marked:
    """A region of each sample's picture, and what it holds.

    Attributes:
        mask: Which places belong to it, ``[B,H,W]``, or in whatever form maps have.
        held: What it holds of the score, or of its difference to the reference's.
    """

    mask: Tensor
    held: RegionSum


def marked(maps: Tensor, pairs: Tensor | None, explained: Tensor) -> Marked:
    """The smallest region that holds half of the evidence, by the smoothed map; its sum is that of the map itself.

    It is smoothed by a twentieth of the picture (of each slice of a volume, each frame of a video; a table and tokens
    are not), so that the region has few parts. Evidence is relevance with the sign
    of what is explained. A region that was chosen where a map happens to be large
    would be said to hold too much. So where the map is a mean over pairs of chains, half of them choose the region,
    and the others say what it holds.

    Args:
        maps: Relevance of each place, ``[B,H,W]`` or in another form.
        pairs: The map of each pair of chains, ``[B,pairs,...]``, where there are several.
        explained: What the maps decompose, ``[B]``.
    """
    measured, rest = maps, None
    if pairs is not None:
        chosen, rest = pairs[:, ::2], pairs[:, 1::2]
        maps, measured = chosen.mean(1), rest.mean(1)
        rest = rest if rest.shape[1] > 1 else None
    sign = torch.where(explained < 0, -1.0, 1.0).to(maps).reshape(-1, *[1] * (maps.ndim - 1))
    evidence = maps.float() * sign
    if maps.ndim > 2:
        evidence = smoothed(evidence, min(maps.shape[-2:]) // 20)
    mask = smallest(evidence)
    return Marked(mask, region_sum(measured, rest, mask, explained))


def marked_part(kind: Kind) -> str:
    """What is marked is called in sentences: "the marked region", or "the marked features"."""
    return f"the marked {kind.places}" if kind in (Kind.TABLE, Kind.TOKENS) else MARKED


def smallest(evidence: Tensor, part: float = HALF) -> Tensor:
    """The fewest places of maps ``[B,...]`` that hold this part of their positive values, in the form of the maps.

    Example:
        >>> smallest(torch.tensor([[[4.0, 1.0], [3.0, -9.0]]])).tolist()
        [[[True, False], [False, False]]]
    """
    positive = evidence.clamp(min=0).flatten(1).double()
    ordered, places = positive.sort(1, descending=True)
    before = ordered.cumsum(1) - ordered
    # Those that are needed: what comes before them is not enough yet.
    needed = (before < part * ordered.sum(1, keepdim=True)) & (ordered > 0)
    return torch.zeros_like(needed).scatter(1, places, needed).reshape(evidence.shape)


def smoothed(maps: Tensor, radius: int | None = None) -> Tensor:
    """Maps ``[...,H,W]``, lightly smoothed: single pixels are hard to see. Figures show this; numbers are never of it.

    Args:
        maps: The maps.
        radius: How far a pixel is spread; by default by the size of the picture.
    """
    side = min(maps.shape[-2:])
    radius = max(1, side // 48) if radius is None else radius
    kernel = torch.hann_window(2 * radius + 5, periodic=False, dtype=maps.dtype, device=maps.device)[1:-1]
    if radius == 0 or side <= len(kernel):
        return maps
    kernel = kernel / kernel.sum()
    reach = len(kernel) // 2
    flat = maps.reshape(-1, 1, *maps.shape[-2:])
    spread = F.conv2d(flat, kernel.view(1, 1, -1, 1), padding=(reach, 0))
    return F.conv2d(spread, kernel.view(1, 1, 1, -1), padding=(0, reach)).reshape(maps.shape)
