"""What is made of a run: a page about a data set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from helpers.runs import as_folder, done, rows, run
from hilrp.cli import app
from hilrp.jobs.run.results import Results
from hilrp.jobs.run.rows import GRID
from hilrp.jobs.run.store import Store
from hilrp.jobs.run.summary import places, summarise
from hilrp.scenes import CLASSES, Scenes
from hilrp.scenes.folder import write
from hilrp.scenes.tag import TAGGED

#: Few scenes in which many classes, the tagged one among them, have enough images to be judged.
SEED, SEEN = 18, 112

# What is made of it ---------------------------------------------------------------------------------------------------


def test_windows_hold_what_is_in_them():
    grid = np.random.default_rng(0).random((GRID, GRID))
    found = places(grid)
    assert found[4, 9] == pytest.approx(grid[4:7, 9:12].sum())
    assert found[-1, 0] == pytest.approx(grid[-3:, :3].sum())


def test_a_planted_shortcut_is_found(tmp_path):
    """Of the model that was taught it, and of no other; and of none where there are no tags."""
    models = ("--model", "zoo/shortcut", "--model", "zoo/resnet")
    done("--data", f"tagged:{SEED}:{SEEN}", *models, "--target", "label", "-o", tmp_path / "tagged")
    result = CliRunner().invoke(app, ["summary", str(tmp_path / "tagged")])
    assert result.exit_code == 1, result.output
    taught, other = summarise(Results.of([tmp_path / "tagged"]))
    assert (taught.model, other.model) == ("zoo/shortcut", "zoo/resnet")
    assert taught.judged == other.judged == 7
    assert {(s.name, s.kind) for s in taught.suspects} == {
        (CLASSES[TAGGED], "a constant place"),
        (CLASSES[TAGGED], "outside the object"),
    }
    assert "lower right corner" in taught.suspects[0].why
    assert other.suspects == []
    page = (tmp_path / "tagged" / "summary.html").read_text()
    assert CLASSES[TAGGED] in page
    assert "http" not in page
    assert page.count("<img") > 30
    # What is asked first comes first.
    heads = [page.index(f"<h2>{head}</h2>") for head in ("Methods compared", "Accuracy and confidence")]
    assert heads == sorted(heads)
    assert heads[-1] < page.index("Suspected shortcuts") < page.index("Least evidence beyond the object\u2019s area")
    # Those with the least evidence in the object are those of the tagged class.
    assert {shown.target for _, shown in taught.least} == {CLASSES[TAGGED]}


def test_without_tags_nothing_is_found(tmp_path):
    done("--data", f"scenes:{SEED}:{SEEN}", "--model", "zoo/resnet", "--target", "label", "-o", tmp_path / "out")
    (group,) = summarise(Results.of([tmp_path / "out"]))
    assert group.judged == 7
    result = CliRunner().invoke(app, ["summary", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    (facts,) = json.loads(result.stdout)
    assert facts["suspects"] == []
    assert facts["images"] == SEEN
    assert sum(facts["verdicts"].values()) == SEEN
    assert sum(c["images"] for c in facts["classes"]) == SEEN
    written = rows(tmp_path / "out")
    assert facts["accuracy"] == pytest.approx(np.mean([row["label"] == row["prediction"] for row in written]))
    assert facts["confidence"] == pytest.approx(np.mean([row["confidence"] for row in written]))
    assert facts["energy"] == pytest.approx(np.mean([row["energy"] for row in written]))
    assert facts["area"] == pytest.approx(np.mean([row["area"] for row in written]))


def test_unusual_explanations_are_unusual(tmp_path):
    done("--data", "scenes:7:20", "--model", "zoo/resnet", "-o", tmp_path / "out")
    results = Results.of([tmp_path / "out"])
    path = results.file(results.pieces[0])
    table = pq.read_table(path)
    changed = table.to_pylist()
    changed[17]["entropy"] = 0.01
    pq.write_table(pa.Table.from_pylist(changed, schema=table.schema), path)
    (group,) = summarise(results)
    assert group.unusual[0].number == 17
    assert "entropy" in group.unusual[0].said


def test_a_summary_says_when_nothing_is_judged(tmp_path):
    done("--data", "scenes:7:6", "--model", "zoo/resnet", "-o", tmp_path / "out")
    result = CliRunner().invoke(app, ["summary", str(tmp_path / "out")])
    assert "No class has enough images" in " ".join(result.output.split())
    assert "<b>Not judged:</b>" in (tmp_path / "out" / "summary.html").read_text()


def test_a_file_that_was_cut_short_is_made_again(tmp_path):
    arguments = ("--data", "scenes:7:6", "--model", "zoo/resnet", "--piece", 3, "-o", tmp_path / "out")
    done(*arguments)
    before = rows(tmp_path / "out")
    store = Store(tmp_path / "out")
    path = store.rows(store.pieces()[1])
    path.write_bytes(path.read_bytes()[:500])
    done(*arguments)
    assert rows(tmp_path / "out") == before


def test_errors_are_told_and_keep_what_is_known(scenes, tmp_path):
    spec = as_folder(tmp_path, scenes)
    for i, name in ((0, scenes[0][1]), (1, scenes[1][1])):
        (Path(spec) / name / f"{i}.png").write_bytes(b"no picture")
    result = run("--data", spec, "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert "2 x not a readable image" in " ".join(result.output.split())
    failed = [row for row in rows(tmp_path / "out") if row["error"]]
    assert sorted(row["label_name"] for row in failed) == sorted(s[1] for s in scenes[:2])
    assert len({row["error"] for row in failed}) == 1


def test_a_summary_of_what_is_not_there(tmp_path):
    result = CliRunner().invoke(app, ["summary", str(tmp_path)])
    assert result.exit_code == 2
    assert "no run of" in " ".join(result.output.split())


def test_a_summary_says_that_a_run_is_not_complete(tmp_path):
    done("--data", "scenes:7:8", "--model", "zoo/resnet", "--piece", 4, "--shard", "1/2", "-o", tmp_path / "out")
    CliRunner().invoke(app, ["summary", str(tmp_path / "out")])
    assert "4 images are not explained yet" in (tmp_path / "out" / "summary.html").read_text()


def test_scenes_in_a_folder_are_a_data_set(tmp_path):
    """What `hilrp scenes` writes; an image with several objects has a row for each."""
    index = write(Scenes(1, 5), tmp_path / "scenes")
    done("--data", tmp_path / "scenes", "--model", "zoo/resnet", "--target", "label", "-o", tmp_path / "out")
    found = rows(tmp_path / "out")
    assert [(row["id"].split("#")[0], row["target"]) for row in found] == [(e["file"], e["label"]) for e in index]
    assert all(row["energy"] is not None for row in found)
