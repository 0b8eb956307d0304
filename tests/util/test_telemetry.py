"""The libraries underneath are told not to call home, unless the user wants them to; and no host is asked."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helpers.commands import invoke
from helpers.connections import Spy
from hilrp.util import telemetry

#: Whether importing the package leaves the environment as it was; and what the libraries themselves make of the
#: switches where a command was called.
_READ = """
import os, sys
before = dict(os.environ)
import hilrp
from hilrp.cli import app
print(dict(os.environ) == before)
from typer.testing import CliRunner
assert CliRunner().invoke(app, ["scenes", "1", "-o", sys.argv[1]]).exit_code == 0
import huggingface_hub.constants
from ray._common.usage import usage_lib
print(huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY, not usage_lib.usage_stats_enabled())
"""
_ASKS = "import socket; socket.socket(type=socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"


@pytest.fixture
def unset(monkeypatch):
    for name in telemetry._OFF:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def test_every_command_switches_them_off(unset, tmp_path):
    assert invoke("scenes", 1, "-o", tmp_path).exit_code == 0
    assert {name: os.environ[name] for name in telemetry._OFF} == telemetry._OFF
    assert telemetry.switches() == {}


def test_what_the_user_decided_stays(unset, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
    assert telemetry.switches().keys() == {"DISABLE_SAFETENSORS_CONVERSION", "GRADIO_ANALYTICS_ENABLED"}
    assert invoke("scenes", 1, "-o", tmp_path).exit_code == 0
    assert (os.environ["RAY_USAGE_STATS_ENABLED"], os.environ["HF_HUB_DISABLE_TELEMETRY"]) == ("1", "0")


def test_commands_alone_change_the_environment_and_the_libraries_read_it(unset, tmp_path):
    pytest.importorskip("ray")
    ended = subprocess.run([sys.executable, "-c", _READ, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True"] * 3


def test_a_command_asks_no_host(unset, tmp_path):
    spy = Spy(tmp_path)
    assert invoke("scenes", 1, "-o", tmp_path / "scenes").exit_code == 0
    command = [sys.executable, "-m", "hilrp", "explain", str(tmp_path / "scenes" / "images"), "--model", "zoo/swin"]
    environment = os.environ | spy.environment
    ended = subprocess.run([*command, "-o", str(tmp_path / "out")], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert spy.watched() == 1
    assert spy.asked() == set()


def test_the_spy_sees_who_is_asked(tmp_path):
    spy = Spy(tmp_path)
    subprocess.run([sys.executable, "-c", _ASKS], env=os.environ | spy.environment, check=True)
    assert spy.asked() == {"192.0.2.1"}
