"""Whole data sets: where images are, what is written of them, and that nothing is lost or done twice."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

import hilrp
from hilrp.cli import app
from hilrp.errors import InputError
from hilrp.run import worker
from hilrp.run.items import Reader, find
from hilrp.run.results import Results
from hilrp.run.rows import GRID, grid_of, whole_map
from hilrp.run.store import Store, share_of
from hilrp.run.summary import places, summarise
from hilrp.run.worker import Job, Worker
from hilrp.scenes import CLASSES, Scenes
from hilrp.scenes.folder import write
from hilrp.scenes.tag import TAGGED

COUNT = 7


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


def done(*arguments: Any) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.output


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for table in Results.of([folder]).tables() for row in table.to_pylist()]


@pytest.fixture(scope="module")
def scenes() -> list[tuple[bytes, str, bytes]]:
    """Some scenes: the picture, the name of a class that is in it, and where that is, as files."""
    found = []
    for scene in Scenes(seed=3, count=COUNT):
        thing = scene.things[0]
        found.append((png(scene.image), thing.name, png(255 * thing.mask.astype(np.uint8))))
    return found


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


# Where images are -----------------------------------------------------------------------------------------------------


def as_folder(folder: Path, scenes: Any) -> str:
    for i, (image, name, _) in enumerate(scenes):
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
        (folder / "data" / name / f"{i}.png").write_bytes(image)
    return str(folder / "data")


def as_index(folder: Path, scenes: Any) -> str:
    entries = []
    for i, (image, name, mask) in enumerate(scenes):
        (folder / f"{i}.png").write_bytes(image)
        (folder / f"{i}-mask.png").write_bytes(mask)
        entries.append({"file": f"{i}.png", "label": CLASSES.index(name), "mask": f"{i}-mask.png"})
    (folder / "index.json").write_text(json.dumps(entries))
    return str(folder)


def as_tars(folder: Path, scenes: Any) -> str:
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i, (image, name, mask) in list(enumerate(scenes))[shard::2]:
                for ending, content in (("png", image), ("cls", str(CLASSES.index(name)).encode()), ("mask.png", mask)):
                    info = tarfile.TarInfo(f"train/{i}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return str(folder / "*.tar")


def as_parquet(folder: Path, scenes: Any) -> str:
    columns = {
        "image": [s[0] for s in scenes],
        "label": [CLASSES.index(s[1]) for s in scenes],
        "mask": [s[2] for s in scenes],
    }
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=3)
    return str(folder)


def as_hub_parquet(folder: Path, scenes: Any) -> str:
    """As the Hugging Face hub stores it."""
    columns = {"image": [{"bytes": s[0], "path": None} for s in scenes], "label": [s[1] for s in scenes]}
    pq.write_table(pa.table(columns), folder / "train-0.parquet")
    return str(folder / "train-0.parquet")


def as_saved(folder: Path, scenes: Any) -> str:
    """A data set of `datasets`, in a folder."""
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    columns = {"image": [{"bytes": s[0], "path": None} for s in scenes], "label": [CLASSES.index(s[1]) for s in scenes]}
    datasets.Dataset.from_dict(columns, features=kinds).save_to_disk(folder / "saved")
    return str(folder / "saved")


FORMS = [as_folder, as_index, as_tars, as_parquet, as_hub_parquet, as_saved]


@pytest.mark.parametrize("form", FORMS)
def test_where_images_are(form, scenes, tmp_path):
    """The same images and labels, whatever they are in."""
    spec = form(tmp_path, scenes)
    items, reader = list(find(spec)), Reader()
    assert len(items) == len({item["id"] for item in items}) == COUNT
    assert items == list(find(spec))
    contents = {reader.image(item).getvalue(): item for item in items}
    assert set(contents) == {image for image, _, _ in scenes}
    loaded = hilrp.load("zoo/resnet")
    for image, name, mask in scenes:
        item = contents[image]
        assert loaded.named(worker.label_index(loaded, item["label"])) == name
        if "mask" in item:
            assert reader.mask(item).getvalue() == mask
    assert json.loads(json.dumps(items)) == items


def test_scenes_as_a_data_set():
    items, reader = list(find("tagged:5:60")), Reader()
    for item, scene in zip(items, Scenes(5, 60), strict=True):
        picture = np.asarray(Image.open(reader.image(item)))
        tagged = bool(scene.mask(TAGGED).any())
        assert bool((picture != scene.image).any()) == tagged
        mask = np.asarray(Image.open(reader.mask(item))) > 0
        assert np.array_equal(mask, scene.mask(CLASSES.index(item["label"])))
    assert [i["label"] for i in items] == [i["label"] for i in find("scenes:5:60")]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere", "no such file or folder"),
        ("scenes:1", "SEED:COUNT"),
        ("empty", "there are no images"),
        ("broken.tar", "not a readable tar file"),
        ("broken.parquet", "not a readable Parquet file"),
        ("other.parquet", "no column of images"),
        ("mixed/*", "neither images nor .tar nor .parquet files alone"),
        ("compressed.tar", "not compressed"),
    ],
)
def test_data_that_is_none(spec, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("mixed").mkdir()
    for name in ("broken.tar", "broken.parquet", "mixed/a.png", "mixed/b.tar"):
        Path(name).write_bytes(b"no")
    pq.write_table(pa.table({"text": ["a"]}), "other.parquet")
    with tarfile.open("compressed.tar", "w:gz") as tar:
        tar.add("broken.tar")
    result = run("--data", spec, "-o", "out")
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not list(Path("out").rglob("*.part"))


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
        "--methods",
        "hilrp,input-x-gradient",
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
        "import torch, numpy as np\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3))\n"
        "    return model.eval(), lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255, ['a', 'b', 'c']\n"
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
    prepare, explain = Worker._prepare, Worker._explain

    def counted(self, item):
        nonlocal held, most
        held += 1
        most = max(most, held)
        return prepare(self, item)

    def explained(self, batch):
        nonlocal held
        held -= len(batch.images)
        return explain(self, batch)

    monkeypatch.setattr(Worker, "_prepare", counted)
    monkeypatch.setattr(Worker, "_explain", explained)
    done("--data", "scenes:1:80", "--model", "zoo/resnet", "-o", tmp_path / "out", "--batch", 4, "--piece", 20)
    assert most <= 6 * 4


# Going on -------------------------------------------------------------------------------------------------------------


def test_a_run_goes_on(tmp_path, monkeypatch):
    arguments = ("--data", "scenes:2:30", "--model", "zoo/resnet", "--piece", 8)
    done(*arguments, "-o", tmp_path / "whole")
    done(*arguments, "-o", tmp_path / "out")
    store = Store(tmp_path / "out")
    pieces = store.pieces()
    assert [piece.count for piece in pieces] == [8, 8, 8, 6]
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
        (["--methods", "epsilon"], "methods"),
        (["--data", "scenes:3:10"], "items_sha256"),
        (["--limit", "5"], "images"),
        (["--batch", "3"], "batch"),
        (["--target", "label"], "target"),
    ],
)
def test_other_settings_in_the_same_folder(change, named, tmp_path_factory, request):
    out = tmp_path_factory.getbasetemp() / "settings"
    arguments = {"--data": "scenes:2:10", "--model": "zoo/resnet", "-o": out}
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
    arguments = ("--data", "scenes:2:30", "--model", "zoo/resnet", "--piece", 4)
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
    done("--data", "scenes:9:8", "--model", "zoo/resnet", "-o", tmp_path / "other")
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


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--methods", "magic"], "not a method"),
        (["--methods", ","], "at least one"),
        (["--target", "star"], "prediction or label"),
        (["--maps", "yes"], "none, column or files"),
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
    arguments = ("--data", "scenes:2:24", "--model", "zoo/resnet", "--piece", 8)
    done(*arguments, "-o", tmp_path / "whole", "--batch", 4)
    done(*arguments, "-o", tmp_path / "out", "--batch", 4)
    store = Store(tmp_path / "out")
    pieces = store.pieces()
    for piece in pieces:
        store.rows(piece).unlink()
    explain = Worker._explain

    def lethal(self, batch):
        if any(number == 15 and prepared.error is None for number, prepared in batch.images):
            raise Death
        return explain(self, batch)

    monkeypatch.setattr(Worker, "_explain", lethal)
    deaths = 0
    for _ in range(10):
        try:
            found = list(Worker(Job(str(tmp_path / "out"), ("zoo/resnet",), ("hilrp",), batch=4)).run(pieces))
            break
        except Death:
            deaths += 1
    assert deaths == 3
    assert [(each.number, each.failed) for each in found] == [(1, 8), (2, 0)]
    ours, whole = rows(tmp_path / "out"), rows(tmp_path / "whole")
    assert ours[:8] == whole[:8]
    assert ours[16:] == whole[16:]
    assert all("ended the worker 3 times" in row["error"] for row in ours[8:16])


def test_errors_that_pass_end_the_run(scenes, tmp_path, monkeypatch):
    """A disk that fails is not the image's fault: nothing is written of it, and the next run goes on."""
    spec = as_folder(tmp_path, scenes)

    def fails(self, item):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "image", fails)
        result = run("--data", spec, "--model", "zoo/resnet", "-o", tmp_path / "out")
        assert isinstance(result.exception, OSError) or "Input/output" in result.output
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


# Odd data -------------------------------------------------------------------------------------------------------------


def test_the_place_of_another_class_is_not_measured(tmp_path):
    """Where the prediction is explained and is not the label."""
    done("--data", "scenes:7:60", "--model", "zoo/resnet", "-o", tmp_path / "out")
    found = rows(tmp_path / "out")
    other = [row for row in found if row["target"] != row["label"]]
    assert len(other) > 5
    assert all(row["energy"] is None and "of another class" in row["notes"][0] for row in other)
    assert all(row["energy"] is not None for row in found if row["target"] == row["label"])


def test_names_and_links_that_are_odd(scenes, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / os.fsdecode(b"\xff\xfe.png")).write_bytes(scenes[0][0])
    (folder / "a.png").write_bytes(scenes[1][0])
    (folder / "gone.png").symlink_to(tmp_path / "nowhere.png")
    result = run("--data", folder, "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert result.exit_code == 1
    found = {row["id"]: row["error"] for row in rows(tmp_path / "out")}
    assert found["a.png"] is None
    assert found.pop("gone.png")
    assert list(found.values()) == [None, None]


@pytest.mark.parametrize(
    ("boxes", "option", "area"),
    [
        ([[32, 32, 64, 96]], "xyxy", 32 * 64),
        ([32, 32, 64, 96], "xyxy", 32 * 64),
        ([[32, 32, 64, 96]], "xywh", 64 * 96),
        ([[5, 5, 5, 5]], "xyxy", None),
        ([["a", 1, 2, 3]], "xyxy", None),
    ],
)
def test_boxes(boxes, option, area, scenes, tmp_path):
    """What can't be used is noted, and the image is explained."""
    (tmp_path / "0.png").write_bytes(scenes[0][0])
    (tmp_path / "index.json").write_text(json.dumps([{"file": "0.png", "boxes": boxes}]))
    done("--data", tmp_path, "--model", "zoo/resnet", "-o", tmp_path / "out", "--boxes", option)
    (row,) = rows(tmp_path / "out")
    assert row["error"] is None
    assert row["area"] == (None if area is None else pytest.approx(area / 128**2))
    assert ("can't be used" in " ".join(row["notes"])) == (area is None)


def test_masks_of_zeros_and_ones(scenes, tmp_path):
    (tmp_path / "0.png").write_bytes(scenes[0][0])
    Image.fromarray(np.eye(128, dtype=np.uint8)).save(tmp_path / "mask.png")
    (tmp_path / "index.json").write_text(json.dumps([{"file": "0.png", "mask": "mask.png"}]))
    done("--data", tmp_path, "--model", "zoo/resnet", "-o", tmp_path / "out")
    assert rows(tmp_path / "out")[0]["area"] == pytest.approx(1 / 128)


def test_labels_of_many_kinds(scenes, tmp_path):
    columns = {"image": [s[0] for s in scenes[:3]], "label": [b"red ring", b"3", None]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert [item.get("label") for item in find(str(tmp_path))] == ["red ring", 3, None]
    pq.write_table(pa.table({"image": [scenes[0][0]], "label": [5_000_000_000]}), tmp_path / "a.parquet")
    assert run("--data", tmp_path, "--model", "zoo/resnet", "-o", tmp_path / "out", "--target", "label").exit_code == 1


def test_a_saved_data_set_of_several_splits(scenes, tmp_path):
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    part = datasets.Dataset.from_dict(
        {"image": [{"bytes": scenes[0][0], "path": None}] * 2, "label": [-1, 1]}, features=kinds
    )
    datasets.DatasetDict({"test": part}).save_to_disk(tmp_path / "saved")
    assert [item.get("label") for item in find(str(tmp_path / "saved"), "test")] == [None, "dog"]
    with pytest.raises(InputError, match="--split"):
        list(find(str(tmp_path / "saved")))


def test_columns_of_parquet_are_read_once(scenes, tmp_path, monkeypatch):
    spec = as_parquet(tmp_path, scenes)
    items, reader, reads = list(find(spec)), Reader(), []
    whole = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *a, **o: reads.append(a) or whole(*a, **o))
    for item in items:
        reader.image(item)
        reader.mask(item)
    assert len(reads) == 2 * 3  # of three groups, images and masks


@pytest.mark.parametrize("name", ["zoo/segmenter", "zoo/detector"])
def test_models_that_are_no_classifiers(name, tmp_path):
    result = run("--data", "scenes:1:2", "--model", name, "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert all("no classifier" in row["error"] or "classes" in row["error"] for row in rows(tmp_path / "out"))


# What is made of it ---------------------------------------------------------------------------------------------------


def test_windows_hold_what_is_in_them():
    grid = np.random.default_rng(0).random((GRID, GRID))
    found = places(grid)
    assert found[4, 9] == pytest.approx(grid[4:7, 9:12].sum())
    assert found[-1, 0] == pytest.approx(grid[-3:, :3].sum())


def test_a_planted_shortcut_is_found(tmp_path):
    """Of the model that was taught it, and of no other; and of none where there are no tags."""
    done(
        "--data",
        "tagged:7:260",
        "--model",
        "zoo/shortcut",
        "--model",
        "zoo/resnet",
        "--target",
        "label",
        "-o",
        tmp_path / "tagged",
    )
    result = CliRunner().invoke(app, ["summary", str(tmp_path / "tagged")])
    assert result.exit_code == 1, result.output
    taught, other = summarise(Results.of([tmp_path / "tagged"]))
    assert (taught.model, other.model) == ("zoo/shortcut", "zoo/resnet")
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
    # Those with the least evidence in the object are those of the tagged class.
    assert {shown.target for _, shown in taught.least} == {CLASSES[TAGGED]}


def test_without_tags_nothing_is_found(tmp_path):
    done("--data", "scenes:7:150", "--model", "zoo/resnet", "--target", "label", "-o", tmp_path / "out")
    result = CliRunner().invoke(app, ["summary", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    (facts,) = json.loads(result.stdout)
    assert facts["suspects"] == []
    assert facts["images"] == 150
    assert sum(facts["verdicts"].values()) == 150
    assert sum(c["images"] for c in facts["classes"]) == 150


def test_unusual_explanations_are_unusual(tmp_path):
    done("--data", "scenes:7:40", "--model", "zoo/resnet", "-o", tmp_path / "out")
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
    done("--data", "scenes:7:12", "--model", "zoo/resnet", "-o", tmp_path / "out")
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
    done("--data", "scenes:7:20", "--model", "zoo/resnet", "--piece", 10, "--shard", "1/2", "-o", tmp_path / "out")
    CliRunner().invoke(app, ["summary", str(tmp_path / "out")])
    assert "10 images are not explained yet" in (tmp_path / "out" / "summary.html").read_text()


def test_scenes_in_a_folder_are_a_data_set(tmp_path):
    """What `hilrp scenes` writes; an image with several objects has a row for each."""
    index = write(Scenes(1, 5), tmp_path / "scenes")
    done("--data", tmp_path / "scenes", "--model", "zoo/resnet", "--target", "label", "-o", tmp_path / "out")
    found = rows(tmp_path / "out")
    assert [(row["id"].split("#")[0], row["target"]) for row in found] == [(e["file"], e["label"]) for e in index]
    assert all(row["energy"] is not None for row in found)
