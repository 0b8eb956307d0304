"""What is remembered of a model holds for what was asked, for inputs of that form, and under those rules alone."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn

import hilrp
from hilrp.attribution.forms import described, of_input, of_registered, of_target


class Heads(nn.Module):
    """Three outputs: one that hilrp sees, one that is another without gradients, one in which samples mix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(12, 8, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, x):
        h = self.a(x)
        return {
            "first": self.b(h),
            "second": self.b(h * (3.0 if torch.is_grad_enabled() else 1.0)),
            "third": self.b(h * h.roll(1, 0).sigmoid()),
        }


class Reader:
    """A target that is an object."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, output):
        return output[self.name][:, 1]

    def read(self, output):
        return self(output)


def read(output, name):
    return output[name][:, 1]


def by_tuple(name):
    names = (name,)
    return lambda output: output[names[0]][:, 1]


MAKERS = {
    "default": lambda name: lambda output, name=name: output[name][:, 1],
    "keyword": lambda name: lambda output, *, name=name: output[name][:, 1],
    "closure": lambda name: lambda output: output[name][:, 1],
    "tuple in a closure": by_tuple,
    "partial": lambda name: partial(read, name=name),
    "object": Reader,
    "method": lambda name: Reader(name).read,
}


@pytest.fixture
def x():
    return torch.randn(2, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_targets_that_share_their_code_are_checked_each(x, make):
    model = Heads().double().eval()
    assert [*map(str, hilrp.explain(model, x, make("first")).verdicts)] == ["valid"] * 2
    with pytest.raises(hilrp.AuditError, match="the model itself gives"):
        hilrp.explain(model, x, make("second"))
    assert any("samples see each other" in note for note in hilrp.explain(model, x, make("third")).notes)


def test_what_is_given_beside_tensors_is_part_of_the_form(x):
    class Flagged(Heads):
        def forward(self, x, branch=False, mode=("plain",)):
            return super().forward(x)["second" if branch or mode[0] != "plain" else "first"]

    model = Flagged().double().eval()
    hilrp.explain(model, {"x": x, "branch": False}, 1)
    for other in ({"x": x, "branch": True}, {"x": x, "mode": ("other",)}):
        with pytest.raises(hilrp.AuditError, match="the model itself gives"):
            hilrp.explain(model, other, 1)


def test_a_rule_that_is_registered_later_is_checked(x):
    class Part(nn.Module):
        def forward(self, h):
            return h[:, :4]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.part = nn.Linear(12, 8), nn.Linear(8, 4), Part()

        def forward(self, x):
            h = self.a(x)
            self.part(h).mul_(3)
            return self.b(h)

    model = Net().double().eval()
    hilrp.explain(model, x, 1)
    with hilrp.register(Part, "reindexing"), pytest.raises(hilrp.AuditError, match="the model itself gives"):
        hilrp.explain(model, x, 1)
    hilrp.explain(model, x, 1)


@torch.jit.script
def peak(x: torch.Tensor) -> float:
    """A number that is read out where nobody sees it."""
    return float(x.abs().max())


def test_an_output_that_is_no_logits_is_followed_too(x):
    class Net(Heads):
        def forward(self, x):
            h = self.a(x)
            return {"logits": self.b(h), "embedding": self.b(h * peak(x))}

    found = hilrp.explain(Net().double().eval(), x[:1], lambda output: output["embedding"][:, 1])
    assert [*map(str, found.verdicts)] == ["unverified"]
    assert "whether all that depends on the input was seen" in found.unchecked[0]
    found = hilrp.explain(Net().double().eval(), x[:1], lambda output: output["logits"][:, 1])
    assert [*map(str, found.verdicts)] == ["valid"]  # that one does not depend on it


class Frames(Heads):
    """Two frames make a clip: it takes no single sample."""

    def forward(self, x):
        return self.b(self.a(x).view(-1, 2, 8).flatten(0, 1) * self.factor(x))

    def factor(self, x):
        return torch.tensor([[peak(frame)] for frame in x], dtype=x.dtype)


def test_models_that_take_no_single_sample_are_followed_too(x):
    found = hilrp.explain(Frames().double().eval(), torch.cat([x, 2 * x]), 1)
    assert {*map(str, found.verdicts)} == {"unverified"}
    plain = Frames().double().eval()
    plain.factor = lambda x: 1.0
    assert {*map(str, hilrp.explain(plain, torch.cat([x, 2 * x]), 1).verdicts)} == {"valid"}


def test_a_check_that_can_not_be_made_is_told(x):
    """An operation without a form relative to a reference: what was followed can't be evaluated on another input."""

    class Net(Heads):
        def forward(self, x):
            h = self.a(x)
            return self.b(h + 0.1 * torch.quantile(h, h[:, :1].sigmoid().mean(), dim=1, keepdim=True))

    found = hilrp.explain(Net().double().eval(), x, 1, "hilrp", audit="warn")
    assert "does not run beside another input" in found.unchecked[0]
    assert {*map(str, found.verdicts)} == {"unverified"}


class Exits(nn.Module):
    """Small pictures leave early."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
        self.p, self.q, self.r = (nn.Conv2d(8, 8, 1) for _ in range(3))

    def forward(self, x):
        p = self.p(self.stem(x).relu()).relu()
        deep = self.r(self.q(p).relu()).relu()
        return self.head((deep if x.shape[-1] > 6 else p).mean((2, 3)))


def test_an_explainer_that_knows_the_layers_gives_what_a_new_one_gives():
    """Layers without a gamma count as layers, too: without them the depth of the others is another one."""
    model = Exits().double().eval()
    pictures = [torch.randn(1, 3, size, size, dtype=torch.float64) for size in (6, 9, 6, 9)]
    explainer = hilrp.Explainer(model, "secant", reference=0.0)
    for picture in pictures:
        found, fresh = explainer.explain(picture, 1), hilrp.explain(model, picture, 1, "secant", reference=0.0)
        torch.testing.assert_close(found.relevance, fresh.relevance, rtol=1e-12, atol=0)


def test_functions_that_hold_themselves(x):
    def walk(output, depth=2):
        return output["first"][:, 1] if depth == 0 else walk(output, depth - 1)

    model = Heads().double().eval()
    assert [*map(str, hilrp.explain(model, x, walk).verdicts)] == ["valid"] * 2
    assert described(walk) == described(walk)
    loop: list = [1]
    loop.append(loop)
    assert described(loop) == described(loop)


def test_a_function_that_keeps_its_weight(x):
    """A tensor of that name on a node of the graph is none of hilrp's rules."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h, weight):
            ctx.weight = weight
            return h * weight

        @staticmethod
        def backward(ctx, g):
            return g * ctx.weight, None

    class Net(Heads):
        def forward(self, x):
            return self.b(Scaled.apply(self.a(x), torch.arange(1.0, 9.0, dtype=x.dtype)))

    with hilrp.register(Scaled, "reindexing"):
        found = hilrp.explain(Net().double().eval(), x, 1, "secant", reference=0.0)
    assert float(found.ledger.residual.max()) < 1e-10


# Keys -----------------------------------------------------------------------------------------------------------------


def test_what_can_not_be_looked_into_is_known_by_itself_and_forgotten():
    reader = Reader("first")
    assert described(reader) == described(reader)
    assert described(reader) != described(Reader("first"))
    key, watched = described(reader), weakref.ref(reader)
    del reader
    gc.collect()
    assert watched() is None
    assert key != described(Reader("first"))
    assert described(key_less := object()) != described(key_less)  # nobody can say that it is the same


def test_forms():
    x = torch.zeros(2, 3)
    assert of_input({"x": x, "n": 1}) != of_input({"x": x, "n": 2})
    assert of_input({"x": x, "n": 1}) != of_input({"x": x, "n": True})
    assert of_input((x, x)) != of_input([x, x])
    assert of_input(x) == of_input(torch.ones(5, 3))  # how many samples there are is asked elsewhere
    assert of_input(x) != of_input(x.double())
    before = of_registered()
    with hilrp.register(torch.special.i0, "activation"):
        one = of_registered()
    with hilrp.register(torch.special.i0, "stop"):
        other = of_registered()
    with hilrp.register(torch.special.i0, "activation"):
        assert of_registered() == one
    assert len({before, one, other}) == 3
    assert of_registered() == before


def test_hilrps_own_targets():
    """A caption's embedding is data; which side of a box is asked for is not."""
    targets = hilrp.targets
    vectors = [targets.Cosine(torch.randn(4)) for _ in range(2)]
    assert of_target(vectors[0]) == of_target(vectors[1])
    assert of_target(vectors[0]) != of_target(targets.Cosine(torch.randn(4), of=lambda output: output[:, 0]))
    assert of_target(targets.Detection(0)) != of_target(targets.Detection(0, side="left"))
    assert of_target(None) is of_target(3) is None


def test_many_questions_are_not_all_remembered(x, monkeypatch):
    from hilrp.attribution import plain_passes

    monkeypatch.setattr(plain_passes, "_MOST_FORMS", 3)
    model = Heads().double().eval()
    for _ in range(5):
        hilrp.explain(model, x, Reader("first"))
    assert len(plain_passes._memory[model].checked) <= 3
