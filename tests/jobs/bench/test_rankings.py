"""Agreement among figures: rankings of methods, beside scipy's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from hilrp.jobs.bench.grid import Cell
from hilrp.jobs.bench.rankings import rankings
from hilrp.jobs.bench.report import as_json, markdown, ranking_rows
from hilrp.jobs.bench.sections import COMPARED, SECTIONS
from hilrp.jobs.bench.summary import tables
from hilrp.pages.bench import _rankings

METHODS = ("saliency", "grad-cam", "hilrp", "secant", "rise", "lime")


@pytest.fixture
def cells():
    """Two models; ``deletion`` is better the smaller; one method has no ROAD; a control."""
    chance = np.random.default_rng(0)
    found = []
    for model in ("zoo/a", "zoo/b"):
        for i, method in enumerate((*METHODS, "uniform")):
            figures = {name: chance.normal(size=3).tolist() for name in ("flip", "ROAD", "deletion")}
            figures["insertion"] = [-value for value in figures["deletion"]]
            if i == 1:
                del figures["ROAD"]
            found.append(Cell(model, method, "flipping", figures))
    return found


def test_rankings_are_scipys(cells):
    found = rankings(tables(cells))
    assert set(found) == {
        ("flip", "insertion"), ("flip", "deletion"), ("flip", "ROAD"), ("insertion", "deletion"),
        ("insertion", "ROAD"), ("deletion", "ROAD"),
    }  # fmt: skip
    known = {(c.model, c.method): {name: np.mean(values) for name, values in c.figures.items()} for c in cells}
    expected = []
    for model in ("zoo/a", "zoo/b"):
        judged = [known[model, method] for method in METHODS if "ROAD" in known[model, method]]
        assert len(judged) == 5
        expected.append(stats.spearmanr([-j["deletion"] for j in judged], [j["ROAD"] for j in judged]).statistic)
    value = found["deletion", "ROAD"]
    assert (value.mean, value.count) == (pytest.approx(np.mean(expected)), 2)
    assert value.spread == pytest.approx(np.std(expected))
    assert found["insertion", "deletion"].mean == pytest.approx(1)  # smaller is better, and larger is


def test_few_methods_rank_nothing(cells):
    assert rankings(tables([c for c in cells if c.method in METHODS[:3] or c.method == "uniform"])) == {}


def test_rankings_are_in_the_report(cells):
    names, rows = ranking_rows(tables(cells))
    assert names == ["flip", "insertion", "deletion", "ROAD"]
    assert [rows[i].cells[i].value for i in range(4)] == [None] * 4
    assert rows[1].cells[2].value == rows[2].cells[1].value
    text = markdown(cells, "T", {"effort": {}})
    assert f"## {COMPARED.title}" in text
    assert "| | 1 | 2 | 3 | 4 |" in text
    assert "| 3 deletion | " in text
    stored = json.loads(as_json(cells, {}))["rankings"]
    assert {"flip", "ROAD"} in [{pair["first"], pair["second"]} for pair in stored]
    assert stored[0]["estimate"]["count"] == 2
    assert COMPARED.title not in markdown(cells[:3], "T", {"effort": {}})
    page = _rankings(tables(cells))
    assert COMPARED.title in page
    assert page.count("<tr>") == 5
    assert 'title="insertion and deletion: 1.00, ± 0.00 over 2 models">1.00</td>' in page
    assert _rankings(tables(cells[:3])) == ""


def test_compared_figures_are_figures_of_sections():
    known = {name: better for section in SECTIONS for name, better in section.figures.items()}
    assert len(COMPARED.figures) == 20
    assert all(known[name] == better and better for name, better in COMPARED.figures.items())
