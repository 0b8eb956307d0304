"""Linear maps (Definition 1): ``y_i = sum_j w_ij a_j + b_i`` with weights that don't depend on the input.

With contributions ``z_ij = w_ij a_j`` every rule hands output i's relevance to the inputs in proportion to a
function of ``z_ij``, which conserves it (Lemma 1); the bias is one more contribution, ``b_i``, whose share stays with
it. Relative to a reference ``a0`` the contributions are those of the change, ``w_ij (a_j - a0_j)``, and a bias has
none. The rules are written with at most two native products, ``y`` and a companion ``m``, and a redistribution between
them, so that they hold for every multilinear torch function (linear, convolutions of any kind, matmul, einsum) without
knowing its indices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hilrp.method.autograd import gamma, hand_over
from hilrp.method.call import Call, Layers
from hilrp.method.graph import graph_nodes
from hilrp.method.rules import Rules
from hilrp.util.replaceable import Replaceable


def weighted(call: Call) -> Tensor:
    """A weighted sum (linear, convolution, matmul with a constant) under the rule set's linear rule."""
    rule, favour = call.rules.linear, gamma_of(call)
    if rule == "zplus":
        return zplus(call)
    if rule == "zplus_weights":
        return of_weights(call, lambda w: w.clamp(min=0))
    if rule in ("gamma_weights", "gamma_weights_bias"):
        return of_weights(call, lambda w: w + favour * w.clamp(min=0), rule == "gamma_weights_bias")
    return gamma_sign(call, Gamma.of(call))


def gamma_of(call: Call) -> float:
    """The rule set's gamma for this operation."""
    convolves = call.name.startswith("conv") and call.rules.gamma_conv is not None
    return call.rules.gamma_conv if convolves else call.rules.gamma  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Gamma:
    """The gamma of a layer: a number, or for each unit the least that bounds what cancellation adds.

    With ``linear="epsilon"`` it is zero. With ``"bounded"`` the largest gamma that the bound allows,
    ``2 / (bound - 1)``, falls from the first layer on in a straight line to zero, where the rule becomes exact.

    Attributes:
        rules: The rule set.
        share: ``(gamma/2) / (1 + gamma/2)``, the weight of the second product.
        layers, number: Of the bounded rule, the layers of the pass, and which of them this one is.
    """

    rules: Rules
    share: float = 0.0
    layers: Layers | None = None
    number: int = 0

    @classmethod
    def of(cls, call: Call) -> Gamma:
        """The gamma of a call; under the bounded rule the call is counted as a layer."""
        rules = call.rules
        if rules.linear == "epsilon" or not call.carriers or any(t.is_complex() for t in call.operands):
            return cls(rules)
        if rules.linear == "bounded":
            return cls(rules, 0.0, call.layers, call.layers.enter())
        return cls(rules, (gamma_of(call) / 2) / (1 + gamma_of(call) / 2))

    @property
    def is_zero(self) -> bool:
        """Whether gamma is known to be zero before the model has run: then there is no need for a second product."""
        if self.layers is None:
            return self.share == 0
        return self.layers.expected is not None and self.bound == float("inf")

    @property
    def bound(self) -> float:
        """How many times the relevance that it gets a unit may hand out; known when the model has run."""
        depth = 0.0 if self.layers is None else self.layers.depth(self.number)
        left = 1 - depth / self.rules.exact_from if self.rules.exact_from else 0.0
        return 1 + (self.rules.bound - 1) / left if left > 0 else float("inf")

    def aside(self, left: Tensor) -> Tensor | None:
        """The part of each unit's relevance that the second product gets; see `autograd.Weight`."""
        if self.layers is None:
            return self.share / (left + self.share)
        return None if self.bound == float("inf") else least_aside(left, self.bound)


def least_aside(left: Tensor, bound: float) -> Tensor:
    """The part that the second product gets, under the least gamma with which a unit hands out ``bound`` times as much.

    ``left`` is the size of the output relative to the sum of the sizes of its contributions: one where nothing
    cancels, zero where all does. Contributions with the sign of the output then sum to ``p = 1 + left``, the others
    to ``n = 1 - left``. Under gamma the unit hands out ``((1 + gamma) p + n) / ((1 + gamma) p - n)`` times what it
    gets. That is the bound at the weight ``w = (1 - bound left) / (bound - left)``, and the part ``w / (left + w)`` is
    ``(1 - bound left) / (1 - left^2)``. From ``left = 1 / bound`` on, where little cancels, gamma and part are zero.
    """
    size = left.clamp(max=1 / bound)  # beyond, the quotient is zero, and its divisor must not be
    return torch.rsub(left, 1, alpha=bound).clamp_(min=0).div_(size.square_().neg_().add_(1))


def live_layers(score: Tensor) -> Iterator[int]:
    """The numbers of the layers under the bounded rule that a score depends on."""
    for node in graph_nodes(score):
        weight = getattr(node, "weight", None)
        weight = weight if isinstance(weight, Gamma) else node.metadata.get(_LAYER)
        if weight is not None and weight.layers is not None:
            yield weight.number
        yield from node.metadata.get(_LAYERS, ())


#: The key under which a node of torch's own says which layer under the bounded rule it is.
_LAYER = "hilrp layer"
#: The key under which the node of a module that runs again says which layers are in it.
_LAYERS = "hilrp layers"


def note_layers(outputs: Iterable[Tensor], numbers: Sequence[int]) -> None:
    """Says that outputs which carry relevance depend on these layers, which their graph does not show."""
    nodes: set[Any] = {t.grad_fn for t in outputs if t.grad_fn is not None}
    for node in nodes:
        node.metadata[_LAYERS] = numbers


@Replaceable
def note_use(operands: Iterable[Tensor], output: object = None, hidden: bool = False) -> None:
    """Called when an operation takes these operands; ``hidden``, if it could not be seen.

    Nothing comes of it here, but layers that compute what is asked for alone (`fast`) listen.
    """


@Replaceable
def gamma_sign(call: Call, weight: Gamma) -> Tensor:
    """``R_j = sum_i (z_ij + gamma z_ij^s) / (sum_j' z_ij' + gamma z_ij'^s) R_i`` with ``s = sign(y_i)``.

    The sign-aware form of Eq. (6). ``z^s`` is the part of ``z`` that has the sign of the output. The parts of either
    sign sum to ``(y + m) / 2`` and ``(y - m) / 2`` with ``m = |W||a| + |b|``, so the denominator is
    ``(1 + gamma/2) y + (gamma/2) s m``. Since it is at least ``|y|`` in size, it needs no stabiliser. At gamma zero
    this is the epsilon rule in its limit, ``R_j = sum_i z_ij / y_i R_i``: the native backward pass.
    """
    y = _product(call)
    if weight.is_zero:
        node: Any = y.grad_fn
        if weight.layers is not None and node is not None:
            node.metadata[_LAYER] = weight  # it counts as a layer all the same
        return y
    bias, reference = bias_of(call), call.reference

    def size(t: Tensor) -> Tensor:
        return torch.zeros_like(t) if t is bias and reference is not None else call.held(t).abs()

    held = y.detach() if reference is None else y.detach() - call.output_before
    return gamma(y, _product(call, size), held, weight)


def of_weights(call: Call, share: Callable[[Tensor], Tensor], with_bias: bool = False) -> Tensor:
    """``R_j = sum_i a_j v_ij / (sum_j' a_j' v_ij' + eps) R_i`` with ``v = share(w)``: the paper's equations as printed.

    Eqs. (3) and (4) have ``v = w^+``, Eq. (6) ``v = w + gamma w^+``. A bias has no place in them: what it adds to the
    output goes to the inputs; ``with_bias`` makes it one more contribution. The denominator can cross zero.
    """
    bias = None if with_bias else bias_of(call)
    part = _product(call, lambda t: t if call.varies(t) else torch.zeros_like(t) if t is bias else share(t))
    return _stabilised(call, part, signed=with_bias)


def zplus(call: Call) -> Tensor:
    """``R_j = sum_i z_ij^+ / (sum_j' z_ij'^+ + eps) R_i``, where ``z^+ = w^+ a^+ + w^- a^-``; a bias is one more.

    Eqs. (3) and (4) are the same for activations that aren't negative; see `of_weights`.
    """
    positive = _product(call, lambda t: t.clamp(min=0))
    bias = bias_of(call)
    # The product of two negative parts is positive; a bias is no product, and its negative part has no share.
    negative = call.run(lambda t: torch.zeros_like(t) if t is bias else t.clamp(max=0))
    return _stabilised(call, positive + negative)


def _product(call: Call, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The weighted sum of operands, each mapped by ``change``; what a bias keeps of its relevance is booked."""
    y: Tensor = call.run(change)
    bias = bias_of(call)
    if bias is not None and call.reference is None:
        call.book(y, along_channels(call, bias if change is None else change(bias)), "bias")
    return y


def bias_of(call: Call) -> Tensor | None:
    """The summand among the operands, if there is one."""
    return call.argument(2, "bias") if call.name == "linear" or call.name.startswith("conv") else None


def along_channels(call: Call, bias: Tensor) -> Tensor:
    """The bias, so that it broadcasts against the output: convolutions have channels before the spatial axes."""
    spatial = call.argument(1, "weight").ndim - 2 if call.name.startswith("conv") else 0
    return bias.reshape(-1, *([1] * spatial)) if spatial else bias


def _stabilised(call: Call, d: Tensor, signed: bool = True) -> Tensor:
    y, held, kept = call.value(), d.detach(), d.new_full((), call.rules.epsilon)
    kept = torch.copysign(kept, held) if signed else kept
    out = hand_over(y, d, held + kept)
    call.book(out, (y * kept / (held + kept)).nan_to_num(0.0, 0.0, 0.0), "stabiliser")
    return out
