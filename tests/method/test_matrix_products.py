"""Matrix products of every pair of ranks: the explained value is that of the plain model, bit for bit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hilrp.attribution.forward_backward import Pass
from hilrp.method.ledger import Books
from hilrp.method.rules import Rules

#: By rank, a left and a right operand.
LEFT = {1: (37,), 2: (19, 37), 3: (3, 19, 37), 4: (4, 3, 19, 37)}
RIGHT = {1: (37,), 2: (37, 11), 3: (3, 37, 11), 4: (4, 3, 37, 11)}
CALLS = {
    "matmul": torch.matmul,
    "by name": lambda a, b: torch.matmul(other=b, input=a),
    "reflected": lambda a, b: b.__rmatmul__(a),
}


class Product(nn.Module):
    def __init__(self, function, constant, flagged, first):
        super().__init__()
        self.constant = nn.Parameter(constant) if flagged else constant
        self.function, self.first = function, first

    def forward(self, x):
        return self.function(self.constant, x) if self.first else self.function(x, self.constant)


def laid_out(shape, order):
    """Values of a shape: contiguous, with the last two axes in another order in memory, or with the first two."""
    swapped = list(shape)
    axes = {"transposed": (-1, -2), "outer": (0, 1)}.get(order)
    if axes is None or len(shape) < 2:
        return torch.randn(shape)
    swapped[axes[0]], swapped[axes[1]] = swapped[axes[1]], swapped[axes[0]]
    return torch.randn(swapped).transpose(*axes)


def orders(*ranks):
    """Every pair of orders in memory of operands of these ranks, those that are the same for a low rank once."""
    return itertools.product(*(("contiguous", "transposed", "outer")[:rank] for rank in ranks))


def explained(model, x, rules, reference):
    rules = Rules.named(rules)
    if reference is not None:
        rules = replace(rules, constants="reference")

    def target(out):
        return out.sum().reshape(1).expand(len(x))

    return Pass(model, x, target, rules, Books(len(x)), lambda error: None, len(x), reference=reference).output


def check(model, x):
    with torch.no_grad():
        plain = model(x)
    for rules, reference in itertools.product(("epsilon", "hilrp"), (None, torch.zeros_like(x))):
        assert torch.equal(explained(model, x, rules, reference), plain)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("flagged", [True, False], ids=["a parameter", "a buffer"])
@pytest.mark.parametrize("first", [True, False], ids=["constant first", "constant second"])
@pytest.mark.parametrize(("left", "right"), itertools.product(range(1, 5), repeat=2))
def test_matmul(call, flagged, first, left, right):
    """torch chooses kernels by ranks, strides and flags; the explained pass has other flags."""
    torch.manual_seed(1)
    shape, other = (RIGHT[right], LEFT[left]) if first else (LEFT[left], RIGHT[right])
    pairs = list(orders(len(shape), len(other)))
    for order in pairs if call == "matmul" else pairs[::2]:  # the others are the same product, asked for otherwise
        x, constant = laid_out(shape, order[0]), laid_out(other, order[1])
        check(Product(CALLS[call], constant, flagged, first).eval(), x)


@pytest.mark.parametrize("flagged", [True, False], ids=["a parameter", "a buffer"])
@pytest.mark.parametrize("rank", range(1, 5))
def test_linear(flagged, rank):
    torch.manual_seed(1)
    for order in orders(rank, 2):
        x, weight = laid_out(LEFT[rank], order[0]), laid_out((11, 37), order[1])
        check(Product(F.linear, weight, flagged, False).eval(), x)


@pytest.mark.parametrize(("left", "right"), itertools.product(range(1, 5), repeat=2))
def test_a_product_of_two_that_vary(left, right):
    torch.manual_seed(1)

    class Both(nn.Module):
        def forward(self, x):
            a, b = x.sin()[: torch.Size(LEFT[left]).numel()], x.cos()[: torch.Size(RIGHT[right]).numel()]
            return a.reshape(LEFT[left]) @ b.reshape(RIGHT[right])

    check(Both().eval(), torch.randn(4 * 3 * 19 * 37))
