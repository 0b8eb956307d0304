"""Agreement with Shapley values whichever way cells are taken away, and calibration.

Shapley values depend on what is put where a cell is taken away. A method that puts the same there is close to them by
construction. So they are computed with four ways to take cells away (removals), and a map is compared with all of them.
How well the four agree among themselves is the ceiling: no map can be asked for more.

A map may rank cells well and still exaggerate. Calibration compares how much of a map's positive relevance lies on the
object with the same part of the model's own Shapley values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hilrp.attribution.question import Question
from hilrp.attribution.references import Blurred
from hilrp.jobs.bench.metrics.shapley import shapley_values_of, spearman

#: What is put where a cell is taken away.
REMOVALS = ("mean colour", "blurred", "black", "shuffled")
#: The width of the blur, as a part of the picture's smaller side.
_SIGMA = 0.1


def removed(model: nn.Module, x: Tensor, black: Tensor) -> Tensor:
    """What is put where a cell of each picture is taken away, for each of the `REMOVALS`: ``[removals,B,3,H,W]``.

    Args:
        model: The model.
        x: The pictures, ``[B,3,H,W]``.
        black: Black as the model takes it, one value for each channel.
    """
    mean = x.mean((2, 3), keepdim=True).expand_as(x)
    (blurred,) = Blurred(_SIGMA)(Question(model, x, None, len(x)))
    return torch.stack([mean, blurred, black.to(x).reshape(1, -1, 1, 1).expand_as(x), _shuffled(x)])


def _shuffled(x: Tensor) -> Tensor:
    """Each picture's own pixels in a random order, the same on every device."""
    count = x.shape[-2] * x.shape[-1]
    order = torch.stack([torch.randperm(count, generator=torch.Generator().manual_seed(i)) for i in range(len(x))])
    return x.flatten(2).gather(2, order[:, None].to(x.device).expand(-1, x.shape[1], -1)).reshape(x.shape)


def values_over_removals(
    model: nn.Module, x: Tensor, target: Tensor, cells: Tensor, fills: Tensor, permutations: int
) -> list[Tensor]:
    """Shapley values of the cells of each picture with each removal, ``[removals,cells]``.

    Each has permutations of its own: errors of sampling that all removals share would look like agreement.

    Args:
        model: The model.
        x: The pictures.
        target: Their classes.
        cells: The number of each pixel's cell, ``[B,H,W]``.
        fills: What `removed` returns.
        permutations: How many for each removal.
    """
    count, kinds = len(x), len(fills)
    seeds = [picture * kinds + kind for kind in range(kinds) for picture in range(count)]
    found = shapley_values_of(
        model, x.repeat(kinds, 1, 1, 1), target.repeat(kinds), cells.repeat(kinds, 1, 1), fills.flatten(0, 1),
        permutations, seeds,
    )  # fmt: skip
    return [torch.stack(found[picture::count]) for picture in range(count)]


def agreement(sums: Tensor, values: Tensor) -> Tensor:
    """Spearman correlation of a map's sums over cells, ``[cells]``, with the values of each removal: ``[removals]``."""
    return spearman(sums.expand_as(values), values)


def ceiling(values: Tensor) -> Tensor:
    """How well the values of each removal agree with those of the others, in the mean: ``[removals]``.

    Example:
        >>> ceiling(torch.tensor([[1.0, 2, 3], [10, 20, 30], [3, 2, 1]])).round(decimals=6).tolist()
        [0.0, 0.0, -1.0]
    """
    pairs = spearman(values[:, None].expand(-1, len(values), -1), values[None].expand(len(values), -1, -1))
    return (pairs.sum(1) - pairs.diagonal()) / (len(values) - 1)


def energy_on(values: Tensor, inside: Tensor, area: Tensor) -> Tensor:
    """The part of the positive values of cells that lies on an object, along the last axis.

    Args:
        values: One for each cell.
        inside: Which part of each cell the object covers.
        area: Which part of the picture it covers: what is returned where no value is positive.

    Example:
        >>> energy_on(torch.tensor([3.0, 1.0, -5.0]), torch.tensor([1.0, 0.5, 0.0]), torch.tensor(0.3)).item()
        0.875
    """
    positive = values.clamp(min=0)
    total = positive.sum(-1)
    return ((positive * inside).sum(-1) / total.where(total > 0, 1)).where(total > 0, area.to(total))
