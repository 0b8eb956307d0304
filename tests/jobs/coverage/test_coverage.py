"""Coverage runs: a representative dozen, and everything that can happen to a model on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import hilrp
from helpers.audits import assert_sound
from helpers.blocks import raises
from helpers.models import randomised
from helpers.paths import DOCS
from hilrp.jobs.coverage import Settings, Store, run, runner, worker
from hilrp.jobs.coverage.catalogue import catalogue, representatives
from hilrp.jobs.coverage.memory import free_part, part_used_by
from hilrp.jobs.coverage.report import markdown_page, with_missing
from hilrp.jobs.coverage.splits import judge
from hilrp.jobs.coverage.worker import audit_row
from hilrp.jobs.store import read_rows
from hilrp.models.resolve import installed

#: One of each kind that is out of the ordinary, and the side of its images: smaller ones than it was made for, where it
#: can be built for them. What the names don't say is in brackets.
DOZEN = {
    "timm/hiera_tiny_224": 128, "timm/efficientvim_m1": 128,  # (state space)
    "timm/swiftformer_xs": 128, "timm/mambaout_femto": 128, "timm/lambda_resnet26rpt_256": 128,
    "timm/eva02_tiny_patch14_224": 112, "torchvision/fcos_resnet50_fpn": 128,
    "torchvision/fasterrcnn_mobilenet_v3_large_320_fpn": 128, "torchvision/lraspp_mobilenet_v3_large": 128,
    "transformers/mask2former": None, "transformers/sam": None, "open_clip/RN50": 96,
}  # fmt: skip


@pytest.mark.parametrize("name", DOZEN)
def test_a_representative_dozen(name):
    pytest.importorskip(name.split("/")[0])
    row = audit_row(name, Settings(size=DOZEN[name]))
    assert_sound(row)
    assert DOZEN[name] in (None, row["input"][0][-1])


FILMS = ("videomae", "timesformer", "vivit")
SOUNDS = ("audio-spectrogram-transformer", "wav2vec2", "hubert", "wavlm", "whisper")


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize("name", [*FILMS, *SOUNDS])
def test_what_sees_films_and_what_hears(name, rules):
    pytest.importorskip("transformers")
    row = audit_row(f"transformers/{name}", Settings(rules=rules))
    assert_sound(row)


def test_a_recurrent_model():
    """Sequencer, smaller than any that has a name: its LSTMs are unrolled."""
    timm = pytest.importorskip("timm")
    shape = {"layers": [1, 1, 1, 1], "embed_dims": [24, 32, 32, 32], "hidden_sizes": [8, 12, 12, 12]}
    model = randomised(timm.models.sequencer.Sequencer2d(img_size=112, num_classes=5, **shape))
    report = hilrp.audit(model, torch.randn(2, 3, 112, 112))
    assert report.passed, report
    assert "lstm" in report.operations["recurrence"]


@pytest.mark.slow
@pytest.mark.parametrize("library", installed())
def test_one_model_of_each_kind(library, tmp_path):
    rows = run(catalogue(library), Store(tmp_path, Settings()))
    assert {name: row.get("reason") for name, row in rows.items() if row["status"] != "pass"} == {}
    for row in rows.values():
        assert_sound(row)


def test_efficient_channel_attention_is_a_gate():
    """The gate is expanded as the signal that it is multiplied with, and stays a gate."""
    row = audit_row("timm/eca_resnext26ts", Settings(size=128))
    assert_sound(row)
    assert not row["splits"]
    assert any(gate.startswith("mul: gate") for gate in row["gates"])


def test_each_module_of_timm_has_a_representative():
    timm = pytest.importorskip("timm")
    found = representatives()
    assert set(found) == set(timm.list_modules())
    assert all(name in timm.list_models(module=module) for module, name in found.items())


# Runs ---------------------------------------------------------------------------------------------------------


def test_whatever_happens_costs_one_row(zoo, tmp_path):
    store = Store(tmp_path / "out", Settings(batch=1))
    names = zoo("good", "odd", "broken", "crash", "killed", "large", "good")
    rows = run(names, store, jobs=2, timeout=60)
    status = {name.split(":")[1]: row["status"] for name, row in rows.items()}
    assert status == {
        "good": "pass", "odd": "fail", "broken": "error", "crash": "crash", "killed": "memory", "large": "memory",
    }  # fmt: skip
    assert "No rule for the operation" in rows[zoo("odd")[0]]["reason"]
    assert "no such layer" in rows[zoo("broken")[0]]["reason"]
    assert rows[zoo("crash")[0]]["reason"] == "killed by SIGSEGV"
    assert store.rows() == rows


def test_a_model_that_hangs_is_stopped(zoo, tmp_path):
    began = time.monotonic()
    rows = run(zoo("hang", "good"), Store(tmp_path / "out", Settings(batch=1)), jobs=2, timeout=8)
    assert [row["status"] for row in rows.values()] == ["timeout", "pass"]
    assert time.monotonic() - began < 60


def test_a_run_goes_on_where_it_was_stopped(zoo, tmp_path):
    seen = []
    names = zoo("good", "odd", "broken")

    def stop(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(names, Store(tmp_path / "out", Settings(batch=1)), jobs=1, on_row=stop)
    (first,) = read_rows(tmp_path / "out" / "results.jsonl")
    with (tmp_path / "out" / "results.jsonl").open("a") as file:
        file.write('{"name": "cut o')  # as a kill in the middle of a line leaves it
    store = Store(tmp_path / "out", Settings(batch=1))
    rows = run(names, store, jobs=1, on_row=lambda row: seen.append(row["name"]))
    assert list(rows) == names == seen
    assert rows[names[0]] == first
    assert len(list(read_rows(tmp_path / "out" / "results.jsonl"))) == 3
    again = run(names, store, jobs=1, retry=True)
    assert again[names[0]] == first
    assert len(list(read_rows(tmp_path / "out" / "results.jsonl"))) == 5


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_leaves_nobody_behind(zoo, tmp_path, sign):
    command = [sys.executable, "-m", "hilrp", "coverage", *zoo("noted_hang"), "-o", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    noted = tmp_path / "pid"
    deadline = time.monotonic() + 90
    while not (noted.exists() and noted.read_text()):
        assert time.monotonic() < deadline, "the worker did not start"
        time.sleep(0.2)
    process.send_signal(sign)
    process.wait(30)
    worker_process = Path(f"/proc/{noted.read_text()}")
    while worker_process.exists() and "Z" not in worker_process.joinpath("stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "the worker goes on"
        time.sleep(0.2)


def test_results_of_other_settings_are_not_mixed(tmp_path):
    Store(tmp_path, Settings(batch=1))
    with raises(hilrp.InputError, "batch: 1 there, 2 now", "--fresh", str(tmp_path.name)):
        Store(tmp_path, Settings(batch=2))
    Store(tmp_path, Settings(batch=2), fresh=True)


def test_memory_is_watched(zoo, tmp_path, monkeypatch):
    """When memory is short the largest model is stopped; it runs again alone, then with one image, then it is a row."""
    assert 0 < free_part() < 1
    started, processes = [], []
    start = runner._Pool._start

    def noted(pool, name, settings, alone):
        started.append((name.split(":")[1], settings.batch, alone))
        assert len(started) < 8, "goes round in circles"
        start(pool, name, settings, alone)
        processes.append(pool._running[-1].process.pid)  # not in order: numbers of processes begin anew at some point

    noticed = set()

    def free(*device):
        """Short once after each start of the slow one; stopping it helps."""
        if device or started[-1][0] != "slow" or len(started) in noticed:
            return 0.9
        noticed.add(len(started))
        return 0.01

    monkeypatch.setattr(runner._Pool, "_start", noted)
    monkeypatch.setattr(runner, "free_part", free)
    monkeypatch.setattr(runner, "part_used_by", lambda process: 0.2 + 0.01 * processes.index(process))
    rows = run(zoo("lasting", "slow"), Store(tmp_path / "out", Settings(batch=2)), jobs=2, timeout=60)
    assert [row["status"] for row in rows.values()] == ["pass", "memory"]
    assert started == [("lasting", 2, False), ("slow", 2, False), ("slow", 2, True), ("slow", 1, True)]


def test_memory_that_others_take_is_not_held_against_a_model(zoo, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "free_part", lambda *device: 0.01)
    rows = run(zoo("good"), Store(tmp_path / "out", Settings(batch=1)), jobs=2, timeout=60)
    assert [row["status"] for row in rows.values()] == ["pass"]
    assert 0 < part_used_by(os.getpid()) < 0.5


def test_room_for_another_model(tmp_path, monkeypatch):
    pool = runner._Pool(Store(tmp_path, Settings()), jobs=3, timeout=60)
    free = {"part": 0.9}
    monkeypatch.setattr(runner, "free_part", lambda *device: free["part"])
    assert pool._has_room()
    job = runner._Job("a", Settings(), None, None, time.monotonic() - 60, alone=False)
    pool._running = [job]
    assert pool._has_room()
    free["part"] = 0.2
    assert not pool._has_room()
    free["part"] = 0.9
    job.alone = True
    assert not pool._has_room()
    job.alone = False
    pool._running = [job] * 3
    assert not pool._has_room()
    pool._running = []


def test_small_shares_are_seen_in_float64(tmp_path, monkeypatch):
    """Where an error in the pixels' share would be lost in float32's tolerance, the audit is repeated in float64."""
    assert "dtype" not in audit_row("timm/test_resnet", Settings(batch=1))
    monkeypatch.setattr(sys.modules["hilrp.attribution.audit"], "VISIBLE", 1e6)
    row = audit_row("timm/test_resnet", Settings(batch=1))
    assert row["status"] == "pass"
    assert row["dtype"] == "float64"
    assert row["residual"] < 1e-12


def test_a_model_that_only_runs_in_float32_is_marked(monkeypatch):
    monkeypatch.setattr(sys.modules["hilrp.attribution.audit"], "VISIBLE", 1e6)
    audited = worker._audited

    def only_float32(name, settings):
        return audited(name, settings) if settings.dtype == "float32" else {"name": name, "status": "error"}

    monkeypatch.setattr(worker, "_audited", only_float32)
    row = audit_row("timm/test_resnet", Settings(batch=1))
    assert row["status"] == "pass"
    assert row["unseen"]


# The page -----------------------------------------------------------------------------------------------------


def test_the_committed_results():
    """All of timm's modules pass, at least 99 % of its models do, and every even split has been looked at."""
    folder = DOCS / "coverage"
    rows = {path.stem: {row["name"]: row for row in read_rows(path, lenient=True)} for path in folder.glob("*.jsonl")}
    kinds = {name: row for name, row in rows["kinds-cpu-float32"].items() if name.startswith("timm/")}
    assert len(kinds) >= 97
    assert all(row["status"] == "pass" for row in kinds.values())
    parts = ("timm-cuda-float32", "timm-rest-cpu-float32")
    requested = {name for part in parts for name in json.loads((folder / f"{part}.requested.json").read_text())}
    assert len(requested) >= 1351
    passed = {name for part in parts for name, row in rows[part].items() if row["status"] == "pass"}
    assert len(passed & requested) >= 0.99 * len(requested)
    for own in rows.values():
        for name, row in own.items():
            assert all(judge(name, place) for place in row.get("splits") or ()), (name, row["splits"])


def test_the_page_says_what_failed_and_what_nobody_has_looked_at():
    sound = audit_row("timm/test_vit", Settings(batch=1))
    split = sound | {"name": "timm/new_model", "splits": {"mul in stem": 2}}
    failed = {"name": "timm/large", "status": "memory", "reason": "too | large", "seconds": 1.0}
    own = sound | {"name": "my_models:make"}
    rows = with_missing([sound, split, failed, own], ["timm/test_vit", "timm/forgotten"])
    page = markdown_page([(Settings(batch=1), rows)])
    assert "**2 of 4**" in page
    assert "own 1 of 1" in page
    assert "`timm/forgotten`" in page
    assert "too / large" in page
    assert "Not looked at yet" in page
    assert "`test_vit`" in page
