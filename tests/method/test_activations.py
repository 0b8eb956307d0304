"""Activations through the origin, whose slope is not kept but computed again in the backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import hilrp
from helpers.kept_tensors import kept_by
from hilrp.attribution.forward_backward import Pass
from hilrp.method.fast.elementwise import through_origin
from hilrp.method.ledger import Books
from hilrp.method.normalisation import straight_line
from hilrp.method.rules import Rules

F64 = torch.float64

#: Activations as models call them, in place and with arguments of all kinds.
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu, tanh": lambda a: F.gelu(a, approximate="tanh"),
    "gelu, module": nn.GELU("tanh"),
    "gelu, by hand": lambda a: 0.5 * a * (1 + torch.erf(a / 2**0.5)),
    "silu": F.silu,
    "silu, in place": lambda a: F.silu(a, inplace=True),
    "mish": F.mish,
    "mish, in place": nn.Mish(inplace=True),
    "hardswish": F.hardswish,
    "hardswish, in place": nn.Hardswish(inplace=True),
    "elu": F.elu,
    "elu, alpha": lambda a: F.elu(a, alpha=0.3),
    "elu, by position": lambda a: F.elu(a, 2.5),
    "elu, in place": lambda a: F.elu_(a, 0.7),
    "celu": nn.CELU(0.5),
    "celu, in place": nn.CELU(0.5, inplace=True),
    "selu, in place": nn.SELU(inplace=True),
    "relu6": nn.ReLU6(),
    "relu6, in place": lambda a: F.relu6(a, inplace=True),
    "hardtanh": lambda a: F.hardtanh(a, min_val=-0.5, max_val=0.8),
    "hardtanh, in place": nn.Hardtanh(-1.0, 0.5, inplace=True),
    "hardshrink": lambda a: F.hardshrink(a, lambd=0.2),
    "softshrink": lambda a: F.softshrink(a, 0.2),
    "tanh": torch.tanh,
    "tanh, method": lambda a: a.tanh(),
    "tanh, in place": lambda a: a.tanh_(),
    "sin": torch.sin,
    "sin, keyword": lambda a: torch.sin(input=a),
    "atan": torch.atan,
    "asinh": torch.asinh,
    "erf": torch.erf,
    "expm1": torch.expm1,
    "square": torch.square,
    "cube": lambda a: a**3,
    "pow, keyword": lambda a: torch.pow(a, exponent=2),
    "pow, exponents": lambda a: torch.pow(a, torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0], dtype=F64)),
    "softsign": F.softsign,
    "relu": F.relu,
    "leaky_relu": lambda a: F.leaky_relu(a, 0.1),
}


class Activated(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 5), function
        with torch.no_grad():
            self.layer.weight[2] = self.layer.bias[2] = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_relevance_by_the_textbook(name):
    """``R_a = a g f(a) / a`` with a unit whose ``a`` is zero, handed on by the layer before.

    ``R_x = x (g f(a) / a) W``.
    """
    function = ACTIVATIONS[name]
    model, x, g = Activated(function).to(F64).eval(), torch.randn(3, 4, dtype=F64), torch.randn(5, dtype=F64)
    found = hilrp.explain(model, x, lambda out: (out * g).sum(1), "epsilon", stages=None)

    weight, bias = model.layer.weight.detach(), model.layer.bias.detach()
    with torch.no_grad():
        a = x @ weight.T + bias
        assert not a[:, 2].any()
        y = function(a.clone())
        slope = torch.zeros_like(a)
        slope[a != 0] = y[a != 0] / a[a != 0]
        torch.testing.assert_close(found.output, y, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(found.relevance, x * ((g * slope) @ weight), rtol=1e-11, atol=1e-13)
        kept = ((g * slope) * bias).sum(1)
    torch.testing.assert_close(found.ledger.entries["bias"], kept, rtol=1e-11, atol=1e-13)
    assert float(found.ledger.residual.max()) < 1e-11


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_slopes_that_are_not_finite(dtype):
    """At zero, and where the quotient is too large for its type."""
    tiny = torch.finfo(dtype).tiny
    a = torch.tensor([0.0, -0.0, tiny, -tiny, 1.0], dtype=dtype, requires_grad=True)
    g = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=dtype)

    def jump(t: Tensor) -> Tensor:
        return torch.where(t == 0, t, t.sign()) * 2**10

    y = through_origin(a, jump(a.detach()), jump)
    assert torch.equal(y, jump(a.detach()))
    (found,) = torch.autograd.grad(y, a, g)
    (expected,) = torch.autograd.grad(straight_line.plain(None, a, jump(a.detach())), a, g)
    assert torch.equal(found, expected)
    assert found.tolist() == [0.0, 0.0, 0.0, 0.0, 5.0 * 2**10]


def test_what_the_operand_is_kept_as():
    """The function runs again on what was kept; nothing that the graph keeps is written to."""
    a = torch.randn(4, 3, dtype=F64, requires_grad=True)
    given: list[Tensor] = []

    def double(t: Tensor) -> Tensor:
        given.append(t)
        return t * 2

    y = through_origin(a, a.detach() * 2, double)
    before = a.detach().clone()
    for _ in range(2):
        (g,) = torch.autograd.grad(y.sum(), a, retain_graph=True)
        assert torch.equal(g, torch.full_like(a, 2.0))
    assert len(given) == 2
    assert all(t.data_ptr() == a.data_ptr() for t in given)
    assert torch.equal(a, before)


class Calls(TorchDispatchMode):
    """Counts the operations of a name."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names, self.count = names, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in self.names
        return func(*args, **(kwargs or {}))


def test_an_activation_runs_again_where_relevance_comes_by():
    model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 3)).eval()
    x = torch.randn(2, 6)
    with Calls("gelu") as forward:
        run = Pass(model, x, 1, Rules(), Books(2), lambda error: None, 2)
    with Calls("gelu", "gelu_backward") as backward:
        run.backward()
    assert (forward.count, backward.count) == (1, 1)


@pytest.mark.parametrize("activation", [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.ELU(0.5, inplace=True), nn.Tanh()])
def test_the_slope_is_not_kept(activation):
    """Of a wide layer and its activation there are the layer's input and output.

    The next keeps a quotient for each output and signs of its input.
    """
    model = nn.Sequential(nn.Linear(8, 32), activation, nn.Linear(32, 6)).eval()
    x = torch.randn(5, 8)
    gamma, run = kept_by(model, x, Rules())
    assert gamma == 5 * (4 * 8 + 4 * 32 + 32 + 4 * 6)
    epsilon, _ = kept_by(model, x, Rules(linear="epsilon"))
    assert epsilon == 5 * 4 * 32
    relevance, _ = run.backward()
    assert torch.equal(relevance, hilrp.explain(model, x, 1, stages=None, rules="hilrp").relevance)


def test_signs_are_those_of_an_output_that_is_kept_anyway():
    """After a layer that waits, one that doesn't keeps no bytes of its own for signs."""
    model, x = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 6)).eval(), torch.randn(5, 8)
    assert kept_by(model, x, Rules())[0] == 5 * (4 * 8 + 4 * 32 + 4 * 6)
    apart = nn.Sequential(nn.Linear(8, 32), nn.Softplus(), nn.Linear(32, 6)).eval()
    # A line that doesn't go through the origin keeps its slope, and what is booked of it.
    assert kept_by(apart, x, Rules())[0] > kept_by(model, x, Rules())[0] + 5 * 4 * 32


@pytest.mark.parametrize("between", [lambda a: a, lambda a: a.flatten(1), lambda a: a[:, 2:], lambda a: a.T.T * 1])
def test_gamma_after_a_layer_that_waits(between):
    """Signs that are read from a kept output, or a view of it, are those of the values."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 8)
            width = between(torch.zeros(1, 8)).shape[1]
            self.second = nn.Linear(width, 3)

        def forward(self, x):
            return self.second(between(self.first(x)))

    model, x = Two().to(F64).eval(), torch.randn(3, 4, dtype=F64)
    found = hilrp.explain(model, x, 2, Rules(gamma=0.5), stages=None)

    def back(layer: nn.Linear, a: Tensor, relevance: Tensor) -> Tensor:
        z = torch.cat([layer.weight * a, layer.bias[:, None]], 1)
        favoured = z + 0.5 * z * (z.sign() == z.sum(1, keepdim=True).sign())
        return (favoured * (relevance / favoured.sum(1))[:, None]).sum(0)[:-1]

    with torch.no_grad():
        for sample in range(3):
            a = model.first(x[sample])
            part = between(a[None])[0]
            at_output = torch.zeros(3, dtype=F64)
            at_output[2] = model.second(part)[2]
            at_part = back(model.second, part, at_output)
            at_first = torch.zeros(8, dtype=F64)
            at_first[8 - len(part) :] = at_part
            expected = back(model.first, x[sample], at_first)
            torch.testing.assert_close(found.relevance[sample], expected, rtol=1e-11, atol=1e-13)


def test_in_bfloat16():
    """What runs again in the backward pass runs in the types of the forward pass."""
    model, x = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 3)).eval(), torch.randn(4, 6)
    exact = hilrp.explain(model.to(F64), x.to(F64), 1, stages=None, rules="hilrp").relevance
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        found = hilrp.explain(model, x, 1, stages=None, rules="hilrp")
    error = (found.relevance.double() - exact).norm() / exact.norm()
    assert 1e-6 < float(error) < 0.03
