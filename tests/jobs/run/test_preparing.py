"""From items of a data set to what models take."""

from __future__ import annotations

import os

import pytest
from PIL import Image

pytest.importorskip("pyarrow")

import hilrp
from helpers.runs import png, rows, run
from hilrp.jobs.run.items import Reader
from hilrp.jobs.run.preparing import Preparer
from hilrp.models import picture_files
from hilrp.scenes import Scenes
from hilrp.util.errors import InputError


@pytest.fixture(autouse=True)
def _limit(monkeypatch):
    """What a test allows is allowed no longer than it lasts."""
    monkeypatch.setattr(picture_files, "_allowed", picture_files.allowed())


def test_boxes_are_in_pixels_of_the_whole_picture(tmp_path, monkeypatch):
    """A very large JPEG is decoded at half its size, but not where the place of an object is told in its pixels."""
    monkeypatch.setattr(picture_files, "_REDUCED", 10_000)
    Image.new("RGB", (400, 400), "red").save(tmp_path / "a.jpg")
    prepare, item = Preparer([hilrp.load("zoo/resnet")]), {"id": "a", "file": str(tmp_path / "a.jpg")}
    plain, boxed = prepare(item), prepare(item | {"boxes": [200, 200, 400, 400]})
    assert plain.size == (200, 200)
    assert plain.notes == ["it was decoded at half its width and height, since it is very large"]
    assert boxed.size == (400, 400)
    assert boxed.notes == []
    assert boxed.masks[0].float().mean().item() == pytest.approx(0.25, abs=0.01)


def test_pipes_and_large_pictures_are_rows_with_an_error(tmp_path):
    """The others are explained; and the run goes on with more once more is allowed."""
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "a.png").write_bytes(png(Scenes(seed=0)[0].image))
    Image.new("RGB", (1200, 1000)).save(data / "b.png")
    os.mkfifo(data / "c.png")
    command = ("--data", data, "--model", "zoo/resnet", "-o", out)
    assert run(*command, "--max-megapixels", 1).exit_code == 1
    errors = {row["id"]: row["error"] for row in rows(out)}
    assert errors["a.png"] is None
    assert "1200 x 1000" in errors["b.png"]
    assert "pipe" in errors["c.png"]
    run(*command, "--max-megapixels", 2, "--retry-failed")
    assert [row["id"] for row in rows(out) if row["error"] is not None] == ["c.png"]


def test_large_members_of_shards_are_not_read(tmp_path):
    (tmp_path / "a.tar").write_bytes(bytes(1000))
    picture_files.allow(1)
    at = {"tar": str(tmp_path / "a.tar"), "offset": 0, "size": 4 * 10**6 + 1}
    with pytest.raises(InputError, match="--max-megapixels"):
        Reader().image(at)
