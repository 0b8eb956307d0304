"""The few backward passes that torch doesn't have: everything else in this package is native autograd.

Relevance is Gradient x Input: a tensor ``y`` with gradient ``g`` holds the relevance ``y * g``. A rule is
therefore a choice of backward pass. Each function here returns its value untouched, bit for bit, and
changes only what flows back. (Values are passed on with ``detach``, which keeps the strides; ``view_as`` need not,
and kernels are chosen by strides.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class _Scale(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.factor, None


def scale_gradient(y: Tensor, factor: float) -> Tensor:
    """``y``, with ``factor`` times the gradient."""
    return _Scale.apply(y, factor) if y.requires_grad and factor != 1 else y


class _Carry(Function):
    @staticmethod
    def forward(ctx: Any, surrogate: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None


def carry(value: Tensor, surrogate: Tensor) -> Tensor:
    """The exact ``value`` on the backward pass of ``surrogate``, which equals it up to rounding."""
    return _Carry.apply(surrogate, value) if surrogate.requires_grad else value


class _Secant(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, value: Callable[[], Tensor], origin: Tensor | None) -> Tensor:
        y = value()
        rise = y if origin is None else y - origin
        ctx.save_for_backward(torch.where(a == 0, 0, rise / a))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return g * slope, None, None


def secant(a: Tensor, value: Callable[[], Tensor], origin: Tensor | None = None) -> Tensor:
    """An elementwise ``y = f(a)`` as the straight line from ``(0, f(0))`` to ``(a, f(a))``.

    ``y = f(0) + a * ((f(a) - f(0)) / a)`` with the slope held fixed. For ``f(0) = 0`` this is the identity
    rule: all relevance of ``y`` goes to ``a``; otherwise the constant ``f(0)`` keeps its share.
    """
    return _Secant.apply(a, value, origin)


class _Redistribute(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, m: Tensor, weight: float) -> Tensor:
        # One buffer, and few passes over it: these tensors are as large as the layers' outputs.
        ratio = torch.copysign(m, y).mul_(weight).add_(y)
        torch.div(y, ratio, out=ratio).nan_to_num_(0.0, 0.0, 0.0)
        # y / d is never negative, so that its sign can hold that of y.
        ctx.save_for_backward(ratio.copysign_(y))
        ctx.weight = weight
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (ratio,) = ctx.saved_tensors
        return ratio.abs().mul_(g), (g * ratio).mul_(ctx.weight), None


def redistribute(y: Tensor, m: Tensor, weight: float) -> Tensor:
    """``y``, whose relevance is handed to the two products ``y`` and ``m >= |y|`` that explain it.

    With ``s = sign(y)``, ``d = y + s weight m`` and ``t = g y / d``, the products get the gradients ``t`` and
    ``s weight t``, so that ``y t + m (s weight t) = d t = y g``: what comes in goes out. Since ``|d| >= |y|``, the
    quotient is at most one; where both are zero, nothing flows.
    """
    return _Redistribute.apply(y, m, weight)


class _HandOver(Function):
    @staticmethod
    def forward(ctx: Any, d: Tensor, y: Tensor, stabiliser: float) -> Tensor:
        ctx.save_for_backward((y / (d + torch.copysign(d.new_full((), stabiliser), d))).nan_to_num_(0.0, 0.0, 0.0))
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (ratio,) = ctx.saved_tensors
        return g * ratio, None, None


def hand_over(y: Tensor, d: Tensor, stabiliser: float) -> Tensor:
    """``y``, whose relevance is handed to another sum ``d``: ``g_d = g y / (d + sign(d) stabiliser)``.

    The stabiliser keeps ``stabiliser / (|d| + stabiliser)`` of it.
    """
    return _HandOver.apply(d, y, stabiliser)


class _Normalise(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        value: Callable[[], Tensor],
        groups: tuple[int, ...],
        scale: Tensor | None,
        centre: bool,
        eps: float,
    ) -> Tensor:
        grouped = x.reshape(groups)
        wide = grouped if grouped.dtype in (torch.float32, torch.float64) else grouped.float()
        power = wide.var(-1, unbiased=False, keepdim=True) if centre else wide.square().mean(-1, keepdim=True)
        ctx.save_for_backward((power + eps).rsqrt(), scale)
        ctx.groups, ctx.centre, ctx.dtype = groups, centre, x.dtype
        return value()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        inverse, scale = ctx.saved_tensors
        shape = g.shape
        if scale is not None:
            g = g * scale
        g = g.reshape(ctx.groups) * inverse
        if ctx.centre:
            g = g - g.mean(-1, keepdim=True)
        return g.reshape(shape).to(ctx.dtype), None, None, None, None, None


def normalise(
    x: Tensor, value: Callable[[], Tensor], groups: tuple[int, ...], scale: Tensor | None, centre: bool, eps: float
) -> Tensor:
    """``(x - mean) / std * scale`` over the last axis of ``x.reshape(groups)``, with the divisor held fixed.

    The mean stays: it is a linear map. ``centre=False`` is the root-mean-square form.
    """
    return _Normalise.apply(x, value, groups, scale, centre, eps)
