"""The table of ten models under four packages: what it says of two of them is what happens."""

from __future__ import annotations

import csv
import runpy

import pytest

from helpers.paths import ROOT

RESULTS = ROOT / "docs" / "results"


@pytest.mark.parametrize("name", ["table's MLP", "CLIP"])
def test_the_table_is_true(name):
    compare = runpy.run_path(str(ROOT / "scripts" / "compare_peers.py"))
    with (RESULTS / "drop-ins.csv").open() as file:
        rows = {(row["model"], row["method"]): row for row in csv.DictReader(file)}
    assert {model for model, _ in rows} == set(compare["CASES"])
    page = (RESULTS / "drop-ins.md").read_text()
    line = next(each for each in page.splitlines() if each.startswith(f"| {name} |"))
    for method, run in compare["methods"]().items():
        found = compare["outcome"](run, compare["CASES"][name])
        row = rows[name, method]
        assert row["outcome"] == found.kind
        assert bool(row["gap"]) == (found.gap is not None)
        if found.gap is not None and found.gap > compare["EQUAL"]:
            assert found.gap == pytest.approx(float(row["gap"]), rel=0.05)
        assert compare["cell"](found) in line
    assert all(float(row["gap"]) <= compare["EQUAL"] for (_, method), row in rows.items() if method == "hilrp")
