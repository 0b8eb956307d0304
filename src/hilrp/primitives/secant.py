"""Rules relative to a reference: every operation's exact secant form.

The model runs on the input and, beside it, on a reference. With ``D`` for the difference of a tensor's two values and relevance
``g * D``, biases and all other constants cancel: a rule has only to pass on ``g * D y`` to the operands, so that in the end the pixels
hold ``f(x) - f(x0)``. Linear maps do so as they are; the gamma rule is applied to the contributions ``w D a``; everything else has a
closed form, in which nothing is held fixed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hilrp.primitives import bilinear, linear, normalisation, reindexing
from hilrp.primitives import secant_functions as functions
from hilrp.primitives.call import Call
from hilrp.primitives.functions import bounded, linearised, redistribute

Rule = Callable[[Call], Any]


def rule_for(name: str, rule: Rule) -> Rule:
    """The secant form of an operation, by its name or by its rule without a reference."""
    return _BY_NAME.get(name) or _BY_RULE.get(rule, rule)


# Linear maps --------------------------------------------------------------------------------------------------------


def affine(call: Call) -> Any:
    """Linear maps and sums, as they are: constants have no difference.

    Where a mask or an index is another one in the reference pass, what that changes is booked.
    """
    y = call.run()
    same_shape = [t.shape for t in _tensors(y)] == [t.shape for t in _tensors(call.output_before)]
    numbers = any(t.is_floating_point() or t.is_complex() for t in call.fixed)
    if same_shape and (numbers or any(not torch.equal(t, t0) for t, t0 in call.choices)):
        for out, before, moved in zip(*map(_tensors, (y, call.output_before, _on_differences(call))), strict=True):
            if out.requires_grad:
                call.book(out, out.detach() - before - moved, "selection")
    return y


def _tensors(tree: Any) -> list[Tensor]:
    return [tree] if isinstance(tree, Tensor) else [t for t in tree if isinstance(t, Tensor)]


def _on_differences(call: Call) -> Any:
    """An affine map without its constants."""
    with torch.no_grad():
        at = [call.run(lambda t: call.difference(t) if t.requires_grad else t), call.at_zero()]
    return at[0] - at[1] if isinstance(at[0], Tensor) else [a - b for a, b in zip(*at, strict=True)]


def unbooked(rule: Rule) -> Rule:
    """A rule that knows of references, or needs none; constants have no part in differences."""
    return lambda call: rule(replace(call, book=_nothing))


def _nothing(output: Tensor, constant: Tensor, kind: str) -> None:
    """Enters nothing."""


def layer(call: Call) -> Tensor:
    """Linear layers and convolutions; products where the weight depends on the input."""
    _, weight, bias = (call.argument(i, name) for i, name in enumerate(("input", "weight", "bias")))
    if call.changes(weight) or (bias is not None and call.changes(bias)):
        return product(call)
    return weighted(call)


def mix(call: Call) -> Tensor:
    """matmul, einsum and kin."""
    return weighted(call) if sum(map(call.changes, call.operands)) == 1 else product(call)


def weighted(call: Call) -> Tensor:
    """A weighted sum: the linear rule, applied to differences, without a bias."""
    rules, y = call.rules, call.run()
    gamma = linear.gamma_of(call)
    if (
        not y.requires_grad
        or rules.linear == "epsilon"
        or (gamma == 0 and rules.linear == "gamma")
        or any(t.is_complex() for t in call.operands)
    ):
        return y
    bias = linear.bias_of(call)

    def size(t: Tensor) -> Tensor:
        if t is bias:
            return torch.zeros_like(t)
        return (call.difference(t) if call.changes(t) else t).abs()

    change, sizes = y.detach() - call.output_before, call.run(size)
    if rules.linear == "bounded":
        return bounded(y, sizes, linear.bound_of(call), change)
    return redistribute(y, sizes, (gamma / 2) / (1 + gamma / 2), change)


# Products -------------------------------------------------------------------------------------------------------------


def product(call: Call) -> Tensor:
    """Products of two factors, and quadratic forms: ``D(u v) = ubar D v + D u vbar``, the native backward pass at the midpoints."""
    carriers, fixed = call.carriers, call.fixed
    if fixed and call.name == "mul" and carriers:
        return _by_sizes(call, carriers)
    if sum(map(call.changes, call.operands)) > 2:
        return _several(call, carriers)
    y = call.run(lambda t: linearised(t, call.middle(t)) if call.changes(t) else t)
    out = linearised(y, call.value())
    if out.requires_grad:
        with torch.no_grad():
            for one in fixed:
                call.book(out, _with(call, one, call.difference(one), call.middle), "selection")
    return out


def _with(call: Call, one: Tensor, value: Tensor, others: Callable[[Tensor], Tensor]) -> Tensor:
    """The operation with some value for one operand, and a function of the others that depend on the input."""
    y: Tensor = call.run(lambda t: value if t is one else others(t) if call.changes(t) else t)
    return y


def _several(call: Call, carriers: list[Tensor]) -> Tensor:
    """Products of three factors and more: each is looked at with the others as now and as before, over all orders."""
    value, parts = call.value(), []
    count = len(carriers)
    for one in carriers:
        others = [t for t in carriers if t is not one]
        for now in itertools.product((False, True), repeat=count - 1):
            state = {id(t): (t if up else call.before(t)).detach() for t, up in zip(others, now, strict=True)}
            part = call.run(partial(_looked_up, state))
            parts.append(linearised(part, torch.zeros_like(part), _orders(sum(now), count)))
    out = linearised(torch.stack(parts).sum(0), value)
    if call.fixed:
        with torch.no_grad():
            moved = value - call.run(lambda t: t if t.requires_grad else call.before(t))
        call.book(out, moved, "selection")
    return out


def _orders(before: int, count: int) -> float:
    """The part of all orders of ``count`` operands in which one comes after ``before`` given others."""
    return math.factorial(before) * math.factorial(count - 1 - before) / math.factorial(count)


def root(call: Call) -> Tensor:
    """Functions whose square is a quadratic form (norms, standard deviations): ``D n = 2 n(xbar) / (n + n0)`` times the slope at the midpoint."""
    (a,) = call.carriers
    value = call.value()
    y = call.run(lambda t: linearised(t, call.middle(t)) if t is a else t)
    with torch.no_grad():
        total = value + call.output_before
        slope = 2 * y / total.where(total != 0, 1)
    return linearised(y, value, slope)


def norm(call: Call) -> Tensor:
    """Of order two by `root`; others are written out."""
    name = "ord" if call.name == "linalg_vector_norm" or call.name == "linalg_norm" else "p"
    order, dim = call.argument(1, name, 2), call.argument(2, "dim")
    matrix = call.name == "linalg_norm" and isinstance(dim, (tuple, list)) and len(dim) == 2
    if order in (None, "fro") or isinstance(order, (tuple, list)) or (order == 2 and not matrix):
        return root(call)
    return proportional(call)


def divide(call: Call) -> Tensor:
    """``y = a / b`` is ``a = y b``, whose midpoint rule gives ``D y = (D a - ybar D b) / bbar``: sound where one of the divisors is tiny, too.

    Where they have opposite signs, and ``bbar`` vanishes: ``D y = D a (1/b + 1/b0)/2 - abar D b / (b b0)``.
    """
    first, second = call.argument(0, "input"), call.argument(1, "other")
    if call.kwargs.get("rounding_mode") is not None:
        return elementwise(call)
    a, b = (second, first) if call.name in ("rdiv", "rtruediv") else (first, second)
    if not (isinstance(b, Tensor) and call.changes(b)):
        return affine(call)
    if call.fixed and call.carriers:
        return _by_sizes(call, call.carriers)
    y = call.value()
    with torch.no_grad():
        b0, middle = call.before(b), call.middle(b)
        apart = (b > 0) != (b0 > 0)
        shared = torch.where(apart, 1, middle)
        slope_a = torch.where(apart, (1 / b + 1 / b0) / 2, 1 / shared)
        middle_a = call.middle(a) if isinstance(a, Tensor) else a
        slope_b = -torch.where(apart, middle_a / (b * b0), (y + call.output_before) / 2 / shared)
    slopes = [slope for t, slope in ((a, slope_a), (b, slope_b)) if _carries(t)]
    return _shared(call, [t for t in (a, b) if _carries(t)], slopes)


def _carries(operand: Any) -> bool:
    return isinstance(operand, Tensor) and operand.requires_grad


def _shared(call: Call, operands: list[Tensor], slopes: list[Tensor]) -> Tensor:
    return functions.shared(call.value(), operands, slopes) if operands else call.value()


# Elementwise functions ----------------------------------------------------------------------------------------------------

#: Functions that aren't defined everywhere: how far they are looked at beside a point goes by its size.
_DOMAINS = frozenset("sqrt rsqrt reciprocal log log2 log10 log1p pow rpow".split())
#: Functions made of straight pieces: a slope is exact, unless the two values are the same.
_KINKED = frozenset(
    "abs leaky_relu prelu rrelu relu6 hardtanh clamp clamp_min clamp_max threshold hardsigmoid hardshrink softshrink".split()
)
#: Functions of steps have no slope.
_STEPS = frozenset("floor ceil round trunc sign div".split())


def elementwise(call: Call) -> Tensor:
    """``D f / D a``, and where the two values of ``a`` agree but for rounding, the slope over a short stretch around them."""
    carriers, y = call.carriers, call.value()
    if not carriers:
        return y
    if any(t.is_complex() for t in carriers):
        return root(call) if call.name == "abs" else product(call)
    if call.fixed:
        return _by_sizes(call, carriers)
    if len(carriers) > 1 or y.shape != carriers[0].shape:
        return _by_effects(call, carriers)
    (a,) = carriers
    with torch.no_grad():
        slope = _slope(call, a, y)
    return linearised(a, y, slope)


def _slope(call: Call, a: Tensor, y: Tensor) -> Tensor:
    # Half types are too coarse to look for a slope beside a point.
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    now, before = a.to(wide), call.before(a).to(wide)
    middle, change = (now + before) / 2, now - before
    slope = (y.to(wide) - call.output_before.to(wide)) / change
    if call.name in _STEPS:
        return slope.nan_to_num_(0.0, 0.0, 0.0)
    if call.name == "relu":
        return torch.where(change == 0, (y > 0).to(slope), slope)
    size = middle.abs() if call.name in _DOMAINS else middle.abs().clamp(min=1)
    eps = torch.finfo(wide).eps
    reach = eps ** (1 / 3) * size
    limit = (_with(call, a, middle + reach, Tensor.detach) - _with(call, a, middle - reach, Tensor.detach)) / (
        2 * reach
    )
    close = change == 0 if call.name in _KINKED else change.abs() < eps**0.8 * size
    near = close & limit.isfinite()
    return torch.where(near, limit, slope).nan_to_num_(0.0, 0.0, 0.0)


def _sized(call: Call, carriers: list[Tensor], y: Tensor) -> tuple[list[Tensor], Tensor]:
    """Slopes by which each operand gets a part by the size of its change, and the sum of these sizes."""
    changes = [call.difference(t) for t in carriers]
    total = torch.stack([c.abs().expand_as(y) for c in changes]).sum(0)
    moved = ((y - call.output_before) / torch.where(total > 0, total, 1)).nan_to_num_(0.0, 0.0, 0.0)
    return [moved * c.sign() for c in changes], total


def _looked_up(known: dict[int, Tensor], t: Tensor) -> Tensor:
    return known.get(id(t), t)


def _by_effects(call: Call, carriers: list[Tensor]) -> Tensor:
    """Each operand gets the mean of what it changes over the orders in which they may change: Shapley values, which sum to the whole."""
    count = len(carriers)
    with torch.no_grad():
        values = {}
        for now in itertools.product((False, True), repeat=count):
            state = {id(t): t if changed else call.before(t) for t, changed in zip(carriers, now, strict=True)}
            values[now] = call.run(partial(_looked_up, state))
        slopes = []
        for i, one in enumerate(carriers):
            effect = torch.zeros_like(values[(True,) * count])
            for now in values:
                if now[i]:
                    step = values[now] - values[(*now[:i], False, *now[i + 1 :])]
                    effect += _orders(sum(now) - 1, count) * step
            slopes.append((effect / call.difference(one)).nan_to_num_(0.0, 0.0, 0.0))
    return _shared(call, carriers, slopes)


def _by_sizes(call: Call, carriers: list[Tensor]) -> Tensor:
    """Each of several operands gets a part by the size of its change."""
    y = call.value()
    with torch.no_grad():
        slopes, total = _sized(call, carriers, y)
    out = _shared(call, carriers, slopes)
    left = (y - call.output_before) * (total == 0)
    if bool(left.any()):
        call.book(out, left, "selection")
    return out


# Selections -----------------------------------------------------------------------------------------------------------------


def pool(call: Call) -> Any:
    """Max-pooling: the winner on the input and the winner on the reference share."""
    a = call.argument(0, "input")
    dims = int(call.name[call.name.index("pool") + 4])
    base = f"adaptive_max_pool{dims}d" if call.name.startswith("adaptive") else f"max_pool{dims}d"
    function = getattr(torch.nn.functional, base)
    names = (
        ("output_size",)
        if call.name.startswith("adaptive")
        else ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    )
    options = dict(zip(names, call.args[1:], strict=False)) | {k: v for k, v in call.kwargs.items() if k in names}
    if options.get("stride") == []:
        options.pop("stride")
    axes = (a.ndim - dims, a.ndim - 1)
    with torch.no_grad():
        index, index0 = (function(t, **options, return_indices=True)[1].flatten(*axes) for t in (a, call.before(a)))
    return _winners(call, a, (index, index0), axes)


def _winners(call: Call, a: Tensor, index: tuple[Tensor, Tensor], axes: tuple[int, int]) -> Any:
    """The values at two indices; of an operation that returns indices, too, with those of the input."""
    value, before = call.value(), call.output_before
    if isinstance(value, Tensor):
        return functions.selected((a, call.before(a)), (value, before), index, axes)
    out = functions.selected((a, call.before(a)), (value[0], before[0]), index, axes)
    return (out, *value[1:]) if type(value) is tuple else type(value)((out, *value[1:]))


def extreme(call: Call) -> Any:
    """max, min, amax and amin, over an axis or all; of two tensors, elementwise."""
    a, second = call.argument(0, "input"), call.argument(1, "other")
    if isinstance(second, Tensor):
        return elementwise(call)
    dim = call.argument(1, "dim")
    last = a.ndim - 1
    if dim is None or (isinstance(dim, (tuple, list)) and (not dim or len(dim) == a.ndim)):
        axes = (0, max(last, 0))
    elif isinstance(dim, int) or len(dim) == 1:
        one = (dim if isinstance(dim, int) else dim[0]) % a.ndim
        axes = (one, one)
    else:
        several = sorted(d % a.ndim for d in dim)
        if several != list(range(several[0], several[-1] + 1)):
            return proportional(call)
        axes = (several[0], several[-1])
    lowest = call.name in ("min", "amin")
    with torch.no_grad():
        flat = [t.flatten(*axes) if t.ndim else t.reshape(1) for t in (a, call.before(a))]
        index, index0 = ((t.argmin if lowest else t.argmax)(axes[0], keepdim=True) for t in flat)
    return _winners(call, a, (index, index0), axes)


def ordered(call: Call) -> Any:
    """sort, topk, median and kthvalue over an axis: at the place on the input and at that on the reference."""
    a, value, before = call.argument(0, "input"), call.value(), call.output_before
    if isinstance(value, Tensor):
        return proportional(call)
    position = {"topk": 2, "kthvalue": 2}.get(call.name, 1)
    dim = call.argument(position, "dim", -1)
    dim = (-1 if not isinstance(dim, int) or isinstance(dim, bool) else dim) % a.ndim
    index, index0 = value[1], before[1]
    if index.ndim < a.ndim:
        index, index0 = index.unsqueeze(dim), index0.unsqueeze(dim)
    out = functions.selected((a, call.before(a)), (value[0], before[0]), (index, index0), (dim, dim), rest=True)
    return type(value)((out, value[1]))


def choose(call: Call) -> Tensor:
    """Where and masked_fill: as they are, if the choice is the same on the reference; else by the sizes of the changes."""
    carriers = call.carriers
    if not call.fixed or not carriers:
        return affine(call)
    y = call.value()
    with torch.no_grad():
        differs = torch.zeros_like(y, dtype=torch.bool)
        for t, t0 in call.choices:
            differs |= t != t0
        sized, total = _sized(call, carriers, y)
        slopes = []
        for one, slope in zip(carriers, sized, strict=True):
            taken = _alone(call, one, torch.ones_like(one)) - _alone(call, one, torch.zeros_like(one))
            slopes.append(torch.where(differs, slope, taken).nan_to_num_(0.0, 0.0, 0.0))
        left = (y - call.output_before).nan_to_num_(0.0, 0.0, 0.0) * (differs & (total == 0))
    out = _shared(call, carriers, slopes)
    if bool(left.any()):
        call.book(out, left, "selection")
    return out


def _alone(call: Call, one: Tensor, value: Tensor) -> Tensor:
    """The operation with a value for one operand and zeros for the other numbers."""
    y: Tensor = call.run(lambda t: value if t is one else torch.zeros_like(t) if t.is_floating_point() else t)
    return y


def proportional(call: Call) -> Tensor:
    """A function without a form of its own, if it has one value for each sum it is made of: the slope at the midpoint, scaled to the difference.

    What is left where that slope sees no change is booked.
    """
    (a,) = call.carriers
    value = call.value()
    leaf = call.middle(a).detach().requires_grad_()
    with torch.enable_grad():
        y = call.run(lambda t: linearised(a, leaf) if t is a else t)
    wanted = value - call.output_before
    _, seen = torch.func.jvp(  # type: ignore[misc]
        lambda m: call.run(lambda t: m if t is a else t), (leaf.detach(),), (call.difference(a).detach(),)
    )
    known = seen.abs() > torch.finfo(seen.dtype).eps * wanted.abs()
    out = linearised(y, value, torch.where(known, wanted / torch.where(known, seen, 1), 0))
    if bool((wanted.masked_fill(known, 0) != 0).any()):
        call.book(out, wanted.masked_fill(known, 0), "selection")
    return out


# Normalisation and attention --------------------------------------------------------------------------------------------------


def softmax(call: Call) -> Tensor:
    """Softmax over an axis."""
    s, dim = call.argument(0, "input"), call.argument(1, "dim", -1)
    if not s.requires_grad:
        return call.value()
    value, before = call.value(), call.output_before
    out = functions.softmax(s, call.before(s), value, before, dim)
    if call.reference is not None and call.reference.choosing:
        # What is masked on one of the two alone has no finite difference of scores.
        with torch.no_grad():
            change = (s - call.before(s)).nan_to_num_(0.0, 0.0, 0.0)
            mean = functions.mean_weights(s, call.before(s), value, before, dim)
            call.book(out, value - before - functions.through_softmax(change, mean, dim), "selection")
    return out


def log_sum(call: Call) -> Tensor:
    """Logsumexp and log_softmax: ``D lse = sum(L D s) / sum(L)`` with the logarithmic mean ``L`` of the two softmaxes."""
    s, dim = call.argument(0, "input"), call.argument(1, "dim", -1)
    value = call.value()
    if not s.requires_grad:
        return value
    with torch.no_grad():
        logs = [t - t.logsumexp(dim, keepdim=True) for t in (s, call.before(s))]
        mean = functions.log_mean(logs[0].exp(), logs[1].exp(), logs[0] - logs[1])
        weights = mean / mean.sum(dim, keepdim=True)
    total = (s * weights).sum(dim, keepdim=True)
    if call.name == "logsumexp":
        return linearised(total.reshape(value.shape), value)
    return linearised(s - total, value)


def attention(call: Call) -> Tensor:
    """Fused attention: the value stays the kernel's."""
    operands = [call.argument(i, name) for i, name in enumerate(("query", "key", "value"))]
    mask = call.argument(3, "attn_mask")
    scale = call.argument(6, "scale")
    scale = operands[0].shape[-1] ** -0.5 if scale is None else scale
    masks = (mask, call.before(mask)) if mask is not None else (None, None)
    causal = bool(call.argument(5, "is_causal", False))
    before = [call.before(t) for t in operands]
    out = functions.attention(operands, before, masks, call.value(), scale, causal)
    if mask is not None and call.changes(mask) and not mask.requires_grad and out.requires_grad:
        with torch.no_grad():
            call.book(out, functions.beyond_masks(operands, before, masks, scale, causal), "selection")
    return out


# Reading at positions -----------------------------------------------------------------------------------------------------------


def sample(call: Call) -> Tensor:
    """grid_sample: linear in what is read, at the mean of both grids; the grid gets what reading elsewhere changes."""
    a, grid = call.args[:2]
    return _read(call, a, [grid], lambda positions: lambda t: call.func(t, *positions, *call.args[2:], **call.kwargs))


def deformable(call: Call) -> Tensor:
    """Deformable convolution: linear in its input; offsets and mask get what reading elsewhere changes."""
    x, weight, offset, mask, bias, *geometry = call.args
    without = torch.zeros_like(bias)

    def at(positions: list[Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda t: call.func(t, weight, *positions, without, *geometry)

    return _read(call, x, [offset, mask], at)


def pooled_regions(call: Call) -> Tensor:
    """roi_align: linear in the feature map; what moved boxes change is booked."""
    a, boxes, *rest = call.args

    def at(positions: list[Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda t: call.func(t, positions[0], *rest, **call.kwargs)

    return _read(call, a, [boxes], at)


def _read(
    call: Call, a: Tensor, positions: list[Tensor], at: Callable[[list[Tensor]], Callable[[Tensor], Tensor]]
) -> Tensor:
    value = call.value()
    now, then = at([p.detach() for p in positions]), at([call.before(p) for p in positions])
    varying = [p for p in positions if call.varies(p)]
    if not varying:
        return linearised(now(a), value)
    read = (now(a) + then(a)) / 2
    with torch.no_grad():
        own, before = a.detach(), call.before(a)
        moved = ((now(own) - then(own)) + (now(before) - then(before))) / 2
    carriers = [p for p in varying if p.requires_grad]
    # One place of the output for each place of the positions: else the books say what moved.
    if not carriers or any(p.shape[0] != value.shape[0] for p in carriers) or call.name.endswith("roi_align"):
        out = linearised(read, value)
        call.book(out, moved, "positions")
        return out
    last = call.name == "grid_sampler"
    changes = [call.difference(p).detach() for p in carriers]
    axis = -1 if last else 1
    size = torch.stack([c.abs().sum(axis, keepdim=True) for c in changes]).sum(0)
    slopes = [(c.sign() / torch.where(size > 0, size, 1)) for c in changes]
    moved_to = functions.moved(carriers, slopes, moved, last)
    return linearised(read + moved_to, value) if a.requires_grad else linearised(moved_to, value)


def detach(call: Call) -> Tensor:
    """The model's own stop-gradient: its value depends on the input all the same."""
    (a,) = call.operands[:1]
    return linearised(a, call.value())


_BY_RULE: dict[Rule, Rule] = {
    bilinear.layer: layer, bilinear.mix: mix, bilinear.multiply: product, bilinear.attention: attention, bilinear.softmax: softmax,
    bilinear.sample: sample, bilinear.deformable: deformable, bilinear.pooled_regions: pooled_regions,
    reindexing.native: affine, reindexing.add: affine, reindexing.affine: affine, reindexing.detach: detach,
    normalisation.activation: elementwise, normalisation.offset_activation: elementwise, normalisation.stop: elementwise,
    normalisation.power: elementwise, normalisation.divide: divide, normalisation.variance: product, normalisation.select: extreme,
} | {rule: unbooked(rule) for rule in (reindexing.average_pool, normalisation.batch_norm, normalisation.layer_norm, normalisation.rms_norm,
                                       normalisation.group_norm, normalisation.instance_norm)}  # fmt: skip
_BY_NAME: dict[str, Rule] = (
    dict.fromkeys("relu abs leaky_relu prelu rrelu hypot".split(), elementwise)
    | dict.fromkeys("amax amin".split(), extreme)
    | dict.fromkeys("median quantile kthvalue topk sort".split(), ordered)
    | dict.fromkeys(
        (
            f"{kind}max_pool{n}d{ending}"
            for kind in ("", "adaptive_")
            for n in "123"
            for ending in ("", "_with_indices")
        ),
        pool,
    )
    | dict.fromkeys("where masked_fill".split(), choose)
    | {"square": product, "std": root, "log_softmax": log_sum, "logsumexp": log_sum}
    | dict.fromkeys("norm linalg_norm linalg_vector_norm".split(), norm)
)
