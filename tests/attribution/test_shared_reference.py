"""A reference that is the same for all samples runs as one of them: the same maps as with a reference for each."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor, nn

import hilrp
from helpers.models import small_swin
from hilrp.attribution import shared_reference
from hilrp.attribution.shared_reference import is_shared, run_as_one_sample
from hilrp.engine.tape import OtherWay
from hilrp.method.fast import kernels


class Attends(nn.Module):
    """Sequence-first attention over patches, with parts that are written in place through views."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.attention = nn.MultiheadAttention(8, 2)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        t = self.patches(x).flatten(2).permute(2, 0, 1)
        t = t + self.attention(t, t, t, need_weights=False)[0]
        gate = torch.sigmoid(t[..., :4])
        t = t.clone(memory_format=torch.contiguous_format)
        t[..., 4:].mul_(gate)
        t.view(-1, 8)[:, :2].relu_()
        return self.head(self.norm(t).mean(0))


def convolves() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(196, 4)
    )


MODELS = {"attends": Attends, "convolves": convolves, "swin": small_swin}


def both(model: nn.Module, x: Tensor, reference: Any, **options: Any) -> tuple[hilrp.Explanation, hilrp.Explanation]:
    """Explanations relative to one reference for all, and to the same one for each."""
    shared = hilrp.explain(model, x, rules="secant", reference=reference, **options)
    return shared, hilrp.explain(model, x, rules="secant", reference=reference.expand_as(x).contiguous(), **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("itemised", [False, True])
def test_maps_are_those_with_a_reference_for_each_sample(name: str, itemised: bool) -> None:
    torch.manual_seed(1)
    model = MODELS[name]().double().eval()
    size = 64 if name == "swin" else 16
    x = torch.randn(3, 3, size, size, dtype=torch.float64)
    reference = torch.rand(1, 3, size, size, dtype=torch.float64)
    explainer = hilrp.Explainer(model, "secant", reference, itemised=itemised)
    shared = explainer.explain(x)
    assert explainer._runner.shares, "it did run as one sample"
    each = hilrp.explain(model, x, rules="secant", reference=reference.expand_as(x).contiguous(), itemised=itemised)
    torch.testing.assert_close(shared.relevance, each.relevance, rtol=1e-9, atol=1e-12)
    assert float(shared.ledger.residual.max()) < 1e-9
    for entry, value in each.ledger.entries.items():
        torch.testing.assert_close(shared.ledger.entries[entry], value, rtol=1e-9, atol=1e-12)
    assert shared.verdicts == each.verdicts


def test_the_reference_runs_as_one_sample() -> None:
    model, x, runs = convolves().eval(), torch.randn(5, 3, 16, 16), []
    model.register_forward_pre_hook(lambda _, given: runs.append(len(given[0])))
    for _ in range(2):
        hilrp.explain(model, x, rules="secant", reference=0.5, audit="off")
    assert runs == [5, 1, 5, 1, 5]  # the first time on the input alone: see below


@pytest.mark.parametrize("target", [None, 2, [0, 1, 2], hilrp.targets.Contrast(0, 1)])
def test_each_sample_may_be_asked_something_else(target: Any) -> None:
    torch.manual_seed(2)
    model, x = convolves().eval(), torch.randn(3, 3, 16, 16)
    shared, each = both(model, x, torch.zeros(1, 3, 16, 16), target=target)
    torch.testing.assert_close(shared.relevance, each.relevance, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(shared.ledger.entries["reference"], each.ledger.entries["reference"])


class OneAtATime(nn.Module):
    """Runs its samples one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = convolves()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(one[None]) for one in x])


class Reads(nn.Module):
    """Goes by a number that it reads out of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = convolves()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (2.0 if float(x.mean()) > 1e9 else 1.0)


class Needs(nn.Module):
    """Can't run on a single sample."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = convolves()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("one sample is too few")
        return self.inner(x)


@pytest.mark.parametrize("kind", [OneAtATime, Reads, Needs])
def test_models_that_take_another_way_run_on_the_whole_batch(kind: type[nn.Module]) -> None:
    torch.manual_seed(3)
    model, x, reference = kind().eval(), torch.randn(3, 3, 16, 16), torch.zeros(1, 3, 16, 16)
    explainer = hilrp.Explainer(model, "secant", reference, audit="warn")
    shared = explainer.explain(x)
    assert not explainer._runner.shares
    each = hilrp.explain(model, x, rules="secant", reference=torch.zeros_like(x), audit="warn")
    torch.testing.assert_close(shared.relevance, each.relevance)
    assert float(shared.ledger.residual.max()) < 1e-5


class PerSample(nn.Module):
    """A product with something that one of these makes of the number or of the place of a sample."""

    WAYS: ClassVar = {
        "a cap for each place": lambda s, y: torch.minimum(y, s.cap[: len(y)].expand(-1, 4) - 0.3),
        "a floor for each place": lambda s, y: y.clamp(min=s.cap[: len(y)].expand(-1, 4)),
        "a constant for each place": lambda s, y: torch.hypot(y, s.cap[: len(y)].expand(-1, 4)),
        "an exponent for each place": lambda s, y: (y.abs() + 0.1) ** s.cap[: len(y)],
        "beta is the number": lambda s, y: nn.functional.softplus(y, len(y)),
        "the order of a norm is the number": lambda s, y: y.norm(len(y), dim=1, keepdim=True),
        "a slope that is the number": lambda s, y: nn.functional.leaky_relu(y, len(y)),
        "a power that is the number": lambda s, y: y ** len(y),
        "the number is added": lambda s, y: y + y.shape[0],
        "the number as a tensor": lambda s, y: y * torch.full((4,), float(len(y))),
        "divided by the number": lambda s, y: y / len(y),
        "offsets by place": lambda s, y: y + torch.arange(float(len(y)))[:, None],
        "neighbours": lambda s, y: y + 0.1 * y[s.neighbour],
        "other samples": lambda s, y: y.softmax(0),
    }

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.a, self.b = nn.Linear(48, 4, bias=False), nn.Linear(48, 4)
        self.register_buffer("cap", torch.tensor([[0.05], [0.4], [0.8]]))
        self.register_buffer("neighbour", torch.tensor([1, 2, 0]))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.a(x) * self.WAYS[self.way](self, self.b(x))


@pytest.mark.parametrize("audit", ["strict", "off"])
@pytest.mark.parametrize("way", PerSample.WAYS)
def test_what_depends_on_the_number_or_the_place_of_samples(way: str, audit: str) -> None:
    """One sample does not stand for all: the reference runs as a batch, and nothing is said that is not so of it."""
    torch.manual_seed(4)
    model, x = PerSample(way).double().eval(), torch.randn(3, 3, 4, 4, dtype=torch.float64)
    shared, each = both(model, x, torch.full((1, 3, 4, 4), 0.3, dtype=torch.float64), target=1, audit=audit)
    torch.testing.assert_close(shared.relevance, each.relevance, rtol=1e-9, atol=1e-12)
    assert (shared.verdicts, shared.notes) == (each.verdicts, each.notes)


@pytest.mark.parametrize(
    "take",
    [
        lambda y, i: y[i],
        lambda y, i: y[i, :2],
        lambda y, i: y[i.tolist()],
        lambda y, i: y.index_select(0, i),
        lambda y, i: y.gather(0, i[:, None]),
        lambda y, i: torch.take_along_dim(y, i[:, None], dim=0),
        lambda y, i: y.T[:, i],
    ],
)
def test_samples_are_not_taken_by_number_where_there_is_one(take: Any) -> None:
    """On a GPU the kernel would fail, and with it everything after it."""

    class Takes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return take(x.flatten(1) * 2, torch.tensor([1, 2, 0])).sum()[None].expand(len(x))[:, None]

    with pytest.raises(OtherWay, match="by number"):
        run_as_one_sample(Takes().eval(), hilrp.Rules.named("secant"), torch.ones(1, 3).expand(3, 3), 3, True)


def test_what_a_model_notes_of_the_number_of_samples_is_taken_back() -> None:
    class Notes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.count = nn.Linear(48, 4), None

        def forward(self, x: Tensor) -> Tensor:
            if self.count is None:
                self.count = len(x)
            return self.head(x.flatten(1)).reshape(self.count, -1)

    model, x = Notes().eval(), torch.randn(3, 3, 4, 4)
    found = hilrp.explain(model, x, 1, reference=0.3, audit="off")
    assert model.count == 3
    assert found.output.shape == (3, 4)


class Remembers(nn.Module):
    """Goes on with what it has made of its first input, or of the number of its samples."""

    PLACES: ClassVar = ["buffer", "list", "dictionary", "object", "number", "queue", "set", "elsewhere"]
    ELSEWHERE: ClassVar = WeakKeyDictionary()

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place, self.head = place, nn.Linear(48, 4)
        self.register_buffer("kept", None)
        self.held: Any = {"list": [], "dictionary": {}, "set": set(), "queue": ([], deque())}.get(place)
        self.held = SimpleNamespace(scale=None) if place == "object" else self.held

    def scale(self, x: Tensor) -> Any:
        new = len(x) if self.place in ("number", "set") else x.detach().abs().mean()
        if self.place == "buffer":
            self.kept = new if self.kept is None else self.kept
            return self.kept
        if self.place == "object":
            self.held.scale = new if self.held.scale is None else self.held.scale
            return self.held.scale
        if self.place == "elsewhere":
            return self.ELSEWHERE.setdefault(self, new)
        if self.place == "dictionary":
            return self.held.setdefault("scale", new)
        if self.place == "number":
            self.held = self.held or new
            return self.held
        held = self.held[1] if self.place == "queue" else self.held
        if not held:
            held.add(new) if self.place == "set" else held.append(new)
        return next(iter(held))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) * self.scale(x)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("place", Remembers.PLACES)
def test_what_a_model_keeps_of_its_first_input_is_of_the_input(place: str, again: bool) -> None:
    """Not of the one sample of the reference that ran first: the score would be another one, and "valid"."""
    torch.manual_seed(5)
    model, x = Remembers(place).double().eval(), torch.randn(3, 3, 4, 4, dtype=torch.float64)
    expected = deepcopy(model)(x)[:, 1]
    if again and place != "elsewhere":  # it has been explained, and begins anew
        fresh = deepcopy(model)
        hilrp.explain(model, x + 1, 1, reference=0.3, audit="off")
        model.held, model.kept = fresh.held, None
    found = hilrp.explain(model, x, 1, reference=0.3, audit="warn" if place in ("number", "set") else "off")
    torch.testing.assert_close(found.score, expected.detach())
    assert torch.equal(model(x)[:, 1], expected)


def test_a_model_that_holds_more_than_can_be_looked_at_runs_on_the_whole_batch(monkeypatch) -> None:
    model, x, runs = convolves().eval(), torch.randn(5, 3, 16, 16), []
    model.register_forward_pre_hook(lambda _, given: runs.append(len(given[0])))
    monkeypatch.setattr(shared_reference, "_MOST_HELD", 3)
    hilrp.explain(model, x, rules="secant", reference=0.5, audit="off")
    assert 1 not in runs


@pytest.mark.parametrize("layer", [nn.ConvTranspose2d(3, 2, 3), nn.Conv2d(3, 2, 3, padding="same")], ids=repr)
def test_layers_on_samples_within_samples(layer: nn.Module) -> None:
    """Frames of a video are folded into the batch: what is known of one sample is laid out for all of them."""

    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x.flatten(0, 1)).relu()
            return y.unflatten(0, (len(x), -1)).mean((1, 3, 4))

    x = torch.randn(3, 4, 3, 6, 6)
    shared, each = both(Frames().eval(), x, torch.full((1, 4, 3, 6, 6), 0.3), target=1)
    torch.testing.assert_close(shared.relevance, each.relevance, rtol=1e-4, atol=1e-6)
    assert shared.verdicts == each.verdicts == [hilrp.Verdict.VALID] * 3


def test_what_is_shared() -> None:
    x, one = torch.randn(3, 3, 4, 4), torch.randn(1, 3, 4, 4)
    assert is_shared(x, one.expand_as(x), 3)
    assert not is_shared(x, torch.zeros_like(x), 3)  # equal, but nobody has said so
    assert not is_shared(x[:1], one, 1)
    words = torch.ones(3, 5, dtype=torch.long)
    assert not is_shared((x, words), (one.expand_as(x), words), 3)
    mask = torch.ones(7, dtype=torch.long)
    assert is_shared((x, mask), (one.expand_as(x), mask), 3)


class Mixes(nn.Module):
    """Tokens as a picture and back: a depthwise convolution takes a batch of them in the order that they lie in."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm = nn.Conv2d(3, 64, 2, 2), nn.LayerNorm(64)
        self.mix, self.head = nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        t = self.norm(self.patches(x).flatten(2).transpose(1, 2))
        t = self.mix(t.transpose(1, 2).unflatten(2, (8, 8))).flatten(2).transpose(1, 2)
        return self.head(nn.functional.gelu(t).mean(1))


def test_results_lie_in_memory_as_those_of_a_batch(monkeypatch):
    """Else kernels, which take the two side by side, would have to leave them to several operations."""
    model, x = Mixes().eval(), torch.randn(3, 3, 16, 16)
    orders = {True: [], False: []}

    def seen(first: Tensor, *_: Tensor, before: tuple[Tensor, ...] = ()) -> None:
        for t in before:
            orders[t.stride(0) == 0].append((t.stride()[1:], first.stride()[1:]))

    monkeypatch.setattr(kernels, "_fused", seen)
    shared, each = both(model, x, torch.zeros(1, 3, 16, 16), target=1, stages=None)
    torch.testing.assert_close(shared.relevance, each.relevance, rtol=1e-4, atol=1e-6)
    differ = {kind: {pair for pair in found if pair[0] != pair[1]} for kind, found in orders.items()}
    assert orders[True]
    assert differ[True] <= differ[False]
