"""Layers that hand back to the features that relevance comes back to, and no others: what is multiplied, and that nothing is lost by it.

The counterpart of a layer is three layers with its rows, whose outputs are put together before anything reads them: each is then asked for all that it has.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import hilrp
from hilrp.ledger import Books
from hilrp.passes import Pass
from hilrp.primitives.layers import Demand
from hilrp.rules import Rules
from hilrp.verify import textbook

F64 = torch.float64
#: Samples, tokens, heads, features of a head, features.
B, N, H, D = 2, 8, 3, 4
C = H * D
#: A layer that is wider than its input runs its second product in the backward pass, and one that isn't, in the forward pass.
WIDE, NARROW = 10, 40
RULES = {
    "gamma": Rules(),
    "epsilon": Rules(linear="epsilon"),
    "uniform": Rules(attention="uniform"),
    "attnlrp": Rules(attention="attnlrp"),
}


def heads(t: Tensor) -> Tensor:
    return t.unflatten(-1, (-1, D)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def attend_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * D**-0.5) @ k.transpose(-2, -1)).softmax(-1).matmul(v).transpose(1, 2).flatten(2)


#: How models take queries, keys and values ``[B, H, N, D]`` from one output ``[B, N, 3 C]``.
FORMS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "chunk": lambda y: tuple(map(heads, y.chunk(3, -1))),
    "split": lambda y: tuple(map(heads, y.split([C, C, C], dim=-1))),
    "slices": lambda y: (heads(y[..., :C]), heads(y[..., C : 2 * C]), heads(y[..., 2 * C :])),
    "narrow": lambda y: tuple(heads(y.narrow(2, i * C, C)) for i in range(3)),
    "reshape, permute, unbind": lambda y: y.reshape(*y.shape[:2], 3, H, D).permute(2, 0, 3, 1, 4).unbind(0),
    "view, select": lambda y: tuple(y.view(*y.shape[:2], 3, H, D).select(2, i).transpose(1, 2) for i in range(3)),
    "unflatten, movedim, index": lambda y: tuple(
        heads(y.unflatten(-1, (3, C)).movedim(2, 0).unsqueeze(0)[:, i].squeeze(0)) for i in range(3)
    ),
}


def interleaved(y: Tensor) -> tuple[Tensor, ...]:
    """``[H, 3, D]``: the values are not next to each other."""
    return y.view(*y.shape[:2], H, 3, D).transpose(1, 2).unbind(3)


class Projection(nn.Module):
    """A layer of ``3 C`` features, one or made of three, after another layer, and what is made of it."""

    def __init__(self, use: Callable[[Tensor], Tensor], width: int, bias: bool, windows: bool = False) -> None:
        super().__init__()
        self.use, self.windows = use, windows
        self.stem = nn.Linear(6, width)
        self.parts = nn.ModuleList([nn.Linear(width, 3 * C, bias)])

    def apart(self) -> Projection:
        """The same with three layers."""
        found = Projection(self.use, self.stem.out_features, False, self.windows)
        found.stem = self.stem
        (whole,) = self.parts
        found.parts = nn.ModuleList(nn.Linear(whole.in_features, C, whole.bias is not None) for _ in range(3))
        for i, part in enumerate(found.parts):
            part.weight = nn.Parameter(whole.weight[i * C : (i + 1) * C].detach().clone())
            if whole.bias is not None:
                part.bias = nn.Parameter(whole.bias[i * C : (i + 1) * C].detach().clone())
        return found.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        if self.windows:
            x = x.unflatten(1, (2, N // 2)).flatten(0, 1)
        found = [part(x) for part in self.parts]
        y = self.use(found[0] if len(found) == 1 else torch.cat(found, -1))
        return y.unflatten(0, (B, 2)).flatten(1, 2) if self.windows else y


def pair(use: Callable[[Tensor], Tensor], width: int = WIDE, bias: bool = True, windows: bool = False):
    model = Projection(use, width, bias, windows).to(F64).eval()
    return model, model.apart().to(F64)


def weighted(out: Tensor) -> Tensor:
    """A score that tells all values of the output apart."""
    flat = out.flatten(1)
    return (flat * torch.linspace(-1, 2, flat.shape[1], dtype=flat.dtype)).sum(1)


def explained(model: nn.Module, x: Tensor, rules: str | Rules = "hilrp", **options):
    return hilrp.explain(model, x, options.pop("target", weighted), rules, stages=None, **options)


def check(use: Callable[[Tensor], Tensor], rules: Rules, width: int, bias: bool = True, **options) -> None:
    """One layer and three give the same relevance and the same books, which close."""
    models = pair(use, width, bias, options.pop("windows", False))
    x = torch.randn(B, N, 6, dtype=F64)
    one, three = (explained(model, x, rules, **options) for model in models)
    torch.testing.assert_close(one.output, three.output, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.relevance, three.relevance, rtol=1e-11, atol=1e-12)
    assert one.relevance.abs().sum() > 0.1
    assert float(one.ledger.residual.max()) <= 1e-12
    torch.testing.assert_close(one.ledger.constants, three.ledger.constants, rtol=1e-11, atol=1e-12)


# What is multiplied --------------------------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """Notes the sizes of matrices that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[set[int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__.strip("_") in ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear"):
            self.found.append({size for t in args if isinstance(t, Tensor) for size in t.shape})
        return func(*args, **(kwargs or {}))

    def with_size(self, size: int) -> int:
        return sum(size in sizes for sizes in self.found)


def products(model: nn.Module, rules: str | Rules, **options) -> Products:
    mode = Products()
    x = torch.randn(B, N, 6, dtype=F64)
    with mode:
        explained(model, x, rules, **options)
    return mode


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mix", [attend, attend_written])
@pytest.mark.parametrize(
    ("rules", "width", "forward", "backward"),
    # The layer itself, and sizes by sizes; then sizes by sizes, and two products for the gradient, or one.
    [("gamma", WIDE, 1, 3), ("gamma", NARROW, 2, 2), ("epsilon", WIDE, 1, 1), ("epsilon", NARROW, 1, 1)],
)
def test_values_alone_are_multiplied(form, mix, rules, width, forward, backward):
    model = pair(lambda y: mix(*FORMS[form](y)), width)[0]
    found = products(model, RULES[rules])
    assert found.with_size(3 * C) == forward
    assert found.with_size(C) == backward


def test_what_else_gets_relevance_is_multiplied_as_well():
    """Queries next to the values would be a third more; here they are at the other end, and the interval is all of it."""
    forms = {"q": lambda q, k, v: attend(q, k, v) + q.transpose(1, 2).flatten(2), "v": attend}
    for name, size in (("q", 3 * C), ("v", C)):
        model = pair(lambda y, name=name: forms[name](*FORMS["chunk"](y)))[0]
        assert products(model, RULES["epsilon"]).found[-2] >= {size, WIDE}

    beside = pair(lambda y: attend(*FORMS["chunk"](y)) + y[..., C : 2 * C])[0]
    assert products(beside, RULES["epsilon"]).with_size(2 * C) == 1
    assert products(pair(lambda y: attend(*FORMS["chunk"](y)))[0], RULES["attnlrp"]).with_size(3 * C) == 4


def test_a_score_that_is_a_part_of_the_output():
    """The score is a view of what a layer returns, of which other features are used for what nobody asks."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 9).to(F64)

        def forward(self, x):
            y = self.layer(x)
            return y, torch.sin(y[:, 4:6]), y[:, 7].exp()

    model, x = Head().eval(), torch.randn(3, 6, dtype=F64)
    weight, bias = model.layer.weight.detach(), model.layer.bias.detach()
    for columns in (0, 3, 8):
        mode = Products()
        with mode:
            found = hilrp.explain(model, x, lambda out, i=columns: out[0][:, i], "epsilon", stages=None)
        assert mode.found[-1] == {3, 1, 6}
        torch.testing.assert_close(found.relevance, x * weight[columns])
        torch.testing.assert_close(found.ledger.entries["bias"], bias[columns].expand(3))


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
    queries_beside, whole_beside, whole_normalised, part_scaled_in_place, written_to, expanded, overlapping, down_the_rows, up_the_rows, unfolded, copied, gated, itself,
    nothing_beside, without_gradient, several_heads,
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


# The interval --------------------------------------------------------------------------------------------------------


def random_view(t: Tensor, draw: Callable[[int, int], int]) -> Tensor:
    """A view of a view of a view."""
    for _ in range(draw(1, 5)):
        axis = draw(0, t.ndim)
        size = t.shape[axis]
        match draw(0, 8):
            case 0 if t.ndim > 1:
                t = t.transpose(axis, draw(0, t.ndim))
            case 1:
                t = t.narrow(axis, start := draw(0, size), draw(1, size - start + 1))
            case 2 if t.ndim > 1:
                t = t.select(axis, draw(0, size))
            case 3:
                parts = next((n for n in (2, 3) if size % n == 0), 1)
                t = t.unflatten(axis, (parts, size // parts))
            case 4:
                t = t[(slice(None),) * axis + (slice(draw(0, size), None, draw(1, 4)),)]
            case 5:
                t = t.unfold(axis, length := draw(1, size + 1), draw(1, length + 1))
            case 6 if t.ndim > 1:
                t = t.diagonal(dim1=axis, dim2=(axis + 1) % t.ndim)
            case 7 if t.ndim < 6:
                t = t.unsqueeze(axis).expand(*t.shape[:axis], 2, *t.shape[axis:])
    return t


@pytest.mark.parametrize("seed", range(150))
def test_the_interval_holds_all_that_gets_a_gradient(seed):
    """Of random views, by torch's own backward pass."""
    generator = torch.Generator().manual_seed(seed)
    features = (12, 7, 1, 24)[seed % 4]
    root = torch.zeros((3, 4, features)[seed % 2 :], requires_grad=True).clone()
    demand, parts = Demand(features), []
    for _ in range(1 + seed % 3):
        part = random_view(root, lambda low, high: int(torch.randint(low, high, (), generator=generator)))
        assert part.numel() == 0 or part is root or part._base is root
        demand.watch(part, root)
        parts.append(part)
    assert demand.interval == (0, features)
    (g,) = torch.autograd.grad(sum((part * 1.0).sum() for part in parts), root)
    asked = g.reshape(-1, features).any(0).nonzero().flatten()
    first, last = demand.interval
    assert 0 <= first < last <= features
    assert first <= int(asked.min())
    assert int(asked.max()) < last


def test_the_interval_is_no_wider_than_it_must_be():
    root = torch.zeros(2, 5, 12, requires_grad=True).clone()
    for part, interval in [
        (root, (0, 12)),
        (root[..., 3:7], (3, 7)),
        (root[1:, 2:, 3:7].transpose(0, 2), (3, 7)),
        (root.view(2, 5, 3, 4)[:, :, 1].permute(2, 1, 0), (4, 8)),
        (root.view(10, 3, 4)[:, 1:, 2], (6, 11)),
        (root[..., 11].expand(4, 2, 5), (11, 12)),
        (root[:, :, 4:10:3], (4, 8)),
        (root[0, 0, 2:4], (2, 4)),
    ]:
        demand = Demand(12)
        demand.watch(part, root)
        torch.autograd.grad((part * 1.0).sum(), root, retain_graph=True)
        assert demand.interval == interval


def test_who_gets_no_relevance_asks_for_nothing():
    root = torch.zeros(2, 6, requires_grad=True).clone()
    demand = Demand(6)
    for part in root.chunk(3, -1):
        demand.watch(part, root)
    first, second, _ = root.chunk(3, -1)
    demand.watch(second, root)
    torch.autograd.grad((second * 2).sum() + first.detach().sum(), root, retain_graph=True)
    assert demand.interval == (2, 4)
    torch.autograd.grad((second * 2).sum(), root)
    assert demand.interval == (2, 4)


@pytest.mark.parametrize(
    "between", [Tensor.contiguous, lambda y: F.dropout(y, 0.5, False)], ids=["contiguous", "dropout"]
)
def test_what_returns_its_operand_takes_nothing(between):
    """Neither a copy that isn't needed nor dropout in evaluation is a use of the whole output."""
    layer, seen = nn.Linear(8, 24).eval(), []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = layer

        def forward(self, x: Tensor) -> Tensor:
            y = between(self.qkv(x))
            seen.append(y.grad_fn.demand)
            q, k, v = y[:, None].chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v).sum((1, 2))[:, :3]

    hilrp.explain(Model().eval(), torch.randn(2, 5, 8), 1, stages=None)
    assert seen[0].interval == (16, 24)


def test_a_layer_without_outputs():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.empty, self.head = nn.Linear(8, 0), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x) + self.empty(x).sum(-1, keepdim=True)

    model, x = Model().eval(), torch.randn(2, 8)
    assert torch.allclose(hilrp.explain(model, x, 1, stages=None).score, model(x)[:, 1])
