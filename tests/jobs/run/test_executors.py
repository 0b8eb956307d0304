"""What Ray does beside explaining: whom its processes ask, and who could ask them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("pyarrow")

from helpers.connections import Spy, processes, strangers
from hilrp.jobs.run import executors
from hilrp.util.telemetry import switches

COMMAND = [sys.executable, "-m", "hilrp", "run", "--data", "scenes:4:4", "--model", "zoo/vit", "--piece", "2"]
LOCAL = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="looks for sockets in /proc")
def test_nobody_is_asked_and_nobody_else_can_ask(tmp_path):
    """No host, no cloud's metadata service, no name server; all sockets are on loopback, Ray's programs' as well."""
    spy, mark = Spy(tmp_path), f"HILRP_MARK={uuid.uuid4().hex}"
    name, value = mark.split("=")
    env = os.environ | spy.environment | {name: value, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    for switch in (*switches(), LOCAL):
        env.pop(switch, None)
    command = [*COMMAND, "--workers", "2", "-o", str(tmp_path / "out")]
    log, programs, found = tmp_path / "log.txt", set(), set()
    with log.open("wb") as output, subprocess.Popen(command, env=env, stdout=output, stderr=output) as run:
        while run.poll() is None:
            found |= strangers(mark)
            programs |= {program(folder) for folder in processes(mark)}
            time.sleep(0.3)
    assert run.returncode == 0, log.read_text()
    assert {"gcs_server", "raylet"} <= programs
    assert spy.watched() >= 4  # the command, Ray's helpers, two actors
    assert spy.asked() == set()
    assert found == set()


def program(folder: Path) -> str:
    try:
        return Path((folder / "exe").readlink()).name
    except OSError:  # ended meanwhile
        return ""


def test_who_wants_ray_to_report_is_asked_no_more(monkeypatch):
    """The process that reports is started by Ray as ever, where its variable says so."""
    from ray._private import services

    start = services.start_api_server
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    with executors._without_reports():
        assert services.start_api_server is start
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with executors._without_reports():
        assert services.start_api_server() == (None, None)
    assert services.start_api_server is start
