"""Whole data sets: what is written of them, and that nothing is lost or done twice."""

from __future__ import annotations

import errno
import io
import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

import hilrp
from helpers.runs import COUNT, as_folder, as_index, as_parquet, done, rows, run
from hilrp.cli import app
from hilrp.jobs.run import worker
from hilrp.jobs.run.items import Reader, find
from hilrp.jobs.run.preparing import Preparer
from hilrp.jobs.run.results import Results
from hilrp.jobs.run.rows import GRID, grid_of, whole_map
from hilrp.jobs.run.store import Store, share_of
from hilrp.jobs.run.worker import Job, Worker
from hilrp.method.rules import DEFAULT_RULES
from hilrp.scenes import CLASSES
from hilrp.targets import Contrast
from hilrp.util.errors import InputError

# What is written ------------------------------------------------------------------------------------------------------


def test_rows_are_what_an_explanation_says(scenes, tmp_path):
    """Against explanations made one by one, and the formulas of the figures."""
    spec = as_index(tmp_path, scenes)
    done(
        "--data",
        spec,
        "--model",
        "zoo/swin",
        "-o",
        tmp_path / "out",
        "--target",
        "label",
        "--maps",
        "column",
        "--batch",
        3,
    )
    loaded = hilrp.load("zoo/swin")
    found = rows(tmp_path / "out")
    assert [row["number"] for row in found] == list(range(COUNT))
    for row, (image, name, mask) in zip(found, scenes, strict=True):
        x = loaded.batch([Image.open(io.BytesIO(image))])
        label = CLASSES.index(name)
        expected = hilrp.explain(loaded.model, x, label)
        assert (row["target"], row["target_name"], row["label_name"]) == (label, name, name)
        assert row["prediction"] == int(loaded.model(x).argmax())
        assert row["score"] == pytest.approx(float(expected.score), rel=1e-5)
        assert row["pixel_share"] == pytest.approx(float(expected.ledger.share), rel=1e-4)
        assert row["verdict"] == expected.verdicts[0]
        for kind, value in row["ledger"]:
            assert value == pytest.approx(float(expected.ledger.entries[kind]), rel=1e-3, abs=1e-4)
        assert row["pixels"] + sum(v for _, v in row["ledger"]) == pytest.approx(row["score"], rel=1e-5)
        positive = expected.map[0].clamp(min=0).double().numpy()
        inside = np.asarray(Image.open(io.BytesIO(mask))) > 0
        assert row["energy"] == pytest.approx(positive[inside].sum() / positive.sum(), rel=1e-4)
        assert row["area"] == pytest.approx(inside.mean())
        assert row["pointing"] == float(inside[np.unravel_index(positive.argmax(), positive.shape)])
        part = positive[positive > 0] / positive.sum()
        assert row["entropy"] == pytest.approx(-(part * np.log(part)).sum() / math.log(positive.size), rel=1e-4)
        cells = positive.reshape(GRID, 8, GRID, 8).sum((1, 3)) / positive.sum()
        np.testing.assert_allclose(grid_of(row), cells, atol=1e-3)
        largest = float(expected.map.abs().max())
        np.testing.assert_allclose(whole_map(row), expected.map[0].numpy(), rtol=2e-3, atol=1e-6 * largest)


def test_a_class_against_another_relative_to_a_picture(scenes, tmp_path):
    """As `hilrp explain` would: the same options, the same numbers."""
    spec = as_folder(tmp_path, scenes[:2])
    Image.new("RGB", (128, 128), (90, 120, 60)).save(tmp_path / "grass.png")
    out, name, other = tmp_path / "out", CLASSES[0], CLASSES[1]
    options = ["--target", name, "--against", other, "--reference", tmp_path / "grass.png", "--passes", 4]
    done("--data", spec, "--model", "zoo/resnet", *options, "-o", out)
    loaded = hilrp.load("zoo/resnet")
    explainer = hilrp.Explainer(loaded.model, reference=loaded.batch([tmp_path / "grass.png"]))
    found = rows(out)
    assert len(found) == 2
    for row in found:
        assert (row["target"], row["target_name"], row["against"], row["against_name"]) == (0, name, 1, other)
        assert row["method"] == "secant:passes=4"
        x = loaded.batch([Path(spec) / row["id"]])
        expected = explainer.explain(x, Contrast(0, 1), passes=4)
        assert row["score"] == pytest.approx(float(expected.score), rel=1e-4, abs=1e-4)
        assert row["reference_score"] == pytest.approx(float(expected.score - expected.ledger.explained), rel=1e-3)
        assert row["pixels"] == pytest.approx(float(expected.ledger.explained), rel=1e-3)


def test_what_is_against_itself_is_a_row_with_an_error(scenes, tmp_path):
    spec = as_folder(tmp_path, scenes[:3])
    out = tmp_path / "out"
    done("--data", spec, "--model", "zoo/resnet", "-o", tmp_path / "plain")
    predicted = [row["prediction"] for row in rows(tmp_path / "plain")]
    result = run("--data", spec, "--model", "zoo/resnet", "--against", predicted[0], "-o", out)
    assert result.exit_code == 1
    for row, label in zip(rows(out), predicted, strict=True):
        assert row["prediction"] == (None if label == predicted[0] else label)
        assert ("the same here" in (row["error"] or "")) == (label == predicted[0])


def test_several_models_and_methods(scenes, tmp_path):
    spec = as_folder(tmp_path, scenes)
    out = tmp_path / "out"
    done(
        "--data",
        spec,
        "--model",
        "zoo/resnet",
        "--model",
        "zoo/vit",
        "--method",
        "hilrp",
        "--method",
        "input-x-gradient",
        "--maps",
        "files",
        "-o",
        out,
    )
    found = rows(out)
    keys = [(row["number"], row["model"], row["method"]) for row in found]
    assert len(set(keys)) == len(keys) == 4 * COUNT
    gradient = [row for row in found if row["method"] == "input-x-gradient"]
    assert all(row["verdict"] is None and row["ledger"] is None and row["error"] is None for row in gradient)
    assert all(row["pixel_share"] == pytest.approx(row["pixels"] / row["score"]) for row in gradient)
    stored = pq.read_table(Results.of([out]).map_file(Results.of([out]).pieces[0])).to_pylist()
    assert [(row["number"], row["model"], row["method"]) for row in stored] == keys
    assert "map" not in found[0]


def test_an_image_that_is_none_is_a_row(scenes, tmp_path):
    spec = as_folder(tmp_path, scenes)
    broken = Path(spec) / "red star" / "broken.png"
    broken.parent.mkdir(exist_ok=True)
    broken.write_bytes(scenes[0][0][:200])
    result = run("--data", spec, "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert result.exit_code == 1
    found = rows(tmp_path / "out")
    assert len(found) == COUNT + 1
    (failed,) = [row for row in found if row["error"]]
    assert failed["id"] == "red star/broken.png"
    assert "not a readable image" in failed["error"]
    assert failed["score"] is None


def test_pictures_of_several_sizes(tmp_path, monkeypatch):
    """A model that takes them as they are explains each by itself."""
    (tmp_path / "own_model.py").write_text(
        "import torch, numpy as np\ndef make():\n    torch.manual_seed(0)\n    model = "
        "torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), "
        "torch.nn.Flatten(), torch.nn.Linear(4, 3))\n    return model.eval(), lambda image: "
        "torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255, ['a', 'b', 'c']\n"
    )
    monkeypatch.chdir(tmp_path)
    for i, size in enumerate(((20, 30), (40, 20), (20, 30))):
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (*size, 3), dtype=np.uint8)).save(f"{i}.png")
    done("--data", "*.png", "--model", "own_model:make", "-o", "out")
    assert [row["error"] for row in rows(Path("out"))] == [None] * 3


def test_labels_that_the_model_does_not_know(scenes, tmp_path):
    (tmp_path / "data" / "giraffe").mkdir(parents=True)
    (tmp_path / "data" / "giraffe" / "0.png").write_bytes(scenes[0][0])
    result = run("--data", tmp_path / "data", "--model", "zoo/resnet", "--target", "label", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "no label that zoo/resnet knows" in rows(tmp_path / "out")[0]["error"]
    done("--data", tmp_path / "data", "--model", "zoo/resnet", "-o", tmp_path / "other")
    assert rows(tmp_path / "other")[0]["label_name"] == "giraffe"


def test_few_images_are_held_at_once(scenes, tmp_path, monkeypatch):
    """However many there are: those that are explained, and some batches ahead."""
    held, most = 0, 0
    prepare, explain = Preparer.__call__, Worker._explain

    def counted(self, item):
        nonlocal held, most
        held += 1
        most = max(most, held)
        return prepare(self, item)

    def explained(self, batch):
        nonlocal held
        held -= len(batch.images)
        return explain(self, batch)

    monkeypatch.setattr(Preparer, "__call__", counted)
    monkeypatch.setattr(Worker, "_explain", explained)
    done("--data", "scenes:1:40", "--model", "zoo/resnet", "-o", tmp_path / "out", "--batch", 2, "--piece", 10)
    assert most <= 6 * 2


# Going on -------------------------------------------------------------------------------------------------------------


def test_a_run_goes_on(tmp_path, monkeypatch):
    arguments = ("--data", "scenes:2:11", "--model", "zoo/resnet", "--piece", 3)
    done(*arguments, "-o", tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "whole")
    store = Store(tmp_path / "out")
    pieces = store.pieces()
    assert [piece.count for piece in pieces] == [3, 3, 3, 2]
    store.rows(pieces[2]).unlink()
    kept = [store.rows(piece).stat().st_mtime_ns for piece in pieces if store.done(piece)]
    done(*arguments, "-o", tmp_path / "out")
    assert rows(tmp_path / "out") == rows(tmp_path / "whole")
    assert kept == [store.rows(pieces[i]).stat().st_mtime_ns for i in (0, 1, 3)]
    loaded = []
    monkeypatch.setattr(worker, "load", lambda *args, **options: loaded.append(args))
    done(*arguments, "-o", tmp_path / "out")
    assert loaded == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--model", "zoo/vit"], "models"),
        (["--rules", "epsilon"], "methods"),
        (["--reference", "blurred"], "reference"),
        (["--against", "red star"], "against"),
        (["--data", "scenes:3:6"], "items_sha256"),
        (["--limit", "5"], "images"),
        (["--batch", "3"], "batch"),
        (["--target", "label"], "target"),
    ],
)
def test_other_settings_in_the_same_folder(change, named, tmp_path_factory, request):
    out = tmp_path_factory.getbasetemp() / "settings"
    arguments = {"--data": "scenes:2:6", "--model": "zoo/resnet", "-o": out}
    if not (out / "manifest.json").exists():
        done(*[part for pair in arguments.items() for part in pair])
    before = sorted((p, p.stat().st_mtime_ns) for p in out.rglob("*"))
    arguments[change[0]] = change[1]
    result = run(*[part for pair in arguments.items() for part in pair])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "a run with other settings is in it" in said
    assert f"{named}:" in said
    assert sorted((p, p.stat().st_mtime_ns) for p in out.rglob("*") if p.is_file()) == [
        b for b in before if b[0].is_file()
    ]


def test_weights_are_part_of_the_settings(tmp_path):
    from safetensors.torch import save_file

    state = hilrp.load("zoo/resnet").model.state_dict()
    arguments = ("--data", "scenes:2:4", "--model", f"zoo/resnet@{tmp_path / 'w.safetensors'}", "-o", tmp_path / "out")
    save_file(state, tmp_path / "w.safetensors")
    done(*arguments)
    save_file(
        {name: 1.01 * value if value.is_floating_point() else value for name, value in state.items()},
        tmp_path / "w.safetensors",
    )
    assert "models:" in run(*arguments).output


def test_shards_and_merge(tmp_path):
    arguments = ("--data", "scenes:2:14", "--model", "zoo/resnet", "--piece", 2)
    done(*arguments, "-o", tmp_path / "whole")
    for i in (1, 2, 3):
        done(*arguments, "--shard", f"{i}/3", "-o", tmp_path / f"shard{i}")
    merge = ["merge", *(str(tmp_path / f"shard{i}") for i in (1, 2, 3)), "-o", str(tmp_path / "all.parquet")]
    result = CliRunner().invoke(app, merge)
    assert result.exit_code == 0, result.output
    assert pq.read_table(tmp_path / "all.parquet").to_pylist() == rows(tmp_path / "whole")
    few = CliRunner().invoke(app, ["merge", str(tmp_path / "shard1"), "-o", str(tmp_path / "few.parquet")])
    assert few.exit_code == 2
    assert "pieces are not done" in few.output
    assert not (tmp_path / "few.parquet").exists()
    done("--data", "scenes:9:2", "--model", "zoo/resnet", "-o", tmp_path / "other")
    mixed = CliRunner().invoke(
        app, ["merge", str(tmp_path / "shard1"), str(tmp_path / "other"), "-o", str(tmp_path / "x.parquet")]
    )
    assert "are of different runs" in " ".join(mixed.output.split())


def test_every_piece_is_somebodys(tmp_path):
    done("--data", "scenes:2:11", "--model", "zoo/resnet", "--piece", 2, "-o", tmp_path / "out")
    pieces = Store(tmp_path / "out").pieces()
    parts = [list(share_of(pieces, (i, 4))) for i in (1, 2, 3, 4)]
    assert sorted((p for part in parts for p in part), key=lambda p: p.number) == pieces


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b"])
def test_shards_that_are_none(shard, tmp_path):
    result = run("--data", "scenes:1:2", "--model", "zoo/resnet", "--shard", shard, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert f"--shard {shard}" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--method", "magic"], "not a method"),
        (["--method", "secant", "--passes", "8"], "--passes with --method"),
        (["--rules", "magic"], "magic"),
        (["--rules", "zplus", "--passes", "8"], "no reference, from which they begin"),
        (["--reference", "nowhere.png"], "neither an image file nor one of"),
        (["--target", "zebra"], "knows no such class"),
        (["--target", "view"], "one class of each image"),
        (["--target", "top3"], "one class of each image"),
        (["--target", "red star", "--against", "red star"], "contrasted with itself"),
        (["--against", "red star", "--method", "saliency"], "not the difference of two"),
        (["--maps", "yes"], "none, column, files"),
        (["--model", "zoo/none"], "no model of that name"),
    ],
)
def test_wrong_options(option, said, tmp_path):
    result = run("--data", "scenes:1:2", "-o", tmp_path / "out", *option)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


class Death(BaseException):
    """What ends a worker in the midst of its work."""


def test_a_piece_that_ends_its_worker_is_given_up(tmp_path, monkeypatch):
    """After three times; its neighbours, which are read ahead, are not."""
    arguments = ("--data", "scenes:2:12", "--model", "zoo/resnet", "--piece", 4)
    done(*arguments, "-o", tmp_path / "out", "--batch", 2)
    shutil.copytree(tmp_path / "out", tmp_path / "whole")
    store = Store(tmp_path / "out")
    pieces = store.pieces()
    for piece in pieces:
        store.rows(piece).unlink()
    # Its neighbour was begun twice when workers ended; a third time, by another's fault, must not be counted.
    for _ in range(2):
        store.attempt(pieces[2])
    explain = Worker._explain

    def lethal(self, batch):
        if any(number == 7 and prepared.error is None for number, prepared in batch.images):
            raise Death
        return explain(self, batch)

    monkeypatch.setattr(Worker, "_explain", lethal)
    deaths = 0
    for _ in range(10):
        try:
            found = list(Worker(Job(str(tmp_path / "out"), ("zoo/resnet",), (DEFAULT_RULES,), batch=2)).run(pieces))
            break
        except Death:
            deaths += 1
    assert deaths == 3
    assert [(each.number, each.failed) for each in found] == [(1, 4), (2, 0)]
    ours, whole = rows(tmp_path / "out"), rows(tmp_path / "whole")
    assert ours[:4] == whole[:4]
    assert ours[8:] == whole[8:]
    assert all("ended the worker 3 times" in row["error"] for row in ours[4:8])


def test_errors_that_pass_end_the_run(scenes, tmp_path, monkeypatch):
    """A disk that fails is not the image's fault: nothing is written of it, and the next run goes on."""
    spec = as_folder(tmp_path, scenes)

    def fails(self, item):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "image", fails)
        result = run("--data", spec, "--model", "zoo/resnet", "-o", tmp_path / "out")
        assert result.exit_code == 2
        assert "Input/output error" in result.output
    assert Results.of([tmp_path / "out"]).missing
    done("--data", spec, "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert not any(row["error"] for row in rows(tmp_path / "out"))


def test_what_failed_can_be_done_again(scenes, tmp_path):
    spec = as_folder(tmp_path, scenes)
    broken = Path(spec) / scenes[0][1] / "0.png"
    whole = broken.read_bytes()
    broken.write_bytes(bytes(len(whole)))
    arguments = ("--data", spec, "--model", "zoo/resnet", "-o", tmp_path / "out")
    for _ in range(2):
        result = run(*arguments)
        assert result.exit_code == 1
        assert "1 of them with an error" in " ".join(result.output.split())
    broken.write_bytes(whole)
    done(*arguments, "--retry-failed")
    assert not any(row["error"] for row in rows(tmp_path / "out"))


def test_runs_that_begin_at_once(tmp_path):
    """In one folder: equal ones all go on, and of different ones one wins and the others are refused."""

    def begin(seed):
        store = Store(tmp_path / "out")
        try:
            store.begin(find(f"scenes:{seed}:3"), {"data": f"scenes:{seed}:3"}, 4, None)
        except InputError:
            return None
        return seed, store.manifest()["data"], [item["scene"][0] for item in store.items(store.pieces()[0])]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(begin, [1, 1, 2, 1, 2, 2, 1, 2]))
    accepted = [each for each in found if each is not None]
    assert accepted
    winner = accepted[0][0]
    assert all(each == (winner, f"scenes:{winner}:3", [winner] * 3) for each in accepted)
    assert len(list((tmp_path / "out").glob("items-*.jsonl"))) == 1
    assert list((tmp_path / "out").rglob("*.part")) == []


def test_runs_that_look_at_once(tmp_path, monkeypatch):
    """Both see no manifest, and both write one: the first counts."""
    there = Path.exists
    monkeypatch.setattr(Path, "exists", lambda self: self.name != "manifest.json" and there(self))
    store = Store(tmp_path / "out")
    first = store.begin(find("scenes:1:3"), {"data": "a"}, 4, None)
    assert store.begin(find("scenes:1:3"), {"data": "a"}, 4, None) == first
    with pytest.raises(InputError, match="other settings"):
        store.begin(find("scenes:2:3"), {"data": "b"}, 4, None)
    assert store.manifest() == first
    assert [item["scene"][0] for item in store.items(store.pieces()[0])] == [1] * 3


def test_a_file_system_without_links(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refused)
    done("--data", "scenes:2:4", "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert len(rows(tmp_path / "out")) == 4
    assert list((tmp_path / "out").rglob("*.part")) == []


def test_data_that_changed_is_noticed(scenes, tmp_path):
    spec = as_parquet(tmp_path, scenes)
    done("--data", spec, "--model", "zoo/resnet", "-o", tmp_path / "out")
    as_parquet(tmp_path, [scenes[-1], *scenes[1:]])
    assert "items_sha256" in run("--data", spec, "--model", "zoo/resnet", "-o", tmp_path / "out").output


def test_results_inside_the_data(scenes, tmp_path):
    spec = as_folder(tmp_path, scenes)
    for _ in range(2):
        done("--data", spec, "--model", "zoo/resnet", "-o", Path(spec) / "out")
    assert len(rows(Path(spec) / "out")) == COUNT
