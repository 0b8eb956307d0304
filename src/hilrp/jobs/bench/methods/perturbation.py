"""Methods that change the input and see what becomes of the score: Occlusion, RISE, and LIME."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.jobs.bench.batches import scores, scores_of_changed

#: LIME's segments are the cells of a grid with this many a side.
CELLS = 8
_RISE_GRID, _RISE_KEPT = 7, 0.5


def occlusion(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """What the score loses where a grey window, an eighth of the picture wide, lies on it (Zeiler and Fergus, 2014).

    At each pixel the mean over the windows that cover it, times the number of channels: captum's, summed over channels.
    """
    side = max(1, x.shape[-1] // 8)
    rows, columns = (_windows(n, side, max(1, side // 2)).to(x.device) for n in x.shape[-2:])
    grey = x.mean((2, 3), keepdim=True)

    def covered(image: Tensor, window: Tensor) -> Tensor:
        there = rows[window // len(columns), :, None] & columns[window % len(columns), None, :]
        return torch.where(there[:, None], grey[image], x[image])

    without = scores_of_changed(model, x, target, len(rows) * len(columns), covered)
    lost = (scores(model, x, target)[:, None] - without).unflatten(1, (len(rows), len(columns))).double()
    total = rows.double().T @ lost @ columns.double()
    return (x.shape[1] * total / (rows.sum(0)[:, None] * columns.sum(0))).to(x)


def _windows(length: int, side: int, stride: int) -> Tensor:
    """What each window along an axis covers, ``[windows,length]``; the last ones may reach over the edge."""
    start = torch.arange(-(-max(0, length - side) // stride) + 1)[:, None] * stride
    place = torch.arange(length)
    return (place >= start) & (place < start + side)


def lime(model: nn.Module, x: Tensor, target: Tensor, samples: int = 300) -> Tensor:
    """LIME (Ribeiro, Singh and Guestrin, 2016): a linear model of the score, fitted to pictures with grey cells.

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
    chosen = rise_masks(x.shape[-2], x.shape[-1], masks, x.device).to(x)
    grey = x.mean((2, 3), keepdim=True)

    def masked(image: Tensor, mask: Tensor) -> Tensor:
        return torch.lerp(grey[image], x[image], chosen[mask][:, None])

    score = scores_of_changed(model, x, target, masks, masked)
    weights = (score - score.mean(1, keepdim=True)) / (masks * _RISE_KEPT)
    return torch.einsum("bn,nhw->bhw", weights.to(chosen), chosen)


def rise_masks(
    height: int, width: int, count: int, device: torch.device | None = None, cells: int = _RISE_GRID
) -> Tensor:
    """Random masks ``[count,height,width]``: coarse grids of zeros and ones, enlarged smoothly and shifted.

    Drawn on the host, where a seed gives the same everywhere, and enlarged on the device.
    """
    chance = torch.Generator().manual_seed(0)
    coarse = (torch.rand(count, 1, cells, cells, generator=chance) < _RISE_KEPT).float()
    cell = [-(-side // cells) for side in (height, width)]
    shifts = [torch.randint(c, (count,), generator=chance).to(device) for c in cell]
    size = [(cells + 1) * c for c in cell]
    large = F.interpolate(coarse.to(device), size=size, mode="bilinear", align_corners=False)[:, 0]
    rows, columns = (s[:, None] + torch.arange(n, device=device) for s, n in zip(shifts, (height, width), strict=True))
    return large[torch.arange(count, device=device)[:, None, None], rows[:, :, None], columns[:, None]]


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
