"""Linear layers and convolutions, whose backward pass computes what is asked for and no more.

Queries and keys of attention get no relevance back under most rules, and where one layer makes queries, keys and values
together, two thirds of its products would be computed for zeros. So a layer watches which of its features relevance
comes back to (`Demand`), and the products of the rule run in the backward pass, for these features alone. The structure
of the graph decides it, not a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hilrp.method.autograd import Signs
from hilrp.method.call import Account, Call
from hilrp.method.fast import kernels
from hilrp.util.nested import tensors


class Demand:
    """Which features of a layer's output relevance comes back to, as an interval that holds them."""

    def __init__(self, features: int) -> None:
        self._features = features
        self._found: tuple[int, int] | None = None

    @property
    def interval(self) -> tuple[int, int]:
        """The first feature, and the one after the last; all of them, where nobody was seen to ask."""
        return self._found or (0, self._features)

    def watch(self, part: Tensor, root: Tensor) -> None:
        """Notes, when the backward pass comes by ``part``, a view of the output ``root``, which features it shows."""
        first, last = _shown(part, root, self._features)

        def note(g: Tensor | None) -> None:
            if g is not None:
                low, high = self._found or (first, last)
                self._found = min(low, first), max(high, last)

        part.register_hook(note)

    def expect_all(self) -> None:
        """Says that relevance may come back to any feature."""
        self._found = 0, self._features


def _shown(part: Tensor, root: Tensor, features: int) -> tuple[int, int]:
    """The interval of features that a view of a contiguous tensor shows."""
    # Complex numbers count in pairs.
    if not features or part.dtype != root.dtype or not root.is_contiguous():
        return 0, features
    first = int(part.storage_offset() - root.storage_offset()) % features
    steps = zip(part.shape, part.stride(), strict=True)
    last = first + sum(int((size - 1) * step) for size, step in steps if step % features)
    return (first, last + 1) if last < features else (0, features)


def watch(operands: Iterable[Tensor], output: Any = None) -> None:
    """Says that an operation takes these operands; one whose output is but another view of them takes nothing yet."""
    for t in operands:
        root = t if t._base is None else t._base
        demand = getattr(root.grad_fn, "demand", None)
        if demand is None:
            continue
        found = tensors(output)
        if not found or any(out is not t and out._base is not root for out in found):
            demand.watch(t, root)


def watch_hidden(t: Tensor) -> None:
    """Says that nobody saw the operation that made a tensor, or what it took of the layers before it."""
    seen, queue = set(), [t.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        demand = getattr(node, "demand", None)
        if demand is not None:
            demand.expect_all()
        else:
            queue += [parent for parent, _ in node.next_functions]


@dataclass(frozen=True)
class _Linear:
    """``W x + b`` over the last axis."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def back(self, g: Tensor, weight: Tensor, like: Tensor, onto: Tensor | None = None) -> Tensor:
        """``W^T g``, added to ``onto`` in place."""
        rows = g.flatten(0, -2)
        found = rows @ weight if onto is None else onto.flatten(0, -2).addmm_(rows, weight)
        return found.view(*g.shape[:-1], weight.shape[1])

    def along(self, bias: Tensor) -> Tensor:
        """The bias, so that it broadcasts against the output."""
        return bias


@dataclass(frozen=True)
class _Convolution:
    """A convolution of that geometry."""

    geometry: tuple[Any, ...]
    groups: int

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        stride, padding, dilation = self.geometry
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, [0], self.groups)

    def back(self, g: Tensor, weight: Tensor, like: Tensor, onto: Tensor | None = None) -> Tensor:
        """The transposed convolution; of ``like`` the shape and the strides alone are read."""
        like = like if like.dtype == g.dtype else torch.empty_like(like, dtype=g.dtype)
        found: Tensor = torch.ops.aten.convolution_backward(
            g, like, weight, None, *self.geometry, False, [0], self.groups, [True, False, False]
        )[0]
        return found if onto is None else onto.add_(found)

    def along(self, bias: Tensor) -> Tensor:
        return bias.reshape(-1, *[1] * len(self.geometry[0]))


_Map = _Linear | _Convolution


def fits(call: Call) -> bool:
    """Whether a call is a linear layer or a convolution with a weight and a bias that are constant."""
    return _map_of(call) is not None


def _map_of(call: Call) -> _Map | None:
    if len(call.carriers) != 1 or call.name not in ("linear", "conv1d", "conv2d", "conv3d"):
        return None
    x, weight = call.argument(0, "input"), call.argument(1, "weight")
    if x is not call.carriers[0] or x.is_complex() or weight.ndim == 1 or x.ndim == 1:
        return None
    if call.name == "linear":
        return _Linear()
    axes = weight.ndim - 2
    given = [call.argument(i, name, default) for i, name, default in _GEOMETRY]
    if x.ndim != weight.ndim or any(isinstance(value, str) for value in given):
        return None
    return _Convolution(tuple(_each(value, axes) for value in given), call.argument(6, "groups", 1))


_GEOMETRY = ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))


def _each(value: Any, axes: int) -> list[int]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    return values * axes if len(values) == 1 else values


def apply(call: Call, share: float = 0.0) -> Tensor:
    """A layer under the gamma rule, of which ``share`` is the weight of the second product.

    Zero is the epsilon rule.
    """
    x, weight, bias = (call.argument(i, name) for i, name in enumerate(("input", "weight", "bias")))
    own, y = _map_of(call), call.value()
    known = Signs.known(x) if share and x.dtype == y.dtype else None
    # A layer that waits keeps its input and its output, else a quotient for each output and a sign for each input. That
    # is less where it isn't wider than its input, and for a convolution unless its input is kept anyway.
    waits = weight.shape[0] > weight.shape[1] if isinstance(own, _Linear) else known is not None and known.f is None
    return _Layer.apply(x, y, weight, bias, own, share, call.account(y, "bias"), waits, known)


class _Layer(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        own: _Map,
        share: float,
        book: Account,
        waits: bool,
        signs: Signs | None,
    ) -> Tensor:
        ctx.own, ctx.share, ctx.book, ctx.waits, ctx.dtype = own, share, book, waits, x.dtype
        ctx.demand = Demand(y.shape[-1]) if isinstance(own, _Linear) else None
        ctx.keeps_output, ctx.f = bool(share) and waits, None
        kept: tuple[Tensor, ...] = ()
        if share and waits:
            kept = (x.to(y.dtype), y)
        elif share:
            x = x.to(y.dtype)
            size, sign = kernels.size_and_sign(x) if signs is None else (x.abs(), signs.kept)
            ctx.f = None if signs is None else signs.f
            m = own(size, weight.to(y.dtype).abs(), None if bias is None else bias.to(y.dtype).abs())
            kept = (sign, kernels.quotient(y, m, share))
        ctx.save_for_backward(weight, bias, *kept)
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias, *kept = ctx.saved_tensors
        own, share = ctx.own, ctx.share
        if ctx.demand is not None:
            part = slice(*ctx.demand.interval)
            weight, bias, g = weight[part], None if bias is None else bias[part], g[..., part]
            kept[1:] = [t[..., part] for t in kept[1:]]
        weight, bias = weight.to(g.dtype), None if bias is None else own.along(bias.to(g.dtype))
        if not share:
            if bias is not None:
                ctx.book(bias, g)
            return own.back(g, weight, g).to(ctx.dtype), *[None] * 8
        size, signs = weight.abs(), Signs(kept[0], ctx.f).read()
        if ctx.waits:
            m = own(signs.abs(), size, None if bias is None else bias.abs().flatten())
            direct, through = kernels.shared_out(g, kept[1], m, share, bias, ctx.book)
            del m
        else:
            direct, through = kernels.shares_of(g, kept[1], share)
            if bias is not None:
                ctx.book(bias, direct)
                ctx.book(bias.abs(), through)
        back = kernels.with_sign(own.back(through, size, signs), signs, own=True)
        return own.back(direct, weight, signs, back).to(ctx.dtype), *[None] * 8
