"""The figure that compares methods: its numbers are those that the models give."""

from __future__ import annotations

import json
import sys
from statistics import median

import pytest

from helpers.paths import SCRIPTS
from helpers.real_data import shared

sys.path.insert(0, str(SCRIPTS))

import methods_figure
import methods_maps

KNOWN = json.loads(methods_figure.RESULTS.read_text())


def test_the_medians_are_those_of_the_photographs() -> None:
    assert set(KNOWN["models"]) == set(methods_figure.MODELS)
    for model in KNOWN["models"].values():
        assert len(model["photographs"]) == methods_figure.COUNT
        assert methods_figure.medians(model["photographs"]) == model["medians"]
        assert set(model["medians"]) == set(methods_figure.METHODS) - {"Grad-CAM"}  # it doesn't add up
        for photograph in model["photographs"]:
            for each in photograph["maps"].values():
                if "sum" in each:
                    assert each["missing"] == pytest.approx(1 - each["sum"] / photograph["difference"], abs=1e-9)
        ours = [each["maps"]["HiLRP"]["missing"] for each in model["photographs"]]
        assert median(map(abs, ours)) == model["medians"]["HiLRP"] < 1e-5


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (0.892, "misses 89 %"),
        (-0.094, "9 % too much"),
        (0.0094, "misses 0.9 %"),
        (1e-7, "misses nothing"),
        (None, "no sum"),
    ],
)
def test_what_is_missing_in_words(missing: float | None, words: str) -> None:
    assert methods_figure.said(missing) == words


@pytest.mark.parametrize("name", methods_figure.MODELS)
def test_the_first_photograph_gives_the_numbers_again(name: str) -> None:
    """HiLRP on both models, and shap's DeepExplainer, which runs on one of them; the others take long."""
    model = KNOWN["models"][name]
    item = model["photographs"][0]
    shared("images", "pets", item["file"]), shared("checkpoints", f"{name.split('.')[0]}.safetensors")
    x, reference, difference = methods_figure.question(name, item)
    assert difference == pytest.approx(item["difference"], abs=1e-3)
    assert (methods_maps.runs_deep(name) or "runs") == model["DeepExplainer"]
    methods = {"HiLRP": methods_maps.hilrp_of}
    if model["DeepExplainer"] == "runs":
        methods["shap"] = methods_maps.shap_of
    for method, function in methods.items():
        found = function(name, x, reference, item["label"])
        assert found.missing(difference) == pytest.approx(item["maps"][method]["missing"], abs=1e-3)
        assert (found.how, found.remark) == tuple(item["maps"][method][key] for key in ("how", "remark"))


def test_the_rule_that_chose_the_photograph(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the first that both models name rightly."""
    for name in methods_figure.MODELS:
        shared("checkpoints", f"{name.split('.')[0]}.safetensors")
    shared("images", "pets", "index.json")
    monkeypatch.setattr(methods_figure, "COUNT", 1)
    (first,) = methods_figure.photographs()
    for model in KNOWN["models"].values():
        assert (first["file"], first["label"]) == tuple(model["photographs"][0][key] for key in ("file", "label"))
