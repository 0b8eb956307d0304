"""Normalisation, gates and activations: ``y = a g(a)`` or ``y = a / d(a)``, with ``g`` and ``d`` held fixed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hilrp.method.autograd import inverse_deviation, linearised, normalise, scale_gradient, secant, through_origin
from hilrp.method.call import Call, Level
from hilrp.method.reindexing import affine
from hilrp.method.secant import functions as secant_functions
from hilrp.util.nested import map_tensors


def activation(call: Call) -> Tensor:
    """Elementwise with ``f(0) = 0``: the identity rule, ``R_a = R_y``."""
    return _secant(call, offset=False)


def offset_activation(call: Call) -> Tensor:
    """Elementwise with ``f(0) != 0`` (sigmoid, softplus, exp, clamp): the constant ``f(0)`` keeps its share."""
    return _secant(call, offset=True)


def _secant(call: Call, offset: bool) -> Tensor:
    carriers = call.carriers
    if not carriers:
        return stop(call)
    if len(carriers) > 1:
        return _selection(call, carriers)
    (a,) = carriers
    y = call.value()
    if not offset:
        plain = (y.shape, y.dtype) == (a.shape, a.dtype) and not a.is_complex()
        return through_origin(a, y, _repeatable(call, a)) if plain else secant(a, y)
    with torch.no_grad():
        # An infinite operand is a mask: there all of y is constant, and the line has no slope.
        at_zero = call.run(lambda t: t.new_zeros(()) if t is a else t)
        origin = torch.where(a.isinf(), y, at_zero)
    y = secant(a, y, origin)
    call.book(y, origin, call.kind(call.operands, "activation at zero"))
    return y


def _repeatable(call: Call, a: Tensor) -> Callable[[Tensor], Tensor]:
    """The call as a function of its operand, which holds no graph."""
    func, place = call.func, object()
    args, kwargs = map_tensors(lambda t: place if t is a else t, (call.args, call.kwargs))

    def again(value: Tensor) -> Tensor:
        own = [value if arg is place else arg for arg in args]
        y: Tensor = func(*own, **{name: value if arg is place else arg for name, arg in kwargs.items()})
        return y

    return again


def _selection(call: Call, carriers: list[Tensor]) -> Tensor:
    """Bounds that depend on the input (clamp, maximum) select; what none of them supplied came from a constant."""
    y: Tensor = call.run()
    with torch.no_grad():
        supplied = torch.stack([(t == y).expand_as(y) for t in carriers]).any(0)
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
    if not isinstance(divisor, Tensor) or not call.varies(divisor) or call.rules.unlisted == "raw":
        return _raw(call)
    y: Tensor = call.func(first.detach(), second) if swapped else call.func(first, second.detach())
    return y


def select(call: Call) -> Any:
    """Max and min: of two operands elementwise, or over an axis, where the native backward is exact."""
    return offset_activation(call) if isinstance(call.argument(1, "other"), Tensor) else call.run()


def layer_norm(call: Call) -> Tensor:
    """torch.layer_norm(x, normalized_shape, weight, bias, eps)."""
    # AttnLRP lists torch's own class; a subclass with a forward of its own escapes its patch.
    if call.rules.unlisted == "raw" and type(call.module) is not torch.nn.LayerNorm:
        return _raw(call)
    x, shape = call.argument(0, "input"), tuple(call.argument(1, "normalized_shape"))
    weight, bias, eps = call.argument(2, "weight"), call.argument(3, "bias"), call.argument(4, "eps", 1e-5)
    return _norm(call, x, (-1, math.prod(shape)), weight, bias, True, eps)


def rms_norm(call: Call) -> Tensor:
    """torch.rms_norm(x, normalized_shape, weight, eps)."""
    if call.rules.unlisted == "raw" and type(call.module) is not torch.nn.RMSNorm:
        return _raw(call)
    x, shape = call.argument(0, "input"), tuple(call.argument(1, "normalized_shape"))
    weight, eps = call.argument(2, "weight"), call.argument(3, "eps")
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _norm(call, x, (-1, math.prod(shape)), weight, None, False, eps)


def group_norm(call: Call) -> Tensor:
    """torch.group_norm(x, groups, weight, bias, eps)."""
    x, groups = call.argument(0, "input"), call.argument(1, "num_groups")
    weight, bias, eps = call.argument(2, "weight"), call.argument(3, "bias"), call.argument(4, "eps", 1e-5)
    if call.rules.unlisted == "raw":
        return _raw(call)
    return _norm(call, x, (x.shape[0] * groups, -1), *_affine(weight, bias, x), True, eps)


def instance_norm(call: Call) -> Tensor:
    """torch.instance_norm(x, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn)."""
    x, weight, bias = (call.argument(i, name) for i, name in enumerate(("input", "weight", "bias")))
    if not call.argument(5, "use_input_stats"):
        return affine(call, "norm shift")
    if call.rules.unlisted == "raw":
        return _raw(call)
    return _norm(call, x, (x.shape[0] * x.shape[1], -1), *_affine(weight, bias, x), True, call.argument(7, "eps"))


def batch_norm(call: Call) -> Tensor:
    """In evaluation an affine map: ``y = w (x - mean) / std + b``."""
    names = ("input", "weight", "bias", "running_mean", "running_var")
    x, weight, bias, mean, var = (call.argument(i, name) for i, name in enumerate(names))
    slope = (var + call.argument(7, "eps")).rsqrt() * (1 if weight is None else weight)
    shift = -mean * slope if bias is None else bias - mean * slope
    # Not torch's backward: on the CPU it is wrong for a batch of one in some memory layouts (seen in 2.15).
    y = linearised(x, call.value(), _channels(slope, x))
    call.book(y, _channels(shift, x), "norm shift")
    return y


def _norm(
    call: Call, x: Tensor, groups: tuple[int, ...], scale: Tensor | None, shift: Tensor | None, centre: bool, eps: float
) -> Tensor:
    if not x.requires_grad:
        return stop(call)
    scale = None if scale is None else scale.detach()
    if call.reference is not None:
        return secant_functions.normalise(x, call.before(x), call.value(), groups, scale, centre, eps)
    if call.name == "layer_norm" and not torch.is_autocast_enabled(x.device.type):
        # What torch.layer_norm runs, which gives the divisor as well.
        value, _, inverse = torch.native_layer_norm(x.detach(), call.argument(1, "normalized_shape"), scale, shift, eps)
    else:
        value, inverse = call.value(), inverse_deviation(x, groups, centre, eps)
    y = normalise(x, value, inverse.reshape(-1, 1), groups, scale, centre)
    if shift is not None:
        call.book(y, shift.detach(), "norm shift")
    return y


def _raw(call: Call) -> Tensor:
    y: Tensor = call.run()
    return y


def _channels(parameter: Tensor, x: Tensor) -> Tensor:
    return parameter.reshape(-1, *([1] * (x.ndim - 2)))


def _affine(weight: Tensor | None, bias: Tensor | None, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    return None if weight is None else _channels(weight, x), None if bias is None else _channels(bias, x)
