"""Normalisation, gates and activations (Definition 3): ``y = a g(a)`` or ``y = a / d(a)``.

``g`` and ``d`` are held fixed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hilrp.method.autograd import finite_ratio, linearised, scale_gradient, standardised
from hilrp.method.call import Call, Level
from hilrp.method.reindexing import affine, native
from hilrp.util.replaceable import Replaceable


def activation(call: Call) -> Tensor:
    """Elementwise with ``f(0) = 0``: the identity rule, ``R_a = R_y``."""
    carriers = call.carriers
    if len(carriers) != 1:
        return _selection(call)
    return straight_line(call, carriers[0], call.value())


def offset_activation(call: Call) -> Tensor:
    """Elementwise with ``f(0) != 0`` (sigmoid, softplus, exp, clamp): the constant ``f(0)`` keeps its share."""
    carriers, y = call.carriers, call.value()
    if len(carriers) != 1:
        return _selection(call)
    (a,) = carriers
    with torch.no_grad():
        # An infinite operand is a mask: there all of y is constant, and the line has no slope.
        at_zero = call.run(lambda t: t.new_zeros(()) if t is a else t)
        origin = torch.where(a.isinf(), y, at_zero)
    y = straight_line(call, a, y, origin)
    call.book(y, origin, call.kind(call.operands, "activation at zero"))
    return y


@Replaceable
def straight_line(call: Call, a: Tensor, y: Tensor, origin: Tensor | None = None) -> Tensor:
    """An elementwise ``y = f(a)`` as the straight line from ``(0, f(0))`` to ``(a, f(a))``, its slope held fixed.

    ``y = f(0) + a * ((f(a) - f(0)) / a)``. For ``f(0) = 0`` this is the identity rule: all relevance of ``y`` goes to
    ``a``; otherwise the constant ``f(0)``, the ``origin``, keeps its share.
    """
    with torch.no_grad():
        slope = finite_ratio(y if origin is None else y - origin, a)
    return linearised(a, y, slope)


def _selection(call: Call) -> Tensor:
    """Bounds that depend on the input (clamp, maximum) select; what none of them supplied came from a constant."""
    y: Tensor = call.run()
    if call.carriers:
        with torch.no_grad():
            supplied = torch.stack([(t == y).expand_as(y) for t in call.carriers]).any(0)
        call.book(y, y.detach().masked_fill(supplied, 0), "constant")
    return y


def clamp_level(call: Call) -> Level | None:
    """Bounded on both sides (a hard sigmoid written by hand), it is a gate."""
    bounds = call.argument(1, "min"), call.argument(2, "max")
    return Level.GATE if None not in bounds else None


def reciprocal_level(call: Call) -> Level:
    """One over something is a gate; relative to a reference, where gates carry, it is known for a divisor."""
    return Level.GATE if call.reference is None else Level.RECIPROCAL


def divide_level(call: Call) -> Level | None:
    """A constant divided by what varies."""
    divided = call.argument(1 if call.name in ("rdiv", "rtruediv") else 0, "input")
    varies = isinstance(divided, Tensor) and call.varies(divided)
    return None if varies or call.reference is None else Level.RECIPROCAL


def power_level(call: Call) -> Level | None:
    """Even powers are features, like ``square``; negative ones are reciprocals."""
    exponent = call.argument(1, "exponent")
    if call.reference is not None and isinstance(exponent, (int, float)) and exponent < 0 and call.name == "pow":
        return Level.RECIPROCAL
    return Level.FEATURE if isinstance(exponent, (int, float)) and exponent % 2 == 0 else None


def power(call: Call) -> Tensor:
    """``a ** n``: the identity rule for a positive exponent; otherwise a statistic, which is a gate."""
    base, exponent = call.argument(0, "input"), call.argument(1, "exponent")
    if call.name == "rpow" or (isinstance(exponent, Tensor) and call.varies(exponent)):
        varies = isinstance(base, Tensor) and call.varies(base) and call.name != "rpow"
        return stop(call) if varies else offset_activation(call)
    positive = bool((exponent > 0).all()) if isinstance(exponent, Tensor) else exponent > 0
    return activation(call) if positive else stop(call)


def stop(call: Call) -> Tensor:
    """A gate that has no conserving way on: relevance that reaches it stays there."""
    y: Tensor = call.value()
    return y


def variance(call: Call) -> Tensor:
    """Of degree two: the gradient pays twice the value, hence one half of it."""
    return scale_gradient(call.run(), 0.5)


def norm(call: Call) -> Tensor:
    """Norms are homogeneous of degree one, but that of order zero, which counts."""
    return stop(call) if norm_order(call) == 0 else call.run()


def quantile(call: Call) -> Tensor:
    """An order statistic is homogeneous of degree one; which one it is, is held fixed."""
    q = call.argument(1, "q")
    y: Tensor = call.run(lambda t: t.detach() if t is q else t)
    return y


def norm_order(call: Call) -> Any:
    """Which norm is meant."""
    return call.argument(1, "ord" if call.name.startswith("linalg") else "p", 2)


def divide(call: Call) -> Tensor:
    """``y = a / d``: the divisor is held fixed."""
    first, second = call.argument(0, "input"), call.argument(1, "other")
    if call.kwargs.get("rounding_mode") is not None:
        return stop(call)
    swapped = call.name in ("rdiv", "rtruediv")
    divisor = first if swapped else second
    if not isinstance(divisor, Tensor) or not call.varies(divisor):
        return native(call)
    y: Tensor = call.func(first.detach(), second) if swapped else call.func(first, second.detach())
    return y


def select(call: Call) -> Any:
    """Max and min: of two operands elementwise, or over an axis, where the native backward is exact."""
    return offset_activation(call) if isinstance(call.argument(1, "other"), Tensor) else call.run()


class Norm(NamedTuple):
    """A normalisation: ``x``, over the last axis of ``x.reshape(groups)``, then times a scale and plus a shift.

    ``centre`` says whether the mean is taken off; without it this is the root-mean-square form.
    """

    x: Tensor
    groups: tuple[int, ...]
    scale: Tensor | None
    shift: Tensor | None
    centre: bool
    eps: float

    @classmethod
    def of(cls, call: Call) -> Norm:
        """The normalisation that a call is."""
        x, second = call.argument(0, "input"), call.argument(1, "normalized_shape")
        if call.name == "layer_norm":  # (input, normalized_shape, weight, bias, eps)
            scale, shift, eps = (call.argument(i, n) for i, n in enumerate(("weight", "bias", "eps"), 2))
            return cls(x, (-1, math.prod(second)), scale, shift, True, 1e-5 if eps is None else eps)
        if call.name == "rms_norm":  # (input, normalized_shape, weight, eps)
            eps = call.argument(3, "eps")
            eps = torch.finfo(x.dtype).eps if eps is None else eps
            return cls(x, (-1, math.prod(second)), call.argument(2, "weight"), None, False, eps)
        if call.name == "group_norm":  # (input, num_groups, weight, bias, eps, cudnn_enabled)
            groups, first, eps = call.argument(1, "num_groups"), 2, call.argument(4, "eps", 1e-5)
        else:  # instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn)
            groups, first, eps = x.shape[1], 1, call.argument(7, "eps")
        scale, shift = (call.argument(first + i, name) for i, name in enumerate(("weight", "bias")))
        scale, shift = (None if p is None else along_channels(p, x) for p in (scale, shift))
        return cls(x, (x.shape[0] * groups, -1), scale, shift, True, eps)


def normalise(call: Call) -> Tensor:
    """layer_norm, rms_norm, group_norm, instance_norm: the divisor is held fixed, the mean is a linear map."""
    if call.name == "instance_norm" and not call.argument(5, "use_input_stats"):
        return affine(call, "norm shift")
    norm = Norm.of(call)
    if not norm.x.requires_grad:
        return stop(call)
    y = with_fixed_divisor(call, norm)
    if norm.shift is not None:
        call.book(y, norm.shift.detach(), "norm shift")
    return y


@Replaceable
def with_fixed_divisor(call: Call, norm: Norm) -> Tensor:
    """``(x - mean) / std * scale``, in which ``std`` is a number."""
    grouped = norm.x.reshape(norm.groups)
    y = grouped - grouped.mean(-1, keepdim=True) if norm.centre else grouped
    y = (y * inverse_deviation(grouped, norm.centre, norm.eps)).reshape(norm.x.shape)
    return linearised(y if norm.scale is None else y * norm.scale, call.value())


def inverse_deviation(grouped: Tensor, centre: bool, eps: float) -> Tensor:
    """``1 / std`` over the last axis, or one over the root of the mean square."""
    with torch.no_grad():
        wide = grouped if grouped.dtype in (torch.float32, torch.float64) else grouped.float()
        return standardised(wide, eps)[2] if centre else (wide.square().mean(-1, keepdim=True) + eps).rsqrt()


def batch_norm(call: Call) -> Tensor:
    """In evaluation an affine map: ``y = w (x - mean) / std + b``."""
    names = ("input", "weight", "bias", "running_mean", "running_var")
    x, weight, bias, mean, var = (call.argument(i, name) for i, name in enumerate(names))
    slope = (var + call.argument(7, "eps")).rsqrt() * (1 if weight is None else weight)
    shift = -mean * slope if bias is None else bias - mean * slope
    # Not torch's backward: on the CPU it is wrong for a batch of one in some memory layouts (seen in 2.15).
    y = linearised(x, call.value(), along_channels(slope, x))
    if call.reference is None:
        call.book(y, along_channels(shift, x), "norm shift")
    return y


def along_channels(parameter: Tensor, x: Tensor) -> Tensor:
    """A parameter for each channel, so that it broadcasts against ``x``."""
    return parameter.reshape(-1, *([1] * (x.ndim - 2)))
