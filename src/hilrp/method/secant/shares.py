"""How a difference is shared by several operands."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hilrp.method import autograd
from hilrp.method.call import Call


def with_value(call: Call, one: Tensor, value: Tensor, others: Callable[[Tensor], Tensor]) -> Tensor:
    """The operation with some value for one operand, and a function of the others that depend on the input."""
    y: Tensor = call.run(lambda t: value if t is one else others(t) if call.changes(t) else t)
    return y


def orders(before: int, count: int) -> float:
    """The part of all orders of ``count`` operands in which one comes after ``before`` given others."""
    return math.factorial(before) * math.factorial(count - 1 - before) / math.factorial(count)


def carries(operand: Any) -> bool:
    """Whether relevance can flow through an operand."""
    return isinstance(operand, Tensor) and operand.requires_grad


def along(t: Tensor, dim: Any) -> Tensor:
    """A tensor with the axes that an operation reduces (all, for none or an empty list) as its last one."""
    if not t.ndim:
        return t.reshape(1)
    axes = [dim] if isinstance(dim, int) else list(dim) if dim else list(range(t.ndim))
    order = sorted(axis % t.ndim for axis in axes)
    return t.movedim(order, list(range(-len(order), 0))).flatten(-len(order))


def shared(call: Call, operands: list[Tensor], slopes: list[Tensor]) -> Tensor:
    """The operation's value, of which each operand gets its slope times the gradient."""
    return autograd.shared(call.value(), operands, slopes)


def sized(call: Call, carriers: list[Tensor], y: Tensor) -> tuple[list[Tensor], Tensor]:
    """Slopes by which each operand gets a part by the size of its change, and the sum of these sizes."""
    # What isn't defined on one of the two (the logarithm in a branch that isn't taken) has no size.
    changes = [call.difference(t).nan_to_num(0.0, 0.0, 0.0) for t in carriers]
    total = torch.stack([c.abs().expand_as(y) for c in changes]).sum(0)
    moved = ((y - call.output_before) / torch.where(total > 0, total, 1)).nan_to_num_(0.0, 0.0, 0.0)
    return [moved * c.sign() for c in changes], total


def looked_up(known: dict[int, Tensor], t: Tensor) -> Tensor:
    """What stands for a tensor; itself, where nothing does."""
    return known.get(id(t), t)


def by_effects(call: Call, carriers: list[Tensor]) -> Tensor:
    """Each operand gets the mean of what it changes over the orders in which they may change.

    Shapley values, which sum to the whole.
    """
    count = len(carriers)
    with torch.no_grad():
        values = {}
        for now in itertools.product((False, True), repeat=count):
            state = {id(t): t if changed else call.before(t) for t, changed in zip(carriers, now, strict=True)}
            values[now] = call.run(partial(looked_up, state))
        slopes = []
        for i, one in enumerate(carriers):
            effect = torch.zeros_like(values[(True,) * count])
            for now in values:
                if now[i]:
                    step = values[now] - values[(*now[:i], False, *now[i + 1 :])]
                    effect += orders(sum(now) - 1, count) * step
            slopes.append((effect / call.difference(one)).nan_to_num_(0.0, 0.0, 0.0))
    return shared(call, carriers, slopes)


def by_sizes(call: Call, carriers: list[Tensor]) -> Tensor:
    """Each of several operands gets a part by the size of its change."""
    y = call.value()
    with torch.no_grad():
        slopes, total = sized(call, carriers, y)
    out = shared(call, carriers, slopes)
    left = (y - call.output_before) * (total == 0)
    if bool(left.any()):
        call.book(out, left, "selection")
    return out
