"""Reference passes: recorded on one input, replayed on another."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from hilrp.engine import Engine
from hilrp.layout import Layout
from hilrp.ledger import Books
from hilrp.rules import Rules
from test_rules_by_hand import Apply


class TestReference:
    """A recorded pass can be replayed in order, each rule being given the reference values of its operands."""

    def model(self):
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 5)
        ).eval()

    def record(self, model, x):
        engine = Engine(model, Rules(), Books(len(x)), on_problem=_raise, record=True)
        inputs = engine.tracker.watch(x, Layout(0, 1))
        with torch.no_grad(), engine:
            out = model(inputs)
        assert engine.recording
        return engine.recording, out

    def test_recording_holds_every_operation_with_its_values(self):
        model, x0 = self.model(), torch.randn(1, 3, 4, 4)
        recording, out = self.record(model, x0)
        assert torch.equal(out, model(x0))
        assert [call.name for call in recording] == ["conv2d", "relu", "flatten", "layer_norm", "linear"]
        assert torch.equal(recording[0].args[0], x0)
        assert torch.equal(recording[-1].output, out)

    def test_replay_hands_each_rule_its_reference(self, monkeypatch):
        model, x0, x = self.model(), torch.zeros(1, 3, 4, 4), torch.randn(1, 3, 4, 4)
        recording, _ = self.record(model, x0)
        seen = []
        original = Engine._next_reference
        monkeypatch.setattr(Engine, "_next_reference", lambda self, name: seen.append(original(self, name)) or seen[-1])
        engine = Engine(model, Rules(), Books(1), on_problem=_raise, reference=recording)
        leaf = x.clone().requires_grad_()
        inputs = engine.tracker.watch(leaf, Layout(0, 1))
        with engine:
            model(inputs)
        assert seen == recording

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: F.glu(x) + torch.lerp(x, x * 2, 0.3)[..., :2],
            lambda x: F.cosine_similarity(x, x * 2 + 1, dim=-1),
            lambda x: torch.var_mean(x, -1)[1] * 2,
            lambda x: x * _without_grad(x),
            lambda x: F.multi_head_attention_forward(
                x, x, x, 4, 2, torch.ones(12, 4), torch.ones(12), None, None, False, 0.0, torch.ones(4, 4), None
            )[0],
        ],
    )
    def test_composites_and_regions_without_a_graph_stay_in_step(self, function):
        model, x = Apply(function).eval(), torch.randn(1, 3, 4)
        recording, _ = self.record(model, torch.randn(1, 3, 4))
        engine = Engine(model, Rules(), Books(1), on_problem=_raise, reference=recording)
        inputs = engine.tracker.watch(x.clone().requires_grad_(), Layout(0, 1))
        with engine:
            model(inputs)
        assert next(engine._reference, None) is None, "the replay ended before the recording"

    def test_another_way_through_the_model_is_an_error(self):
        class Branches(nn.Module):
            def forward(self, x):
                return x.relu() if float(x.sum()) > 0 else x.tanh()

        model = Branches().eval()
        recording, _ = self.record(model, torch.ones(1, 4))
        engine = Engine(model, Rules(), Books(1), on_problem=_raise, reference=recording)
        inputs = engine.tracker.watch(-torch.ones(1, 4).requires_grad_(), Layout(0, 1))
        with pytest.raises(hilrp.ModelError, match="another way on the reference"), engine:
            model(inputs)


def _without_grad(x):
    with torch.no_grad():
        return x.sigmoid() + 1


def _raise(error):
    raise error
