"""Whether a map says what the score depends on: Faithfulness Correlation and pixel flipping.

Both change pixels and look at the score. What the model says of changed pictures is computed in large batches; where it doesn't depend on
the map (the random subsets of Faithfulness Correlation), it is computed once for all methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.bench.batches import scores, without_graph


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
        rows, columns = height // self.cell, width // self.cell
        chosen = torch.zeros(self.runs, rows * columns, dtype=torch.bool)
        chosen = chosen.scatter_(1, self.squares(i, height, width), True).reshape(self.runs, rows, columns)
        chosen = chosen.repeat_interleave(self.cell, 1).repeat_interleave(self.cell, 2)
        return F.pad(chosen, (0, width - columns * self.cell, 0, height - rows * self.cell))


def subset_drops(model: nn.Module, x: Tensor, target: Tensor, baseline: Tensor, subsets: Subsets) -> Tensor:
    """What the score loses where a subset is replaced by the baseline, ``[B,runs]``.

    With squares of one pixel this is what Bhatt, Weller and Moura (2020) do; with squares as large as the model's patches, whole
    tokens go.
    """
    before = scores(model, x, target)
    gone = (subsets.masks(i, *x.shape[-2:]).to(x.device) for i in range(len(x)))
    return before[:, None] - _without(model, x, target, baseline, gone, subsets.runs)


def faithfulness_correlation(maps: Tensor, subsets: Subsets, drops: Tensor) -> Tensor:
    """The correlation, over random subsets of pixels, of their relevance with what the score loses without them."""
    height, width = maps.shape[-2:]
    sums = F.avg_pool2d(maps.double()[:, None], subsets.cell, divisor_override=1).flatten(1)
    squares = torch.stack([subsets.squares(i, height, width) for i in range(len(maps))]).to(maps.device)
    relevance = sums[:, None].expand(-1, subsets.runs, -1).gather(2, squares).sum(2)
    return pearson(relevance, drops.double()).to(maps)


def _without(
    model: nn.Module, x: Tensor, target: Tensor, baseline: Tensor, gone: Iterable[Tensor], each: int
) -> Tensor:
    """The scores of every image without each of some pixels, ``[B,each]``, for as many images at once as fit.

    Args:
        model: The model.
        x: Images.
        target: Their classes.
        baseline: What is there instead.
        gone: For each image, the pixels that are gone, ``[each,H,W]``.
        each: How many pictures are made of an image.
    """
    size = max(1, without_graph(x.device) // each)
    found, chosen = [], iter(gone)
    for part, labels, instead in zip(x.split(size), target.split(size), baseline.split(size), strict=True):
        masks = torch.stack([next(chosen) for _ in part])
        pictures = torch.where(masks[:, :, None], instead[:, None], part[:, None]).flatten(0, 1)
        found.append(scores(model, pictures, labels.repeat_interleave(each)).unflatten(0, (len(part), each)))
    return torch.cat(found)


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
    count, _, height, width = x.shape
    order = maps.flatten(1).argsort(dim=1, descending=most_first, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(height * width, device=x.device).expand(count, -1))
    limits = torch.linspace(0, height * width, steps + 1, device=x.device).round()
    gone = (each[None] < limits[:, None, None] for each in rank.reshape(count, height, width))
    return _without(model, x, target, baseline, gone, steps + 1)


def flip_areas(
    model: nn.Module, x: Tensor, target: Tensor, maps: Tensor, baseline: Tensor, steps: int = 16
) -> dict[str, Tensor]:
    """Areas under the curves, in units of what the whole picture gains over the baseline.

    ``morf`` (most relevant first, also called deletion) is better the smaller, ``lerf`` (least relevant first; read backwards, insertion)
    the larger, and ``flip`` is their difference.
    """
    areas = {}
    for name, most_first in (("morf", True), ("lerf", False)):
        curve = flipping(model, x, target, maps, baseline, steps, most_first)
        gain = curve[:, :1] - curve[:, -1:]
        # Where the picture scores no better than its mean colour, there is nothing to lose: no figure.
        relative = (curve - curve[:, -1:]) / gain.where(gain > 0, torch.full_like(gain, float("nan")))
        areas[name] = torch.trapezoid(relative, dx=1 / steps, dim=1)
    return areas | {"flip": areas["lerf"] - areas["morf"]}
