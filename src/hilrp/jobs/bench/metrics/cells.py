"""Cells of a picture that no method uses, so that no method is at home in them.

LIME's cells are those of a grid, and chains have patches of their own.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: How many points Voronoi cells are drawn around, and about how many superpixels a picture has.
POINTS, SUPERPIXELS = 45, 60


def voronoi(height: int, width: int, seed: int, points: int = POINTS) -> Tensor:
    """The number of the nearest of some random points, for each pixel: ``[height,width]``, from 0 on.

    Example:
        >>> voronoi(2, 6, seed=0, points=3).tolist()
        [[0, 0, 0, 2, 2, 1], [0, 0, 0, 0, 2, 1]]
    """
    chance = torch.Generator().manual_seed(seed)
    centres = torch.rand(points, 2, generator=chance, dtype=torch.float64) * torch.tensor([height, width])
    rows, columns = (torch.arange(side, dtype=torch.float64) + 0.5 for side in (height, width))
    apart = (rows[:, None, None] - centres[:, 0]) ** 2 + (columns[None, :, None] - centres[:, 1]) ** 2
    return numbered(apart.argmin(-1))


def superpixels(picture: Tensor, count: int = SUPERPIXELS) -> Tensor:
    """About so many superpixels (SLIC) of a picture ``[3,H,W]`` with values from 0 to 1: ``[H,W]``, from 0 on."""
    from skimage.segmentation import slic

    pixels = picture.permute(1, 2, 0).cpu().numpy()
    return numbered(torch.from_numpy(slic(pixels, n_segments=count, compactness=10, start_label=0).astype(np.int64)))


def numbered(cells: Tensor) -> Tensor:
    """Cells with other numbers: cells that nothing is left of have none."""
    return torch.unique(cells, return_inverse=True)[1]
