"""What a pass computed is handed to the next: each state of a chain runs once, and maps are the same."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hilrp
from helpers.models import small_classifier, small_swin
from hilrp import Chains
from hilrp.engine.tape import Names, OtherWay, Tape, Tapes, described


class Counting(TorchDispatchMode):
    """Counts how often an operation ran."""

    def __init__(self, operation):
        super().__init__()
        self.operation, self.count = operation, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is self.operation
        return func(*args, **(kwargs or {}))


def unshared(monkeypatch):
    """Passes that run on their references themselves."""
    monkeypatch.setattr("hilrp.engine.tape.Tapes", lambda *_: Tapes())


def test_each_state_runs_once():
    """The reference, the states between and, since its graph is another one each time, the input for every draw."""
    model, x = small_classifier(), torch.randn(2, 3, 8, 8)
    own = hilrp.Explainer(model, "epsilon", "mean", audit="off")
    own.explain(x, 1)
    counts = []
    for passes in (1, 8, Chains(steps=4, draws=2)):
        with Counting(torch.ops.aten.convolution.default) as counting:
            own.explain(x, 1, passes=passes)
        counts.append(counting.count)
    forward = counts[0] // 2  # on the input and on the reference
    # With several passes the class is checked on one more plain run.
    assert counts[1:] == [forward * (1 + 8 + 1)] * 2


@pytest.mark.parametrize(("rules", "passes"), [("secant", 4), ("epsilon", Chains(3, 2))], ids=str)
def test_maps_are_the_same(passes, rules, monkeypatch):
    torch.manual_seed(0)
    model, x = small_swin().double(), torch.randn(2, 3, 64, 64, dtype=torch.float64)
    shared = hilrp.explain(model, x, 1, rules, "mean", passes=passes)
    unshared(monkeypatch)
    alone = hilrp.explain(model, x, 1, rules, "mean", passes=passes)
    torch.testing.assert_close(shared.relevance, alone.relevance, rtol=0, atol=1e-12)


class Writing(nn.Module):
    """Writes in place, to views, to its own buffer, and by masks that depend on the input."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 3)
        self.register_buffer("state", torch.zeros(1))

    def forward(self, x):
        z = self.conv(x)
        z[:, :3].relu_()
        z[:, 3:].mul_(0.5).add_(1)
        z[z > 1.5] = 1.5
        top, _ = z.flatten(2).topk(5)
        self.state.fill_(2)
        return self.head(top.mean(-1) * self.state)


def test_models_that_write_in_place(monkeypatch):
    torch.manual_seed(1)
    model, x = Writing().double().eval(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    shared = hilrp.explain(model, x, 1, "secant", passes=8)
    unshared(monkeypatch)
    torch.testing.assert_close(
        shared.relevance, hilrp.explain(model, x, 1, "secant", passes=8).relevance, rtol=0, atol=1e-12
    )


class Detour(nn.Module):
    """Takes one step more where the picture is bright, which changes nothing."""

    def __init__(self):
        super().__init__()
        self.conv, self.head, self.detours = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), []

    def forward(self, x):
        z = self.conv(x)
        bright = bool(x[:, :, :4].std() > 0.6)
        self.detours.append(bright)
        return self.head((z * 1 if bright else z).relu().mean((2, 3)))


def test_a_model_that_takes_another_way_runs_on_its_reference(monkeypatch):
    torch.manual_seed(2)
    model, x = Detour().double().eval(), torch.randn(1, 3, 8, 8, dtype=torch.float64)
    found = hilrp.explain(model, x, 1, "secant", passes=4)
    assert {*model.detours} == {True, False}
    unshared(monkeypatch)
    torch.testing.assert_close(found.relevance, hilrp.explain(model, x, 1, "secant", passes=4).relevance)


def test_what_was_kept_is_let_go():
    seen = []

    class Leaving(nn.Module):
        def forward(self, x):
            z = x.square()
            seen.append(weakref.ref(z.untyped_storage()))
            return z.mean((2, 3))

    hilrp.explain(Leaving().eval(), torch.randn(1, 3, 4, 4), 1, "secant", passes=4)
    gc.collect()
    assert not any(each() is not None for each in seen)


def test_a_tape_knows_its_calls():
    tape, names, result = Tape(), Names(), torch.ones(1)
    call = described("mul", (torch.ones(1), 2.0), {}, names)
    tape.keep(call, torch.ones(1, requires_grad=True))
    tapes = Tapes(played=tape)
    with pytest.raises(OtherWay, match="shorter"):
        tapes.end()
    assert not tapes.next(described("mul", (torch.zeros(1), 2.0), {}, names)).requires_grad
    tapes.end()
    with pytest.raises(OtherWay):  # there are no more
        tapes.next(call)
    tapes.begin()
    names.add(result)
    for other in (
        ("mul", (torch.zeros(1), 3.0), {}),
        ("add", (torch.zeros(1), 2.0), {}),
        ("mul", (torch.zeros(2), 2.0), {}),
        ("mul", (result, 2.0), {}),
        ("mul", (torch.zeros(1),), {"other": 2.0}),
        ("mul", (torch.zeros(1), slice(1, 2)), {}),
    ):
        with pytest.raises(OtherWay):
            tapes.next(described(*other, names))


def seen(x):
    return bool((x.detach().flatten(1).var(1) > 0.8).any())


def unseen(x):
    """The same, where nobody sees it."""
    box = []
    thread = threading.Thread(target=lambda: box.append(seen(x)))
    thread.start()
    thread.join()
    return box[0]


BRANCHES = {
    "another tensor": lambda s, h, high: torch.sigmoid(h * 2.0 if high else s.shifted(h)),
    "another argument": lambda s, h, high: h.clamp(min=0.1) if high else h.clamp(max=0.1),
    "another parameter": lambda s, h, high: torch.nn.functional.prelu(h, s.a if high else s.b),
    "another buffer": lambda s, h, high: torch.maximum(h, s.low if high else s.high),
}


class Branching(nn.Module):
    def __init__(self, branch, look):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out = nn.Conv2d(3, 8, 5, padding=2), nn.Linear(512, 3)
        self.a, self.b = nn.Parameter(torch.tensor([0.1])), nn.Parameter(torch.tensor([0.7]))
        self.register_buffer("low", torch.zeros(1))
        self.register_buffer("high", torch.ones(1))
        self.branch, self.look = branch, look

    def shifted(self, h):
        return h * 2.0 + 1

    def forward(self, x):
        return self.out(self.branch(self, self.conv(x), self.look(x)).flatten(1))


@pytest.mark.parametrize("look", [seen, unseen])
@pytest.mark.parametrize("branch", BRANCHES)
def test_what_another_branch_computed_is_not_handed_on(branch, look):
    """Such a model has no map relative to a reference, as one pass says; more passes must not hide it."""
    model, x = (
        Branching(BRANCHES[branch], look).eval(),
        torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1)),
    )
    for passes in (1, 2, 8):
        with pytest.raises(hilrp.HilrpError):
            hilrp.explain(model, x, 1, "secant", passes=passes)
