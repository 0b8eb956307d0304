"""Programs that write in place, and the same written out of place.

The same map, with totals and itemised, with and without a reference.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hilrp
from hilrp.method.table import TABLE

F64 = torch.float64
RULES = ["hilrp", "epsilon", "attnlrp", "secant"]


class Squeeze(nn.Module):
    """A convolution whose channels are weighted by ``gate(self, pooled)``, and what is left of the pooled features."""

    def __init__(self, gate) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.squeeze, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 8), nn.Linear(8, 4)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        weights, rest = self.gate(self.squeeze(y.mean((2, 3))))
        return self.head((y * weights.reshape(len(x), -1, 1, 1)).mean((2, 3)) + rest)


def compare(written, plain, rules: str, itemised: bool, batch: int = 2) -> None:
    x = torch.randn(batch, 3, 6, 6, dtype=F64, generator=torch.Generator().manual_seed(2))
    models = [Squeeze(each).to(F64).eval() for each in (written, plain)]
    with torch.no_grad():
        plain_output = models[0](x)
        assert torch.equal(plain_output, models[1](x))
    one, other = (hilrp.explain(model, x, 1, rules, itemised=itemised) for model in models)
    assert torch.equal(one.output, plain_output)
    torch.testing.assert_close(one.relevance, other.relevance, rtol=1e-10, atol=1e-12)
    for each in (one, other):
        assert float(each.ledger.residual.max()) < 1e-10
        assert float(each.ledger.leak.max()) < 1e-10


# Gates through views --------------------------------------------------------------------------------------------------


def view(g):
    g.view(len(g), 8, 1, 1).sigmoid_()
    return g, 0


def added_axes(g):
    return F.hardsigmoid(g[:, :, None, None], inplace=True), 0


def transposed(g):
    g.mT.sigmoid_()
    return g, 0


def of_a_view(g):
    g.view(len(g), 2, 4).view(len(g), 8).mT.sigmoid_()
    return g, 0


def returned(g):
    return g.view(len(g), 8, 1, 1).sigmoid_(), 0


def twice(g):
    g.view(len(g), 8, 1).mul_(2).sigmoid_()
    return g, 0


def each_sample(g):
    for sample in g:
        sample.sigmoid_()
    return g, 0


def each_half(g):
    for part in g.chunk(2, 1):
        part.sigmoid_()
    return g, 0


def assigned(g):
    g[:] = g.sigmoid()
    return g, 0


def copied(g):
    g.view(-1).copy_(g.sigmoid().view(-1))
    return g, 0


def into(g):
    torch.sigmoid(g, out=g)
    return g, 0


def kept_view(g):
    seen = g.view(len(g), 8, 1, 1)
    g.sigmoid_()
    return seen, 0


def part_by_part(g):
    g[:, :4] = g[:, :4].sigmoid()
    g[:, 4:] = g[:, 4:].sigmoid()
    return g, 0


def sigmoid(g):
    return g.sigmoid(), 0


def hardsigmoid(g):
    return F.hardsigmoid(g), 0


def scaled_sigmoid(g):
    return (g * 2).sigmoid(), 0


WHOLE = [
    (view, sigmoid), (added_axes, hardsigmoid), (transposed, sigmoid), (of_a_view, sigmoid), (returned, sigmoid),
    (twice, scaled_sigmoid), (each_sample, sigmoid), (each_half, sigmoid), (assigned, sigmoid), (copied, sigmoid),
    (into, sigmoid), (kept_view, sigmoid), (part_by_part, sigmoid),
]  # fmt: skip


# Parts
# ------------------------------------------------------------------------------------------------------------------


def half_a_gate(g):
    """One half is a gate, the other stays a signal; both are used."""
    gate, signal = g.chunk(2, 1)
    gate.sigmoid_()
    return torch.cat([gate, gate], 1), torch.cat([signal, signal], 1)


def half_a_gate_plain(g):
    gate, signal = g.chunk(2, 1)
    gate = gate.sigmoid()
    return torch.cat([gate, gate], 1), torch.cat([signal, signal], 1)


def the_other_half(g):
    """The part that nobody wrote to stays a gate, where all of it was one."""
    gate = g.sigmoid()
    kept, written = gate[:, :4], gate[:, 4:]
    written.copy_(g[:, 4:])
    return torch.cat([kept, kept], 1), torch.cat([written, written], 1)


def the_other_half_plain(g):
    kept, written = g[:, :4].sigmoid(), g[:, 4:]
    return torch.cat([kept, kept], 1), torch.cat([written, written], 1)


def whole_of_mixed(g):
    """The whole of a gate and a signal is a signal, as a concatenation is."""
    g[:, :4].sigmoid_()
    return g.sigmoid(), g


def whole_of_mixed_plain(g):
    mixed = torch.cat([g[:, :4].sigmoid(), g[:, 4:]], 1)
    return mixed.sigmoid(), mixed


def overwritten(g):
    """Of what was written over nothing is left."""
    y = g * 3
    y.copy_(g.sigmoid())
    return y, 0


def zeroed(g):
    rest = g.clone()
    rest[:, 2:5].zero_()
    gate = g.sigmoid()
    gate.view(-1)[::3] = 0.5
    return gate, rest


def zeroed_plain(g):
    kept = torch.ones(8, dtype=torch.bool)
    kept[2:5] = False
    third = (torch.arange(g.numel()) % 3 == 0).view(g.shape)
    return torch.where(third, 0.5, g.sigmoid()), torch.where(kept, g, 0.0)


def into_constants(g):
    out = torch.ones(len(g), 8, dtype=F64)
    part = out[:, :8]
    part[:, 3:] = g[:, 3:].sigmoid()
    return out, 0


def into_constants_plain(g):
    return torch.cat([torch.ones(len(g), 3, dtype=F64), g[:, 3:].sigmoid()], 1), 0


PARTS = [
    (half_a_gate, half_a_gate_plain), (the_other_half, the_other_half_plain), (whole_of_mixed, whole_of_mixed_plain),
    (overwritten, sigmoid), (zeroed, zeroed_plain), (into_constants, into_constants_plain),
]  # fmt: skip


@pytest.mark.parametrize("itemised", [False, True])
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(("written", "plain"), WHOLE + PARTS, ids=lambda f: f.__name__)
def test_twins(written, plain, rules, itemised):
    compare(written, plain, rules, itemised)


@pytest.mark.parametrize(("written", "plain"), WHOLE + PARTS, ids=lambda f: f.__name__)
def test_twins_of_one_sample(written, plain):
    compare(written, plain, "hilrp", False, batch=1)


class Direct(nn.Module):
    """Features times a gate that is taken as it is, and not through one more view of it."""

    def __init__(self, gate) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.head, self.gate = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4), gate

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x) * self.gate(self.b(x)))


def from_detached(g):
    held, other = g * 2, g.detach()
    held[:, :4].copy_(other[:, :4])
    held[:, 4:].copy_(other[:, 4:])
    return held


def filled(g):
    held = g * 2
    held[:, :4].fill_(0.3)
    held[:, 4:].fill_(0.7)
    return held


#: Tensors whose halves are written to one after the other, and what they are as a whole: a gate, a constant.
WHOLES = {
    "made gates": (lambda g: each_half(g)[0], torch.sigmoid),
    "detached": (from_detached, Tensor.detach),
    "constants": (filled, lambda g: torch.tensor([0.3, 0.7], dtype=F64).repeat_interleave(4).expand_as(g)),
}


@pytest.mark.parametrize("rules", ["hilrp", "attnlrp", "epsilon", "secant"])
@pytest.mark.parametrize("kind", WHOLES)
def test_a_tensor_is_what_was_written_to_all_of_its_parts(kind, rules):
    """Relevance and entries are those of the twin: nothing is left of what was there before."""
    x = torch.randn(2, 8, dtype=F64, generator=torch.Generator().manual_seed(3))
    models = [Direct(each).to(F64).eval() for each in WHOLES[kind]]
    one, other = (hilrp.explain(model, x, 1, rules) for model in models)
    torch.testing.assert_close(one.relevance, other.relevance, rtol=1e-10, atol=1e-12)
    entries = [{name: t for name, t in each.ledger.entries.items() if t.abs().max() > 1e-12} for each in (one, other)]
    torch.testing.assert_close(*entries)


# Every operation of the table ----------------------------------------------------------------------------------------

#: Arguments of in-place operations that take some, after the tensor.
ARGUMENTS = {
    "add": (0.5,), "sub": (0.25,), "mul": (1.5,), "div": (2.0,), "pow": (2,), "clamp": (-0.5, 0.5),
    "clamp_min": (0.1,), "clamp_max": (0.2,), "threshold": (0.1, 0.2), "leaky_relu": (0.1,), "elu": (), "hardtanh": (),
    "masked_fill": (torch.arange(8) % 3 == 0, 0.3), "index_fill": (0, torch.tensor([1]), 0.7),
    "lerp": (torch.full((8,), 0.3, dtype=F64), 0.4), "addcmul": (torch.ones(8, dtype=F64), torch.ones(8, dtype=F64)),
    "addcdiv": (torch.ones(8, dtype=F64), torch.full((8,), 2.0, dtype=F64)),
    "hypot": (torch.full((8,), 0.4, dtype=F64),), "rsqrt": (), "sqrt": (), "log": (), "log2": (), "log10": (),
    "log1p": (), "reciprocal": (),
}  # fmt: skip
#: Their argument must be positive.
_POSITIVE = frozenset("rsqrt sqrt log log2 log10 log1p reciprocal".split())
#: Not elementwise, or without a form that a test of one tensor could call.
_OTHERS = frozenset(
    "cumsum squeeze unsqueeze t transpose swapaxes swapdims scatter scatter_add index_add index_copy index_put "
    "masked_scatter dropout feature_dropout alpha_dropout feature_alpha_dropout rrelu addmm baddbmm detach copy "
    "as_strided expand where set_item bernoulli".split()
)


def _in_place(name: str):
    for space in (Tensor, torch, torch.nn.functional):
        if hasattr(space, f"{name}_"):
            return getattr(space, f"{name}_"), getattr(space, name)
    return None


NAMES = [name for name in TABLE if name not in _OTHERS and _in_place(name) is not None]
THROUGH = {
    "itself": lambda t: t,
    "view": lambda t: t.view(len(t), 2, 4).view(len(t), 8),
    "chunk": lambda t: t.chunk(2, 0)[0],
    "slice": lambda t: t[:1],
    "transpose": lambda t: t.view(len(t), 8, 1).transpose(1, 2).squeeze(1),
    "select": lambda t: t[-1:],
}


#: Rules and books, with which a write is compared: each operation meets each of them, and each kind of view.
WAYS = [("hilrp", False), ("secant", True), ("hilrp", True), ("secant", False)]


def ways(name: str) -> list[tuple[str, tuple[str, bool]]]:
    """Six of an operation's 24 pairs of a view and a way: the ways go round, from another one on for each operation."""
    start = NAMES.index(name)
    return [(through, WAYS[(start + i) % len(WAYS)]) for i, through in enumerate(THROUGH)]


def _defined(name: str, g: Tensor) -> Tensor:
    """What an operation is defined on, made of what is explained."""
    if name == "logit":
        return g.sigmoid()
    return g.square() + 0.1 if name in _POSITIVE else g * 1


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_that_writes(name):
    """Through every kind of view, with totals and itemised: as if the result had been put together."""
    write, plain = _in_place(name)
    arguments = ARGUMENTS.get(name, ())
    for view_name, (rules, itemised) in ways(name):
        through = THROUGH[view_name]

        def written(g, through=through):
            y = _defined(name, g)
            write(through(y), *arguments)
            return y, y

        def out_of_place(g, through=through):
            y = _defined(name, g)
            chosen = torch.zeros(y.shape, dtype=torch.bool)
            through(chosen).fill_(True)
            if bool(chosen.all()):
                y = plain(y, *arguments)
            else:
                rows = chosen[:, 0].tolist()
                y = torch.cat([plain(y[i : i + 1], *arguments) if rows[i] else y[i : i + 1] for i in range(len(y))])
            return y, y

        if name == "index_fill" and view_name not in ("itself", "view"):
            continue  # its index means another row in a part
        compare(written, out_of_place, rules, itemised)


def test_every_way_meets_every_view_and_every_operation():
    assert {(view, way) for name in NAMES for view, way in ways(name)} == {(v, w) for v in THROUGH for w in WAYS}
    for name in NAMES:
        assert {view for view, _ in ways(name)} == set(THROUGH)
        assert {way for _, way in ways(name)} == set(WAYS)


def test_in_place_operations_are_known():
    assert len(NAMES) >= 40


# Parts of one memory --------------------------------------------------------------------------------------------------


class Halves(nn.Module):
    """Layers in a row under the bounded rule, whose gamma falls with the depth, and two halves of one tensor between.

    ``join(self, h)`` says what of them goes into the head.
    """

    def __init__(self, join) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.first = nn.Linear(6, 8), nn.Linear(8, 8)
        self.other, self.last, self.head = nn.Linear(4, 4), nn.Linear(4, 8), nn.Linear(8, 3)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        h = self.join(self, self.first(self.stem(x).relu()).relu())
        return self.head(self.last(h).relu())


def untouched_by_a_view(model, h):
    kept, other = h.chunk(2, 1)
    other += model.other(kept)
    return kept


def untouched_in_a_buffer(model, h):
    buffer = h.new_empty(len(h), 8)
    buffer[:, :4] = h[:, :4]
    buffer[:, 4:] = model.other(h[:, 4:])
    return buffer[:, :4]


def untouched_by_a_split(model, h):
    buffer = torch.zeros_like(h)
    buffer[:, :4] = h[:, :4]
    buffer[:, 4:] = model.other(h[:, 4:])
    return buffer.split(4, 1)[0]


def overwritten(model, h):
    buffer = h.clone()
    buffer[:, :4] = model.other(h[:, 4:])
    buffer[:, :4] = h[:, :4]
    return buffer[:, :4]


def overwritten_as_a_whole(model, h):
    buffer = h.new_empty(len(h), 4)
    buffer.copy_(model.other(h[:, 4:]))
    buffer.view(-1, 2, 2).copy_(h[:, :4].view(-1, 2, 2))
    return buffer


@pytest.mark.parametrize(
    "join",
    [untouched_by_a_view, untouched_in_a_buffer, untouched_by_a_split, overwritten, overwritten_as_a_whole],
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize("rules", ["secant", "hilrp"])
def test_what_lies_beside_in_memory_is_not_what_the_score_depends_on(join, rules):
    """A layer whose output only shares its memory with what is used does not count: it would move the others' depth."""
    x = torch.randn(2, 6, dtype=F64, generator=torch.Generator().manual_seed(4))
    model, plain = (Halves(each).to(F64).eval() for each in (join, lambda self, h: h[:, :4]))
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    explainers = [hilrp.Explainer(each, rules, reference=0.0 if rules == "secant" else None) for each in (model, plain)]
    for _ in range(2):  # with what is known of the layers from before, too
        one, other = (each.explain(x, 1) for each in explainers)
        torch.testing.assert_close(one.relevance, other.relevance, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
def test_all_that_a_view_shows_counts(rules):
    """Both halves, where a view shows a bit of each."""

    def across(model, h):
        buffer = h.clone()
        buffer[:, 4:] = model.other(h[:, 4:])
        return buffer[:, 2:6]

    def plain(model, h):
        return torch.cat([h[:, 2:4], model.other(h[:, 4:])[:, :2]], 1)

    x = torch.randn(2, 6, dtype=F64, generator=torch.Generator().manual_seed(4))
    reference = 0.0 if rules == "secant" else None
    one, other = (
        hilrp.explain(Halves(each).to(F64).eval(), x, 1, rules, reference=reference) for each in (across, plain)
    )
    torch.testing.assert_close(one.relevance, other.relevance, rtol=1e-10, atol=1e-12)


# Pieces that carry nothing, constants in between, and the model's own tensors --------------------------------------


class Narrow(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(12, 8, bias=False), nn.Linear(8, 4, bias=False)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


def both(one, other, rules: str):
    """Explanations of two programs between the layers that give the same."""
    x = torch.randn(1, 12, dtype=F64, generator=torch.Generator().manual_seed(1))
    models = [Narrow(each).to(F64).eval() for each in (one, other)]
    with torch.no_grad():
        assert torch.equal(models[0](x), models[1](x))
    found, twin = (hilrp.explain(model, x, 1, rules) for model in models)
    torch.testing.assert_close(found.relevance, twin.relevance, rtol=1e-10, atol=1e-12)
    assert list(map(str, found.verdicts)) == list(map(str, twin.verdicts))


GATES = {
    "softmax": lambda h: h.softmax(1)[:, :4],
    "reciprocal": lambda h: (h[:, :4].abs() + 1).reciprocal(),
    "detached": lambda h: h[:, :4].detach(),
}
USES = {
    "maximum": torch.maximum,
    "clamp": lambda a, v: a.clamp(min=v),
    "mul": torch.mul,
    "matmul": lambda a, v: (a[:, :, None] @ v[:, None, :]).mean(1),
    "lerp": lambda a, v: torch.lerp(a, a.flip(1), v),
}


@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "attnlrp"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("gate", GATES)
def test_a_part_that_is_a_gate_carries_nothing(gate, use, rules):
    """Though the tensor that it is a part of does."""

    def written(h):
        buffer = h.flip(1) * 2
        buffer[:, :4] = GATES[gate](h)
        return torch.cat([USES[use](h[:, :4], buffer[:, :4]), h[:, 4:]], 1)

    def plain(h):
        return torch.cat([USES[use](h[:, :4], GATES[gate](h)), h[:, 4:]], 1)

    both(written, plain, rules)


def zeroed(buffer, h):
    buffer.zero_()
    buffer.add_(h)


def filled(buffer, h):
    buffer.copy_(torch.ones(8, dtype=F64))
    buffer += h


def filled_twice(buffer, h):
    buffer.fill_(2.0)
    buffer.fill_(1.0)
    buffer.mul_(h)


@pytest.mark.parametrize("rules", RULES[:3])
@pytest.mark.parametrize(
    ("write", "value"), [(zeroed, lambda h: h), (filled, lambda h: 1 + h), (filled_twice, lambda h: h)]
)
def test_views_from_before_a_constant_took_the_place(write, value, rules):
    """They show what is written after it."""

    def written(h):
        buffer = h * 2
        part, again = buffer[:, 4:], buffer[:, 4:].view(-1, 2, 2)
        write(buffer, h)
        return torch.cat([part, again.flatten(1)], 1) + h

    def plain(h):
        return torch.cat([value(h)[:, 4:], value(h)[:, 4:]], 1) + h

    both(written, plain, rules)


OWN = {
    "clamp": lambda m: m.b.weight.data.clamp_(-0.1, 0.1),
    "detach": lambda m: m.b.weight.detach().mul_(0.5),
    "row": lambda m: m.b.weight.data[1].mul_(0.5),
    "view": lambda m: m.b.weight.data.view(-1)[3:9].fill_(0.25),
    "buffer": lambda m: m.steps.data.add_(1.0),
}


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
@pytest.mark.parametrize("write", OWN.values(), ids=OWN)
def test_the_models_own_tensors_are_not_written_to_through_data(write, rules):
    """And what is written there holds in the pass, as it does in the model."""

    class Net(Narrow):
        def __init__(self) -> None:
            super().__init__(None)
            self.register_buffer("steps", torch.zeros(8))

        def forward(self, x):
            write(self)
            return self.b(self.a(x) + self.steps)

    x = torch.randn(2, 12, dtype=F64, generator=torch.Generator().manual_seed(1))
    reference = 0.0 if rules == "secant" else None
    model = Net().to(F64).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = hilrp.explain(model, x, 1, rules, reference=reference, audit="off")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(found.output, model(x))
    assert float(found.ledger.residual.max()) < 1e-10


# Results that are views of what a kernel made -------------------------------------------------------------------------

INSIDE = {
    "avg_pool1d": lambda g: F.avg_pool1d(g[:, None], 1)[:, 0],
    "adaptive_avg_pool1d": lambda g: F.adaptive_avg_pool1d(g[None], 8)[0],
    "instance_norm": lambda g: F.instance_norm(g[:, None])[:, 0],
    "einsum": lambda g: torch.einsum("bi,ij->bj", g, torch.eye(8, dtype=g.dtype)),
    "linear": lambda g: F.linear(g[None], torch.eye(8, dtype=g.dtype), torch.ones(8, dtype=g.dtype))[0],
}


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", INSIDE)
def test_what_a_kernel_made_is_no_stranger(name, graph, rules):
    """Of such a result without a graph nobody has seen the base; the half that is not written to is in it, too."""

    def made(g):
        g = g.detach()
        with torch.set_grad_enabled(graph):
            return INSIDE[name](g)

    def written(g):
        gate = made(g)
        gate[:, 4:].clamp_min_(0.1)
        return gate, g

    def plain(g):
        gate = made(g)
        return torch.cat([gate[:, :4], gate[:, 4:].clamp_min(0.1)], 1), g

    compare(written, plain, rules, itemised=False)
