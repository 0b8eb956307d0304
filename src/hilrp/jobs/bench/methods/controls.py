"""Maps that look at no model: what any figure has to be read beside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: The width of the bell, as a part of the picture.
WIDTH = 0.25


def uniform(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The same everywhere."""
    return torch.ones_like(x[:, 0])


def random(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Noise, the same in every run for the same image."""
    maps = []
    for image in x:
        seed = int(image.double().sum().mul(1e6).long()) % 2**31
        maps.append(torch.rand(image.shape[1:], generator=torch.Generator().manual_seed(seed)))
    return torch.stack(maps).to(x)


def centre_gaussian(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """A bell over the middle."""
    return bell(x.shape[-2], x.shape[-1]).to(x).expand(len(x), -1, -1)


def bell(height: int, width: int, part: float = WIDTH) -> Tensor:
    """A bell over the middle of a picture, as wide as a part of it.

    Example:
        >>> float(bell(5, 5)[2, 2])
        1.0
    """
    rows, columns = (torch.exp(-0.5 * (((torch.arange(n) + 0.5) / n - 0.5) / part) ** 2) for n in (height, width))
    return rows[:, None] * columns[None, :]
