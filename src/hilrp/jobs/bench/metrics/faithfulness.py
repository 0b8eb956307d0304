"""Whether a map says what the score depends on: Faithfulness Correlation and pixel flipping.

Both change pixels and look at the score. What the model says of changed pictures is computed in full batches; where it
doesn't depend on the map (the random subsets of Faithfulness Correlation), it is computed once for all methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.jobs.bench.batches import scores, scores_of_changed


@dataclass(frozen=True)
class Subsets:
    """Random subsets of the pixels of images, drawn anew from their seed whenever they are needed.

    Attributes:
        size: How many squares a subset has.
        cell: The side of the squares in pixels.
        runs: How many subsets each image has.
        seed: Of the subsets.
    """

    size: int
    cell: int
    runs: int
    seed: int = 0

    @lru_cache(maxsize=2048)  # noqa: B019 - a frozen value without a life of its own
    def squares(self, i: int, height: int, width: int) -> Tensor:
        """The numbers of the squares in each subset of image ``i``, row by row, ``[runs,size]``."""
        count = (height // self.cell) * (width // self.cell)
        chance = np.random.default_rng([self.seed, i])
        chosen = [chance.choice(count, self.size, replace=False, shuffle=False) for _ in range(self.runs)]
        return torch.from_numpy(np.stack(chosen))

    def masks(self, i: int, height: int, width: int) -> Tensor:
        """The subsets of image ``i``, ``[runs,height,width]``."""
        return self.cover(self.squares(i, height, width), height, width)

    def cover(self, squares: Tensor, height: int, width: int) -> Tensor:
        """The pixels of some subsets, given as numbers of squares ``[n,size]``: ``[n,height,width]``."""
        rows, columns = height // self.cell, width // self.cell
        chosen = torch.zeros(len(squares), rows * columns, dtype=torch.bool, device=squares.device)
        chosen = chosen.scatter_(1, squares, True).unflatten(1, (rows, columns))
        chosen = chosen.repeat_interleave(self.cell, 1).repeat_interleave(self.cell, 2)
        return F.pad(chosen, (0, width - columns * self.cell, 0, height - rows * self.cell))


def subset_drops(model: nn.Module, x: Tensor, target: Tensor, baseline: Tensor, subsets: Subsets) -> Tensor:
    """What the score loses where a subset is replaced by the baseline, ``[B,runs]``.

    With squares of one pixel this is what Bhatt, Weller and Moura (2020) do; with squares as large as the model's
    patches, whole tokens go.
    """
    size = x.shape[-2:]
    squares = torch.stack([subsets.squares(i, *size) for i in range(len(x))]).to(x.device)

    def without(image: Tensor, run: Tensor) -> Tensor:
        return torch.where(subsets.cover(squares[image, run], *size)[:, None], baseline[image], x[image])

    return scores(model, x, target)[:, None] - scores_of_changed(model, x, target, subsets.runs, without)


def faithfulness_correlation(maps: Tensor, subsets: Subsets, drops: Tensor) -> Tensor:
    """The correlation, over random subsets of pixels, of their relevance with what the score loses without them."""
    height, width = maps.shape[-2:]
    sums = F.avg_pool2d(maps.double()[:, None], subsets.cell, divisor_override=1).flatten(1)
    squares = torch.stack([subsets.squares(i, height, width) for i in range(len(maps))]).to(maps.device)
    relevance = sums[:, None].expand(-1, subsets.runs, -1).gather(2, squares).sum(2)
    return pearson(relevance, drops.double()).to(maps)


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Correlation along the last axis; zero where one of the two doesn't vary."""
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    scale = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(scale > 0, (a * b).sum(-1) / scale.clamp(min=1e-300), torch.zeros_like(scale))


def flipping(
    model: nn.Module, x: Tensor, target: Tensor, maps: Tensor, baseline: Tensor, steps: int, most_first: bool
) -> Tensor:
    """The score while pixels are replaced by the baseline, the most (or least) relevant first: ``[B, steps + 1]``.

    The first is that of the whole picture, the last that of the baseline.
    """
    return _curves(model, x, target, maps, baseline, steps, (most_first,))[0]


def _curves(
    model: nn.Module, x: Tensor, target: Tensor, maps: Tensor, baseline: Tensor, steps: int, orders: tuple[bool, ...]
) -> list[Tensor]:
    """A curve ``[B, steps + 1]`` for each order, most relevant first or not.

    The ends, which they share, are scored once.
    """
    place = torch.stack([places(maps, most_first) for most_first in orders], 1)
    limits = torch.linspace(0, maps[0].numel(), steps + 1, device=x.device).round()
    inner = steps - 1

    def without(image: Tensor, picture: Tensor) -> Tensor:
        limit = limits[1 + picture % inner].reshape(-1, *[1] * (maps.ndim - 1))
        gone = place[image, picture // inner] < limit
        return torch.where(gone[:, None], baseline[image], x[image])

    whole, nothing = scores(model, torch.cat([x, baseline]), target.repeat(2))[:, None].chunk(2)
    found = scores_of_changed(model, x, target, len(orders) * inner, without).unflatten(1, (len(orders), inner))
    return [torch.cat([whole, part, nothing], 1) for part in found.unbind(1)]


def places(maps: Tensor, most_first: bool) -> Tensor:
    """The place of each pixel in the order of the map's values, from 0 on: of the map's shape.

    Of pixels with the same value the first one, row by row, comes first.
    """
    order = maps.flatten(1).argsort(dim=1, descending=most_first, stable=True)
    steps = torch.arange(order.shape[1], device=maps.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, steps).reshape(maps.shape)


def flip_areas(
    model: nn.Module, x: Tensor, target: Tensor, maps: Tensor, baseline: Tensor, steps: int = 16
) -> dict[str, Tensor]:
    """Areas under the curves, in units of what the whole picture (volume, film) gains over the baseline.

    ``morf`` (most relevant first, also called deletion) is better the smaller, ``lerf`` (least relevant first; read
    backwards, insertion) the larger, and ``flip`` is their difference.
    """
    curves = _curves(model, x, target, maps, baseline, steps, (True, False))
    areas = {}
    for name, curve in zip(("morf", "lerf"), curves, strict=True):
        gain = curve[:, :1] - curve[:, -1:]
        # Where the picture scores no better than its mean colour, there is nothing to lose: no figure.
        relative = (curve - curve[:, -1:]) / gain.where(gain > 0, torch.full_like(gain, float("nan")))
        areas[name] = torch.trapezoid(relative, dx=1 / steps, dim=1)
    return areas | {"flip": areas["lerf"] - areas["morf"]}
