"""What the graph keeps between the passes, and that nothing else is needed."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hilrp


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_the_graph_keeps_no_inputs_of_convolutions(rules):
    """Between the passes activations are gone: what is kept are slopes, ratios and signs."""
    seen = []

    class Watched(nn.Sequential):
        def forward(self, x):
            for layer in self:
                x = layer(x)
                seen.append(weakref.ref(x))
            return x.mean((2, 3))

    layers = [
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 4, 1),
    ]
    alive = []

    def target(output):
        alive.extend(ref() is not None for ref in seen[:-1])
        return output[:, 0]

    hilrp.explain(Watched(*layers).eval(), torch.randn(2, 3, 12, 12), target, rules, audit="off", stages=None)
    assert alive == [False] * 4


def test_an_audit_that_is_off_runs_once(monkeypatch):
    """Nothing is looked for where nothing would be said."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    runs = []
    model.register_forward_pre_hook(lambda *_: runs.append(1))
    monkeypatch.setattr("hilrp.attribution.forward_backward.tolerance", lambda *_: -1.0)
    hilrp.explain(model, torch.randn(1, 3, 8, 8), 0, audit="off")
    assert len(runs) == 1
    with pytest.raises(hilrp.HilrpError):
        hilrp.explain(model, torch.randn(1, 3, 8, 8), 0)
    assert len(runs) > 2


@pytest.mark.parametrize("rules", ["hilrp", "secant", "epsilon", "zplus", "gamma_weights", "gamma_weights_bias"])
def test_convolutions_read_none_of_what_is_not_kept(rules, monkeypatch):
    """The values that the graph lets go are not a number when the backward pass comes by."""
    torch.manual_seed(7)

    class Convolutions(nn.Module):
        def __init__(self):
            super().__init__()
            self.flat = nn.Sequential(
                nn.Conv2d(3, 8, 3, padding="same"),
                nn.ReLU(),
                nn.Conv2d(8, 8, 3, 2, groups=8),
                nn.ReLU(),
                nn.ConvTranspose2d(8, 6, 2, 2),
            )
            self.line, self.solid = nn.Conv1d(6, 4, 3, dilation=2), nn.Conv3d(1, 2, 3)

        def forward(self, x):
            x = self.flat(x)
            return self.line(x.mean(3)).flatten(1).sum(1) + self.solid(x[:, None]).flatten(1).sum(1)

    model, x = Convolutions().double().eval(), torch.randn(2, 3, 12, 12).double()
    chosen = hilrp.Rules(linear=rules) if rules.startswith("gamma_weights") else rules
    expected = hilrp.explain(model, x, lambda out: out, chosen, stages=None).relevance
    empty = torch.empty_strided
    monkeypatch.setattr(torch, "empty_strided", lambda *a, **k: empty(*a, **k).fill_(float("nan")))
    assert torch.equal(hilrp.explain(model, x, lambda out: out, chosen, stages=None).relevance, expected)


def test_a_weight_that_is_written_to():
    """Another tensor stands for the weight from then on; the model's own stays as it is, and so does the graph."""

    class Rewritten(nn.Module):
        def __init__(self, in_place):
            super().__init__()
            torch.manual_seed(0)
            self.register_buffer("weight", torch.randn(3, 3, 3, 3))
            self.in_place = in_place

        def forward(self, x):
            y = F.conv2d(x, self.weight).relu()
            weight = self.weight.mul_(2) if self.in_place else self.weight * 2
            return F.conv2d(y, weight).flatten(1).sum(1)

    x = torch.randn(1, 3, 8, 8)
    for rules in ("hilrp", "naive", "secant"):
        models = Rewritten(True).eval(), Rewritten(False).eval()
        found, expected = (hilrp.explain(m, x, lambda out: out, rules, audit="off") for m in models)
        assert torch.equal(found.relevance, expected.relevance)
        assert torch.equal(models[0].weight, models[1].weight)


def test_where_hooks_are_forbidden():
    model, x = (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval(),
        torch.randn(1, 3, 8, 8),
    )
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        found = hilrp.explain(model, x, 0)
    torch.testing.assert_close(found.relevance, hilrp.explain(model, x, 0).relevance)
