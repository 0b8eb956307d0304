"""Each linear rule against a textbook matrix version and against zennit, at inputs of mixed sign, in float64."""

from __future__ import annotations

import pytest
import torch
import zennit.rules
from torch import nn

import hilrp
from helpers.layers import LAYERS
from hilrp.verify import textbook

RULES = {
    "epsilon": hilrp.Rules(linear="epsilon"),
    "gamma": hilrp.Rules(linear="gamma", gamma=0.25),
    "gamma_weights": hilrp.Rules(linear="gamma_weights", gamma=0.25, epsilon=1e-12),
    "zplus": hilrp.Rules(linear="zplus", epsilon=1e-12),
}
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
            expected = textbook.redistribute(shares, relevance, 1e-12 if rule in ("zplus", "gamma_weights") else 0.0)
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


@pytest.mark.parametrize("rule", ["gamma", "zplus", "gamma_weights"])
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
