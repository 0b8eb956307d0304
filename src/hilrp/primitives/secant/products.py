"""Weighted sums, products, quadratic forms and their roots relative to a reference."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor

from hilrp.primitives import linear
from hilrp.primitives.call import Call
from hilrp.primitives.functions import bounded, linearised, magnitude, redistribute
from hilrp.primitives.secant.shares import by_sizes, looked_up, orders, with_value


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
    rules, y = call.rules, linear.run(call)
    gamma = linear.gamma_of(call)
    if (
        not y.requires_grad
        or rules.linear == "epsilon"
        or (gamma == 0 and rules.linear == "gamma")
        or any(t.is_complex() for t in call.operands)
    ):
        return y
    bound = linear.Bound.of(call) if rules.linear == "bounded" else None
    if bound is not None and bound.none:
        return y
    bias = linear.bias_of(call)

    def size(t: Tensor) -> Tensor:
        if t is bias:
            return torch.zeros_like(t)
        return magnitude(t, call.before(t) if call.changes(t) else None)

    change, sizes = y.detach() - call.output_before, linear.run(call, size)
    if bound is not None:
        return bounded(y, sizes, bound, change)
    return redistribute(y, sizes, (gamma / 2) / (1 + gamma / 2), change)


def product(call: Call) -> Tensor:
    """Products of two factors, and quadratic forms: ``D(u v) = ubar D v + D u vbar``, the native backward pass at the midpoints."""
    carriers, fixed = call.carriers, call.fixed
    if fixed and call.name == "mul" and carriers:
        return by_sizes(call, carriers)
    if sum(map(call.changes, call.operands)) > 2:
        return _several(call, carriers)
    y = call.run(lambda t: linearised(t, call.middle(t)) if call.changes(t) else t)
    out = linearised(y, call.value())
    if out.requires_grad:
        with torch.no_grad():
            for one in fixed:
                call.book(out, with_value(call, one, call.difference(one), call.middle), "selection")
    return out


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
    """Functions whose square is a quadratic form (norms, standard deviations): ``D n = 2 n(xbar) / (n + n0)`` times the slope at the midpoint."""
    (a,) = call.carriers
    value = call.value()
    y = call.run(lambda t: linearised(t, call.middle(t)) if t is a else t)
    with torch.no_grad():
        total = value + call.output_before
        slope = 2 * y / total.where(total != 0, 1)
    return linearised(y, value, slope)


def norm(call: Call) -> Tensor:
    """Of order two by `root`, of others by `proportional`."""
    name = "ord" if call.name.startswith("linalg") else "p"
    order, dim = call.argument(1, name, 2), call.argument(2, "dim")
    matrix = call.name == "linalg_norm" and isinstance(dim, (tuple, list)) and len(dim) == 2
    if order in (None, "fro") or isinstance(order, (tuple, list)) or (order == 2 and not matrix):
        return root(call)
    return proportional(call)


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
