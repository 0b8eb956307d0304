"""Linear layers (``y = W x + b`` over the last axis), whose backward pass computes what is asked for and no more.

Queries and keys of attention get no relevance back under most rules, and where one layer makes queries, keys and values together, two thirds of its
products would be computed for zeros. So a layer watches which of its features relevance comes back to (`Demand`), and
the products of the rule run in the backward pass, for these features alone. The structure of the graph decides it, not a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hilrp.primitives import kernels
from hilrp.primitives.call import Account, Call
from hilrp.primitives.functions import Signs
from hilrp.tree import tensors


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
    if part.dtype != root.dtype:  # complex numbers count in pairs
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
        if not found or any(out._base is not root for out in found):
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


def fits(call: Call) -> bool:
    """Whether a call is a layer with a weight and a bias that are constant."""
    if call.name != "linear" or len(call.carriers) != 1:
        return False
    x, weight = call.argument(0, "input"), call.argument(1, "weight")
    return x is call.carriers[0] and x.ndim > 1 and weight.ndim == 2 and not x.is_complex()


def apply(call: Call, share: float = 0.0) -> Tensor:
    """A layer under the gamma rule, of which ``share`` is the weight of the second product; zero is the epsilon rule."""
    x, weight, bias = (call.argument(i, name) for i, name in enumerate(("input", "weight", "bias")))
    y = call.value()
    # What isn't wider than its input keeps less if its second product runs now: a quotient for each output and a sign for each input.
    waits = weight.shape[0] > weight.shape[1]
    signs = Signs.known(x) if share and not waits and x.dtype == y.dtype else None
    return _Layer.apply(x, y, weight, bias, share, call.account(y, "bias"), waits, signs)


class _Layer(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        share: float,
        book: Account,
        waits: bool,
        signs: Signs | None,
    ) -> Tensor:
        ctx.demand, ctx.share, ctx.book, ctx.waits = Demand(y.shape[-1]), share, book, waits
        ctx.dtype, ctx.shape = x.dtype, x.shape
        ctx.keeps_output = share and waits
        kept: tuple[Tensor, ...] = ()
        if share and waits:
            kept = (x.to(y.dtype), y)
        elif share:
            x = x.to(y.dtype)
            size, sign = kernels.size_and_sign(x) if signs is None else (x.abs(), signs.kept)
            ctx.f = None if signs is None else signs.f
            kept = (sign, kernels.quotient(y, F.linear(size, *_sizes(weight, bias, y.dtype)), share))
        ctx.save_for_backward(weight, bias, *kept)
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias, *kept = ctx.saved_tensors
        first, last = ctx.demand.interval
        weight, bias = weight[first:last].to(g.dtype), None if bias is None else bias[first:last].to(g.dtype)
        g = g[..., first:last]
        if not ctx.share:
            if bias is not None:
                ctx.book(bias, g)
            return (g @ weight).to(ctx.dtype), *[None] * 7
        sizes = _sizes(weight, bias, g.dtype)
        if ctx.waits:
            sign, y = kept
            m = F.linear(sign.abs(), *sizes)
            direct, through = kernels.shared_out(g, y[..., first:last], m, ctx.share, bias, ctx.book)
            del m
        else:
            sign, quotient = Signs(kept[0], ctx.f).read(), kept[1]
            direct, through = kernels.shares_of(g, quotient[..., first:last], ctx.share)
            if bias is not None:
                ctx.book(bias, direct)
                ctx.book(sizes[1], through)
        back = kernels.with_sign(through.flatten(0, -2) @ sizes[0], sign.reshape(-1, sign.shape[-1]), own=True)
        return back.addmm_(direct.flatten(0, -2), weight).view(ctx.shape).to(ctx.dtype), *[None] * 7


def _sizes(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    return weight.to(dtype).abs(), None if bias is None else bias.to(dtype).abs()
