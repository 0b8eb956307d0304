"""Insertion and deletion as RISE publishes them (Petsiuk, Das and Saenko, 2018): curves of the class's probability."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.jobs.bench.batches import Read, one_class, scores, scores_of_changed
from hilrp.jobs.bench.metrics.faithfulness import places

#: The blurred picture that insertion begins with: the side of the kernel and its width, in pixels.
_SIDE, _SIGMA = 11, 5


def insertion_deletion(
    model: nn.Module, x: Tensor, target: Tensor, maps: Tensor, ends: Tensor, steps: int = 16, read: Read = one_class
) -> dict[str, Tensor]:
    """Areas under the class's probability, while the most relevant pixels go first into a picture, or out of it.

    ``insertion`` begins with the blurred picture and is better the larger; ``deletion`` puts zero, the mean colour of
    what the model was trained on, and is better the smaller. The areas are those of the trapezoidal rule.

    Args:
        model: The model.
        x: Images.
        target: Their classes.
        maps: Their maps.
        ends: What `end_probabilities` returns.
        steps: In how many steps all pixels are changed.
        read: The probability of a class, first of what is read.
    """
    place, inner = places(maps, most_first=True), steps - 1
    limits = torch.linspace(0, maps[0].numel(), steps + 1, device=x.device).round()
    blurred = blur(x)

    def changed(image: Tensor, picture: Tensor) -> Tensor:
        strongest = (place[image] < limits[1 + picture % inner, None, None])[:, None]
        inserts = (picture < inner)[:, None, None, None]
        rest = torch.where(inserts, blurred[image], 0)
        return torch.where(strongest == inserts, x[image], rest)

    found = scores_of_changed(model, x, target, 2 * inner, changed, read)[..., 0]
    whole, nothing, coarse = ends[:, :, None].unbind(1)
    curves = {
        "insertion": torch.cat([coarse, found[:, :inner], whole], 1),
        "deletion": torch.cat([whole, found[:, inner:], nothing], 1),
    }
    return {name: torch.trapezoid(curve, dx=1 / steps, dim=1) for name, curve in curves.items()}


def end_probabilities(model: nn.Module, x: Tensor, target: Tensor, read: Read = one_class) -> Tensor:
    """The class's probability at the ends of the curves, which no map changes: ``[B,3]``.

    On the whole images, on nothing (zero), and on the blurred ones.
    """
    pictures = torch.cat([x, torch.zeros_like(x), blur(x)])
    return scores(model, pictures, target.repeat(3), read=read)[:, 0].unflatten(0, (3, len(x))).T


def blur(x: Tensor) -> Tensor:
    """Pictures, blurred as RISE's own code does: a kernel of 11 x 11 pixels, and zero beyond the border."""
    kernel = _kernel().to(x).expand(x.shape[1], 1, -1, -1)
    return F.conv2d(x, kernel, padding=_SIDE // 2, groups=x.shape[1])


@cache
def _kernel() -> Tensor:
    """A point, blurred by scipy: a bell of the width 5 that is mirrored at the kernel's borders."""
    from scipy.ndimage import gaussian_filter  # type: ignore[import-untyped]

    point = np.zeros((_SIDE, _SIDE))
    point[_SIDE // 2, _SIDE // 2] = 1
    return torch.from_numpy(gaussian_filter(point, _SIGMA))
