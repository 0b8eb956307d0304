"""What a pass computed is handed to the next: each state of a chain runs once, and maps are the same."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hilrp
from helpers.models import small_classifier, small_swin
from hilrp import Chains
from hilrp.attribution import explainer
from hilrp.engine.tape import OtherWay, Tape, Tapes, described


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
    monkeypatch.setattr(explainer, "Tapes", lambda *_: Tapes())


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
    tape = Tape()
    tape.keep(described("mul", (torch.ones(1), 2.0), {}), torch.ones(1, requires_grad=True))
    tapes = Tapes(played=tape)
    assert not tapes.next(described("mul", (torch.zeros(1), 2.0), {})).requires_grad
    with pytest.raises(OtherWay):  # there are no more
        tapes.next(described("mul", (torch.zeros(1), 2.0), {}))
    tapes.begin()
    for other in (("mul", (torch.zeros(1), 3.0), {}), ("add", (torch.zeros(1), 2.0), {})):
        with pytest.raises(OtherWay):
            tapes.next(described(*other))
    assert described("sum", (torch.ones(1), (1, 2)), {"keepdim": True}) == ("sum", (None, (1, 2)), (True,))
