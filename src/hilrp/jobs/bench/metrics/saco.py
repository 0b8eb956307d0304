"""SaCo: whether groups of pixels with more salience matter more, and by as much (Wu et al., CVPR 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hilrp.jobs.bench.batches import Read, one_class, scores_of_changed
from hilrp.jobs.bench.metrics.faithfulness import places

#: Groups whose salience differs by less than this, relative to the largest, have the same.
_ROUNDING = 1e-9


def saco(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    maps: Tensor,
    baseline: Tensor,
    whole: Tensor,
    groups: int = 10,
    read: Read = one_class,
) -> Tensor:
    """The Salience-guided Faithfulness Coefficient of each map, from -1 to 1 (Algorithm 1 of the paper).

    Pixels are sorted by their salience into groups of one size, up to a pixel. Each group alone is replaced by the
    image's mean colour. Of each pair of groups, the difference of their salience counts for the map if the one with
    more salience loses at least as much of the class's probability, and against it if not::

        F = sum over i < j of sign(d_i >= d_j) (s_i - s_j)  /  sum over i < j of |s_i - s_j|

    There is none (not a number) where all groups have the same salience.

    Args:
        model: The model.
        x: Images.
        target: Their classes.
        maps: Their maps.
        baseline: What is put where pixels are taken away.
        whole: The probabilities of the classes on the whole images, ``[B]``.
        groups: How many groups.
        read: The probability of a class, first of what is read.
    """
    limits = torch.linspace(0, maps[0].numel(), groups + 1, device=x.device).round()
    place = places(maps, most_first=True)
    group = torch.bucketize(place, limits[1:-1], right=True)

    def without(image: Tensor, number: Tensor) -> Tensor:
        return torch.where((group[image] == number[:, None, None])[:, None], baseline[image], x[image])

    left = scores_of_changed(model, x, target, groups, without, read)[..., 0]
    total = torch.zeros(len(x), groups, dtype=torch.float64, device=x.device)
    total.scatter_add_(1, group.flatten(1), maps.flatten(1).double())
    # The mean: where pixels can't be shared out evenly, the sum of a group would say how large it is.
    return coefficient(total / limits.double().diff(), (whole[:, None] - left).double()).to(maps)


def coefficient(salience: Tensor, drops: Tensor) -> Tensor:
    """The coefficient, along the last axis, of groups in the order of their salience, and of what each loses.

    Example:
        >>> coefficient(torch.tensor([3.0, 2.0, 0.0]), torch.tensor([0.5, 0.1, 0.2])).item()  # (1 + 3 - 2) / 6
        0.3333333432674408
    """
    first, second = torch.triu_indices(salience.shape[-1], salience.shape[-1], 1, device=salience.device)
    weight = salience[..., first] - salience[..., second]
    agrees = drops[..., first] >= drops[..., second]
    total = weight.abs().sum(-1)
    differs = total > _ROUNDING * salience.abs().amax(-1)
    return torch.where(agrees, weight, -weight).sum(-1) / total.where(differs, float("nan"))
