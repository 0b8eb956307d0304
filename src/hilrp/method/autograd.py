"""The few backward passes that torch doesn't have: everything else in the plain rules is native autograd.

Relevance is Gradient x Input: a tensor ``y`` with gradient ``g`` holds the relevance ``y * g``. A rule is
therefore a choice of backward pass. Each function here returns its value untouched, bit for bit, and
changes only what flows back. (Values are passed on with ``detach``, which keeps the strides; ``view_as`` need not,
and kernels are chosen by strides.)
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class _Linearised(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, slope: Tensor | float) -> Tensor:
        ctx.dtype = x.dtype
        ctx.number = None if isinstance(slope, Tensor) else slope
        if isinstance(slope, Tensor):
            ctx.save_for_backward(slope)
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        slope = ctx.saved_tensors[0] if ctx.number is None else ctx.number
        if isinstance(slope, Tensor) and slope.is_complex():
            slope = slope.conj()
        return (g if ctx.number == 1 else g * slope).to(ctx.dtype), None, None


def linearised(x: Tensor, value: Tensor, slope: Tensor | float = 1.0) -> Tensor:
    """``value``, taken for ``slope * x`` plus a constant: ``x`` gets ``slope`` times the gradient.

    ``slope`` broadcasts against ``value``, which has the shape of ``x``.
    """
    return _Linearised.apply(x, value, slope) if x.requires_grad else value


def scale_gradient(y: Tensor, factor: float) -> Tensor:
    """``y``, with ``factor`` times the gradient."""
    return y if factor == 1 else linearised(y, y, factor)


class _Shared(Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, slopes: list[Tensor], *operands: Tensor) -> Tensor:
        ctx.save_for_backward(*slopes)
        ctx.shapes = [(t.shape, t.dtype) for t in operands]
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.shapes, strict=True)
        return None, None, *((g * slope).sum_to_size(shape).to(dtype) for slope, (shape, dtype) in pairs)


def shared(value: Tensor, operands: list[Tensor], slopes: list[Tensor]) -> Tensor:
    """``value``, of which each operand gets its slope times the gradient; operands broadcast against it."""
    return _Shared.apply(value, slopes, *operands) if operands else value


def finite_ratio(y: Tensor, a: Tensor) -> Tensor:
    """``y / a``; zero where that isn't finite."""
    return torch.div(y, a).nan_to_num_(0.0, 0.0, 0.0)


class Weight(Protocol):
    """How much of its relevance a linear layer under the gamma rule hands to its second product."""

    def aside(self, left: Tensor) -> Tensor | None:
        """The part for each unit, given the size of the output relative to the sum of its contributions' sizes.

        ``None`` where all units of the layer are exact. Asked in the backward pass.
        """


class _Gamma(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, m: Tensor, held: Tensor, weight: Weight) -> Tensor:
        ctx.save_for_backward(finite_ratio(held, m))
        ctx.weight = weight
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (left,) = ctx.saved_tensors
        part = ctx.weight.aside(left.abs())
        if part is None:
            return g, None, None, None
        aside = part * g
        return g - aside, left * aside, None, None


def gamma(y: Tensor, m: Tensor, held: Tensor, weight: Weight) -> Tensor:
    """``y``, whose relevance is handed to the two products ``y`` and ``m >= |y|`` that explain it.

    ``held`` is what relevance is held of: ``y``, or its change relative to a reference. With ``left = held / m`` and a
    part ``p`` from zero to one, the products get the gradients ``g (1 - p)`` and ``left p g``, so that ``held g (1 - p)
    + m left p g = held g``: what comes in goes out. The gamma rule's denominator ``d = held + sign(held) w m`` is that
    of ``p = w / (|left| + w)``. Where ``held`` is zero, nothing flows.
    """
    return _Gamma.apply(y, m, held, weight)


def hand_over(y: Tensor, d: Tensor, total: Tensor) -> Tensor:
    """``y``, whose relevance is handed to another sum ``d``: ``g_d = g y / total``; the total is d and a stabiliser."""
    return linearised(d, y, finite_ratio(y, total))


def standardised(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """``(x - mean) / std`` over the last axis, the mean, and ``1 / std``, in one pass.

    On a CPU torch's ``var`` takes ten times as long.
    """
    normal, mean, inverse = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
    return normal, mean, inverse
