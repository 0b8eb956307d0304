"""Data sets: where images are, and what is odd about them."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

import hilrp
from helpers.runs import COUNT, FORMS, as_parquet, as_tars, done, rows, run
from hilrp.jobs.labels import label_index
from hilrp.jobs.run.item import label_of
from hilrp.jobs.run.items import Reader, find
from hilrp.scenes import CLASSES, Scenes
from hilrp.scenes.tag import TAGGED
from hilrp.util.errors import InputError

# Where images are -----------------------------------------------------------------------------------------------------


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
        assert loaded.named(label_index(loaded, item["label"])) == name
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


@pytest.mark.parametrize("form", [as_tars, as_parquet])
def test_one_broken_shard_of_several(form, scenes, tmp_path):
    """It is a row with an error; the others are explained."""
    form(tmp_path, scenes)
    ending = next(tmp_path.glob("*.*")).suffix
    (tmp_path / f"z{ending}").write_bytes(b"cut short" * 200)
    assert run("--data", tmp_path / f"*{ending}", "--model", "zoo/resnet", "-o", tmp_path / "out").exit_code == 1
    found = rows(tmp_path / "out")
    assert [row["error"] is None for row in found] == [True] * COUNT + [False]
    assert found[-1]["id"] == f"z{ending}"


def test_annotations_that_are_odd_end_nothing(tmp_path):
    """A label of thousands of digits is text; a mask that is no name is an error that says so."""
    assert label_of("1" * 5000) == {"label": "1" * 5000}
    assert label_of(" 007 ") == {"label": 7}
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    for mask in (None, 3, ["b.png"]):
        (tmp_path / "index.json").write_text(json.dumps([{"file": "a.png", "label": 1, "mask": mask}]))
        with pytest.raises(InputError, match="not a name"):
            list(find(str(tmp_path)))
