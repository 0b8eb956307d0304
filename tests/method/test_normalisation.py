"""Norms and functions of single values against explicit formulas in float64, without autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.nets import Apply
from helpers.nets import explain_sum as explain

F64 = torch.float64

# Norms ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(4,), (3, 4)])
def test_layer_norm_by_hand(dims):
    """``R_j = x_j (r_j - mean r)`` with ``r = w g / s``: the divisor fixed, the mean kept."""
    x, g = torch.randn(2, 3, 4, dtype=F64), torch.randn(2, 3, 4, dtype=F64)
    norm = nn.LayerNorm(dims).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    axes = tuple(range(-len(dims), 0))
    std = (x.var(axes, unbiased=False, keepdim=True) + norm.eps).sqrt()
    r = norm.weight * g / std
    expected = x * (r - r.mean(axes, keepdim=True))
    found = explain(lambda t: norm(t) * g, x)
    torch.testing.assert_close(found.relevance, expected.detach(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.ledger.entries["norm shift"], (norm.bias * g).flatten(1).sum(1).detach())


HAND_WRITTEN = {
    "layer norm": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt(),
    "layer norm, rsqrt": lambda x: (
        (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
    ),
    "layer norm, var_mean": lambda x: _by_var_mean(x),
    "layer norm, squares": lambda x: _by_squares(x),
}


def _by_var_mean(x):
    var, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
    return (x - mean) * (var + 1e-5) ** -0.5


def _by_squares(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)


@pytest.mark.parametrize("form", HAND_WRITTEN)
def test_hand_written_norms_need_no_rule_of_their_own(form):
    x, g = torch.randn(2, 3, 8, dtype=F64), torch.randn(2, 3, 8, dtype=F64)
    torchs = explain(lambda t: F.layer_norm(t, (8,)) * g, x)
    written = explain(lambda t: HAND_WRITTEN[form](t) * g, x)
    torch.testing.assert_close(written.relevance, torchs.relevance, rtol=1e-10, atol=1e-10)


def test_rms_norm_with_and_without_torchs_own():
    x, g = torch.randn(2, 3, 8, dtype=F64), torch.randn(2, 3, 8, dtype=F64)
    torchs = explain(lambda t: F.rms_norm(t, (8,), eps=1e-6) * g, x)
    written = explain(lambda t: t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6) * g, x)
    torch.testing.assert_close(torchs.relevance, torchs.output, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(written.relevance, torchs.relevance, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("norm", "groups"), [(nn.GroupNorm(2, 6), 2), (nn.GroupNorm(1, 6), 1), (nn.InstanceNorm2d(6, affine=True), 6)]
)
def test_norms_of_groups_by_hand(norm, groups):
    """As layer norm, over groups of channels: ``R_j = x_j (r_j - mean r)`` with ``r = w g / s``."""
    norm = norm.double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x, g = torch.randn(2, 6, 4, 4, dtype=F64), torch.randn(2, 6, 4, 4, dtype=F64)
    model = nn.Sequential(norm, Apply(lambda t: t * g)).eval()
    found = hilrp.explain(model, x, lambda out: out.flatten(1).sum(1), stages=None, itemised=True, rules="hilrp")
    assert float(found.ledger.residual.max()) < 1e-10
    assert float(found.ledger.leak.max()) < 1e-10
    spread = (x.reshape(2, groups, -1).var(-1, unbiased=False) + norm.eps).sqrt()
    r = (norm.weight[:, None, None] * g).detach().reshape(2, groups, -1) / spread[..., None]
    expected = x * (r - r.mean(-1, keepdim=True)).reshape_as(x)
    torch.testing.assert_close(found.relevance, expected, rtol=1e-11, atol=1e-11)


def test_batch_norm_by_hand():
    """A factor and a shift for each channel."""
    norm = nn.BatchNorm2d(6).double().eval()
    for values in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(values)
    norm.running_var.uniform_(0.5, 2)
    x, g = torch.randn(2, 6, 4, 4, dtype=F64), torch.randn(2, 6, 4, 4, dtype=F64)
    found = explain(lambda t: norm(t) * g, x, itemised=True)
    factor = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    torch.testing.assert_close(found.relevance, x * factor[:, None, None] * g, rtol=1e-11, atol=1e-11)
    shift = (norm.bias - norm.running_mean * factor).detach()[:, None, None]
    torch.testing.assert_close(found.ledger.constants, (shift * g).flatten(1).sum(1), rtol=1e-11, atol=1e-11)
    assert float(found.ledger.leak.max()) < 1e-10


def test_batch_norm_with_a_batch_of_one():
    """torch's own backward is wrong for a gradient that comes from tokens, channels last (2.15, CPU)."""
    norm = nn.BatchNorm2d(5).double().eval()
    norm.running_mean.normal_()
    nn.init.normal_(norm.weight)
    x, g = torch.randn(1, 5, 4, 4, dtype=F64), torch.randn(1, 16, 5, dtype=F64).transpose(1, 2).reshape(1, 5, 4, 4)
    slope = (norm.weight / (norm.running_var + norm.eps).sqrt()).reshape(-1, 1, 1).detach()
    found = explain(lambda t: norm(t) * g, x)
    torch.testing.assert_close(found.relevance, x * slope * g, rtol=1e-11, atol=1e-11)


def test_uniform_spares_the_divisor_of_a_norm():
    """Statistics have no part in an even split: a hand-written norm passes all on, like torch's own."""
    x = torch.randn(2, 3, 8, dtype=F64)
    rules = hilrp.Rules(linear="epsilon", attention="uniform")
    written = explain(lambda t: t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6), x, rules)
    torch.testing.assert_close(written.ledger.share, torch.ones(2, dtype=F64), rtol=1e-10, atol=1e-10)


# Activations ----------------------------------------------------------------------------------------------------------


ELEMENTWISE = [
    F.gelu, F.silu, F.hardswish, F.mish, F.elu, F.relu6, F.leaky_relu, F.softplus, F.hardsigmoid, torch.sigmoid,
    torch.tanh, torch.exp, torch.cos, torch.square, lambda x: x.clamp(0.5, 2), lambda x: x**3,
    lambda x: torch.maximum(x, x.new_tensor(0.7)),
]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=4, max_size=4))
@pytest.mark.parametrize("function", ELEMENTWISE, ids=lambda f: getattr(f, "__name__", "f"))
def test_elementwise_rule(function, values):
    """All relevance of ``f(a) - f(0)`` goes to a; the constant f(0) keeps its own."""
    x = torch.tensor([values], dtype=F64)
    g = torch.tensor([[1.0, -2.0, 0.5, 3.0]], dtype=F64)
    at_zero = function(torch.zeros(1, dtype=F64))
    found = explain(lambda t: function(t) * g, x, audit="off")
    torch.testing.assert_close(found.relevance, (function(x) - at_zero) * g, rtol=1e-12, atol=1e-12)
    kept = sum(found.ledger.entries.values(), torch.zeros(1, dtype=F64))
    torch.testing.assert_close(kept, (at_zero * g).sum(1), rtol=1e-12, atol=1e-12)


HAND_WRITTEN_ACTIVATIONS = {
    "gelu": (F.gelu, lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5))),
    "gelu, tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    ),
    "silu": (F.silu, lambda x: x * x.sigmoid()),
    "hardswish": (F.hardswish, lambda x: x * (x + 3).clamp(0, 6) / 6),
    "hardswish, relu6": (F.hardswish, lambda x: x * F.relu6(x + 3) / 6),
    "square": (torch.square, lambda x: x**2),
}


@pytest.mark.parametrize("name", HAND_WRITTEN_ACTIVATIONS)
def test_hand_written_activations_are_torchs(name):
    torchs, written = HAND_WRITTEN_ACTIVATIONS[name]
    x = torch.randn(2, 3, 4, dtype=F64)
    torch.testing.assert_close(explain(written, x).relevance, explain(torchs, x).relevance, rtol=1e-10, atol=1e-10)


HYPOT = {
    "constant second": lambda x, c: torch.hypot(x, c),
    "constant first": lambda x, c: torch.hypot(c, x),
    "by name": lambda x, c: torch.hypot(other=x, input=c),
    "method": lambda x, c: x.hypot(c),
    "in place": lambda x, c: x.clone().hypot_(c),
    "broadcast": lambda x, c: torch.hypot(x, c[0]),
    "of a detached one": lambda x, c: torch.hypot(x, (x + c).detach()),
}


@pytest.mark.parametrize("form", HYPOT)
def test_hypot_by_hand(form):
    """``y = sqrt(x^2 + c^2)``: the input has ``x^2 / y``, and ``c^2 / y`` stays with the constant.

    Where both are zero, nothing.
    """
    x, c = torch.randn(2, 3, 4, dtype=F64), torch.randn(3, 4, dtype=F64)
    x[0, 0, 0] = c[0, 0] = 0
    found = explain(lambda t: HYPOT[form](t, c), x, itemised=True)
    y = HYPOT[form](x, c)
    own = torch.where(y > 0, x.square() / y, 0)
    torch.testing.assert_close(found.relevance, own, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.ledger.constants, (y - own).flatten(1).sum(1), rtol=1e-12, atol=1e-12)
    assert float(found.ledger.leak.max()) < 1e-10


@pytest.mark.parametrize("power", [2, 3])
def test_powers_of_complex_numbers(power):
    """The books close; the backward pass of a complex slope is its conjugate."""
    x, g = torch.randn(2, 6, dtype=F64), torch.randn(2, 6, dtype=F64)
    found = explain(lambda t: torch.fft.irfft(torch.fft.rfft(t) ** power) * g, x, itemised=True)
    assert float(found.ledger.residual.max()) < 1e-10
    assert float(found.ledger.leak.max()) < 1e-10
