"""Runs that are killed: workers, drivers, and everything at once.

What is there in the end is what an undisturbed run writes.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyarrow")

from hilrp.cli import app
from hilrp.jobs.run.results import Results
from hilrp.jobs.run.store import Store

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
COUNT, PIECE = 20, 2
PATIENCE = 300


def arguments(out: Path) -> list[str]:
    data = ["--data", f"scenes:4:{COUNT}", "--model", "zoo/vit"]
    return ["run", *data, "--piece", str(PIECE), "--batch", "2", "-o", str(out)]


def finish(out: Path) -> list[dict]:
    """Runs to the end in this process, which has imported everything, and returns the rows."""
    result = CliRunner().invoke(app, arguments(out))
    assert result.exit_code == 0, result.output
    return [row for table in Results.of([out]).tables() for row in table.to_pylist()]


class Run:
    """A run in processes of its own, which carry a mark to be found by."""

    def __init__(self, out: Path, *options: str) -> None:
        self.out, self.mark = out, uuid.uuid4().hex
        command = [sys.executable, "-m", "hilrp", *arguments(out), *options]
        # Ray's workers give way to others: beside the other tests they would hardly run.
        env = os.environ | {"HILRP_MARK": self.mark, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
        self.log = out.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def written(self) -> int:
        return len(list((self.out / "rows").glob("part-*.parquet"))) if (self.out / "rows").is_dir() else 0

    def wait_for(self, pieces: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.written() < pieces:
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    def processes(self, what: Callable[[str], bool] = lambda _: True) -> list[int]:
        """Those that carry the mark and whose command fits."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"HILRP_MARK={self.mark}".encode() in (folder / "environ").read_bytes()
                if marked and what((folder / "cmdline").read_bytes().decode(errors="replace")):
                    found.append(int(folder.name))
            except OSError:  # ended meanwhile
                continue
        return found

    def kill(self, pids: list[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def end(self) -> int:
        return self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> list[dict]:
    return finish(tmp_path_factory.mktemp("undisturbed") / "out")


def test_the_driver_is_killed_again_and_again(undisturbed, tmp_path):
    """Wherever it is: before the first piece, between pieces, in the midst of one."""
    out = tmp_path / "out"
    for pieces in (0, 4):
        run = Run(out)
        run.wait_for(pieces)
        time.sleep(0.03 * pieces)
        run.kill([run.process.pid])
        assert run.end() == -signal.SIGKILL
    store = Store(out)
    assert 4 <= sum(store.done(piece) for piece in store.pieces()) < COUNT // PIECE
    assert finish(out) == undisturbed
    assert list(out.rglob("*.part")) == []
    assert list((out / "attempts").iterdir()) == []


@needs_ray
def test_a_worker_is_killed_and_then_everything(undisturbed, tmp_path):
    """Ray starts another worker, and the run goes on; where all ends at once, the next run goes on where it was."""
    run = Run(tmp_path / "out", "--workers", "2")
    run.wait_for(2)
    workers = run.processes(lambda command: command.startswith("ray::") and "MapWorker" in command)
    assert len(workers) == 2
    run.kill(workers)  # none of those that were there is left to do the next piece
    run.wait_for(run.written() + 2)
    run.kill(run.processes())
    run.end()
    assert Run.written(run) < COUNT // PIECE
    assert finish(tmp_path / "out") == undisturbed
