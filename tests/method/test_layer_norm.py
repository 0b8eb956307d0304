"""Layer norm: torch's value to the bit, and the divisor that comes with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hilrp

#: What the norm gets: contiguous, other orders of the axes, parts, repeated rows.
ORDERS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "channels first": lambda t: t.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0),
    "a part": lambda t: torch.cat((t, t), -1)[..., : t.shape[-1]],
    "repeated": lambda t: t[:, :1].expand_as(t),
}
SHAPES = {"last axis": (12,), "two axes": (5, 12), "an axis of one": (1, 12)}
TYPES = [torch.float64, torch.float32, torch.bfloat16]


class Normalised(nn.Module):
    def __init__(self, shape: tuple[int, ...], order: str, weight: bool, bias: bool) -> None:
        super().__init__()
        self.shape, self.order = shape, ORDERS[order]
        self.weight = nn.Parameter(torch.randn(shape)) if weight else None
        self.bias = nn.Parameter(torch.randn(shape)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(self.order(x), self.shape, self.weight, self.bias, eps=1e-3)


def given(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return (torch.randn(2, 3, 1 if shape[0] == 1 else 5, 12, dtype=torch.float64) * 3 + 1).to(dtype)


def weighted(out: Tensor) -> Tensor:
    flat = out.flatten(1)
    return (flat * torch.arange(float(flat.shape[1])).cos().to(flat.dtype)).float().sum(1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_value_is_torchs_to_the_bit(order, shape, dtype):
    for weight, bias in ((True, True), (True, False), (False, False)):
        model = Normalised(SHAPES[shape], order, weight, bias).to(dtype).eval()
        x = given(SHAPES[shape], dtype)
        found = hilrp.explain(
            model, x, weighted, stages=None, audit="off" if dtype == torch.bfloat16 else "strict", rules="hilrp"
        )
        assert torch.equal(found.output, model(x))
        assert found.output.stride() == model(x).stride()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("weight", "bias"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("dtype", TYPES)
def test_relevance_by_the_textbook(order, shape, weight, bias, dtype):
    """``R = x D / std``, the gradient ``D = v w - mean(v w)`` over the normalised axes, and ``v b`` for the shift."""
    own = SHAPES[shape]
    model, x = Normalised(own, order, weight, bias).to(dtype).eval(), given(own, dtype)
    found = hilrp.explain(
        model, x, weighted, stages=None, audit="off" if dtype == torch.bfloat16 else "strict", rules="hilrp"
    )

    axes = tuple(range(-len(own), 0))
    a = ORDERS[order](x.double())
    w = model.weight.detach().double() if weight else torch.ones(own, dtype=torch.float64)
    v = torch.arange(float(a[0].numel())).cos().to(dtype).double().view(a.shape[1:]).expand_as(a)
    h = v * w
    inverse = (a.var(axes, correction=0, keepdim=True) + 1e-3).rsqrt()
    g = (h - h.mean(axes, keepdim=True)) * inverse
    if order == "repeated":
        g = torch.cat((g.sum(1, keepdim=True), torch.zeros_like(g[:, 1:])), 1)
    bound = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}[dtype]
    expected = x.double() * g
    assert float((found.relevance.double() - expected).norm() / expected.norm()) < bound
    if bias:
        kept = (v * model.bias.detach().double()).flatten(1).sum(1)
        torch.testing.assert_close(found.ledger.entries["norm shift"], kept, rtol=bound, atol=10 * bound)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast(order, dtype):
    """There torch may normalise in another type than that of what comes in."""
    model = Normalised((12,), order, True, True).eval()
    x = given((12,), dtype)
    with torch.autocast("cpu", torch.bfloat16):
        found = hilrp.explain(
            model, x, weighted, stages=None, audit="off" if dtype == torch.bfloat16 else "strict", rules="hilrp"
        )
        value = model(x)
    assert torch.equal(found.output, value)
    assert found.output.dtype == value.dtype
    exact = hilrp.explain(
        model.double(), x.double(), lambda out: weighted(out.double()), stages=None, rules="hilrp"
    ).relevance
    assert float((found.relevance.double() - exact).norm() / exact.norm()) < 3e-2


@pytest.mark.parametrize("dtype", TYPES)
def test_a_norm_between_layers(dtype):
    model = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.LayerNorm(12, bias=False), nn.Linear(12, 4))
    for norm in (model[1], model[3]):
        nn.init.normal_(norm.weight)
    model, x = model.eval().to(dtype), torch.randn(3, 7, 6).to(dtype)
    found = hilrp.explain(model, x, lambda out: out[:, :, 1].float().sum(1), stages=None, rules="hilrp")
    assert torch.equal(found.output, model(x))
    exact = hilrp.explain(
        model.double(), x.double(), lambda out: out[:, :, 1].sum(1), stages=None, itemised=True, rules="hilrp"
    )
    assert float(exact.ledger.leak.max()) < 1e-12
    bound = {torch.float64: 1e-13, torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
    assert float((found.relevance.double() - exact.relevance).norm() / exact.relevance.norm()) < bound
