"""Nothing is lost where a layer computes what relevance comes back to: whatever its output is used for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers.demand_models import (
    F64,
    FORMS,
    NARROW,
    RULES,
    WIDE,
    B,
    C,
    D,
    N,
    attend,
    attend_written,
    check,
    explained,
    heads,
    interleaved,
    pair,
    weighted,
)
from hilrp.attribution.forward_backward import Pass
from hilrp.method.ledger import Books
from hilrp.method.rules import Rules
from hilrp.verify import textbook

# That nothing is lost by it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [*FORMS, "interleaved"])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_one_layer_or_three(form, rules, width):
    read = FORMS.get(form, interleaved)
    check(lambda y: attend(*read(y)), RULES[rules], width)
    check(lambda y: attend_written(*read(y)), RULES[rules], width, bias=False)


@pytest.mark.parametrize("form", [*FORMS, "interleaved"])
def test_epsilon_is_the_gradient_with_the_weights_held_fixed(form):
    """Against torch's own autograd."""
    read = FORMS.get(form, interleaved)
    layer = nn.Linear(WIDE, 3 * C).to(F64)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return attend(*read(self.layer(x)))

    x = torch.randn(B, N, WIDE, dtype=F64, requires_grad=True)
    q, k, v = read(layer(x))
    weights = (q @ k.transpose(-2, -1) / D**0.5).softmax(-1).detach()
    (g,) = torch.autograd.grad(weighted((weights @ v).transpose(1, 2).flatten(2)).sum(), x)
    found = explained(Attention().eval(), x.detach(), "epsilon")
    torch.testing.assert_close(found.relevance, (x * g).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("bias", [True, False])
def test_gamma_by_the_textbook(width, bias):
    """What reaches the values is handed out by explicit contributions."""
    layer = nn.Linear(width, 3 * C, bias).to(F64)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return attend(*FORMS["chunk"](self.layer(x)))

    x = torch.randn(B, N, width, dtype=F64)
    found = explained(Attention().eval(), x)
    with torch.no_grad():
        y = layer(x)
        q, k, _ = FORMS["chunk"](y)
        weights = (q @ k.transpose(-2, -1) / D**0.5).softmax(-1)
        g = torch.linspace(-1, 2, N * C, dtype=F64).view(N, C).expand(B, N, C)
        relevance = torch.zeros_like(y)
        relevance[..., 2 * C :] = y[..., 2 * C :] * (weights.transpose(-2, -1) @ heads(g)).transpose(1, 2).flatten(2)
        constant = layer.bias if bias else torch.zeros(3 * C, dtype=F64)
        for sample in range(B):
            for token in range(N):
                z = textbook.contributions(layer.weight, constant, x[sample, token])
                expected = textbook.redistribute(textbook.gamma(z, z), relevance[sample, token])
                torch.testing.assert_close(found.relevance[sample, token], expected, rtol=1e-10, atol=1e-12)


class Doubled(torch.autograd.Function):
    """An operation that nobody sees."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def queries_beside(y):
    q, k, v = y.chunk(3, -1)
    return attend(heads(q), heads(k), heads(v)) + q


def whole_beside(y):
    return attend(*FORMS["chunk"](y)) + y.unflatten(-1, (3, C)).mean(2)


def whole_normalised(y):
    return attend(*FORMS["chunk"](y)) + F.layer_norm(y, (3 * C,))[..., C : 2 * C]


def part_scaled_in_place(y):
    q, k, v = y.chunk(3, -1)
    q *= 0.3
    return attend(heads(q), heads(k), heads(v)) + y[..., : C // 2].repeat(1, 1, 2)


def written_to(y):
    v = y[..., 2 * C :]
    y[..., C + 2 :].mul_(2)
    y[..., 0] = 0.5
    return attend(*map(heads, (y[..., :C], y[..., C : 2 * C], v)))


def expanded(y):
    q, k, v = y.chunk(3, -1)
    return attend(heads(q), heads(k), heads(v[:, :1].expand(-1, N, -1))) * v


def overlapping(y):
    return y.as_strided((B, N, 3, 4), (N * 3 * C, 3 * C, 3, 1), 2 * C + 1).sin() + y[..., C : C + 4].unsqueeze(2)


def down_the_rows(y):
    """A stride that is no multiple of the features goes through several of them."""
    return y.diagonal(dim1=1, dim2=2).sin()


def up_the_rows(y):
    return y.as_strided((B, 5), (N * 3 * C, 3 * C - 1), 3 * C + 7).sin()


def unfolded(y):
    return y[..., 2 * C :].unfold(-1, 4, 2).amax(-1) + y.unfold(1, N, 1)[:, 0, 5, :].mean(1)[:, None, None]


def copied(y):
    q, k, v = y.chunk(3, -1)
    v = v.transpose(1, 2).reshape(B, N, C)
    return attend(heads(q), heads(k), heads(v.contiguous().roll(1, 1)))


def gated(y):
    a, b = y.chunk(2, -1)
    return F.silu(a) * b + torch.sigmoid(b) * a


def itself(y):
    y = F.dropout(y.contiguous(), 0.5, False)
    return attend(*FORMS["chunk"](y.to(y.dtype).view_as(y)))


def nothing_beside(y):
    return torch.cat((y[..., 5:5], attend(*FORMS["chunk"](y)), y[..., 30:30]), -1)


def without_gradient(y):
    q, k, v = y.chunk(3, -1)
    with torch.no_grad():
        scale = q.mean(-1, keepdim=True)
    return v * scale + k.detach()


def several_heads(y):
    """Two readers of one part, of which one hands nothing back."""
    q, k, v = FORMS["reshape, permute, unbind"](y)
    return attend(q, k, v) + attend(v, q, k[:, :, :, :])


USES = [
    queries_beside, whole_beside, whole_normalised, part_scaled_in_place, written_to, expanded, overlapping,
    down_the_rows, up_the_rows, unfolded, copied, gated, itself, nothing_beside, without_gradient, several_heads,
]  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("rules", ["gamma", "epsilon", "uniform"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_whatever_else_the_output_is_used_for(use, rules, width):
    check(use, RULES[rules], width)


@pytest.mark.parametrize("rules", RULES)
def test_windows_folded_into_the_batch(rules):
    for read in (*FORMS.values(), interleaved):
        check(lambda y, read=read: attend(*read(y)), RULES[rules], WIDE, windows=True)


@pytest.mark.parametrize("use", USES)
def test_relative_to_a_reference(use):
    check(use, Rules(constants="reference"), WIDE, reference=0.5)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("rules", [Rules(), Rules(linear="epsilon"), Rules.named("naive")])
def test_a_part_that_an_operation_takes_which_nobody_sees(width, rules):
    """Where the audit is off, relevance goes through it by its own gradient, and must not end at the layer."""

    def use(y):
        q, _, v = y.chunk(3, -1)
        return Doubled.apply(q) * 1.0 + v.tanh()

    one, three = (
        explained(model, torch.ones(B, N, 6, dtype=F64), rules, audit="off") for model in pair(use, width, True)
    )
    torch.testing.assert_close(one.relevance, three.relevance, rtol=1e-11, atol=1e-12)
    assert float(one.ledger.residual.max()) <= 1e-12


@pytest.mark.parametrize("shape", [(1, WIDE), (2, WIDE), (1, 3, WIDE)])
def test_parts_in_complex_numbers(shape):
    """Their strides count pairs of features."""
    layer, turn = nn.Linear(WIDE, 16).to(F64), torch.polar(torch.ones(4, dtype=F64), torch.arange(4.0, dtype=F64))

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x):
            part = self.layer(x)[..., 8:].unflatten(-1, (4, 2))
            return torch.view_as_real(torch.view_as_complex(part) * turn)

    x = torch.randn(shape, dtype=F64, requires_grad=True)
    (g,) = torch.autograd.grad(weighted(Turned()(x)).sum(), x)
    found = explained(Turned().eval(), x.detach(), "epsilon")
    torch.testing.assert_close(found.relevance, (x * g).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rules", ["gamma", "epsilon", "attnlrp"])
@pytest.mark.parametrize("use", [queries_beside, overlapping, written_to, several_heads])
def test_itemised_books(use, rules):
    model, apart = pair(use)
    x = torch.randn(B, N, 6, dtype=F64)
    found, expected = explained(model, x, RULES[rules], itemised=True), explained(apart, x, RULES[rules])
    torch.testing.assert_close(found.relevance, expected.relevance, rtol=1e-11, atol=1e-12)
    assert float(found.ledger.leak.max()) <= 1e-12
    assert float(found.ledger.residual.max()) <= 1e-12


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("form", ["chunk", "reshape, permute, unbind"])
def test_several_backward_passes_over_one_graph(form, width):
    """Each sample's score alone, in turn and again; each has its own relevance and its own books."""
    model = pair(lambda y: attend(*FORMS[form](y)) + y[..., C : 2 * C], width)[0]
    x, books = torch.randn(B, N, 6, dtype=F64), Books(1)
    whole = explained(model, x)
    run = Pass(model, x, weighted, Rules(), books, lambda error: None, B)
    for sample in (0, 1, 0):
        books.clear()
        relevance, pixels = run.backward(sample)
        torch.testing.assert_close(relevance[sample], whole.relevance[sample], rtol=1e-12, atol=1e-12)
        assert not relevance[1 - sample].any()
        kept = sum(float(share) for share in books.shares.values())
        assert kept == pytest.approx(float(whole.ledger.constants[sample]), rel=1e-11)
        assert float(pixels["pixels"].sum()) + kept == pytest.approx(float(run.score[sample]), rel=1e-12)


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("rules", ["gamma", "epsilon"])
def test_in_bfloat16(width, rules):
    model, apart = (m.float() for m in pair(queries_beside, width))
    x = torch.randn(B, N, 6)
    with torch.autocast("cpu", torch.bfloat16):
        one, three = (explained(m, x, RULES[rules], target=lambda out: weighted(out.float())) for m in (model, apart))
    exact = explained(model.to(F64), x.to(F64), RULES[rules])
    assert one.relevance.dtype == torch.float32
    for found in (one, three):
        error = (found.relevance.double() - exact.relevance).norm() / exact.relevance.norm()
        assert 1e-6 < float(error) < 0.03
