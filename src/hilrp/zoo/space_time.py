"""A small 3-D U-Net for volumes, and a small network for films that looks along space and along time in turn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class UNet3D(nn.Module):
    """A U-Net of three levels (Çiçek et al., 2016): what is there, at every voxel.

    Args:
        classes: How many; each is there or not, at every place.
        widths: Of the levels, from fine to coarse.
    """

    def __init__(self, classes: int, widths: Sequence[int] = (8, 16, 32)) -> None:
        super().__init__()
        before = (1, *widths[:-1])
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip(before, widths, strict=True))
        self.pool = nn.MaxPool3d(2)
        pairs = list(pairwise(widths))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose3d(coarse, fine, 2, 2) for fine, coarse in pairs)
        self.join = nn.ModuleList(_twice(2 * fine, fine) for fine, _ in pairs)
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``[B,classes,D,H,W]`` of volumes ``[B,1,D,H,W]`` whose sides are multiples of four."""
        kept: list[Tensor] = []
        for block in self.down:
            x = block(self.pool(x) if kept else x)
            kept.append(x)
        for up, join, fine in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([fine, up(x)], 1))
        found: Tensor = self.head(x)
        return found


def _twice(before: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, width):
        layers += [nn.Conv3d(channels, width, 3, padding=1, bias=False), nn.BatchNorm3d(width), nn.ReLU()]
    return nn.Sequential(*layers)


class FilmNet(nn.Module):
    """A residual network whose convolutions go over space and over time in turn: R(2+1)D (Tran et al., 2018).

    Args:
        classes: What it recognises; each happens in a film or not.
        widths: Of the stages, each with frames of half the size.
    """

    def __init__(self, classes: int, widths: Sequence[int] = (24, 48, 96)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, widths[0], (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
            nn.BatchNorm3d(widths[0]), nn.ReLU(),
        )  # fmt: skip
        before = (widths[0], *widths[:-1])
        self.stages = nn.Sequential(*(_Block(a, b) for a, b in zip(before, widths, strict=True)))
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """``[B,classes]`` of films ``[B,3,T,H,W]``."""
        found: Tensor = self.head(self.pool(self.stages(self.stem(x))).flatten(1))
        return found


class _Block(nn.Module):
    """Space and time, twice, and what came in."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        step = 1 if before == width else 2
        self.first, self.second = _space_time(before, width, step), _space_time(width, width, 1)
        self.skip: nn.Module = nn.Identity()
        if before != width:
            self.skip = nn.Sequential(
                nn.Conv3d(before, width, 1, (1, step, step), bias=False), nn.BatchNorm3d(width)
            )  # fmt: skip
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.relu(self.second(self.relu(self.first(x))) + self.skip(x))
        return found


def _space_time(before: int, width: int, step: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(before, width, (1, 3, 3), (1, step, step), (0, 1, 1), bias=False),
        nn.BatchNorm3d(width), nn.ReLU(),
        nn.Conv3d(width, width, (3, 1, 1), padding=(1, 0, 0), bias=False),
        nn.BatchNorm3d(width),
    )  # fmt: skip
