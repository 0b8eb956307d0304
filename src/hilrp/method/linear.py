"""Linear maps: ``y_i = sum_j w_ij a_j + b_i`` with weights that don't depend on the input.

With contributions ``z_ij = w_ij a_j`` every rule hands output i's relevance to the inputs in proportion to a
function of ``z_ij``; the bias is one more contribution, ``b_i``, whose share stays with it. The rules are
written with at most two native products, ``y`` and a companion ``m``, and a redistribution between them, so
that they hold for every multilinear torch function (linear, convolutions of any kind, matmul, einsum)
without knowing its indices. Linear layers and convolutions, which are most of the cost, have the same rules
written out in `layers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hilrp.method import autograd
from hilrp.method.autograd import hand_over, magnitude, redistribute, shapes_alone
from hilrp.method.call import Call, Place
from hilrp.method.fast import linear_layers
from hilrp.method.rules import Rules
from hilrp.util.nested import map_tensors

_CONVOLUTIONS = frozenset(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in "123")


def weighted(call: Call) -> Tensor:
    """A weighted sum (linear, convolution, matmul with a constant) under the rule set's linear rule."""
    rules, gamma = call.rules, gamma_of(call)
    if rules.linear == "zplus":
        return zplus(call, rules.epsilon)
    free = gamma == 0 and rules.linear != "bounded"
    if rules.linear == "epsilon" or free or any(t.is_complex() for t in call.operands):
        return epsilon(call)
    if rules.linear == "bounded":
        return bounded(call)
    if rules.linear == "gamma_weights":
        return gamma_weights(call, gamma, rules.epsilon)
    return gamma_sign(call, gamma)


def gamma_of(call: Call) -> float:
    """The rule set's gamma for this operation."""
    convolves = call.name.startswith("conv") and call.rules.gamma_conv is not None
    return call.rules.gamma_conv if convolves else call.rules.gamma  # type: ignore[return-value]


def epsilon(call: Call) -> Tensor:
    """``R_j = sum_i z_ij / y_i R_i``: the native backward pass."""
    return linear_layers.apply(call) if call.name == "linear" and linear_layers.fits(call) else _product(call)


def gamma_sign(call: Call, gamma: float) -> Tensor:
    """``R_j = sum_i (z_ij + gamma z_ij^s) / (sum_j' z_ij' + gamma z_ij'^s) R_i`` with ``s = sign(y_i)``.

    ``z^s`` is the part of ``z`` that has the sign of the output. The parts of either sign sum to
    ``(y + m) / 2`` and ``(y - m) / 2`` with ``m = |W||a| + |b|``, so the denominator is
    ``(1 + gamma/2) y + (gamma/2) s m``. Since it is at least ``|y|`` in size, it needs no stabiliser.
    """
    share = (gamma / 2) / (1 + gamma / 2)
    if linear_layers.fits(call):
        return linear_layers.apply(call, share)
    return redistribute(_product(call), _product(call, magnitude), share)


def bounded(call: Call) -> Tensor:
    """The sign-aware gamma rule with the least gamma, unit by unit, that bounds what cancellation adds."""
    bound = Bound.of(call)
    return _product(call) if bound.none else autograd.bounded(_product(call), _product(call, magnitude), bound)


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of a layer.

    The largest gamma that a bound allows, ``2 / (bound - 1)``, falls from the first layer on in a straight line to
    zero, where the rule becomes exact.
    """

    place: Place
    rules: Rules

    @classmethod
    def of(cls, call: Call) -> Bound:
        """Counts the call as a layer."""
        return cls(call.layers.enter(), call.rules)

    @property
    def none(self) -> bool:
        """Whether it is known already that there is none: then the second product needn't be computed."""
        depth = self.place.expected_depth
        return depth is not None and self._at(depth) == float("inf")

    def __call__(self) -> float:
        """The bound, once it is known how deep the layer is."""
        return self._at(self.place.depth)

    def _at(self, depth: float) -> float:
        left = 1 - depth / self.rules.exact_from if self.rules.exact_from else 0.0
        return 1 + (self.rules.bound - 1) / left if left > 0 else float("inf")


def gamma_weights(call: Call, gamma: float, stabiliser: float) -> Tensor:
    """``R_j = sum_i a_j (w_ij + gamma w_ij^+) / (sum_j' a_j' (w_ij' + gamma w_ij'^+) + eps) R_i``.

    The paper's equation to the letter. Its denominator can cross zero where activations are signed.
    """
    favoured = _product(call, lambda t: t if call.varies(t) else t + gamma * t.clamp(min=0))
    return _stabilised(call, favoured, stabiliser)


def zplus(call: Call, stabiliser: float) -> Tensor:
    """``R_j = sum_i z_ij^+ / (sum_j' z_ij'^+ + eps) R_i``, where ``z^+ = w^+ a^+ + w^- a^-``."""
    positive = _product(call, lambda t: t.clamp(min=0))
    bias = bias_of(call)
    # The product of two negative parts is positive; a bias is no product, and its negative part has no share.
    negative = run(call, lambda t: torch.zeros_like(t) if t is bias else t.clamp(max=0))
    return _stabilised(call, positive + negative, stabiliser)


def _product(call: Call, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    y = run(call, change)
    bias = bias_of(call)
    if bias is not None:
        bias = bias if change is None else change(bias)
        call.book(y, along_channels(call, bias), "bias")
    return y


def run(call: Call, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The weighted sum of operands, each mapped by ``change``, of which the graph of a convolution keeps no values."""
    if call.name not in _CONVOLUTIONS or len(call.carriers) != 1:
        return call.run(change)
    # What changes the operands runs before: only the map itself is linear.
    if change is not None:
        args, kwargs = map_tensors(change, (call.args, call.kwargs))
        call = replace(call, args=args, kwargs=kwargs)
    with shapes_alone():
        return call.run()


def bias_of(call: Call) -> Tensor | None:
    """The summand among the operands, if there is one."""
    return call.argument(2, "bias") if call.name == "linear" or call.name.startswith("conv") else None


def along_channels(call: Call, bias: Tensor) -> Tensor:
    """The bias, so that it broadcasts against the output: convolutions have channels before the spatial axes."""
    spatial = call.argument(1, "weight").ndim - 2 if call.name.startswith("conv") else 0
    return bias.reshape(-1, *([1] * spatial)) if spatial else bias


def _stabilised(call: Call, d: Tensor, stabiliser: float) -> Tensor:
    y = call.value()
    out = hand_over(y, d, stabiliser)
    with torch.no_grad():
        kept = torch.copysign(d.new_full((), stabiliser), d)
        call.book(out, (y * kept / (d + kept)).nan_to_num(0.0, 0.0, 0.0), "stabiliser")
    return out
