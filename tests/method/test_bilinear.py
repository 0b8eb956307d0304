"""Products, attention and gates against explicit formulas in float64, without autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import hilrp
from helpers.nets import Apply
from helpers.nets import explain_sum as explain
from hilrp import Rules

F64 = torch.float64


def test_attention_by_hand():
    """cp: the relevance of value k is ``v_k sum_i A_ik r_i`` for an output whose gradient is r."""
    q, k, v, r = (torch.randn(1, 2, 5, 3, dtype=F64) for _ in range(4))
    weights = torch.softmax(q @ k.transpose(-2, -1) / 3**0.5, -1)
    expected = v * (weights.transpose(-2, -1) @ r)

    fused = explain(lambda q, k, v: F.scaled_dot_product_attention(q, k, v) * r, (q, k, v))
    written = explain(lambda q, k, v: (q @ k.transpose(-2, -1) / 3**0.5).softmax(-1) @ v * r, (q, k, v))
    for found in (fused, written):
        torch.testing.assert_close(found.relevance[2], expected, rtol=1e-12, atol=1e-12)
        assert not found.relevance[0].any()
        assert not found.relevance[1].any()


def attnlrp_by_hand(q, k, v, r):
    """Half of R to the values; the other half through the softmax, R_s = s (R_A - A sum R_A), and halves to q and k."""
    scale = q.shape[-1] ** -0.5
    logits = scale * q @ k.transpose(-2, -1)
    weights = torch.softmax(logits, -1)
    relevance_v = torch.einsum("bhij,bhjd,bhid->bhjd", weights, v, r) / 2
    relevance_a = torch.einsum("bhij,bhjd,bhid->bhij", weights, v, r) / 2
    relevance_s = logits * (relevance_a - weights * relevance_a.sum(-1, keepdim=True))
    per_product = relevance_s / logits * scale / 2
    relevance_q = torch.einsum("bhij,bhid,bhjd->bhid", per_product, q, k)
    relevance_k = torch.einsum("bhij,bhid,bhjd->bhjd", per_product, q, k)
    return relevance_q, relevance_k, relevance_v


@pytest.mark.parametrize("fused", [True, False])
def test_attnlrp_by_hand(fused):
    q, k, v, r = (torch.randn(1, 2, 5, 3, dtype=F64) for _ in range(4))
    rules = hilrp.Rules(linear="epsilon", attention="attnlrp")

    def attend(q, k, v):
        if fused:
            return F.scaled_dot_product_attention(q, k, v) * r
        return (3**-0.5 * q @ k.transpose(-2, -1)).softmax(-1) @ v * r

    found = explain(attend, (q, k, v), rules)
    for ours, by_hand in zip(found.relevance, attnlrp_by_hand(q, k, v, r), strict=True):
        torch.testing.assert_close(ours, by_hand, rtol=1e-11, atol=1e-11)
    assert float(found.ledger.residual) < 1e-10


@pytest.mark.parametrize("options", [{"is_causal": True}, {"scale": 0.3}, {"mask": "bool"}, {"mask": "float"}])
def test_fused_attention_keeps_its_books_under_attnlrp(options):
    q, k, v = (torch.randn(2, 2, 5, 4, dtype=F64) for _ in range(3))
    options = dict(options)
    kind = options.pop("mask", None)
    if kind is not None:
        mask = torch.rand(5, 5, dtype=F64) > 0.3
        mask |= torch.eye(5, dtype=torch.bool)
        options["attn_mask"] = mask if kind == "bool" else torch.randn(5, 5, dtype=F64)
    rules = hilrp.Rules(attention="attnlrp")
    found = explain(lambda *a: F.scaled_dot_product_attention(*a, **options), (q, k, v), rules)
    assert float(found.ledger.residual.max()) < 1e-10


def test_uniform_gives_half_to_each_factor():
    u, v = torch.randn(2, 3, 4, dtype=F64), torch.randn(2, 4, 5, dtype=F64)
    found = explain(lambda u, v: u @ v, (u, v), hilrp.Rules(attention="uniform"))
    y = (u @ v).flatten(1).sum(1)
    for relevance in found.relevance:
        torch.testing.assert_close(relevance.flatten(1).sum(1), y / 2, rtol=1e-12, atol=1e-12)


def test_uniform_leaves_the_gates_half_with_it():
    q, k, v = (torch.randn(1, 1, 4, 3, dtype=F64) for _ in range(3))
    found = explain(
        F.scaled_dot_product_attention,
        (q, k, v),
        hilrp.Rules(attention="uniform"),
        target=lambda out: out.sum().reshape(1),
    )
    torch.testing.assert_close(found.ledger.entries["gate"], found.score / 2)


GATES = {
    "squeeze-excite after relu": lambda x, s: x.relu() * F.hardsigmoid(s),
    "sigmoid gate": lambda x, s: x * s.sigmoid(),
    "gate first": lambda x, s: s.tanh() * x,
    "glu": lambda x, s: F.glu(torch.cat([x, s], -1)),
    "softmax": lambda x, s: x * s.softmax(-1),
    "hand-written softmax": lambda x, s: s.exp() / s.exp().sum(-1, keepdim=True) * x,
    "reciprocal": lambda x, s: x * (1 / (s.abs() + 1)),
    "division": lambda x, s: x / (s.abs() + 1),
    "kernel features": lambda x, s: (s.relu() + 1e-3) * x,
    "talking heads": lambda x, s: F.linear(s.softmax(-1), torch.eye(4, dtype=F64)) * x,
    "gate expanded as the signal": lambda x, s: x * s.sigmoid().mean(-1, keepdim=True).expand_as(x),
    "filters mixed by gates": lambda x, s: x * (s.sigmoid() @ torch.eye(4, dtype=F64)),
    "addcmul": lambda x, s: torch.addcmul(torch.zeros(4, dtype=F64), x, s.sigmoid()),
    "global response norm": lambda x, s: (
        x * (s.norm(dim=-1, keepdim=True) / (s.norm(dim=-1, keepdim=True).mean(1, keepdim=True) + 1e-6))
    ),
}


def test_a_constant_does_not_depend_on_what_lends_it_its_type():
    x, weight = torch.randn(2, 6, dtype=F64), torch.randn(6, 4, dtype=F64)
    plain = explain(lambda t: t @ weight, x, "hilrp")
    for form in (
        lambda t: t @ weight.type_as(t),
        lambda t: t @ weight.to(t),
        lambda t: t @ (t.new_zeros(6, 4) + weight),
    ):
        torch.testing.assert_close(explain(form, x, "hilrp").relevance, plain.relevance)


def test_a_linear_layer_makes_a_signal_of_a_gate():
    """A net with sigmoid or tanh activations has no gates: behind a linear layer they are signals like any other."""
    eye = torch.eye(4, dtype=F64)
    x, s = torch.randn(2, 3, 4, dtype=F64), torch.randn(2, 3, 4, dtype=F64)
    found = explain(lambda x, s: F.linear(s.tanh(), eye) * x, (x, s))
    torch.testing.assert_close(found.relevance[0], found.relevance[1], rtol=1e-11, atol=1e-11)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's wrong backward is CUDA's")
def test_overlapping_average_pooling_in_channels_last_order():
    """Against the transposed matrix of the map; torch's own backward is wrong here (2.11)."""
    x = torch.randn(1, 8, 14, 14, dtype=F64, device="cuda").contiguous(memory_format=torch.channels_last)
    g = torch.randn(1, 8, 7, 7, dtype=F64, device="cuda")
    kernel = torch.full((8, 1, 3, 3), 1 / 9, dtype=F64, device="cuda")
    expected = x * F.conv_transpose2d(g, kernel, stride=2, padding=1, output_padding=1, groups=8)
    found = explain(lambda t: F.avg_pool2d(t, 3, 2, 1) * g, x)
    torch.testing.assert_close(found.relevance, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("form", GATES)
def test_a_gate_gets_nothing(form):
    """In a product all relevance goes through the signal, whatever form the gate has."""
    x, s = torch.randn(2, 3, 4, dtype=F64), torch.randn(2, 3, 4, dtype=F64)
    found = explain(GATES[form], (x, s))
    torch.testing.assert_close(found.relevance[0], found.output, rtol=1e-11, atol=1e-11)
    assert not found.relevance[1].any()
    assert not found.notes


def test_factors_of_equal_level_share_evenly_and_it_is_noted():
    x, s = torch.randn(2, 4, dtype=F64), torch.randn(2, 4, dtype=F64)
    found = explain(lambda x, s: F.silu(x) * s, (x, s))
    for relevance in found.relevance:
        torch.testing.assert_close(relevance, found.output / 2, rtol=1e-12, atol=1e-12)
    assert found.notes == {"even split of mul in (model)": 1}


def test_linear_attention_with_its_denominator():
    """EfficientViT's attention: relu features are gates, the denominator is fixed, the values carry all."""
    q, k, v = (torch.randn(1, 2, 6, 4, dtype=F64) for _ in range(3))

    def attend(q, k, v):
        q, k = q.relu(), k.relu()
        v = F.pad(v, (0, 1), value=1.0)
        out = q @ (k.transpose(-2, -1) @ v)
        return out[..., :-1] / (out[..., -1:] + 1e-9)

    found = explain(attend, (q, k, v), target=lambda out: out.sum().reshape(1))
    weights = q.relu() @ k.relu().transpose(-2, -1)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-9)
    expected = v * weights.sum(-2).unsqueeze(-1)
    torch.testing.assert_close(found.relevance[2], expected, rtol=1e-10, atol=1e-10)
    assert not found.relevance[0].any()


def test_factorised_attention_in_either_order():
    """CoaT and LambdaNetworks: ``q (softmax(k)^T v)``. The weights are ``q softmax(k)^T``, and the values carry all."""
    q, k, v = (torch.randn(1, 2, 6, 4, dtype=F64) for _ in range(3))
    found = explain(
        lambda q, k, v: q @ (k.softmax(-2).transpose(-2, -1) @ v), (q, k, v), target=lambda out: out.sum().reshape(1)
    )
    weights = q @ k.softmax(-2).transpose(-2, -1)
    torch.testing.assert_close(found.relevance[2], v * weights.sum(-2).unsqueeze(-1), rtol=1e-10, atol=1e-10)
    assert not found.relevance[0].any()
    assert not found.notes


def test_what_attention_mixed_is_a_signal_again_behind_a_residual():
    """Only in ``q (softmax(k)^T v)`` itself is the other factor a query; later it is a factor like any other."""
    x, k, v = (torch.randn(1, 6, 6, dtype=F64) for _ in range(3))
    forms = {
        "matmul": lambda x, k, v: x @ (v + k.softmax(-1) @ v),
        "mul": lambda x, k, v: x * (k.softmax(-1) @ v),
        "linear": lambda x, k, v: F.linear(x, F.gelu(k.softmax(-1) @ v)[0].mT),
    }
    for name, form in forms.items():
        found = explain(form, (x, k, v))
        assert found.notes == {f"even split of {name} in (model)": 1}
        torch.testing.assert_close(found.relevance[0].sum(), found.output.sum() / 2, rtol=1e-11, atol=1e-11)


def test_mixed_values_may_be_moved_and_scaled_before_they_meet_the_query():
    q, k, v, s = (torch.randn(1, 6, 4, dtype=F64) for _ in range(4))

    def attend(q, k, v, s):
        mixed = 0.5 * (k.softmax(-2).transpose(-2, -1) @ v).unsqueeze(1).squeeze(1)
        return q @ (mixed * s.mean(-2).sigmoid().unsqueeze(-2))

    found = explain(attend, (q, k, v, s), target=lambda out: out.sum().reshape(1))
    torch.testing.assert_close(found.relevance[2].sum(), found.score[0], rtol=1e-11, atol=1e-11)
    assert not found.notes


def test_fused_attention_returns_a_signal():
    x, q, k, v = (torch.randn(1, 2, 5, 4, dtype=F64) for _ in range(4))
    found = explain(lambda x, q, k, v: x * F.scaled_dot_product_attention(q, k, v), (x, q, k, v))
    assert found.notes == {"even split of mul in (model)": 1}


def test_cosine_to_a_fixed_vector_conserves():
    """The norms of a cosine are held fixed, so that the cosine isn't scale-invariant for relevance."""
    x, text = torch.randn(2, 8, dtype=F64), torch.randn(8, dtype=F64)
    for form in (
        lambda t: F.cosine_similarity(t, text.expand_as(t)),
        lambda t: F.normalize(t, dim=1) @ F.normalize(text, dim=0),
        lambda t: (t / t.norm(dim=1, keepdim=True)) @ (text / text.norm()),
    ):
        found = explain(form, x, target=lambda out: out)
        torch.testing.assert_close(found.relevance.sum(1), found.score, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("projected", [0, 2])
def test_lstm_conserves(projected):
    lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True, proj_size=projected).double()
    head = nn.Linear(2 * (projected or 4), 3).double()
    model = Apply(lambda x: head(lstm(x)[0].mean(1))).eval()
    found = hilrp.explain(model, torch.randn(2, 6, 5, dtype=F64), 1, itemised=True, rules="hilrp")
    assert float(found.ledger.residual.max()) < 1e-10
    assert float(found.ledger.leak.max()) < 1e-10
    assert float(found.relevance.abs().sum()) > 0


@pytest.mark.parametrize("rules", [Rules(linear="epsilon", constants="reference"), "hilrp"], ids=str)
@pytest.mark.parametrize(("kind", "lengths"), [("LSTM", (3, 4, 1)), ("GRU", (3, 4, 1)), ("LSTM", (4, 4, 4))])
def test_a_packed_sequence_has_the_map_of_its_steps_alone(kind, lengths, rules):
    """What ends sooner is packed without its padding; what it is filled up with afterwards is a constant."""
    network = getattr(nn, kind)(5, 4, num_layers=2, bidirectional=True, batch_first=True).double()
    head = nn.Linear(8, 3).double()

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.network, self.head = network, head

        def forward(self, x, count):
            out, state = network(pack_padded_sequence(x, count, batch_first=True, enforce_sorted=False))
            filled, _ = pad_packed_sequence(out, batch_first=True, padding_value=0.7)
            state = state[0] if isinstance(state, tuple) else state
            return head(filled.sum(1) + state[-2:].transpose(0, 1).flatten(1))

    x, counts = torch.randn(3, 4, 5, dtype=F64), torch.tensor(lengths)
    found = hilrp.explain(Packed().eval(), {"x": x, "count": counts}, 1, itemised=True, rules=rules)
    assert float(found.ledger.residual.max()) < 1e-10
    assert float(found.ledger.leak.max()) < 1e-10
    for i, count in enumerate(lengths):
        steps = x[i : i + 1, :count]

        def alone(x, count=count):
            out, state = network(x)
            state = state[0] if isinstance(state, tuple) else state
            return head(out.sum(1) + 0.7 * (max(lengths) - count) + state[-2:].transpose(0, 1).flatten(1))

        wanted = hilrp.explain(Apply(alone).eval(), steps, 1, rules=rules, audit="off").relevance[0]
        torch.testing.assert_close(found.relevance["x"][i, :count], wanted, rtol=1e-9, atol=1e-12)
        assert not found.relevance["x"][i, count:].any()
