"""What lies in the folder of a run of Weights & Biases that was kept offline."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hilrp
from helpers.models import small_classifier
from helpers.optional import keep_to_oneself
from hilrp.export import to_wandb

wandb = pytest.importorskip("wandb")
from wandb.proto import wandb_internal_pb2 as messages  # noqa: E402


def records(file: Path) -> Iterator[Any]:
    """What a run's file has: records, cut at the edges of blocks as LevelDB cuts those of its log."""
    content, record, at = file.read_bytes(), b"", 7
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4) and at <= len(content):  # whole, or the last part
            yield messages.Record.FromString(record)
            record = b""


def history(folder: Path) -> list[dict[str, Any]]:
    """The rows that were logged to a run. W&B's own program writes the last of them after ``finish`` is back."""
    (file,) = folder.glob("*.wandb")
    ends = time.monotonic() + 30
    while not any(each.WhichOneof("record_type") == "exit" for each in records(file)) and time.monotonic() < ends:
        time.sleep(0.05)
    rows: list[dict[str, Any]] = []
    for each in records(file):
        if each.WhichOneof("record_type") == "history":
            rows.append({})
            for item in each.history.item:
                *path, last = item.nested_key or [item.key]
                place = rows[-1]
                for part in path:
                    place = place.setdefault(part, {})
                place[last] = json.loads(item.value_json)
    return rows


def test_pictures_and_figures_are_read_back(tmp_path, monkeypatch):
    keep_to_oneself(monkeypatch, tmp_path)
    found = hilrp.explain(small_classifier(), torch.randn(2, 3, 8, 8), [1, 4])
    with wandb.init(project="hilrp", mode="offline") as run:
        to_wandb(run, found, 5, tag="probe")
        to_wandb(run, found[:1], 9, tag="probe")
        assert run.summary["probe/0/verdict"] == "valid"
    files = Path(run.dir)
    first, second = history(files.parent)
    assert (first["_step"], second["_step"]) == (5, 9)
    assert "probe/1/score" not in second
    facts = found.facts()
    for i in (0, 1):
        about = first[f"probe/{i}/overlay"]
        assert np.array_equal(np.asarray(Image.open(files / about["path"])), found.overlay(i, array=True))
        assert about["caption"] == f"{found.sentence(i)} (valid)"
        for name in ("score", "reference_score", "difference", "pixel_share", "residual"):
            assert first[f"probe/{i}/{name}"] == pytest.approx(facts[name][i], abs=1e-12)


def test_tables_have_a_sentence_instead_of_a_picture(tmp_path, monkeypatch):
    keep_to_oneself(monkeypatch, tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    found = hilrp.explain(model, torch.randn(1, 4), 1)
    kept = hilrp.export.wandb.values(found)
    assert kept["hilrp/0/sentence"] == f"{found.sentence()} (valid)"
    assert "hilrp/0/overlay" not in kept
