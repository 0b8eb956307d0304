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
    return bell(*x.shape[2:]).to(x).expand(len(x), *x.shape[2:])


def bell(*sides: int, part: float = WIDTH) -> Tensor:
    """A bell over the middle of a picture, a volume or a film, as wide as a part of it.

    Example:
        >>> float(bell(5, 5)[2, 2]), bell(8, 5, 5).shape
        (1.0, torch.Size([8, 5, 5]))
    """
    found = torch.ones(())
    for n in sides:
        found = found[..., None] * torch.exp(-0.5 * (((torch.arange(n) + 0.5) / n - 0.5) / part) ** 2)
    return found


def edges(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """How much neighbours differ, along all axes but that of the channels, summed over these."""
    found = torch.zeros_like(x)
    for axis in range(2, x.ndim):
        if x.shape[axis] > 1:
            found += torch.gradient(x, dim=axis)[0].square()
    return found.sqrt().sum(1)
