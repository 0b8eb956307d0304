"""Whether a map lies on the object: Pointing Game, energy excess, average precision, IoU."""

from __future__ import annotations

import torch
from torch import Tensor


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
    values, order = maps.flatten(1).sort(1, descending=True)
    hits = masks.flatten(1).gather(1, order).double().cumsum(1)
    precision = hits / torch.arange(1, hits.shape[1] + 1, device=maps.device)
    # Of those with the same value the last one counts: it is where all of them are among the strongest.
    last = torch.cat([values[:, 1:] != values[:, :-1], torch.ones_like(masks.flatten(1)[:, :1])], 1)
    place = torch.arange(hits.shape[1], device=maps.device).where(last, hits.shape[1])
    place = place.flip(1).cummin(1).values.flip(1)
    found = torch.cat([torch.zeros_like(hits[:, :1]), hits], 1).diff(dim=1)
    return ((precision.gather(1, place) * found).sum(1) / hits[:, -1]).to(maps)


def iou(maps: Tensor, masks: Tensor) -> Tensor:
    """Intersection over union of the object with as many of the strongest pixels as it has."""
    found = []
    for values, labels in zip(maps.flatten(1), masks.flatten(1), strict=True):
        size = int(labels.sum())
        common = labels[values.topk(size).indices].sum()
        found.append(common / (2 * size - common))
    return torch.stack(found).to(maps)
