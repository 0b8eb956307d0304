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
    """Random subsets of pixels of some images, and what the score loses without each.

    Attributes:
        chosen: ``[B,runs,H,W]``.
        drops: ``[B,runs]``.
    """

    chosen: Tensor
    drops: Tensor


def subsets(
    model: nn.Module, x: Tensor, target: Tensor, baseline: Tensor, runs: int, size: int, cell: int = 1, seed: int = 0
) -> Subsets:
    """Replaces ``size`` random squares of ``cell`` x ``cell`` pixels by the baseline, ``runs`` times for each image.

    With squares of one pixel this is what Bhatt, Weller and Moura (2020) and Quantus do; with squares as large as the model's
    patches, whole tokens go.
    """
    count, _, height, width = x.shape
    rows, columns = height // cell, width // cell
    chance = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(count, runs, rows * columns, dtype=torch.bool)
    for i in range(count):
        for run in range(runs):
            chosen[i, run, torch.randperm(rows * columns, generator=chance)[:size]] = True
    chosen = chosen.reshape(count, runs, rows, columns)
    chosen = chosen.repeat_interleave(cell, 2).repeat_interleave(cell, 3)
    chosen = nn.functional.pad(chosen, (0, width - columns * cell, 0, height - rows * cell)).to(x.device)
    before = scores(model, x, target)
    drops = []
    for i in range(count):
        pictures = torch.where(chosen[i][:, None], baseline[i], x[i])
        drops.append(before[i] - scores(model, pictures, target[i].expand(runs)))
    return Subsets(chosen, torch.stack(drops))


def faithfulness_correlation(maps: Tensor, found: Subsets) -> Tensor:
    """The correlation, over random subsets of pixels, of their relevance with what the score loses without them."""
    relevance = torch.einsum("brhw,bhw->br", found.chosen.double(), maps.double())
    return pearson(relevance, found.drops.double()).to(maps)


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
        relative = (curve - curve[:, -1:]) / gain.where(gain.abs() > 1e-6, torch.ones_like(gain))
        areas[name] = torch.trapezoid(relative, dx=1 / steps, dim=1)
    return areas | {"flip": areas["lerf"] - areas["morf"]}
