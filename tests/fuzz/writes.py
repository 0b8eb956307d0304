"""Steps of random programs that write to a tensor, with their twins that write to nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fuzz.steps import Make, Shape, none


def _row(rand: Any, shape: Shape) -> list[Tensor]:
    return [rand(shape[-1])]


@dataclass(frozen=True)
class Write:
    """A step that writes to a tensor.

    Attributes:
        in_place: What torch does: a function of the tensor, the constants and the operands; what it returns is ignored.
        functional: The same, out of place.
        make: The constants, from the tensor's shape.
        operands: How many other tensors there are, whose shape must broadcast to the tensor's.
        same_shape: Whether it must be the tensor's.
        homogeneous: Whether epsilon relevance is gradient x input.
        chooses: Whether it makes a mask of the input.
        weight: How often it is drawn.
        part: What of the tensor is written to, where that is a view of it: the rest is what it was.
    """

    in_place: Callable[..., Any]
    functional: Callable[..., Tensor]
    make: Make = none
    operands: int = 0
    same_shape: bool = False
    homogeneous: bool = False
    chooses: bool = False
    weight: int = 1
    part: Callable[[Tensor], Tensor] = lambda t: t


def _mask(rand: Any, shape: Shape) -> list[Tensor]:
    return [rand(*shape) > 0.3]


def joined(*parts: Tensor) -> Tensor:
    """Parts along the second axis, without those that are empty.

    Through an empty part the graph would lead to layers that are overwritten as a whole, and they would count.
    """
    return torch.cat([part for part in parts if part.numel()], 1)


def _assign(t: Tensor, c: list[Tensor], o: Tensor) -> None:
    t[...] = o


def _assign_first(t: Tensor, c: list[Tensor], o: Tensor) -> None:
    t[:, 0] = o[:, -1]


def _first(t: Tensor, c: list[Tensor], o: Tensor) -> Tensor:
    return joined(o[:, -1:].expand(t.shape[0], 1, *t.shape[2:]), t[:, 1:])


def _assign_masked(t: Tensor, c: list[Tensor], o: Tensor) -> None:
    t[c[0].expand_as(t)] = o[c[0].expand_as(o)] * 2


def _assign_rows(t: Tensor, c: list[Tensor], o: Tensor) -> None:
    t[:, _index(t)] = o[:, _index(t)] - 1


def _increment(t: Tensor, c: list[Tensor], o: Tensor) -> None:
    t += o


def _scaled(t: Tensor, c: list[Tensor], o: Tensor) -> None:
    t *= o


def _index(t: Tensor) -> Tensor:
    return torch.tensor([t.shape[1] - 1])


def _w(in_place: Callable[[Tensor], Any], functional: Callable[[Tensor], Tensor], **options: Any) -> Write:
    return Write(lambda t, c: in_place(t), lambda t, c: functional(t), **options)


WRITES: dict[str, Write] = {
    "relu_": _w(Tensor.relu_, torch.relu, homogeneous=True, weight=2),
    "F.relu(inplace=True)": _w(lambda t: F.relu(t, inplace=True), F.relu, homogeneous=True),
    "leaky_relu_": _w(lambda t: F.leaky_relu_(t, 0.1), lambda t: F.leaky_relu(t, 0.1), homogeneous=True),
    "sigmoid_": _w(Tensor.sigmoid_, torch.sigmoid, weight=3),
    "tanh_": _w(Tensor.tanh_, torch.tanh),
    "F.hardsigmoid(inplace=True)": _w(lambda t: F.hardsigmoid(t, inplace=True), F.hardsigmoid, weight=2),
    "F.silu(inplace=True)": _w(lambda t: F.silu(t, inplace=True), F.silu),
    "F.hardswish(inplace=True)": _w(lambda t: F.hardswish(t, inplace=True), F.hardswish),
    "F.elu(inplace=True)": _w(lambda t: F.elu(t, inplace=True), F.elu),
    "F.relu6(inplace=True)": _w(lambda t: F.relu6(t, inplace=True), F.relu6),
    "clamp_": _w(lambda t: t.clamp_(-0.6, 0.8), lambda t: t.clamp(-0.6, 0.8)),
    "clamp_min_": _w(lambda t: t.clamp_min_(-0.3), lambda t: t.clamp_min(-0.3)),
    "abs_": _w(Tensor.abs_, torch.abs, homogeneous=True),
    "neg_": _w(Tensor.neg_, torch.neg, homogeneous=True),
    "square_": _w(Tensor.square_, torch.square),
    "exp_": _w(lambda t: t.mul_(0.3).exp_(), lambda t: (t * 0.3).exp()),
    "add_(number)": _w(lambda t: t.add_(0.5), lambda t: t + 0.5, homogeneous=True),
    "mul_(number)": _w(lambda t: t.mul_(1.5), lambda t: t * 1.5, homogeneous=True),
    "div_(number)": _w(lambda t: t.div_(2.5), lambda t: t / 2.5, homogeneous=True),
    "zero_": _w(Tensor.zero_, torch.zeros_like, homogeneous=True),
    "fill_": _w(lambda t: t.fill_(0.7), lambda t: torch.full_like(t, 0.7), homogeneous=True),
    "index_fill_": _w(
        lambda t: t.index_fill_(1, _index(t), 0.3), lambda t: t.index_fill(1, _index(t), 0.3), homogeneous=True
    ),
    "masked_fill_(own mask)": _w(
        lambda t: t.masked_fill_(t > 0.5, 0.0), lambda t: t.masked_fill(t > 0.5, 0.0), homogeneous=True, chooses=True
    ),
    "add_(constant)": Write(lambda t, c: t.add_(c[0]), lambda t, c: t + c[0], _row, homogeneous=True, weight=2),
    "mul_(constant)": Write(lambda t, c: t.mul_(c[0]), lambda t, c: t * c[0], _row, homogeneous=True),
    "copy_(constant)": Write(
        lambda t, c: t.copy_(c[0]), lambda t, c: c[0].expand_as(t) + torch.zeros_like(t), _row, homogeneous=True
    ),
    "masked_fill_": Write(
        lambda t, c: t.masked_fill_(c[0], 0.4), lambda t, c: t.masked_fill(c[0], 0.4), _mask, homogeneous=True
    ),
    "out=": Write(lambda t, c: torch.mul(t, c[0], out=t), lambda t, c: t * c[0], _row, homogeneous=True),
    "+=": Write(_increment, lambda t, c, o: t + o, operands=1, homogeneous=True, weight=2),
    "*=": Write(_scaled, lambda t, c, o: t * o, operands=1, weight=3),
    "sub_": Write(lambda t, c, o: t.sub_(o), lambda t, c, o: t - o, operands=1, homogeneous=True),
    "div_": Write(lambda t, c, o: t.div_(o.abs() + 1), lambda t, c, o: t / (o.abs() + 1), operands=1),
    "copy_": Write(lambda t, c, o: t.copy_(o), lambda t, c, o: o.expand_as(t), operands=1, homogeneous=True),
    "[...] =": Write(_assign, lambda t, c, o: o.expand_as(t), operands=1, homogeneous=True),
    "[:, 0] =": Write(_assign_first, _first, operands=1, homogeneous=True, part=lambda t: t[:, :1]),
    "[mask] =": Write(
        _assign_masked,
        lambda t, c, o: torch.where(c[0], o * 2, t),
        _mask,
        operands=1,
        same_shape=True,
        homogeneous=True,
    ),
    "[:, indices] =": Write(
        _assign_rows,
        lambda t, c, o: joined(t[:, :-1], o[:, -1:] - 1),
        operands=1,
        same_shape=True,
        homogeneous=True,
    ),
    "index_add_": Write(
        lambda t, c, o: t.index_add_(1, _index(t), o[:, :1]),
        lambda t, c, o: joined(t[:, :-1], t[:, -1:] + o[:, :1]),
        operands=1,
        same_shape=True,
        homogeneous=True,
    ),
    "index_copy_": Write(
        lambda t, c, o: t.index_copy_(1, _index(t), o[:, :1]),
        lambda t, c, o: joined(t[:, :-1], o[:, :1]),
        operands=1,
        same_shape=True,
        homogeneous=True,
    ),
    "masked_scatter_": Write(
        lambda t, c, o: t.masked_scatter_(c[0].expand_as(t), o[c[0].expand_as(o)]),
        lambda t, c, o: torch.where(c[0], o, t),
        _mask,
        operands=1,
        same_shape=True,
        homogeneous=True,
    ),
    "lerp_": Write(
        lambda t, c, o: t.lerp_(o, 0.3), lambda t, c, o: torch.lerp(t, o, 0.3), operands=1, homogeneous=True
    ),
    "addcmul_": Write(
        lambda t, c, o: t.addcmul_(o, c[0]),
        lambda t, c, o: torch.addcmul(t, o, c[0]),
        _row,
        operands=1,
        homogeneous=True,
    ),
}
