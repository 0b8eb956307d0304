"""Resolution reduction.

Four operators as one coordinate-embedded linear map, and the paper's closed forms against the engine.

The matrices and the rules are written with loops over indices, as the paper writes them, and compared on inputs of
both signs. The paper takes the positive part of the *weight* and leaves the bias out: the engine's rules
``zplus_weights`` and ``gamma_weights``. Those of the engine's own, ``zplus`` and the default, go by the sign of the
*contribution*, and count the bias as one more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from timm.models.swin_transformer import PatchMerging, window_partition
from torch import Tensor, nn

from hilrp.attribution.explainer import explain
from hilrp.method.rules import Rules
from hilrp.verify.closed_forms import (
    gamma_rule,
    merge_rule,
    positive_contributions_rule,
    reduction_rule,
    sign_aware_gamma_rule,
    zplus_rule,
)
from hilrp.verify.report import Row, in_order, primitives_of, relative_error, worst
from hilrp.verify.taxonomy import randomised
from hilrp.verify.textbook import Sheet, is_selection

GAMMA = 0.25
#: The stabiliser that the engine adds to denominators.
EPSILON = Rules().epsilon
BOUNDS = {"matrix": 1e-12, "residual": 1e-11, "leak": 1e-11}
#: What is compared -> the engine's rules.
RULES = {
    "z+, as printed": Rules(linear="zplus_weights"),
    "gamma, as printed": Rules(gamma=GAMMA, linear="gamma_weights"),
    "z+ of contributions": Rules(linear="zplus"),
    "gamma, sign-aware": Rules(gamma=GAMMA),
}
RULE_BOUND = 1e-10

#: 0 if each output has exactly one source, with weight 1.
SELECTION = "not one 1 per output"


@dataclass(frozen=True)
class Operator:
    """A resolution reduction: the real module, and how its matrix is written down.

    ``entries`` yields ``(output, input, weight)``: the places in the flattened output and input of one sample.
    ``zplus`` is the paper's equation: from activations and the outputs' relevance to that of the inputs. ``biases`` are
    those of the channels of an output ``[channels,h,w]``.
    """

    name: str
    module: nn.Module
    shape: tuple[int, ...]
    entries: Callable[[], Iterator[tuple[int, int, float]]]
    zplus: Callable[[Tensor, Tensor], list[float]] = lambda activations, relevance: []
    permutation: bool = False
    remark: str = ""
    biases: tuple[float, ...] = ()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def merging() -> Operator:
    """``y_{r,t} = W [a_{2r,2t}; a_{2r+1,2t}; a_{2r,2t+1}; a_{2r+1,2t+1}]`` with timm's module, without its norm."""
    side, dim, out = 4, 3, 5
    module = randomised(PatchMerging(dim, out, norm_layer=nn.Identity), 1)
    weight = module.reduction.weight.tolist()

    def entries() -> Iterator[tuple[int, int, float]]:
        for r in range(side // 2):
            for t in range(side // 2):
                for o in range(out):
                    for p in range(4 * dim):
                        patch, channel = divmod(p, dim)  # p determines both the source patch and the channel within it
                        i, j = 2 * r + patch % 2, 2 * t + patch // 2
                        yield (r * (side // 2) + t) * out + o, (i * side + j) * dim + channel, weight[o][p]

    def zplus(a: Tensor, relevance: Tensor) -> list[float]:
        return merge_rule(a, module.reduction.weight, relevance, EPSILON)

    return Operator(
        "patch merging", module, (side, side, dim), entries, zplus, remark="eq:merge-rule; no bias, as Swin"
    )


def embedding() -> Operator:
    """A strided convolution over pixels: ``y^o_{r,t} = sum_{c,u,v} W^{o,c,u,v} x^c_{sr+u,st+v} + b^o``."""
    side, stride, dim = 8, 4, 4
    module = randomised(nn.Conv2d(3, dim, stride, stride=stride), 2)
    weight = module.weight.tolist()
    grid = side // stride

    def entries() -> Iterator[tuple[int, int, float]]:
        for o in range(dim):
            for r in range(grid):
                for t in range(grid):
                    for c in range(3):
                        for u in range(stride):
                            for v in range(stride):
                                source = (c * side + stride * r + u) * side + stride * t + v
                                yield (o * grid + r) * grid + t, source, weight[o][c][u][v]

    def zplus(a: Tensor, relevance: Tensor) -> list[float]:
        flat = a.flatten().tolist(), relevance.flatten().tolist()
        return zplus_rule(list(entries()), *flat, EPSILON)

    assert module.bias is not None
    biases = tuple(module.bias.tolist())
    return Operator(
        "strided patch embedding", module, (3, side, side), entries, zplus, remark="with its bias", biases=biases
    )


def overlapping() -> Operator:
    """Depthwise, stride 2, kernel 3: ``y^q_{r,t} = sum_{u,v} W_q^{u,v} a^q_{sr+u,st+v}``."""
    side, kernel, stride, dim = 7, 3, 2, 3
    module = randomised(nn.Conv2d(dim, dim, kernel, stride=stride, groups=dim, bias=False), 3)
    weight = module.weight.tolist()
    grid = (side - kernel) // stride + 1

    def entries() -> Iterator[tuple[int, int, float]]:
        for q in range(dim):
            for r in range(grid):
                for t in range(grid):
                    for u in range(kernel):
                        for v in range(kernel):
                            source = (q * side + stride * r + u) * side + stride * t + v
                            yield (q * grid + r) * grid + t, source, weight[q][0][u][v]

    def zplus(a: Tensor, relevance: Tensor) -> list[float]:
        return reduction_rule(a, module.weight[:, 0], relevance, stride, EPSILON)

    return Operator(
        "overlapping spatial reduction", module, (dim, side, side), entries, zplus, remark="eq:sr-rule; depthwise"
    )


class ShiftedWindows(nn.Module):
    """A cyclic shift and timm's window partition."""

    def __init__(self, shift: int, window: int) -> None:
        super().__init__()
        self.shift, self.window = shift, window

    def forward(self, x: Tensor) -> Tensor:
        """``[B,H,W,C]`` to ``[B,windows,window,window,C]``."""
        parts = window_partition(x.roll((-self.shift, -self.shift), (1, 2)), (self.window, self.window))
        return parts.reshape(len(x), -1, *parts.shape[1:])


def shifted_windows() -> Operator:
    """Place ``(u,v)`` of window ``(m,n)`` holds token ``(w m + u + shift, w n + v + shift)``, modulo the side."""
    side, window, shift, dim = 6, 3, 1, 2

    def entries() -> Iterator[tuple[int, int, float]]:
        output = 0
        for m in range(side // window):
            for n in range(side // window):
                for u in range(window):
                    for v in range(window):
                        i, j = (window * m + u + shift) % side, (window * n + v + shift) % side
                        for c in range(dim):
                            yield output, (i * side + j) * dim + c, 1.0
                            output += 1

    module = ShiftedWindows(shift, window).eval()
    return Operator(
        "shifted windows", module, (side, side, dim), entries, permutation=True, remark="a pure permutation"
    )


OPERATORS = (merging, embedding, overlapping, shifted_windows)


def matrix_from(operator: Operator, outputs: int) -> Tensor:
    """The operator's whole matrix, from its entries."""
    matrix = torch.zeros(outputs, math.prod(operator.shape), dtype=torch.float64)
    for o, p, w in operator.entries():
        matrix[o, p] += w
    return matrix


def closed_form(name: str, operator: Operator, x: Tensor, relevance: Tensor, biases: Tensor) -> list[float]:
    """The relevance of an input by one of the `RULES`, from the outputs' relevance."""
    entries, r = list(operator.entries()), relevance.flatten().tolist()
    a, b = x.flatten().tolist(), biases.flatten().tolist()
    if operator.permutation:  # it has no weights, hence no rule and no stabiliser: relevance is copied
        found = [0.0] * len(a)
        for output, source, _ in entries:
            found[source] += r[output]
        return found
    if name == "z+, as printed":
        return operator.zplus(x, relevance)
    if name == "gamma, as printed":
        return gamma_rule(entries, a, r, GAMMA, EPSILON)
    if name == "z+ of contributions":
        return positive_contributions_rule(entries, a, r, EPSILON, b)
    return sign_aware_gamma_rule(entries, a, r, GAMMA, b)


def check(operator: Operator) -> Row:
    """The row of an operator: its matrix against the real module, the closed forms against the engine."""
    signed = torch.randn(1, *operator.shape, generator=_generator(4), dtype=torch.float64)
    with torch.no_grad():
        out = operator.module(signed)
    readout = torch.randn(out.shape, generator=_generator(5), dtype=torch.float64)
    entries = list(operator.entries())
    matrix = matrix_from(operator, out.numel())
    biases = torch.zeros(out.shape[1:], dtype=torch.float64)
    if operator.biases:
        biases += torch.tensor(operator.biases, dtype=torch.float64)[:, None, None]
    # A place enters each output at most once: the coordinate embedding.
    embedded = len({(o, p) for o, p, _ in entries}) == len(entries)
    mapped = matrix @ signed.flatten() + biases.flatten()
    errors = {"matrix": relative_error(out.flatten(), mapped) if embedded else math.nan}
    books: list[dict[str, float]] = []

    def engine(rules: Rules) -> tuple[Tensor, Tensor]:
        """Relevance of the input and of the output."""
        options: dict[str, Any] = {"rules": rules, "audit": "off", "stages": None, "itemised": True}
        found = explain(operator.module, signed, lambda y: (y * readout).flatten(1).sum(1), **options)
        books.append({"residual": float(found.ledger.residual), "leak": float(found.ledger.leak)})
        return found.relevance[0], (found.output * readout)[0]

    for name, rules in RULES.items():
        found, relevance = engine(rules)
        expected = torch.tensor(closed_form(name, operator, signed[0], relevance, biases), dtype=torch.float64)
        errors[name] = relative_error(found.flatten(), expected)
    errors |= worst(*books)
    bounds = BOUNDS | dict.fromkeys(RULES, RULE_BOUND)
    if operator.permutation:
        errors[SELECTION] = float(not (is_selection(matrix) and is_selection(matrix.T)))
        bounds = bounds | {SELECTION: 0.0}
    primitives = in_order(primitives_of(operator.module, signed))
    return Row(operator.name, errors, bounds, primitives=primitives, remark=operator.remark)


def check_merging_with_norm() -> Row:
    """Timm's PatchMerging as Swin has it, ``W phi(concat(.))``.

    The engine against a textbook with the norm's divisor fixed.
    """
    operator = merging()
    side, _, dim = operator.shape
    module = randomised(PatchMerging(dim, 5), 1)
    x = torch.randn(1, *operator.shape, generator=_generator(4), dtype=torch.float64)
    with torch.no_grad():
        out = module(x)
        # The coordinate embedding: row (r, t, p) of concat has its one 1 at the token and channel that p says.
        concat = torch.zeros(side * side // 4 * 4 * dim, x.numel(), dtype=torch.float64)
        row = 0
        for o, p, _ in operator.entries():
            if o % 5 == 0:  # the sources are the same for all output channels, and come in the order of p
                concat[row, p] = 1.0
                row += 1
        sheet = Sheet()
        given = sheet.given(x[0])
        embedded = sheet.mix(given, concat, (side * side // 4, 4 * dim))
        merged = sheet.linear(sheet.layer_norm(embedded, module.norm), module.reduction)
        relevance, _ = sheet.back(merged, merged.value.abs())
    signs = out.sign()
    found = explain(
        module, x, lambda y: (y * signs).flatten(1).sum(1), "hilrp", audit="off", stages=None, itemised=True
    )
    errors = {
        "matrix": relative_error(out.flatten(), merged.value.flatten()),
        SELECTION: float(not is_selection(concat)),
        "residual": float(found.ledger.residual),
        "leak": float(found.ledger.leak),
        "relevance": relative_error(found.relevance[0], relevance[given]),
    }
    return Row(
        "patch merging with its LayerNorm",
        errors,
        BOUNDS | {SELECTION: 0.0, "relevance": RULE_BOUND},
        primitives=in_order(primitives_of(module, x)),
        remark="eq:unifying with phi = LayerNorm, its divisor held fixed",
    )
