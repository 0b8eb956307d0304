"""Each linear rule against a textbook matrix version and against zennit, at inputs of mixed sign, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
import zennit.rules
from torch import nn

import hilrp
from helpers.layers import LAYERS
from hilrp.verify import closed_forms, textbook

RULES = {
    "epsilon": hilrp.Rules(linear="epsilon"),
    "gamma": hilrp.Rules(linear="gamma", gamma=0.25),
    "gamma_weights": hilrp.Rules(linear="gamma_weights", gamma=0.25, epsilon=1e-12),
    "gamma_weights_bias": hilrp.Rules(linear="gamma_weights_bias", gamma=0.25, epsilon=1e-12),
    "zplus": hilrp.Rules(linear="zplus", epsilon=1e-12),
    "zplus_weights": hilrp.Rules(linear="zplus_weights", epsilon=1e-12),
}
#: Those of the paper's equations: the stabiliser is added as it is.
PRINTED = ("gamma_weights", "zplus_weights")
#: zennit's rules with a stabiliser that is as good as none, like ours.
ZENNIT = {
    "epsilon": lambda: zennit.rules.Epsilon(epsilon=1e-30),
    "gamma": lambda: zennit.rules.Gamma(gamma=0.25, stabilizer=1e-30),
    "zplus": lambda: zennit.rules.ZPlus(stabilizer=1e-12),
}


class Weighted(nn.Module):
    """A layer whose outputs are summed up with fixed weights: the relevance of output i is ``y_i v_i``."""

    def __init__(self, layer: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("v", torch.randn_like(layer(torch.randn(1, *shape, dtype=torch.float64))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) * self.v).flatten(1).sum(1)


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[int, ...]]:
    make, shape = LAYERS[request.param]
    return make().double().eval(), shape


@pytest.mark.parametrize("rule", RULES)
def test_agrees_with_the_textbook(layer, rule):
    module, shape = layer
    model = Weighted(module, shape).eval()
    x = torch.randn(2, *shape, dtype=torch.float64)
    found = hilrp.explain(model, x, target=lambda out: out, rules=RULES[rule], stages=None)

    with torch.no_grad():
        constant = module(torch.zeros(1, *shape, dtype=torch.float64))
        matrix = textbook.matrix_of(lambda a: module(a) - constant, shape)
        weights = torch.cat([matrix, constant.reshape(-1, 1)], 1)
        for sample in range(2):
            z = textbook.contributions(matrix, constant, x[sample])
            shares = getattr(textbook, rule)(z, weights)
            relevance = (module(x[sample : sample + 1]) * model.v).reshape(-1)
            stabiliser = 0.0 if rule in ("epsilon", "gamma") else 1e-12
            expected = textbook.redistribute(shares, relevance, stabiliser, signed=rule not in PRINTED)
            torch.testing.assert_close(found.relevance[sample].reshape(-1), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", ZENNIT)
def test_agrees_with_zennit(layer, rule):
    module, shape = layer
    model = Weighted(module, shape).eval()
    x = torch.randn(2, *shape, dtype=torch.float64)
    found = hilrp.explain(model, x, target=lambda out: out, rules=RULES[rule], stages=None)

    leaf = x.clone().requires_grad_()
    handles = ZENNIT[rule]().register(module)
    try:
        out = module(leaf)
        relevance = (out * model.v).detach()
        (expected,) = torch.autograd.grad(out, leaf, relevance)
    finally:
        handles.remove()
    torch.testing.assert_close(found.relevance, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.Linear(6, 5), (6,)), (nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 5, 5))],
    ids=["lin", "conv"],
)
@pytest.mark.parametrize("rule", PRINTED)
def test_the_printed_equations_on_layers_with_bias(module, shape, rule):
    """Eq. (6) and Eqs. (3) and (4), index by index, at signed inputs: no bias in them, and a stabiliser that counts."""
    module, epsilon = copy.deepcopy(module).double().eval(), 0.01
    model, x = Weighted(module, shape).eval(), torch.randn(1, *shape, dtype=torch.float64)
    rules = hilrp.Rules(linear=rule, gamma=0.25, epsilon=epsilon)
    found = hilrp.explain(model, x, target=lambda out: out, rules=rules, stages=None, itemised=True)

    with torch.no_grad():
        constant = module(torch.zeros_like(x))
        matrix = textbook.matrix_of(lambda a: module(a) - constant, shape)
        relevance = (module(x) * model.v).flatten().tolist()
    entries = [(i, j, float(w)) for i, row in enumerate(matrix) for j, w in enumerate(row) if w]
    a = x.flatten().tolist()
    expected = (
        closed_forms.gamma_rule(entries, a, relevance, 0.25, epsilon)
        if rule == "gamma_weights"
        else closed_forms.zplus_rule(entries, a, relevance, epsilon)
    )
    torch.testing.assert_close(
        found.relevance.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10
    )
    assert float(constant.abs().max()) > 0.1  # the bias is there, and what it adds goes to the inputs
    assert float(found.ledger.residual) < 1e-12


def test_whole_convolutional_net_agrees_with_zennit():
    """Biases, batch normalisation merged beforehand, max-pooling: relevance of the gamma rule over eight layers."""
    layers: list[nn.Module] = []
    for i in range(4):
        layers += [nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    found = hilrp.explain(model, x, target=[3, 7], rules=hilrp.Rules(gamma=0.25))

    handles = [
        zennit.rules.Gamma(0.25, stabilizer=1e-30).register(m) for m in model if isinstance(m, (nn.Conv2d, nn.Linear))
    ]
    handles += [zennit.rules.Pass().register(m) for m in model if isinstance(m, nn.ReLU)]
    leaf = x.clone().requires_grad_()
    try:
        out = model(leaf)
        seed = torch.zeros_like(out)
        seed[0, 3], seed[1, 7] = out[0, 3].item(), out[1, 7].item()
        (expected,) = torch.autograd.grad(out, leaf, seed)
    finally:
        for handle in handles:
            handle.remove()
    torch.testing.assert_close(found.relevance, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", ["gamma", "zplus", "zplus_weights", "gamma_weights", "gamma_weights_bias"])
@pytest.mark.parametrize("form", ["matmul", "einsum", "tensor @ weight"])
def test_products_with_a_constant_are_linear_maps(rule, form):
    """x @ W and its kin get the same rule as nn.Linear."""
    weight = torch.randn(4, 6).double()
    forms = {
        "matmul": lambda x: torch.matmul(x, weight.T),
        "einsum": lambda x: torch.einsum("bi,oi->bo", x, weight),
        "tensor @ weight": lambda x: x @ weight.T,
    }
    linear = nn.Linear(6, 4, bias=False).double()
    linear.weight.data.copy_(weight)

    class Product(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return forms[form](x)

    x = torch.randn(3, 6).double()
    one, other = (hilrp.explain(m.eval(), x, [0, 1, 2], rules=RULES[rule]) for m in (Product(), linear))
    torch.testing.assert_close(one.relevance, other.relevance, rtol=1e-12, atol=1e-12)
    assert float(one.ledger.residual.max()) < 1e-10


def test_gamma_conv_is_for_convolutions_only():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).double().eval()
    x = torch.randn(1, 3, 4, 4).double()
    both = hilrp.explain(model, x, 0, rules=hilrp.Rules(gamma=0.3, gamma_conv=0.3)).relevance
    assert torch.equal(both, hilrp.explain(model, x, 0, rules=hilrp.Rules(gamma=0.3)).relevance)
    assert not torch.allclose(both, hilrp.explain(model, x, 0, rules=hilrp.Rules(gamma=0.3, gamma_conv=0.0)).relevance)
