"""The grid pointing game (Böhle, Fritz and Schiele, CVPR 2021): pictures of several classes in one.

Of a map of one of the classes, the part of the positive relevance counts that lies in the cell of that class's picture.
Each picture is shrunk into its cell, so that the whole has the size of one input: that works for every architecture,
also where the number of tokens is fixed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

#: Cells have at least this many pixels a side: in smaller ones the classes can't be told.
SMALLEST = 64


def fits(height: int, width: int, side: int) -> bool:
    """Whether a picture is large enough for a grid of ``side`` x ``side`` cells.

    Example:
        >>> fits(128, 128, 2), fits(128, 128, 3), fits(224, 224, 3)
        (True, False, True)
    """
    return min(height, width) // side >= SMALLEST


def composites(pictures: Tensor, numbers: Tensor, side: int) -> Tensor:
    """Grids ``[G,3,H,W]`` of shrunken pictures; ``numbers`` says which, row by row: ``[G,side * side]``."""
    height, width = pictures.shape[-2:]
    rows, columns = _edges(height, side), _edges(width, side)
    found = torch.zeros(len(numbers), *pictures.shape[1:], dtype=pictures.dtype, device=pictures.device)
    for cell in range(side * side):
        row, column = divmod(cell, side)
        down, right = slice(rows[row], rows[row + 1]), slice(columns[column], columns[column + 1])
        size = (down.stop - down.start, right.stop - right.start)
        shrunk = F.interpolate(pictures[numbers[:, cell]], size=size, mode="bilinear", antialias=True)
        found[:, :, down, right] = shrunk
    return found


def cell_masks(height: int, width: int, side: int) -> Tensor:
    """Where each cell of a grid is, row by row: ``[side * side,height,width]``.

    Example:
        >>> cell_masks(2, 2, 2)[1].tolist()
        [[False, True], [False, False]]
    """
    rows, columns = _edges(height, side), _edges(width, side)
    found = torch.zeros(side * side, height, width, dtype=torch.bool)
    for cell in range(side * side):
        row, column = divmod(cell, side)
        found[cell, rows[row] : rows[row + 1], columns[column] : columns[column + 1]] = True
    return found


def _edges(length: int, side: int) -> list[int]:
    """Where the cells along an axis begin, and where the last one ends."""
    return [round(length * cell / side) for cell in range(side + 1)]


def candidates(labels: list[int], shown: list[set[int]], side: int, count: int, seed: int = 0) -> Tensor:
    """Grids that can be made of pictures: the numbers of their pictures, ``[at most count,side * side]``.

    No picture shows the class of another cell of its grid.

    Args:
        labels: The class of each picture.
        shown: All classes that are seen in it.
        side: Cells a side.
        count: How many grids.
        seed: Of the order in which pictures are tried.
    """
    chance = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        chosen: list[int] = []
        for number in torch.randperm(len(labels), generator=chance).tolist():
            others = [labels[i] not in shown[number] and labels[number] not in shown[i] for i in chosen]
            if all(others):
                chosen.append(number)
            if len(chosen) == side * side:
                found.append(torch.tensor(chosen))
                break
    return torch.stack(found) if found else torch.zeros(0, side * side, dtype=torch.long)
