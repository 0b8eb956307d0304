"""Agreement with Shapley values over segments, an axiomatic reference."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.jobs.bench.batches import scores_of_changed
from hilrp.jobs.bench.metrics.faithfulness import pearson


def shapley_values(
    model: nn.Module, x: Tensor, target: Tensor, segments: Tensor, baseline: Tensor, permutations: int, seed: int = 0
) -> Tensor:
    """Shapley values of the segments of one image, sampled: ``[segments]``.

    Each permutation puts the segments in, one after the other, and the score's gain is the segment's. Permutations that
    begin with the same segments share their pictures, which are scored once.

    Args:
        model: The model.
        x: One image, ``[3,H,W]``.
        target: Its class, a scalar.
        segments: The number of each pixel's segment, ``[H,W]``, from 0 on.
        baseline: What is there where a segment is not, ``[3,H,W]``.
        permutations: How many; an even number.
        seed: Of the permutations.
    """
    count = int(segments.max()) + 1
    order = orders(count, permutations, seed)
    place = order.argsort(1)
    # Picture k of an order holds its first k segments.
    held = place[:, None] < torch.arange(count + 1)[:, None]
    different, which = torch.unique(held.flatten(0, 1), dim=0, return_inverse=True)
    different, which, order = different.to(x.device), which.to(x.device), order.to(x.device)

    def pictures(_: Tensor, number: Tensor) -> Tensor:
        return torch.where(different[number][:, segments][:, None], x, baseline)

    score = scores_of_changed(model, x[None], target[None], len(different), pictures)[0].double()
    gains = score[which].unflatten(0, (len(order), count + 1)).diff()
    return torch.zeros_like(gains[0]).index_add_(0, order.flatten(), gains.flatten()) / len(order)


def orders(count: int, permutations: int, seed: int = 0) -> Tensor:
    """Random permutations of so many segments, ``[permutations,count]``, the same on every device.

    Each is followed by its reverse, which halves the variance of Shapley values or better (Mitchell et al., 2022).

    Example:
        >>> orders(4, 2).tolist()
        [[0, 1, 3, 2], [2, 3, 1, 0]]
    """
    chance = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(count, generator=chance) for _ in range((permutations + 1) // 2)]
    return torch.stack([each for order in drawn for each in (order, order.flip(0))][:permutations])


def per_segment(maps: Tensor, segments: Tensor) -> Tensor:
    """The sum of a map ``[H,W]`` over each segment."""
    count = int(segments.max()) + 1
    sums = torch.zeros(count, dtype=torch.float64, device=maps.device)
    return sums.index_add_(0, segments.flatten(), maps.flatten().double())


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Rank correlation along the last axis; equal values share their mean rank.

    Not a number where one of the two doesn't vary.
    """
    constant = (a.amax(-1) == a.amin(-1)) | (b.amax(-1) == b.amin(-1))
    return pearson(ranks(a), ranks(b)).masked_fill(constant, float("nan"))


def ranks(values: Tensor) -> Tensor:
    """Ranks along the last axis, in float64; equal values share their mean rank.

    Example:
        >>> ranks(torch.tensor([3.0, 1.0, 3.0])).tolist()
        [1.5, 0.0, 1.5]
    """
    ordered, order = values.sort(-1)
    place = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    differs = F.pad(ordered[..., 1:] != ordered[..., :-1], (1, 1), value=True)
    first = place.where(differs[..., :-1], 0).cummax(-1).values
    last = place.where(differs[..., 1:], place.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return torch.empty_like(ordered, dtype=torch.float64).scatter_(-1, order, (first + last).double() / 2)
