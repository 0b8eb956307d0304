"""Whether a map lies on the object: Pointing Game, energy excess, average precision, IoU."""

from __future__ import annotations

import torch
from torch import Tensor

from hilrp.zoo import accuracy


def pointing(maps: Tensor, masks: Tensor) -> Tensor:
    """Whether the strongest pixel lies on the object; where several are the strongest, the part of them that does.

    Example:
        >>> pointing(torch.tensor([[[0.0, 2.0], [2.0, 1.0]]]), torch.tensor([[[False, True], [False, False]]]))
        tensor([0.5000])
    """
    flat, inside = maps.flatten(1), masks.flatten(1)
    strongest = flat == flat.amax(1, keepdim=True)
    return (strongest & inside).sum(1) / strongest.sum(1)


def energy_excess(maps: Tensor, masks: Tensor) -> Tensor:
    """The part of the positive relevance that lies on the object, less the part of the picture that the object covers.

    Zero for a map that is the same everywhere; a map without positive relevance counts as such.
    """
    return energy(maps, masks) - masks.flatten(1).float().mean(1).to(maps)


def energy(maps: Tensor, masks: Tensor) -> Tensor:
    """The part of the positive relevance that lies on the object; by area, where there is no positive relevance."""
    positive, inside = maps.flatten(1).clamp(min=0), masks.flatten(1)
    total = positive.sum(1)
    share = (positive * inside).sum(1) / total.where(total > 0, torch.ones_like(total))
    return share.where(total > 0, inside.float().mean(1).to(maps))


def average_precision(maps: Tensor, masks: Tensor) -> Tensor:
    """How well the map tells the object's pixels from the others: the area under precision over recall.

    Pixels of the same value come at once. By chance it is the part of the picture that the object covers.
    """
    pairs = zip(maps.flatten(1).cpu().numpy(), masks.flatten(1).cpu().numpy(), strict=True)
    return torch.tensor([accuracy.average_precision(values, labels) for values, labels in pairs]).to(maps)


def iou(maps: Tensor, masks: Tensor) -> Tensor:
    """Intersection over union of the object with as many of the strongest pixels as it has."""
    found = []
    for values, labels in zip(maps.flatten(1), masks.flatten(1), strict=True):
        size = int(labels.sum())
        common = labels[values.topk(size).indices].sum()
        found.append(common / (2 * size - common))
    return torch.stack(found).to(maps)
