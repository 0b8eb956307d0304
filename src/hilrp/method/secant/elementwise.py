"""Functions of single values, and quotients, relative to a reference."""

from __future__ import annotations

import torch
from torch import Tensor

from hilrp.method.autograd import finite_ratio, linearised
from hilrp.method.call import Call
from hilrp.method.normalisation import Norm
from hilrp.method.secant import functions
from hilrp.method.secant.affine import affine
from hilrp.method.secant.products import product, root
from hilrp.method.secant.shares import by_effects, by_sizes, carries, shared, with_value
from hilrp.util.pieces import in_pieces
from hilrp.util.replaceable import Replaceable

#: Functions that aren't defined everywhere: how close two values are goes by their size.
_DOMAINS = frozenset("sqrt rsqrt reciprocal log log2 log10 log1p logit pow rpow".split())
#: Functions made of straight pieces: a slope is exact, unless the two values are the same.
_KINKED = frozenset(
    "abs leaky_relu prelu rrelu relu6 hardtanh clamp clamp_min clamp_max threshold hardsigmoid hardshrink "
    "softshrink".split()
)
#: Functions of steps have no slope.
_STEPS = frozenset("floor ceil round trunc sign div".split())


def elementwise(call: Call) -> Tensor:
    """``D f / D a``, and where the two values of ``a`` agree but for rounding, the slope between them."""
    carriers, y = call.carriers, call.value()
    if not carriers:
        return y
    if any(t.is_complex() for t in carriers):
        return root(call) if call.name == "abs" else product(call)
    if call.fixed:
        return by_sizes(call, carriers)
    if len(carriers) > 1 or y.shape != carriers[0].shape:
        return by_effects(call, carriers)
    (a,) = carriers
    operands = a.detach(), call.before(a), y, call.output_before
    with torch.no_grad():
        slope = slope_of(call, a, operands) if len(call.operands) == 1 else _slope(call, a, *operands)
    return linearised(a, y, slope)


@Replaceable
def slope_of(call: Call, a: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
    """The slopes of a function of one operand: in pieces, since they take several times their own size on the way."""
    slope = torch.empty_like(a, dtype=torch.promote_types(a.dtype, torch.float32))
    for out, *part in in_pieces(slope, *operands):
        out.copy_(_slope(call, a, *part))
    return slope


def _slope(call: Call, a: Tensor, now: Tensor, before: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """The slopes of (part of) a call, ``a`` being its operand as a whole."""
    # Half types are too coarse to look for a slope beside a point.
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    now, before, y, y0 = (t.to(wide) for t in (now, before, y, y0))
    if call.name in _STEPS:
        return finite_ratio(y - y0, now - before)
    if call.name == "relu":
        change = now - before
        return torch.where(change == 0, (y > 0).to(wide), (y - y0).div_(change))
    middle = torch.lerp(now, before, 0.5)
    limit = derivative(call, a, middle)
    fine = 0.0 if call.name in _KINKED else torch.finfo(wide).eps ** 0.8
    return chord(y, y0, now, before, limit, fine, call.name in _DOMAINS)


@Replaceable
def chord(y: Tensor, y0: Tensor, now: Tensor, before: Tensor, limit: Tensor, fine: float, domain: bool) -> Tensor:
    """``(y - y0) / (now - before)``, and where these agree but for rounding, the ``limit``.

    How close is close goes by the size of the values, or one; with a ``domain`` by their size alone, unless the limit
    isn't finite. Without fineness they have to be equal.
    """
    change, middle = now - before, (now + before).abs_().mul_(0.5)
    size = middle if domain else middle.clamp_(min=1)
    close = change.abs() < size.mul_(fine) if fine else change == 0
    if domain:
        close &= limit.isfinite()
    return torch.where(close, limit, (y - y0).div_(change)).nan_to_num_(0.0, 0.0, 0.0)


@Replaceable
def derivative(call: Call, a: Tensor, middle: Tensor) -> Tensor:
    """The slope at the midpoint, for values that agree but for rounding."""
    with torch.enable_grad():
        leaf = middle.detach().requires_grad_()
        y = with_value(call, a, leaf, Tensor.detach)
    if not y.requires_grad:  # steps that are in no list
        return torch.zeros_like(middle)
    (slope,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
    return slope


def normalise(call: Call) -> Tensor:
    """layer_norm, rms_norm, group_norm, instance_norm: with a divisor that varies, too."""
    if call.name == "instance_norm" and not call.argument(5, "use_input_stats"):
        return affine(call)
    norm = Norm.of(call)
    return functions.normalise(norm, call.before(norm.x), call.value()) if norm.x.requires_grad else call.value()


def divide(call: Call) -> Tensor:
    """``y = a / b`` is ``a = y b``, whose midpoint rule gives ``D y = (D a - ybar D b) / bbar``.

    It is sound where one of the divisors is tiny, too. Where they have opposite signs, and ``bbar`` vanishes:
    ``D y = D a (1/b + 1/b0)/2 - abar D b / (b b0)``. Where neither changes, nothing is handed on: both may be sums of
    parts that cancel (linear attention of a token that no key matches), which a tiny divisor would enlarge.
    """
    first, second = call.argument(0, "input"), call.argument(1, "other")
    if call.kwargs.get("rounding_mode") is not None:
        return elementwise(call)
    a, b = (second, first) if call.name in ("rdiv", "rtruediv") else (first, second)
    if not (isinstance(b, Tensor) and call.changes(b)):
        return affine(call)
    if call.fixed and call.carriers:
        return by_sizes(call, call.carriers)
    y = call.value()
    with torch.no_grad():
        b0, middle = call.before(b), call.middle(b)
        apart = (b > 0) != (b0 > 0)
        divisor = torch.where(apart, 1, middle)
        slope_a = torch.where(apart, (1 / b + 1 / b0) / 2, 1 / divisor)
        middle_a = call.middle(a) if isinstance(a, Tensor) else a
        slope_b = -torch.where(apart, middle_a / (b * b0), (y + call.output_before) / 2 / divisor)
        same = (b == b0) & (a == call.before(a)) if isinstance(a, Tensor) else b == b0
        slope_a, slope_b = (slope.masked_fill(same, 0) for slope in (slope_a.expand_as(y), slope_b.expand_as(y)))
    slopes = [slope for t, slope in ((a, slope_a), (b, slope_b)) if carries(t)]
    return shared(call, [t for t in (a, b) if carries(t)], slopes)
