"""Activations and normalisations that keep less for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hilrp.method.call import Call
from hilrp.method.fast import kernels
from hilrp.method.normalisation import Norm, inverse_deviation
from hilrp.util.nested import map_tensors


class _ThroughOrigin(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, y: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(a)
        ctx.activation = f
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (a,) = ctx.saved_tensors
        return kernels.times_slope(g, ctx.activation(a), a), None, None


def straight_line(call: Call, a: Tensor, y: Tensor, origin: Tensor | None = None) -> Tensor | None:
    """`normalisation.straight_line` of a function with ``f(0) = 0``, which runs again in the backward pass.

    What it keeps is ``a``, which the layer before may keep, too.
    """
    if origin is not None or (y.shape, y.dtype) != (a.shape, a.dtype) or a.is_complex():
        return None
    return through_origin(a, y, _repeatable(call, a))


def through_origin(a: Tensor, y: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """``y = f(a)``, of which ``a`` gets ``y / a`` times the gradient."""
    return _ThroughOrigin.apply(a, y, f)


def _repeatable(call: Call, a: Tensor) -> Callable[[Tensor], Tensor]:
    """The call as a function of its operand, which holds no graph."""
    func, place = call.func, object()
    args, kwargs = map_tensors(lambda t: place if t is a else t, (call.args, call.kwargs))

    def again(value: Tensor) -> Tensor:
        own = [value if arg is place else arg for arg in args]
        y: Tensor = func(*own, **{name: value if arg is place else arg for name, arg in kwargs.items()})
        return y

    return again


def derivative(call: Call, a: Tensor, middle: Tensor) -> Tensor | None:
    """`secant.elementwise.derivative` of two common activations, without running them once more."""
    if call.name == "gelu":
        approximate = call.argument(1, "approximate", "none")
        return torch.ops.aten.gelu_backward(torch.ones_like(middle), middle, approximate=approximate)
    return torch.ops.aten.silu_backward(torch.ones_like(middle), middle) if call.name == "silu" else None


class _Normalise(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, inverse: Tensor, norm: Norm) -> Tensor:
        scale = None if norm.scale is None else norm.scale.detach()
        ctx.save_for_backward(inverse, scale)
        ctx.groups, ctx.centre, ctx.dtype = norm.groups, norm.centre, x.dtype
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        inverse, scale = ctx.saved_tensors
        back = kernels.normalised_back(g, inverse, scale, ctx.groups, ctx.centre)
        return back.to(ctx.dtype), None, None, None


def with_fixed_divisor(call: Call, norm: Norm) -> Tensor:
    """`normalisation.with_fixed_divisor`, which keeps the divisor alone."""
    x = norm.x
    if call.name == "layer_norm" and not torch.is_autocast_enabled(x.device.type):
        # What torch.layer_norm runs, which gives the divisor as well.
        shape, shift = call.argument(1, "normalized_shape"), norm.shift
        value, _, inverse = torch.native_layer_norm(x.detach(), shape, norm.scale, shift, norm.eps)
    else:
        value, inverse = call.value(), inverse_deviation(x.reshape(norm.groups), norm.centre, norm.eps)
    return _Normalise.apply(x, value, inverse.reshape(-1, 1), norm)
