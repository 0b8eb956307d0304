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


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
def test_scores_that_are_written_to_after_they_are_named(rules):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).double().eval()

    def doubled(output):
        scores = output[0, :3] * 1
        scores.mul_(2)
        return scores

    x = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    found = hilrp.explain(model, x, Several(doubled), rules, reference=0.3 if rules == "secant" else None)
    torch.testing.assert_close(found.score, 2 * model(x)[0, :3].detach())
    assert float(found.ledger.residual.max()) < 1e-10


def test_numbers_that_a_function_reads_out_are_told_of_as_elsewhere():
    """On the reference it would ask for something else: no row is valid."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).double().eval()
    x = torch.randn(1, 3, 2, 2, dtype=torch.float64)
    found = hilrp.explain(model, x, Several(lambda output: output[0] * float(output[0, 0])), reference=0.3)
    assert {*map(str, found.verdicts)}.isdisjoint({"valid"})
    assert any("the target reads numbers out" in reason for reason in found.unchecked)


@pytest.mark.parametrize("passes", [1, 2])
def test_leaks_that_cancel_along_a_chain_are_an_error(passes):
    """What one step loses the next one makes: the books of the whole close, and no step is right."""

    class Loses(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x):
            return self.head(torch.special.i1(x))

    model, x = Loses().double().eval(), torch.ones(1, 6, dtype=torch.float64)
    with (
        hilrp.register(torch.special.i1, "reindexing"),
        pytest.raises(hilrp.BooksError, match=r"largest leak is at `\(model\): (special_)?i1`"),
    ):
        hilrp.Explainer(model).explain_chain([-x, x, -x], 1, passes)


class Scaled(torch.nn.Module):
    """Logits of a picture, scaled by a table that whole numbers look up."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.table = torch.nn.Linear(12, 3), torch.nn.Embedding(5, 3)

    def forward(self, picture, number):
        return self.head(picture.flatten(1)) * self.table(number)


def test_states_and_references_that_are_not_like_the_input():
    model, x, number = Scaled().eval(), torch.randn(2, 3, 2, 2), torch.tensor([1, 2])
    explainer = hilrp.Explainer(model)

    def state(picture, number=number):
        return {"picture": picture, "number": number}

    whole = explainer.explain_chain([state(x * 0), state(x)], 1)
    turned = explainer.explain_chain(iter([{"number": number, "picture": x * 0}, state(x)]), 1)
    torch.testing.assert_close(whole[0].relevance["picture"], turned[0].relevance["picture"])
    with pytest.raises(hilrp.InputError, match=r"state 0.*other values than the input in what is held fixed"):
        explainer.explain_chain([state(x * 0, number + 1), state(x)], 1)
    with pytest.raises(hilrp.InputError, match=r"state 0.*has the shape \(2, 3, 2, 1\)"):
        explainer.explain_chain([state(x[..., :1]), state(x)], 1)
    with pytest.raises(hilrp.InputError, match=r"state 1.*must have the names of the input, picture, number"):
        explainer.explain_chain([state(x), {"picture": x}, state(x)], 1)
    with pytest.raises(hilrp.InputError, match="a list of two states"):
        explainer.explain_chain(state(x), 1)
    for reference in (state(x * 0, number + 1), lambda question: [state(x * 0, number + 1)]):
        with pytest.raises(hilrp.InputError, match="other values than the input in what is held fixed"):
            hilrp.explain(model, state(x), 1, reference=reference)
    assert hilrp.explain(model, state(x), 1, reference=state(x * 0, number.clone())).verdicts[0]


def test_chains_that_cannot_be(model):
    with pytest.raises(hilrp.InputError, match="two states or more"):
        hilrp.Explainer(model).explain_chain([X])
    with pytest.raises(hilrp.InputError, match=r"the states have \[1, 2\] samples"):
        hilrp.Explainer(model).explain_chain([X, torch.cat([X, X])])
    with pytest.raises(hilrp.InputError, match=r'relative to its first state\. Use rules="secant"'):
        hilrp.Explainer(model, "hilrp").explain_chain([X, X])
