"""What references are called, and what tables, sentences and figures say of the difference to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hilrp
from hilrp import references
from hilrp.attribution.question import Question
from hilrp.attribution.reference_names import name_of
from hilrp.method.rules import DEFAULT_RULES
from hilrp.targets import Contrast

PICTURE = torch.rand(2, 3, 4, 4)
NAMES = [
    (references.ByForm(), PICTURE, "the picture's mean colour"),
    (references.ByForm(), torch.rand(2, 7, 4, 4), "each channel's mean"),
    (references.ByForm(), torch.rand(2, 3, 2, 4, 4), "each channel's mean"),
    (references.ByForm(), torch.rand(2, 6), "zero"),
    (references.ByForm(), (PICTURE, torch.rand(2, 6)), "the picture's mean colour and zero"),
    ("mean", PICTURE, "the picture's mean colour"),
    ("blurred", PICTURE, "the blurred picture"),
    ("neutral", PICTURE, "a neutral colour"),
    ("grey", PICTURE, "grey"),
    (references.Colour((0.1, 0.2, 0.3)), PICTURE, "the colour (0.1, 0.2, 0.3)"),
    (0.0, PICTURE, "zero"),
    (0.5, PICTURE, "the constant 0.5"),
    (PICTURE, PICTURE, "the reference given"),
    (references.Given(PICTURE, "healthy.png"), PICTURE, "healthy.png"),
    (lambda question: [question.x * 0], PICTURE, "the reference given"),
    (["black", "white"], PICTURE, "the mean over black, white"),
]


@pytest.mark.parametrize(("reference", "x", "name"), NAMES, ids=[name for *_, name in NAMES])
def test_names(reference, x, name):
    assert name_of(reference, Question(nn.Identity(), x, None, 2)) == name


def of_sums(weight: float) -> nn.Module:
    """A score of two and of the weight times the sum of the input."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval()
    nn.init.constant_(model[1].weight, weight)
    nn.init.constant_(model[1].bias, 2.0)
    return model


@pytest.mark.parametrize("batch", [None, 1])
def test_what_is_said_of_the_difference(batch):
    x = torch.full((2, 3, 4, 4), 0.5)
    found = hilrp.explain(of_sums(0.25), x, 1, reference=0.0, batch=batch)
    assert found.relative_to == found[1].relative_to == "zero"
    said = "Of the 6.00 by which \u201cclass 1\u201d scores higher than on zero, 50 % comes from the marked region; "
    assert found.sentence(1) == f"{said}nothing is missing."
    assert "1.000 of the difference to zero" in repr(found)
    facts = found.facts()
    assert facts["relative_to"] == "zero"
    assert facts["reference_score"] == [2.0, 2.0]
    assert facts["difference"] == [6.0, 6.0]
    rows = [line.rsplit(maxsplit=n) for line, n in zip(found.ledger.table().splitlines(), (1, 1, 2, 2, 2), strict=True)]
    assert rows[0] == ["score", "8"]
    assert rows[1] == ["on zero", "2"]
    assert rows[2] == ["difference", "6", "share"]
    assert rows[3] == ["pixels", "6", "1.0000"]
    assert rows[4][0] == "not accounted for"
    assert "score 8.00 (2.00 on zero)" in [text.get_text() for text in found.plot().texts]
    title = found.plot_details().axes[0].get_title()
    assert "score 8.000" in title
    assert "6.000 higher than on zero" in title.replace("\n", " ")


def test_a_score_that_is_lower():
    found = hilrp.explain(of_sums(-0.25), torch.full((1, 3, 4, 4), 0.5), 1, reference=0.0)
    assert found.sentence().startswith("Of the 6.00 by which \u201cclass 1\u201d scores lower than on zero, ")


def test_nothing_to_decompose():
    found = hilrp.explain(of_sums(0.0), torch.rand(1, 3, 4, 4), 1)
    same = "\u201cclass 1\u201d scores the same as on the picture's mean colour: there is nothing to explain."
    assert found.sentence() == same


def test_without_a_reference():
    found = hilrp.explain(of_sums(0.25), torch.full((1, 3, 4, 4), 0.5), 1, "hilrp")
    assert found.relative_to is None
    said = "Of the score 8.00 of \u201cclass 1\u201d, 38 % comes from the marked region, the pixels hold 75 %, "
    assert found.sentence() == f"{said}constants of the model keep 25 %; nothing is missing."
    assert found.comparison() == ""
    assert found.facts()["difference"] is None


def test_what_rounding_loses_is_said():
    """In bfloat16 a small difference of large scores is rounded: beside the scores the ledger closes."""
    torch.manual_seed(29)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    model, x = nn.Sequential(*layers).eval().bfloat16(), torch.randn(4, 3, 64, 64).bfloat16()
    found = hilrp.explain(model, x)
    missing = (found.ledger.difference / found.ledger.explained).abs()
    explained = [i for i in range(4) if found.verdicts[i] is not hilrp.Verdict.NOTHING]
    assert missing[explained].max() > 0.005
    for i in explained:
        said = found.sentence(i)
        assert said.endswith("nothing is missing.") == bool(missing[i] < 0.005)
        assert said.endswith("is missing.")


def test_figures_show_standard_errors():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    x = torch.randn(1, 3, 8, 8)
    few, many = (hilrp.explain(model, x, 1, stages=None, passes=passes).plot_details() for passes in (2, 8))
    titles = [[axis.get_title() for axis in figure.axes] for figure in (few, many)]
    assert "relevance, signed, 2 passes" in titles[0]
    assert "its standard error" not in titles[0]
    assert "its standard error" in titles[1]


def test_the_default():
    """What is explained where nothing is said: the difference to the picture's mean colour, by the secant rules."""
    assert DEFAULT_RULES == "secant"
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    x = torch.randn(2, 3, 8, 8)
    found = hilrp.explain(model, x, 1)
    assert found.rules == hilrp.PRESETS["secant"]
    assert torch.equal(found.reference, x.mean((2, 3), keepdim=True).expand_as(x))
    assert torch.equal(found.relevance, hilrp.explain(model, x, 1, "secant", "mean").relevance)
    assert torch.equal(found.relevance, hilrp.Explainer(model).attribute(x, 1))
    assert hilrp.audit(model, x, 1).relative_to == "the picture's mean colour"
    # A reference beside the paper's preset gives its gamma a reference, and other rules are as they are given.
    assert hilrp.explain(model, x, 1, "hilrp", "mean").rules == hilrp.Rules(constants="reference")
    assert hilrp.explain(model, x, 1, hilrp.Rules(gamma=0.1)).reference is None


def test_of_a_contrast_it_is_said_who_leads():
    """Not that "one rather than the other" scores something."""
    model, x = of_sums(0.25), torch.full((1, 3, 4, 4), 0.5)
    nn.init.constant_(model[1].weight[1], 0.5)
    ending = ", 50 % comes from the marked region; nothing is missing."
    names = ["ant", "bee", "cat"]
    lead = "the lead of \u201cbee\u201d over \u201ccat\u201d is"
    assert hilrp.explain(model, x, Contrast(1, 2), reference=0.0).sentence(0, names) == (
        f"Of the 6.00 by which {lead} higher than on zero{ending}"
    )
    other = hilrp.explain(model, x, Contrast(2, 1), reference=0.0)
    assert other.sentence(0, names).startswith(
        "Of the 6.00 by which the lead of \u201ccat\u201d over \u201cbee\u201d is lower than on zero, "
    )
    same = hilrp.explain(model, x, Contrast(0, 2)).sentence(0, names)
    assert same.startswith(
        "The lead of \u201cant\u201d over \u201ccat\u201d is the same as on the picture's mean colour:"
    )
    plain = hilrp.explain(model, x, Contrast(1, 2), "hilrp").sentence(0, names)
    assert plain.startswith("Of the lead 6.00 of \u201cbee\u201d over \u201ccat\u201d, ")
    texts = [text.get_text().replace("\n", " ") for text in other.plot(names).texts]
    assert "cat rather than bee" in texts
    assert other.sentence(0, names) in [text.replace("\u00a0", " ") for text in texts]
