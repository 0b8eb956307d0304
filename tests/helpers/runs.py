"""What tests of runs share.

Running them, reading what they wrote, and scenes in every form that a data set can have.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from hilrp.cli import app
from hilrp.jobs.run.results import Results
from hilrp.scenes import CLASSES, Scenes

COUNT = 7


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


def done(*arguments: Any) -> None:
    result = run(*arguments)
    assert result.exit_code == 0, result.output


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for table in Results.of([folder]).tables() for row in table.to_pylist()]


def some_scenes() -> list[tuple[bytes, str, bytes]]:
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
