"""Methods that change the input and see what becomes of the score: Occlusion by captum, RISE, and LIME."""

from __future__ import annotations

import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.bench.batches import scores, without_graph

#: LIME's segments are the cells of a grid with this many a side.
CELLS = 8
_RISE_GRID, _RISE_KEPT = 7, 0.5


def occlusion(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """What the score loses where a grey window, an eighth of the picture wide, lies on it."""
    side = max(1, x.shape[-1] // 8)
    shown = max(1, without_graph(x.device) // len(x))
    method = attr.Occlusion(model)
    window, stride = (x.shape[1], side, side), (x.shape[1], max(1, side // 2), max(1, side // 2))
    found = method.attribute(x, window, stride, baselines=_grey(x), target=target, perturbations_per_eval=shown)
    return found.sum(1)


def lime(model: nn.Module, x: Tensor, target: Tensor, samples: int = 300) -> Tensor:
    """The weights of a linear model of the score, fitted to pictures in which cells of a grid are grey (Ribeiro, Singh and Guestrin, 2016).

    Ridge regression, in which pictures count more the more alike they are to the whole one (captum's kernel).
    """
    cells = grid(x.shape[-2], x.shape[-1], CELLS).to(x.device)
    chance = torch.Generator().manual_seed(0)
    half = torch.full((CELLS**2,), 0.5)
    kept = torch.stack([torch.bernoulli(half, generator=chance) for _ in range(samples)]).to(x)
    grey, maps = _grey(x), []
    for i in range(len(x)):
        pictures = torch.where(kept.bool()[:, cells][:, None], x[i], grey[i])
        score = scores(model, pictures, target[i].expand(samples))
        alike = F.cosine_similarity(pictures.flatten(1), x[i].flatten()[None])
        maps.append(ridge(kept.double(), score.double(), torch.exp(-(1 - alike.double()).square() / 2))[cells])
    return torch.stack(maps).to(x)


def ridge(x: Tensor, y: Tensor, weights: Tensor, alpha: float = 1.0) -> Tensor:
    """Coefficients of weighted ridge regression with an intercept, which isn't penalised.

    Args:
        x: Samples, ``[n,features]``.
        y: What they give, ``[n]``.
        weights: What each counts, ``[n]``.
        alpha: The penalty.
    """
    share = weights / weights.sum()
    x, y = x - share @ x, y - share @ y
    penalty = alpha * torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return torch.linalg.solve((x.T * weights) @ x + penalty, (x.T * weights) @ y)


def rise(model: nn.Module, x: Tensor, target: Tensor, masks: int = 500) -> Tensor:
    """The mean of random smooth masks, each weighted by the score of what it leaves (Petsiuk, Das and Saenko, 2018).

    The score is the logit, less its mean over the masks, so that the number of masks doesn't show as an offset.
    """
    chosen = rise_masks(x.shape[-2], x.shape[-1], masks).to(x)
    grey = _grey(x)
    size, maps = without_graph(x.device), []
    for i in range(len(x)):
        parts = (x[i] * part[:, None] + grey[i] * (1 - part[:, None]) for part in chosen.split(size))
        score = torch.cat([scores(model, part, target[i].expand(len(part))) for part in parts])
        maps.append(((score - score.mean())[:, None, None] * chosen).mean(0) / _RISE_KEPT)
    return torch.stack(maps)


def rise_masks(height: int, width: int, count: int) -> Tensor:
    """Random masks ``[count,height,width]``: coarse grids of zeros and ones, enlarged smoothly and shifted."""
    chance = torch.Generator().manual_seed(0)
    coarse = (torch.rand(count, 1, _RISE_GRID, _RISE_GRID, generator=chance) < _RISE_KEPT).float()
    cell = [-(-side // _RISE_GRID) for side in (height, width)]
    large = F.interpolate(coarse, size=[(_RISE_GRID + 1) * c for c in cell], mode="bilinear", align_corners=False)
    shifts = [torch.randint(c, (count,), generator=chance).tolist() for c in cell]
    return torch.stack([m[0, r : r + height, c : c + width] for m, r, c in zip(large, *shifts, strict=True)])


def grid(height: int, width: int, cells: int) -> Tensor:
    """The number of each pixel's cell in a grid with that many cells a side, ``[height,width]``.

    Example:
        >>> grid(4, 4, 2).tolist()
        [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    """
    rows, columns = (torch.arange(side) * cells // side for side in (height, width))
    return rows[:, None] * cells + columns[None, :]


def _grey(x: Tensor) -> Tensor:
    """The mean colour of each image."""
    return x.mean((2, 3), keepdim=True).expand_as(x)
