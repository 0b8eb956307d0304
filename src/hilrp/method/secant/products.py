"""Weighted sums, products, quadratic forms and their roots relative to a reference."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hilrp.method import linear
from hilrp.method.autograd import linearised
from hilrp.method.call import Call, Level
from hilrp.method.secant import functions
from hilrp.method.secant.shares import along, by_sizes, looked_up, orders, shared, with_value


def layer(call: Call) -> Tensor:
    """Linear layers and convolutions; products where the weight depends on the input."""
    _, weight, bias = (call.argument(i, name) for i, name in enumerate(("input", "weight", "bias")))
    if call.changes(weight) or (bias is not None and call.changes(bias)):
        return product(call)
    return linear.weighted(call)


def mix(call: Call) -> Tensor:
    """matmul, einsum and kin."""
    return linear.weighted(call) if sum(map(call.changes, call.operands)) == 1 else product(call)


def product(call: Call) -> Tensor:
    """Products of two factors, and quadratic forms.

    ``D(u v) = ubar D v + D u vbar``, the native backward pass at the midpoints.
    """
    carriers, fixed = call.carriers, call.fixed
    if fixed and call.name == "mul" and carriers:
        return by_sizes(call, carriers)
    if sum(map(call.changes, call.operands)) > 2:
        return _several(call, carriers)
    divisor = _divisor(call)
    if divisor is not None:
        return divided(call, divisor)
    y = call.run(lambda t: linearised(t, call.middle(t)) if call.changes(t) else t)
    out = linearised(y, call.value())
    if out.requires_grad:
        with torch.no_grad():
            for one in fixed:
                call.book(out, with_value(call, one, call.difference(one), call.middle), "selection")
    return out


def _divisor(call: Call) -> Tensor | None:
    """The factor of an elementwise product that is one over something, if the other isn't."""
    changing = [t for t in call.operands if call.changes(t)]
    found = [t for t in changing if call.level(t) is Level.RECIPROCAL and not t.is_complex()]
    return found[0] if call.name == "mul" and len(changing) == 2 and len(found) == 1 else None


def divided(call: Call, r: Tensor) -> Tensor:
    """``y = a r`` with ``r = 1 / s``.

    The form of the quotient ``a / s``, ``D y = (D a - ybar D s) / sbar``, in terms of ``r``.

    ``1 / sbar = 2 r r0 / (r + r0)`` and ``D s = -D r / (r r0)``, hence ``D y = D a 2 r r0 / (r + r0) + D r 2 ybar / (r
    + r0)``. Where one divisor is tiny (the norm of a reference of zeros), the midpoints of ``a`` and ``r`` would be a
    difference of huge numbers. Where ``r`` changes its sign, they are taken all the same.
    """
    (a,) = (t for t in call.operands if call.changes(t) and t is not r)
    with torch.no_grad():
        r0 = call.before(r)
        same = (r > 0) == (r0 > 0)
        total = torch.where(same, r + r0, 1)
        slope_a = torch.where(same, 2 * r * (r0 / total), call.middle(r))
        slope_r = torch.where(same, (call.value() + call.output_before) / total, call.middle(a))
    pairs = [(t, slope) for t, slope in ((a, slope_a), (r, slope_r)) if t.requires_grad]
    return shared(call, [t for t, _ in pairs], [slope for _, slope in pairs])


def _several(call: Call, carriers: list[Tensor]) -> Tensor:
    """Products of three factors and more: each is looked at with the others as now and as before, over all orders."""
    value, parts = call.value(), []
    count = len(carriers)
    for one in carriers:
        others = [t for t in carriers if t is not one]
        for now in itertools.product((False, True), repeat=count - 1):
            state = {id(t): (t if up else call.before(t)).detach() for t, up in zip(others, now, strict=True)}
            part = call.run(partial(looked_up, state))
            parts.append(linearised(part, torch.zeros_like(part), orders(sum(now), count)))
    out = linearised(torch.stack(parts).sum(0), value)
    if call.fixed:
        with torch.no_grad():
            moved = value - call.run(lambda t: t if t.requires_grad else call.before(t))
        call.book(out, moved, "selection")
    return out


def root(call: Call) -> Tensor:
    """Functions whose square is a quadratic form (norms, standard deviations).

    ``D n = 2 n(xbar) / (n + n0)`` times the slope at the midpoint.
    """
    (a,) = call.carriers
    value = call.value()
    y = call.run(lambda t: linearised(t, call.middle(t)) if t is a else t)
    with torch.no_grad():
        total = value + call.output_before
        slope = 2 * y / total.where(total != 0, 1)
    return linearised(y, value, slope)


def norm(call: Call) -> Tensor:
    """Of order two by `root`, of vectors and other orders by `powers`, of matrices by `proportional`."""
    name = "ord" if call.name.startswith("linalg") else "p"
    order, dim = call.argument(1, name, 2 if call.name == "linalg_vector_norm" else None), call.argument(2, "dim")
    two = isinstance(dim, (tuple, list)) and len(dim) == 2
    matrix = call.name == "linalg_norm" and (two or (dim is None and call.operands[0].ndim == 2))
    if order in (None, "fro") or isinstance(order, (tuple, list)) or (order == 2 and not matrix):
        return root(call)
    if not matrix and not isinstance(order, str) and abs(order) == math.inf:
        return largest(call, dim, smallest=order < 0)
    if matrix or isinstance(order, str) or order < 0:
        return proportional(call)
    return powers(call, order, dim)


def largest(call: Call, dim: Any, smallest: bool = False) -> Tensor:
    """The norms of infinite order: the maximum of sizes, or the minimum."""
    (a,) = call.carriers
    flat, before = along(a, dim), along(call.before(a), dim)
    with torch.no_grad():
        size, size0 = flat.abs(), before.abs()
        change = flat - before
        slope = torch.where(change == 0, flat.sign(), (size - size0) / change.where(change != 0, 1))
        index, index0 = ((t.argmin if smallest else t.argmax)(-1, keepdim=True) for t in (size, size0))
    sizes = linearised(flat, size, slope), size0
    return functions.selected(sizes, (call.value(), call.output_before), (index, index0), (-1, -1))


def powers(call: Call, order: float, dim: Any) -> Tensor:
    """``n = (sum |a|^p)^(1/p)``: the secant of the root, times those of the powers.

    Of order zero it counts what isn't zero.
    """
    (a,) = call.carriers
    value, flat = call.value(), along(a, dim)
    with torch.no_grad():
        now, before = flat.detach(), along(call.before(a), dim)
        n, n0 = (t.reshape(*flat.shape[:-1], 1) for t in (value, call.output_before))
        size = torch.maximum(n, n0) if order else torch.ones_like(n)
        size = size.where(size > 0, 1)
        (power, total), (power0, total0) = (_powered(t / size, order) for t in (now, before))
        # Where both agree but for rounding, the derivatives.
        change, middle = now - before, (now + before) / 2 / size
        fine = torch.finfo(a.dtype).eps ** 0.8 if order else 0.0
        close = change.abs() <= fine * size
        limit = order * middle.abs() ** (order - 1) * middle.sign() / size if order else torch.zeros_like(change)
        inner = torch.where(close, limit.nan_to_num_(0.0, 0.0, 0.0), (power - power0) / change.where(change != 0, 1))
        change = total - total0
        close = change.abs() <= fine * total
        limit = ((total + total0) / 2) ** (1 / order - 1) / order if order else torch.ones_like(total)
        outer = torch.where(close, limit.nan_to_num_(0.0, 0.0, 0.0), (n - n0) / size / change.where(change != 0, 1))
        slope = inner * outer * size
    return linearised((flat * slope).sum(-1).reshape(value.shape), value)


def _powered(t: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """The sizes to a power, and their sum."""
    power = t.abs() ** order if order else (t != 0).to(t.dtype)
    return power, power.sum(-1, keepdim=True)


def proportional(call: Call) -> Tensor:
    """A function without a form of its own, if it has one value for each sum it is made of.

    The slope at the midpoint, scaled to the difference.

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
