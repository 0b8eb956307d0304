"""Steps of random programs that compute something new."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Shape = tuple[int, ...]
Make = Callable[[Callable[..., Tensor], Shape], list[Tensor]]


def none(rand: Any, shape: Shape) -> list[Tensor]:
    return []


def _channels(rand: Any, shape: Shape) -> list[Tensor]:
    return [rand(shape[0], *[1] * (len(shape) - 1))]


def _whole(rand: Any, shape: Shape) -> list[Tensor]:
    return [rand(*shape)]


def _same(*shapes: Shape) -> Shape:
    return shapes[0]


@dataclass(frozen=True)
class Compute:
    """A step that makes a new tensor.

    Attributes:
        run: The function of the constants and the operands.
        shape: The shape of the result from those of the operands, without the batch; ``None`` where it doesn't apply.
        make: The constants, from a source of random tensors and the first operand's shape.
        operands: How many there are.
        homogeneous: Whether epsilon relevance is gradient x input.
        chooses: Whether it makes a mask of the input.
        weight: How often it is drawn.
    """

    run: Callable[..., Tensor]
    shape: Callable[..., Shape | None] = _same
    make: Make = none
    operands: int = 1
    homogeneous: bool = False
    chooses: bool = False
    weight: int = 1


def _rank(rank: int, shape: Callable[..., Shape | None] = _same) -> Callable[..., Shape | None]:
    return lambda *shapes: shape(*shapes) if len(shapes[0]) == rank else None


def _broadcast(a: Shape, b: Shape) -> Shape | None:
    if len(a) != len(b) or any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        return None
    return tuple(max(pair) for pair in zip(a, b, strict=True))


def _equal(a: Shape, b: Shape) -> Shape | None:
    return a if a == b else None


def _joined(a: Shape, b: Shape) -> Shape | None:
    return (a[0] + b[0], *a[1:]) if a[1:] == b[1:] and a[0] + b[0] <= 12 else None


def _halved(shape: Shape) -> Shape | None:
    return (
        (shape[0], shape[1] // 2, shape[2] // 2) if min(shape[1:]) > 1 and not any(s % 2 for s in shape[1:]) else None
    )


def _doubled(shape: Shape) -> Shape | None:
    return (shape[0], 2 * shape[1], 2 * shape[2]) if max(shape[1:]) <= 2 else None


def _attend(c: list[Tensor], x: Tensor) -> Tensor:
    q, k, v = (x @ w for w in c)
    return (q @ k.transpose(1, 2) * 0.5).softmax(-1) @ v


def _gated(c: list[Tensor], x: Tensor) -> Tensor:
    return x * torch.sigmoid(F.linear(x.mean((2, 3)), *c)).view(x.shape[0], -1, 1, 1)


def _normed(c: list[Tensor], x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True, unbiased=False) + 0.1).rsqrt()


def _last(size: int) -> Callable[[Shape], Shape]:
    return lambda shape: (*shape[:-1], size)


def _times(k: int) -> Make:
    return lambda rand, shape: [rand(shape[-1], shape[-1]) for _ in range(k)]


def _unary(run: Callable[[Tensor], Tensor], **options: Any) -> Compute:
    return Compute(lambda c, x: run(x), **options)


COMPUTE: dict[str, Compute] = {
    "conv1x1": Compute(
        lambda c, x: F.conv2d(x, *c),
        _rank(3, lambda s: (4, *s[1:])),
        lambda r, s: [r(4, s[0], 1, 1), r(4)],
        homogeneous=True,
        weight=3,
    ),
    "conv3x3": Compute(
        lambda c, x: F.conv2d(x, *c, padding=1),
        _rank(3, lambda s: (6, *s[1:])),
        lambda r, s: [r(6, s[0], 3, 3) * 0.5, r(6)],
        homogeneous=True,
        weight=3,
    ),
    "depthwise": Compute(
        lambda c, x: F.conv2d(x, *c, padding=1, groups=x.shape[1]),
        _rank(3),
        lambda r, s: [r(s[0], 1, 3, 3) * 0.5],
        homogeneous=True,
    ),
    "linear": Compute(
        lambda c, x: F.linear(x, *c), _last(4), lambda r, s: [r(4, s[-1]), r(4)], homogeneous=True, weight=4
    ),
    "matmul of a constant": Compute(lambda c, x: x @ c[0], _last(6), lambda r, s: [r(s[-1], 6)], homogeneous=True),
    "batch norm": Compute(
        lambda c, x: F.batch_norm(x, c[0], c[1].abs() + 0.5, c[2], c[3]),
        _rank(3),
        lambda r, s: [r(s[0]) for _ in range(4)],
        homogeneous=True,
    ),
    "layer norm": Compute(
        lambda c, x: F.layer_norm(x, x.shape[-1:], *c), make=lambda r, s: [r(s[-1]), r(s[-1])], weight=2
    ),
    "group norm": Compute(lambda c, x: F.group_norm(x, 1, *c), _rank(3), lambda r, s: [r(s[0]), r(s[0])]),
    "norm by hand": Compute(_normed),
    "rms norm by hand": _unary(lambda x: x * (x.square().mean(-1, keepdim=True) + 0.1).rsqrt()),
    "divided by its norm": _unary(lambda x: x / (x.norm(dim=-1, keepdim=True) + 1)),
    "softmax": _unary(lambda x: x.softmax(-1)),
    "attention": Compute(_attend, _rank(2), _times(3), weight=2),
    "fused attention": Compute(
        lambda c, x: F.scaled_dot_product_attention(x @ c[0], x @ c[1], x @ c[2]), _rank(2), _times(3)
    ),
    "squeeze and excite": Compute(_gated, _rank(3), lambda r, s: [r(s[0], s[0]), r(s[0])]),
    "relu": _unary(F.relu, homogeneous=True, weight=3),
    "leaky relu": _unary(lambda x: F.leaky_relu(x, 0.1), homogeneous=True),
    "abs": _unary(torch.abs, homogeneous=True),
    "gelu": _unary(F.gelu, weight=2),
    "silu": _unary(F.silu),
    "sigmoid": _unary(torch.sigmoid, weight=2),
    "tanh": _unary(torch.tanh),
    "exp": _unary(lambda x: (x * 0.3).exp()),
    "softplus": _unary(F.softplus),
    "hardsigmoid": _unary(F.hardsigmoid),
    "square": _unary(torch.square),
    "clamp": _unary(lambda x: x.clamp(-0.7, 0.9)),
    "mish": _unary(F.mish),
    "sine": _unary(torch.sin),
    "scale": _unary(lambda x: x * 1.7, homogeneous=True),
    "one minus": _unary(lambda x: 1 - x, homogeneous=True),
    "position embedding": Compute(lambda c, x: x + c[0], make=_whole, homogeneous=True, weight=2),
    "layer scale": Compute(lambda c, x: x * c[0], make=_channels, homogeneous=True),
    "cumulative sum": _unary(lambda x: x.cumsum(-1), homogeneous=True),
    "flip": _unary(lambda x: x.flip(-1), homogeneous=True),
    "roll": _unary(lambda x: x.roll(1, 1), homogeneous=True),
    "where": _unary(lambda x: torch.where(x > 0.1, x, 0.2 * x), homogeneous=True, chooses=True),
    "masked fill": _unary(lambda x: x.masked_fill(x > 0.8, 0.0), homogeneous=True, chooses=True),
    "mean": _unary(lambda x: x.mean(-1, keepdim=True), shape=_last(1), homogeneous=True),
    "spatial mean": _unary(
        lambda x: x.mean((2, 3), keepdim=True), shape=_rank(3, lambda s: (s[0], 1, 1)), homogeneous=True, weight=3
    ),
    "maximum over an axis": _unary(lambda x: x.amax(1, keepdim=True), shape=lambda s: (1, *s[1:]), homogeneous=True),
    "values of max": _unary(lambda x: x.max(-1, keepdim=True).values, shape=_last(1), homogeneous=True),
    "sort": _unary(lambda x: x.sort(-1).values, homogeneous=True),
    "average pool": _unary(lambda x: F.avg_pool2d(x, 2), shape=_rank(3, _halved), homogeneous=True),
    "max-pool": _unary(lambda x: F.max_pool2d(x, 3, 1, 1), shape=_rank(3), homogeneous=True),
    "interpolate": _unary(lambda x: F.interpolate(x, scale_factor=2), shape=_rank(3, _doubled), homogeneous=True),
    "clone": _unary(torch.clone, homogeneous=True),
    "add": Compute(lambda c, a, b: a + b, _broadcast, operands=2, homogeneous=True, weight=5),
    "subtract": Compute(lambda c, a, b: a - b, _broadcast, operands=2, homogeneous=True),
    "product": Compute(lambda c, a, b: a * b, _broadcast, operands=2, weight=6),
    "divide": Compute(lambda c, a, b: a / (b.abs() + 1), _broadcast, operands=2),
    "maximum": Compute(lambda c, a, b: torch.maximum(a, b), _equal, operands=2, homogeneous=True),
    "where of two": Compute(
        lambda c, a, b: torch.where(a > b, a, 0.3 * b), _equal, operands=2, homogeneous=True, chooses=True
    ),
    "concatenate": Compute(lambda c, a, b: torch.cat([a, b], 1), _joined, operands=2, homogeneous=True, weight=2),
    "matmul of two": Compute(
        lambda c, a, b: a @ b.transpose(1, 2),
        lambda a, b: (a[0], b[0]) if len(a) == len(b) == 2 and a[1] == b[1] else None,
        operands=2,
    ),
}
