"""Parts of a tensor that a program can look at and write to, as torch's views."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from torch import Tensor
from torch.nn import functional as F

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A view: how torch takes it, and its shape (without the batch).

    Attributes:
        writable: Whether it can be written to.
        disjoint: Axis and number of a chunk: those of another number share no memory with it.
        detaches: Whether it takes the graph away.
    """

    text: str
    get: Callable[[Tensor], Tensor]
    shape: Shape
    writable: bool = True
    disjoint: tuple[int, int] | None = None
    detaches: bool = False


def _shortened(shape: Shape, axis: int, length: int) -> Shape:
    return (*shape[: axis - 1], length, *shape[axis:])


def _slice(shape: Shape, rng: Random) -> Part | None:
    axis = rng.randint(1, len(shape))
    size = shape[axis - 1]
    if size < 2:
        return None
    start = rng.randrange(size - 1)
    stop = rng.randint(start + 1, size)
    index = (slice(None),) * axis + (slice(start, stop),)
    text = f"[{':, ' * axis}{start}:{stop}]"
    return Part(text, lambda t: t[index], _shortened(shape, axis, stop - start))


def _chunk(shape: Shape, rng: Random) -> Part | None:
    axis = rng.randint(1, len(shape))
    size = shape[axis - 1]
    if size % 2:
        return None
    number, half = rng.randrange(2), size // 2
    text = f".chunk(2, {axis})[{number}]"
    return Part(text, lambda t: t.chunk(2, axis)[number], _shortened(shape, axis, half), disjoint=(axis, number))


def _select(shape: Shape, rng: Random) -> Part | None:
    if len(shape) < 2:
        return None
    axis = rng.randint(1, len(shape))
    i = rng.randrange(shape[axis - 1])
    return Part(f".select({axis}, {i})", lambda t: t.select(axis, i), (*shape[: axis - 1], *shape[axis:]))


def _strided(shape: Shape, rng: Random) -> Part | None:
    if shape[-1] < 2:
        return None
    start = rng.randrange(2)
    return Part(f"[..., {start}::2]", lambda t: t[..., start::2], (*shape[:-1], len(range(start, shape[-1], 2))))


def _transpose(shape: Shape, rng: Random) -> Part | None:
    if len(shape) < 2:
        return None
    a, b = rng.sample(range(1, len(shape) + 1), 2)
    swapped = list(shape)
    swapped[a - 1], swapped[b - 1] = swapped[b - 1], swapped[a - 1]
    return Part(f".transpose({a}, {b})", lambda t: t.transpose(a, b), tuple(swapped))


def _flatten(shape: Shape, rng: Random) -> Part | None:
    if len(shape) < 2:
        return None
    return Part(".view(B, -1)", lambda t: t.view(t.shape[0], -1), (math.prod(shape),))


def _unsqueeze(shape: Shape, rng: Random) -> Part | None:
    if len(shape) > 2:
        return None
    axis = rng.randint(1, len(shape) + 1)
    wide = (*shape[: axis - 1], 1, *shape[axis - 1 :])
    return Part(f".unsqueeze({axis})", lambda t: t.unsqueeze(axis), wide)


def _tokens(shape: Shape, rng: Random) -> Part | None:
    if len(shape) != 3:
        return None
    channels, height, width = shape
    return Part(
        ".flatten(2).transpose(1, 2)",
        lambda t: t.view(t.shape[0], channels, -1).transpose(1, 2),
        (height * width, channels),
    )


def _identity(shape: Shape, rng: Random) -> Part:
    return Part(".dropout(eval)", lambda t: F.dropout(t, 0.5, False), shape)


def _detach(shape: Shape, rng: Random) -> Part:
    return Part(".detach()", lambda t: t.detach(), shape, writable=False, detaches=True)


def _expand(shape: Shape, rng: Random) -> Part | None:
    if 1 not in shape:
        return None
    wide = tuple(4 if size == 1 else size for size in shape)
    return Part(f".expand{wide}", lambda t: t.expand(t.shape[0], *wide), wide, writable=False)


#: Ways to take a part, and how often.
PARTS: dict[str, tuple[Callable[[Shape, Random], Part | None], int]] = {
    "chunk": (_chunk, 5),
    "slice": (_slice, 3),
    "select": (_select, 2),
    "strided": (_strided, 2),
    "transpose": (_transpose, 3),
    "flatten": (_flatten, 3),
    "tokens": (_tokens, 2),
    "unsqueeze": (_unsqueeze, 1),
    "identity": (_identity, 1),
    "detach": (_detach, 2),
    "expand": (_expand, 2),
}
