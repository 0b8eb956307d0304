"""Several scores of one sample share its forward pass; chains whose states are given add up."""

from __future__ import annotations

import pytest
import torch

import hilrp
from helpers.models import small_swin
from hilrp.attribution.forward_backward import Pass
from hilrp.targets.classes import Several

X = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
CLASSES = [2, 0, 4]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return small_swin().double()


def all_of(output):
    return output[0, CLASSES]


@pytest.mark.parametrize("rules", ["secant", "hilrp", "epsilon"])
def test_a_row_for_each_score(model, rules):
    """As if each had been explained alone: relevance, ledger, stages."""
    found = hilrp.explain(model, X, Several(all_of), rules, itemised=True)
    assert found.relevance.shape == (3, 3, 64, 64)
    assert len(found) == 3
    for row, label in enumerate(CLASSES):
        alone = hilrp.explain(model, X, label, rules, itemised=True)
        torch.testing.assert_close(found.relevance[row], alone.relevance[0])
        torch.testing.assert_close(found.map[row], alone.map[0])
        assert float(found.score[row]) == float(alone.score[0])
        for name, value in alone.ledger.entries.items():
            assert float(found.ledger.entries[name][row]) == pytest.approx(float(value[0]), abs=1e-12)
        for name, stage in alone.stages.items():
            torch.testing.assert_close(found.stages[name][row], stage[0])
        assert found.verdicts[row] == alone.verdicts[0]
        assert float(found[row].ledger.residual) < 1e-10


def test_they_share_a_forward_pass(model, monkeypatch):
    runs = []
    begun, ran = Pass.__init__, Pass.backward
    monkeypatch.setattr(Pass, "__init__", lambda *a, **k: (runs.append("forward"), begun(*a, **k))[1])
    monkeypatch.setattr(Pass, "backward", lambda *a, **k: (runs.append("backward"), ran(*a, **k))[1])
    hilrp.explain(model, X, Several(all_of), audit="off")
    assert runs == ["forward", "backward", "backward", "backward"]


def test_layers_are_kept_for_each_score(model):
    keep = [next(name for name, _ in model.named_modules() if name.endswith("norm"))]
    found = hilrp.Explainer(model, "epsilon", keep=keep).explain(X, Several(all_of))
    alone = hilrp.Explainer(model, "epsilon", keep=keep).explain(X, CLASSES[1])
    torch.testing.assert_close(found[1].layers[keep[0]], alone.layers[keep[0]])


def test_more_passes(model):
    found = hilrp.explain(model, X, Several(all_of), passes=8)
    one = hilrp.explain(model, X, Several(all_of))
    torch.testing.assert_close(found.relevance.flatten(1).sum(1), one.relevance.flatten(1).sum(1))
    assert found.stderr.shape == (3, 64, 64)
    alone = hilrp.explain(model, X, lambda output: output[:, CLASSES[0]], passes=8)
    torch.testing.assert_close(found.relevance[0], alone.relevance[0])


def test_what_cannot_be():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval()
    with pytest.raises(hilrp.TargetError, match="one sample at a time, not for 2"):
        hilrp.explain(model, torch.randn(2, 3, 2, 2), Several(all_of))
    for wrong in (lambda y: y, lambda y: y[0, 0], lambda y: 3, lambda y: y[0, :0]):
        with pytest.raises(hilrp.TargetError, match="must return a tensor of scores"):
            hilrp.explain(model, torch.randn(1, 3, 2, 2), Several(wrong))


def test_chains_of_given_states(model):
    """Each state runs once as an input; the steps add up to the difference of the ends."""
    half = X.clone()
    half[..., 32:] = 0
    states = [torch.zeros_like(X), half, X]
    first, second = hilrp.Explainer(model).explain_chain(states, 1)
    with torch.no_grad():
        scores = [float(model(state)[0, 1]) for state in states]
    assert float(first.relevance.sum()) == pytest.approx(scores[1] - scores[0])
    assert float(second.relevance.sum()) == pytest.approx(scores[2] - scores[1])
    assert float(second.relevance[..., :32].abs().max()) == 0
    alone = hilrp.explain(model, X, 1, reference=half)
    torch.testing.assert_close(second.relevance, alone.relevance)
    predicted = hilrp.Explainer(model).explain_chain(states)
    assert int(predicted[0].target) == int(model(X).argmax())
    more = hilrp.Explainer(model).explain_chain(states, 1, passes=2)
    assert float(more[1].relevance.sum()) == pytest.approx(scores[2] - scores[1])


def test_chains_that_cannot_be(model):
    with pytest.raises(hilrp.InputError, match="two states or more"):
        hilrp.Explainer(model).explain_chain([X])
    with pytest.raises(hilrp.InputError, match=r"the states have \[1, 2\] samples"):
        hilrp.Explainer(model).explain_chain([X, torch.cat([X, X])])
    with pytest.raises(hilrp.InputError, match=r'relative to its first state\. Use rules="secant"'):
        hilrp.Explainer(model, "hilrp").explain_chain([X, X])
