"""Agreement with Shapley values over segments, an axiomatic reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.jobs.bench.batches import scores, without_graph
from hilrp.jobs.bench.metrics.faithfulness import pearson


def shapley_values(
    model: nn.Module, x: Tensor, target: Tensor, segments: Tensor, baseline: Tensor, permutations: int, seed: int = 0
) -> Tensor:
    """Shapley values of the segments of one image, sampled: ``[segments]``. See `shapley_values_of`.

    Args:
        model: The model.
        x: One image, ``[3,H,W]``.
        target: Its class, a scalar.
        segments: The number of each pixel's segment, ``[H,W]``, from 0 on.
        baseline: What is there where a segment is not, ``[3,H,W]``.
        permutations: How many; an even number.
        seed: Of the permutations.
    """
    return shapley_values_of(model, x[None], target[None], segments[None], baseline[None], permutations, [seed])[0]


def shapley_values_of(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    segments: Tensor,
    baseline: Tensor,
    permutations: int,
    seeds: Sequence[int],
) -> list[Tensor]:
    """Shapley values of the segments of several images, sampled: ``[segments]`` for each.

    Each permutation puts the segments in, one after the other, and the score's gain is the segment's. Permutations that
    begin with the same segments share their pictures, which are scored once. The pictures of all images are scored in
    full batches.

    Args:
        model: The model.
        x: Images, ``[B,3,H,W]``.
        target: Their classes, ``[B]``.
        segments: The number of each pixel's segment, ``[B,H,W]``, from 0 on.
        baseline: What is there where a segment is not, ``[B,3,H,W]``.
        permutations: How many for each image; an even number.
        seeds: Of the permutations of each image.
    """
    counts = [int(each.max()) + 1 for each in segments]
    drawn = [orders(count, permutations, seed) for count, seed in zip(counts, seeds, strict=True)]
    coalitions, which = zip(*(_coalitions(order) for order in drawn), strict=True)
    owner = torch.arange(len(x)).repeat_interleave(torch.tensor([len(held) for held in coalitions])).to(x.device)
    held = torch.cat([F.pad(each, (0, max(counts) - each.shape[1])) for each in coalitions]).to(x.device)
    places, score = segments.flatten(1), []
    for part in torch.arange(len(owner), device=x.device).split(without_graph(x.device)):
        image = owner[part]
        there = held[part].gather(1, places[image]).reshape(-1, 1, *x.shape[-2:])
        score.append(scores(model, torch.where(there, x[image], baseline[image]), target[image]).double())
    found = []
    own = torch.cat(score).split([len(each) for each in coalitions])
    for order, index, count, of_image in zip(drawn, which, counts, own, strict=True):
        gains = of_image[index.to(x.device)].unflatten(0, (len(order), count + 1)).diff()
        total = torch.zeros_like(gains[0]).index_add_(0, order.flatten().to(x.device), gains.flatten())
        found.append(total / len(order))
    return found


def _coalitions(order: Tensor) -> tuple[Tensor, Tensor]:
    """The different sets of segments that orders go through, and which of them each step of each order holds."""
    count = order.shape[1]
    # Picture k of an order holds its first k segments.
    held = order.argsort(1)[:, None] < torch.arange(count + 1)[:, None]
    different, which = torch.unique(held.flatten(0, 1), dim=0, return_inverse=True)
    return different, which


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
