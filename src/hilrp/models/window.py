"""Which part of a picture a model saw, and its maps put back there.

A preprocessing scales a picture and cuts out a part of it. Which part, is measured and not read from its settings: a
picture whose colours say where a pixel is goes through it, and lines are fitted to what comes out. So it works for
anybody's function, as long as it scales, crops or pads along the axes and leaves colours alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: How far, in pixels of the model's input, a place may be from the fitted line, besides what a byte rounds off.
_STRAY = 0.75


@dataclass(frozen=True)
class Window:
    """The part of a picture that a model saw.

    Attributes:
        size: Width and height of the picture.
        seen: Width and height of the model's input.
        left, top, right, bottom: Where the part ends, in pixels of the picture; beyond it, where it was padded.
    """

    size: tuple[int, int]
    seen: tuple[int, int]
    left: float
    top: float
    right: float
    bottom: float

    @property
    def is_whole(self) -> bool:
        """Whether the model saw the whole picture."""
        reach = [self.left, self.top, self.size[0] - self.right, self.size[1] - self.bottom]
        steps = [(self.right - self.left) / self.seen[0], (self.bottom - self.top) / self.seen[1]] * 2
        return all(abs(edge) <= step for edge, step in zip(reach, steps, strict=True))

    def restore(self, maps: Tensor) -> Tensor:
        """Maps of the model's input, ``[...,h,w]``, on the pixels of the picture, ``[...,H,W]``.

        Each pixel's relevance is spread evenly over the place that it shows, so that sums stay what they are; what lies
        on padding is no pixel's of the picture. Places that the model did not see hold zero.

        Example:
            >>> Window((4, 2), (1, 1), 1.0, 0.0, 3.0, 2.0).restore(torch.ones(1, 1)).tolist()
            [[0.0, 0.25, 0.25, 0.0], [0.0, 0.25, 0.25, 0.0]]
        """
        across = _overlap(self.left, self.right, self.seen[0], self.size[0]).to(maps)
        down = _overlap(self.top, self.bottom, self.seen[1], self.size[1]).to(maps)
        return down @ maps @ across.mT

    def scaled(self, factor: float) -> Window:
        """The same part of the same picture, drawn larger or smaller."""
        width, height = (max(1, round(side * factor)) for side in self.size)
        x, y = width / self.size[0], height / self.size[1]
        return Window((width, height), self.seen, self.left * x, self.top * y, self.right * x, self.bottom * y)


def _overlap(start: float, end: float, cells: int, pixels: int) -> Tensor:
    """Which part of each of so many cells between two places lies in each pixel, ``[pixels,cells]``."""
    edges = torch.linspace(start, end, cells + 1, dtype=torch.float64)
    first = torch.arange(pixels, dtype=torch.float64)[:, None]
    common = torch.minimum(first + 1, edges[1:]) - torch.maximum(first, edges[:-1])
    return common.clamp(min=0) / ((end - start) / cells)


def measured(look: Callable[[Any], Tensor | None], size: tuple[int, int]) -> Window | None:
    """The part of pictures of that width and height that a model sees; ``None`` if it isn't one along the axes.

    Args:
        look: From an RGB picture to what the model sees of it, ``[3,h,w]`` with values from 0 to 1.
        size: Width and height.
    """
    shown = look(chart(size))
    if shown is None or shown.ndim != 3 or shown.shape[0] != 3:
        return None
    across, down, inside = shown.double()
    seen = (shown.shape[-1], shown.shape[-2])
    ends = []
    for axis, places in enumerate((across, down)):
        # Where padding or an edge is mixed in, a colour says nothing of the place.
        pure = (inside.amin(axis) > 0.999).nonzero().flatten()
        if len(pure) < 3:
            return None
        values = (places[:, pure].mean(0) if axis == 0 else places[pure].mean(1)) * size[axis]
        line = _line(pure.double() + 0.5, values, _STRAY * size[axis] / seen[axis] + size[axis] / 255)
        if line is None:
            return None
        slope, offset = line
        ends.append((offset, offset + slope * seen[axis]))
    return Window(size, seen, ends[0][0], ends[1][0], ends[0][1], ends[1][1])


def chart(size: tuple[int, int]) -> Any:
    """A picture whose red says where a pixel is from left to right, green from top to bottom; blue is everywhere."""
    import numpy as np
    from PIL import Image

    across, down = ((np.arange(side) + 0.5) / side * 255 for side in size)
    # Each row (and column) rounds at another place: their mean is finer than a byte.
    rows, columns = ((np.arange(side) * 7 % 16 + 0.5) / 16 for side in (size[1], size[0]))
    chart = np.full((size[1], size[0], 3), 255, np.uint8)
    chart[..., 0], chart[..., 1] = np.floor(across[None] + rows[:, None]), np.floor(down[:, None] + columns[None])
    return Image.fromarray(chart)


def _line(at: Tensor, places: Tensor, reach: float) -> tuple[float, float] | None:
    """Slope and offset of the line through places, if they lie within reach of one that rises."""
    # At the ends of the picture a filter repeats its edge, and the ramp is flat.
    cut = len(at) // 8
    middle = slice(cut, len(at) - cut)
    at, places = at[middle], places[middle]
    centred = at - at.mean()
    slope = float((centred * places).sum() / centred.square().sum())
    offset = float(places.mean() - slope * at.mean())
    stray = float((places - (offset + slope * at)).abs().max())
    return (slope, offset) if slope > 0 and stray <= reach else None
