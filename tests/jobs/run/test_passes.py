"""Methods that spend more passes: their rows have books, and the same whatever batch an image is in."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from helpers.runs import as_folder, done, rows


def test_rows_of_chains(scenes, tmp_path):
    spec = as_folder(tmp_path, scenes[:4])
    found = []
    for batch in (1, 4):
        out = tmp_path / str(batch)
        options = ["--model", "zoo/resnet", "--passes", 4, "--batch", batch, "-o", out]
        done("--data", spec, *map(str, options))
        found.append(rows(out))
    assert len(found[0]) == 4
    for one, other in zip(*found, strict=True):
        assert one["method"] == "secant:passes=4"
        assert one["verdict"] == "valid"
        assert one["pixels"] + sum(value for _, value in one["ledger"]) == pytest.approx(one["score"], rel=1e-4)
        assert one["energy"] == other["energy"] or one["energy"] == pytest.approx(other["energy"], rel=1e-3)
