"""Whether a map says what the score depends on: Faithfulness Correlation and pixel flipping.

Both change pixels and look at the score. What the model says of changed pictures is computed in large batches; where it doesn't depend on
the map (the random subsets of Faithfulness Correlation), it is computed once for all methods.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hilrp.targets import logits_of

_BATCH = 128


def scores(model: nn.Module, pictures: Tensor, target: Tensor) -> Tensor:
    """The logits of the classes ``target``, one for each picture, without a graph."""
    with torch.no_grad():
        parts = [
            logits_of(model(p)).gather(1, t[:, None])[:, 0]
            for p, t in zip(pictures.split(_BATCH), target.split(_BATCH), strict=True)
        ]
    return torch.cat(parts)


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

    def of(self, i: int, height: int, width: int) -> Tensor:
        """The subsets of image ``i``, ``[runs,height,width]``."""
        rows, columns = height // self.cell, width // self.cell
        chance = torch.Generator().manual_seed(1_000_003 * self.seed + i)
        order = torch.rand(self.runs, rows * columns, generator=chance).argsort(1)
        chosen = torch.zeros(self.runs, rows * columns, dtype=torch.bool).scatter_(1, order[:, : self.size], True)
        chosen = chosen.reshape(self.runs, rows, columns)
        chosen = chosen.repeat_interleave(self.cell, 1).repeat_interleave(self.cell, 2)
        return nn.functional.pad(chosen, (0, width - columns * self.cell, 0, height - rows * self.cell))


def subset_drops(model: nn.Module, x: Tensor, target: Tensor, baseline: Tensor, subsets: Subsets) -> Tensor:
    """What the score loses where a subset is replaced by the baseline, ``[B,runs]``.

    With squares of one pixel this is what Bhatt, Weller and Moura (2020) do; with squares as large as the model's patches, whole
    tokens go.
    """
    before = scores(model, x, target)
    drops = []
    for i in range(len(x)):
        chosen = subsets.of(i, *x.shape[-2:]).to(x.device)
        pictures = torch.where(chosen[:, None], baseline[i], x[i])
        drops.append(before[i] - scores(model, pictures, target[i].expand(subsets.runs)))
    return torch.stack(drops)


def faithfulness_correlation(maps: Tensor, subsets: Subsets, drops: Tensor) -> Tensor:
    """The correlation, over random subsets of pixels, of their relevance with what the score loses without them."""
    found = []
    for i, values in enumerate(maps):
        relevance = subsets.of(i, *maps.shape[-2:]).to(maps.device).flatten(1).double() @ values.flatten().double()
        found.append(pearson(relevance, drops[i].double()))
    return torch.stack(found).to(maps)


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
    gone = rank[:, None] < limits[None, :, None]
    curves = []
    for i in range(count):
        pictures = torch.where(gone[i].reshape(-1, 1, height, width), baseline[i], x[i])
        curves.append(scores(model, pictures, target[i].expand(steps + 1)))
    return torch.stack(curves)


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
