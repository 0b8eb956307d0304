"""Linear layers and convolutions, whose backward pass computes what is asked for and no more.

Queries and keys of attention get no relevance back under most rules, and where one layer makes queries, keys and values
together, two thirds of its products would be computed for zeros. So a layer watches which of its features relevance
comes back to (`Demand`), and the products of the rule run in the backward pass, for these features alone. The structure
of the graph decides it, not a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hilrp.method.call import Call
from hilrp.method.fast import kernels
from hilrp.method.graph import graph_nodes
from hilrp.method.ledger import Account
from hilrp.method.linear import Gamma
from hilrp.method.normalisation import Norm
from hilrp.util.batched import is_batched
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


def note_use(operands: Iterable[Tensor], output: Any = None, hidden: bool = False) -> None:
    """`linear.note_use`: tells the layers that made these operands which of their features are taken.

    An operation whose output is but another view of them takes nothing yet. What a ``hidden`` one takes of the layers
    before it, nobody saw.
    """
    for t in operands:
        if hidden:
            for node in graph_nodes(t):
                if (demand := getattr(node, "demand", None)) is not None:
                    demand.expect_all()
            continue
        root = t if t._base is None else t._base
        demand = getattr(root.grad_fn, "demand", None)
        if demand is None:
            continue
        found = tensors(output)
        if not found or any(out is not t and out._base is not root for out in found):
            demand.watch(t, root)


@dataclass(frozen=True)
class _Linear:
    """``W x + b`` over the last axis."""

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def back(self, g: Tensor, weight: Tensor, like: Tensor, onto: Tensor | None = None) -> Tensor:
        """``W^T g``, added to ``onto`` in place."""
        rows = g.flatten(0, -2)
        if onto is not None and is_batched(onto):
            return (rows @ weight).view(onto.shape) + onto
        found = rows @ weight if onto is None else onto.flatten(0, -2).addmm_(rows, weight)
        return found.view(*g.shape[:-1], weight.shape[1])

    def back_twice(self, direct: Tensor, weight: Tensor, through: Tensor, size: Tensor, signs: Tensor) -> Tensor:
        """``W^T d + sign |W|^T t``."""
        return self.back(direct, weight, signs, kernels.with_sign(self.back(through, size, signs), signs))

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

    def back(self, g: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """The transposed convolution; of ``like`` the shape and the strides alone are read."""
        like = like if like.dtype == g.dtype else torch.empty_like(like, dtype=g.dtype)
        found: Tensor = torch.ops.aten.convolution_backward(
            g, like, weight, None, *self.geometry, False, [0], self.groups, [True, False, False]
        )[0]
        return found

    def back_twice(self, direct: Tensor, weight: Tensor, through: Tensor, size: Tensor, signs: Tensor) -> Tensor:
        """The same as that of a linear layer."""
        return kernels.with_sign(self.back(through, size, signs), signs, self.back(direct, weight, signs))

    def along(self, bias: Tensor) -> Tensor:
        return bias.reshape(-1, *[1] * len(self.geometry[0]))


_Map = _Linear | _Convolution


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


class Signs(NamedTuple):
    """Where the signs of values come from in the backward pass.

    Bytes, values that are kept anyway, or a function of such.
    """

    kept: Tensor
    f: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def known(cls, x: Tensor) -> Signs | None:
        """Those of a tensor that can be had from what the graph keeps.

        The output of a layer that waits, or of an activation.
        """
        node = (x if x._base is None else x._base).grad_fn
        if getattr(node, "keeps_output", False):
            return cls(x.detach())
        activation = getattr(node, "activation", None)
        # A processor would take longer to compute it again than to keep it.
        if x._base is None and activation is not None and x.is_cuda:
            return cls(node.saved_tensors[0].detach(), activation)  # type: ignore[union-attr]
        return None

    def read(self) -> Tensor:
        """Values with these signs."""
        return self.kept if self.f is None else self.f(self.kept)


def gamma_sign(call: Call, gamma: Gamma) -> Tensor | None:
    """`linear.gamma_sign` of a linear layer or a convolution with a weight and a bias that are constant."""
    own = _map_of(call)
    if own is None:
        return None
    x, weight, bias = (call.argument(i, name) for i, name in enumerate(("input", "weight", "bias")))
    y, before = call.value(), None
    if call.reference is not None:
        before, bias = (call.before(x), call.output_before), None
    known, waits = None, False
    wide = isinstance(own, _Linear) and weight.shape[0] > weight.shape[1]
    if before is None and not gamma.is_zero and gamma.layers is None:
        known = Signs.known(x) if x.dtype == y.dtype else None
        # A layer that waits keeps its input and its output, else a quotient for each output and a sign for each input.
        # That is less where it isn't wider than its input, and for a convolution unless its input is kept anyway.
        waits = wide if isinstance(own, _Linear) else known is not None and known.f is None
    elif before is not None and not gamma.is_zero:
        # It keeps the change of its input, from which that of its output is computed anew, if that is less or known.
        waits = x.is_cuda and (wide or (isinstance(own, _Linear) and _norm_before(x, y) is not None))
    account = call.account(y, "bias")
    return _Layer.apply(x, y, weight, bias, own, gamma, account, waits, known, before)


class _Layer(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        own: _Map,
        gamma: Gamma,
        book: Account,
        waits: bool,
        signs: Signs | None,
        before: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        ctx.own, ctx.weight, ctx.book, ctx.waits, ctx.dtype = own, gamma, book, waits, x.dtype
        ctx.form = None if isinstance(own, _Linear) else (x.shape, x.stride())
        ctx.demand = Demand(y.shape[-1]) if isinstance(own, _Linear) else None
        ctx.keeps_output, ctx.f, ctx.exact = waits and before is None, None, gamma.is_zero
        kept: tuple[Tensor, ...] = ()
        ctx.norm = None
        if waits and before is not None:
            ctx.norm = _norm_before(x, y)
            kept = () if ctx.norm is not None else ((x - before[0]).to(y.dtype),)
        elif waits:
            kept = (x.to(y.dtype), y)
        elif not ctx.exact:
            x0, y0 = (None, None) if before is None else (before[0].to(y.dtype), before[1])
            x = x.to(y.dtype)
            size, sign = kernels.size_and_sign(x, x0) if signs is None else (x.abs(), signs.kept)
            ctx.f = None if signs is None else signs.f
            m = own(size, weight.to(y.dtype).abs(), None if bias is None else bias.to(y.dtype).abs())
            del size
            kept = (sign, _kept(gamma, y, m, y0))
        ctx.save_for_backward(weight, bias, *kept)
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias, *kept = ctx.saved_tensors
        own, gamma = ctx.own, ctx.weight
        if ctx.demand is not None:
            part = slice(*ctx.demand.interval)
            weight, bias, g = weight[part], None if bias is None else bias[part], g[..., part]
            kept[1:] = [t[..., part] for t in kept[1:]]
        weight, bias = weight.to(g.dtype), None if bias is None else own.along(bias.to(g.dtype))
        if ctx.exact or (gamma.layers is not None and gamma.bound == float("inf")):
            if bias is not None:
                ctx.book(bias, g)
            like = g if ctx.form is None else torch.empty_strided(*ctx.form, dtype=g.dtype, device=g.device)
            return own.back(g, weight, like).to(ctx.dtype), *[None] * 9
        if ctx.norm is not None:
            x, x0, scale = ctx.norm.saved_tensors
            kept = [kernels.change_of_norm(x, x0, ctx.norm.norm._replace(scale=scale))]
        size, signs = weight.abs(), Signs(kept[0], ctx.f).read()
        if ctx.waits and len(kept) == 2:
            m = own(signs.abs(), size, None if bias is None else bias.abs().flatten())
            direct, through = kernels.shared_out(g, kept[1], m, gamma.share, bias, ctx.book)
            del m
        else:
            left = _kept(gamma, own(signs, weight, None), own(signs.abs(), size, None)) if ctx.waits else kept[1]
            if gamma.layers is None:
                direct, through = kernels.shares_of(g, left, gamma.share)
            else:
                direct, through = kernels.bounded_shares(g, left, gamma.bound)
            del left
            if bias is not None:
                ctx.book(bias, direct)
                ctx.book(bias.abs(), through)
        return own.back_twice(direct, weight, through, size, signs).to(ctx.dtype), *[None] * 9


def _norm_before(x: Tensor, y: Tensor) -> Any:
    """The node of a normalisation that made a layer's input: it keeps what the change of the input follows from."""
    node = x.grad_fn
    norm = getattr(node, "norm", None)
    if not isinstance(norm, Norm) or norm.groups != (-1, x.shape[-1]) or x._base is not None:
        return None
    return node if node.saved_tensors[0].dtype == x.dtype == y.dtype else None  # type: ignore[union-attr]


def _kept(gamma: Gamma, y: Tensor, m: Tensor, y0: Tensor | None = None) -> Tensor:
    """What the backward pass needs to know of a layer's output, or of its change, and of the sum of its sizes."""
    if gamma.layers is not None:
        return kernels.slope(y, m, y0)
    return kernels.quotient(y if y0 is None else y - y0, m, gamma.share)
