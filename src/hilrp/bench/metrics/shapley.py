"""Agreement with Shapley values over segments, an axiomatic reference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hilrp.bench.batches import scores, without_graph
from hilrp.bench.metrics.faithfulness import pearson


def shapley_values(
    model: nn.Module, x: Tensor, target: Tensor, segments: Tensor, baseline: Tensor, permutations: int, seed: int = 0
) -> Tensor:
    """Shapley values of the segments of one image, sampled: ``[segments]``.

    Each permutation puts the segments in, one after the other, and the score's gain is the segment's. Each is followed by its
    reverse, which halves the variance or better (Mitchell et al., 2022).

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
    chance = torch.Generator().manual_seed(seed)
    values = torch.zeros(count, dtype=torch.float64, device=x.device)
    drawn = [torch.randperm(count, generator=chance) for _ in range((permutations + 1) // 2)]
    orders = torch.stack([each for order in drawn for each in (order, order.flip(0))][:permutations]).to(x.device)
    steps = torch.arange(count + 1, device=x.device)
    for part in orders.split(max(1, without_graph(x.device) // (count + 1))):
        place = torch.empty_like(part).scatter_(1, part, steps[:-1].expand_as(part))
        # Picture k of an order holds its first k segments.
        there = place[:, None, segments] < steps[None, :, None, None]
        pictures = torch.where(there.flatten(0, 1)[:, None], x, baseline)
        score = scores(model, pictures, target.expand(len(pictures))).double()
        values.index_add_(0, part.flatten(), score.unflatten(0, (len(part), count + 1)).diff().flatten())
    return values / len(orders)


def per_segment(maps: Tensor, segments: Tensor) -> Tensor:
    """The sum of a map ``[H,W]`` over each segment."""
    count = int(segments.max()) + 1
    sums = torch.zeros(count, dtype=torch.float64, device=maps.device)
    return sums.index_add_(0, segments.flatten(), maps.flatten().double())


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Rank correlation along the last axis; equal values share their mean rank. Not a number where one of the two doesn't vary."""
    constant = (a.amax(-1) == a.amin(-1)) | (b.amax(-1) == b.amin(-1))
    return pearson(ranks(a), ranks(b)).masked_fill(constant, float("nan"))


def ranks(values: Tensor) -> Tensor:
    """Ranks along the last axis, in float64; equal values share their mean rank.

    Example:
        >>> ranks(torch.tensor([3.0, 1.0, 3.0])).tolist()
        [1.5, 0.0, 1.5]
    """
    rows = []
    for row in values.reshape(-1, values.shape[-1]):
        _, place, counts = torch.unique(row, return_inverse=True, return_counts=True)
        ends = counts.cumsum(0).double()
        rows.append((ends - (counts.double() + 1) / 2)[place])
    return torch.stack(rows).reshape(values.shape)
