"""Explainers that are told to record, as far as they can be looked at without a GPU.

Nothing changes, and classes are checked.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import hilrp
from helpers.models import small_classifier
from hilrp.attribution.cuda_graphs import Recorder, form
from hilrp.targets import Contrast
from hilrp.targets.classes import checked, score_of


@pytest.fixture
def model() -> nn.Module:
    return small_classifier()


# On a processor, nothing changes --------------------------------------------------------------------------------------

TARGETS = {
    "prediction": None,
    "class": 3,
    "classes": [4, 0],
    "tensor": torch.tensor([1, 2]),
    "contrast": Contrast(1, [0, 2]),
    "function": lambda out: out[:, 1] - out.mean(1),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reference", [None, 0.25])
def test_on_a_processor_it_is_as_without(model, target, reference):
    explainers = [hilrp.Explainer(model, reference=reference, compile=compile) for compile in (False, True)]
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        plain, found = (explainer.explain(x, TARGETS[target]) for explainer in explainers)
        assert torch.equal(found.relevance, plain.relevance)
        assert torch.equal(found.score, plain.score)
        assert found.notes == plain.notes
        assert found.ledger.entries.keys() == plain.ledger.entries.keys()
        assert all(torch.equal(found.ledger.entries[k], v) for k, v in plain.ledger.entries.items())


WRONG = {
    "too large": (5, r"target=5 is out of range: the model has 5 classes, 0 to 4\."),
    "negative": ([0, -1], r"target=-1 is out of range: the model has 5 classes, 0 to 4\."),
    "too many": ([0, 1, 2], r"target has 3 classes for a batch of 2: give one, or one per sample\."),
    "too few": (torch.tensor([1]), r"target has 1 classes for a batch of 2"),
    "a fraction": (0.5, r"target=0\.5 is not a class\. Use None"),
    "a truth value": (True, r"target=True is not a class"),
    "a name": ("cat", r"target='cat' is a name"),
    "wanted": (Contrast(7, 0), r"wanted=7 is out of range"),
    "other": (Contrast(0, [0, 9]), r"other=9 is out of range"),
    "others": (Contrast([0, 1], [0, 1, 2]), r"other has 3 classes for a batch of 2"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_classes_that_there_are_not(model, wrong):
    """Whoever checks: before a recording, or when the output is there."""
    target, message = WRONG[wrong]
    logits = torch.randn(2, 5)
    for check in (
        lambda: checked(target, logits),
        lambda: checked(target, logits.new_empty(1).expand(2, 5)),
        lambda: score_of(logits, target, 2),
        lambda: hilrp.Explainer(model, compile=True).explain(torch.randn(2, 3, 8, 8), target),
    ):
        with pytest.raises(hilrp.TargetError, match=message):
            check()


@pytest.mark.parametrize("target", [None, 3, [4, 0], torch.tensor([1, 2]), Contrast(1, [0, 2])])
def test_checked_classes_give_the_same_score(target):
    logits = torch.randn(2, 5)
    plain, found = score_of(logits, target, 2), score_of(logits, checked(target, logits), 2)
    assert torch.equal(found.value, plain.value)
    assert torch.equal(found.classes, plain.classes)
    assert (found.against is None) == (plain.against is None) == (not isinstance(target, Contrast))


# How many classes there are -------------------------------------------------------------------------------------------


class OnGpu:
    """A tensor that says that it is on a GPU."""

    def __init__(self, like: torch.Tensor) -> None:
        self.like, self.is_cuda = like, True

    def __getattr__(self, name: str):
        return getattr(self.like, name)


@pytest.fixture
def asked(monkeypatch):
    """What an explainer would record for a target."""
    find = hilrp.attribution.runner.tensors

    def ask(explainer: hilrp.Explainer, x: torch.Tensor, target):
        monkeypatch.setattr("hilrp.attribution.runner.tensors", lambda tree: [OnGpu(t) for t in find(tree)])
        try:
            inputs = explainer._runner.recordable(x, target, len(x), None)
            return None if inputs is None else inputs[1]
        finally:
            monkeypatch.setattr("hilrp.attribution.runner.tensors", find)

    return ask


def test_classes_are_those_of_the_model_as_it_is(model, asked):
    """An index that is out of range may not reach the device, which would never answer again."""
    explainer, x = hilrp.Explainer(model, compile=True), torch.randn(2, 3, 8, 8)
    assert asked(explainer, x, 3) is None
    explainer.explain(x)
    assert asked(explainer, x, 3).wanted.tolist() == [3, 3]
    assert asked(explainer, x, None).wanted is None
    assert asked(explainer, x, lambda out: out[:, 0]) is None
    with pytest.raises(hilrp.TargetError, match="5 classes"):
        asked(explainer, x, 6)

    model[5] = nn.Linear(4 * 36, 9).eval()
    assert asked(explainer, x, 6) is None
    explainer.explain(x, 6)
    assert asked(explainer, x, 6).wanted.tolist() == [6, 6]
    with pytest.raises(hilrp.TargetError, match="9 classes"):
        asked(explainer, x, 9)


def test_one_number_for_each_sample_is_one_class(asked):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 1), nn.Flatten(0)).eval()
    explainer, x = hilrp.Explainer(model, compile=True), torch.randn(4, 3, 2, 2)
    assert asked(explainer, x, 0) is None
    explainer.explain(x, 0)
    assert asked(explainer, x, 0).wanted.tolist() == [0] * 4
    with pytest.raises(hilrp.TargetError, match="1 classes"):
        asked(explainer, x, 1)


# Chains ---------------------------------------------------------------------------------------------------------------


class Replaying(Recorder):
    """As a recording does, it runs the step of the time when it was made, with all that this step held."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.steps, self.replayed = {}, 0

    def run(self, inputs, step):
        key = form(inputs)
        if key in self.steps:
            self.replayed += 1
        elif key in self._forms_seen:
            self.steps[key] = step
        else:
            self._forms_seen.add(key)
            return None
        return self.steps[key](inputs)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_what_a_pass_takes_from_another_one_is_not_recorded(model, monkeypatch, steps):
    """The results that are handed on along a chain are others the next time, and the earlier ones are freed."""
    plain, recording = hilrp.Explainer(model, compile=False), hilrp.Explainer(model, compile=True)
    runner = recording._runner
    recorder = runner.recorder = Replaying(model)
    known = lambda x, target, batch, reference: (x, target, reference, "") if runner._classes else None  # noqa: E731
    monkeypatch.setattr(runner, "recordable", known)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    for _ in range(4):
        x, chains = torch.randn(2, 3, 8, 8), hilrp.Chains(steps, 16 // steps, cells=3)
        found, expected = (explainer.explain(x, 1, passes=chains) for explainer in (recording, plain))
        torch.testing.assert_close(found.relevance, expected.relevance)
        torch.testing.assert_close(found.pairs, expected.pairs)
    assert recorder.replayed
