"""Bad pictures: each is read rightly, or refused with the file's name, the reason and the remedy, soon and cheaply."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from attack.picture_cases import GREEN, PLACES, RED, damaged, deep_bomb, halves, refused, right, saved
from helpers.bounded import bounded
from helpers.commands import invoke, words
from helpers.paths import ROOT
from hilrp.jobs.run.items import Reader
from hilrp.models.images import read
from hilrp.util.errors import InputError

#: What any of the files may take.
SECONDS, MEGABYTES = 3, 120
RIGHT, REFUSED, DAMAGED = right(), refused(), damaged()


def outcome(path: Path) -> Any:
    return bounded(lambda: read(path), SECONDS, MEGABYTES)


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def assert_clear(error: Any, path: Path, words: str) -> None:
    """An error of ours that names the file once, says why, and what to do."""
    assert isinstance(error, InputError), repr(error)
    said = str(error)
    assert said.startswith(f"{path}: ")
    assert words in said
    assert re.search(r"Save|Scale|Crop|Give|Is the file complete|Replace|convert", said), said
    assert len(said) < 1000
    assert "object at 0x" not in said


def test_there_are_enough_of_them() -> None:
    assert len(RIGHT) + len(REFUSED) + len(PLACES) >= 60
    assert len(DAMAGED) >= 40


@pytest.mark.parametrize("name", RIGHT)
def test_odd_files_that_hold_the_picture(tmp_path, name):
    found = outcome(written(tmp_path, name, RIGHT[name]))
    assert not isinstance(found, Exception), found
    picture, notes = found
    assert picture.mode == "RGB"
    assert picture.size == (48, 32)
    values = np.asarray(picture).astype(int)
    for place, colour in (((4, 4), RED), ((28, 4), RED), ((4, 44), GREEN), ((28, 44), GREEN)):
        assert np.abs(values[place] - colour).max() <= 12, (place, values[place])
    assert ("the first of several pictures was taken" in notes) == name.startswith(("animated", "several"))


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_refused(tmp_path, name):
    content, words = REFUSED[name]
    path = written(tmp_path, name, content)
    assert_clear(outcome(path), path, words)


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path, name):
    path = written(tmp_path, name, DAMAGED[name])
    found = outcome(path)
    if isinstance(found, Exception):
        assert_clear(found, path, "")
    else:
        assert found[0].mode == "RGB"
        assert min(found[0].size) > 0


@pytest.mark.parametrize("name", PLACES)
def test_paths_that_lead_to_no_picture(tmp_path, name):
    make, words = PLACES[name]
    path = tmp_path / name
    make(path)
    assert_clear(outcome(path), path, words)


@pytest.mark.parametrize("content", [saved(halves(), "PNG"), b"no picture"], ids=["good", "bad"])
def test_a_name_that_is_no_text(tmp_path, content):
    path = tmp_path / os.fsdecode(b"caf\xe9 \xff.png")
    path.write_bytes(content)
    found = outcome(path)
    if content == b"no picture":
        assert isinstance(found, InputError)
        assert r"\udce9" in str(found).encode("utf-8").decode()  # it can be printed
    else:
        assert found[0].size == (48, 32)


def test_a_name_with_a_zero():
    with pytest.raises(InputError, match="not a readable image"):
        read(Path("a\0b.png"))


def test_open_files_are_judged_alike():
    """Pictures of shards and tables come as bytes."""
    for name in ("postscript.jpg", "bomb of 16 bits.png", "flood of comments.gif"):
        content, words = REFUSED[name]
        error = bounded(lambda content=content: read(io.BytesIO(content)), SECONDS, MEGABYTES)
        assert isinstance(error, InputError)
        assert words in str(error)


def test_ghostscript_is_never_started(tmp_path, monkeypatch):
    """A program of its name stands in its place, and leaves a trace."""
    trace = tmp_path / "started"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch '{trace}'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # where it was found before
    files = [written(tmp_path, name, REFUSED[name][0]) for name in REFUSED if "postscript" in name]
    assert len(files) == 3
    for file in files:
        with pytest.raises(InputError):
            read(file)
    assert not trace.exists()


def test_the_bomb_of_the_attack(tmp_path):
    """344 kB that took 4.7 GB and 22 s: measured in a process of its own, by the system."""
    bomb = written(tmp_path, "bomb.png", deep_bomb())
    assert bomb.stat().st_size < 400_000
    code = (
        "import resource, sys, time\nfrom pathlib import Path\nimport numpy, PIL.Image\n"
        "from hilrp.models.images import read\nPIL.Image.init()\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before, start = peak(), time.monotonic()\n"
        "try: read(Path(sys.argv[1])); print('read')\n"
        "except ValueError as error: print('refused', 13300 * 13300 > 70e6 and '--max-megapixels' in str(error))\n"
        "print((peak() - before) / 1024, time.monotonic() - start)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    made = subprocess.run(
        [sys.executable, "-c", code, str(bomb)],
        env=environment,
        check=True,
        timeout=300,
        capture_output=True,
        text=True,
    )
    said, figures = made.stdout.splitlines()
    megabytes, seconds = map(float, figures.split())
    assert said == "refused True"
    assert megabytes < 20
    assert seconds < 1


def test_pictures_are_opened_in_one_place():
    """`Image.open` tries every format that there is, unless it is told which."""
    files = [file for folder in ("src", "scripts", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    found = [(file.name, call) for file in files for call in re.findall(r"Image\.open\(.*", file.read_text())]
    assert [name for name, _ in found] == ["picture_files.py"]
    assert "formats=" in found[0][1]


def test_a_pipe_in_a_data_set(tmp_path):
    """It hung `hilrp run`."""
    os.mkfifo(tmp_path / "x.jpg")
    error = bounded(lambda: Reader().image({"file": str(tmp_path / "x.jpg")}), 5, MEGABYTES)
    assert isinstance(error, InputError)
    assert "pipe" in str(error)


def test_a_pipe_that_is_given_to_explain(tmp_path):
    os.mkfifo(tmp_path / "x.jpg")
    found = bounded(lambda: invoke("explain", tmp_path / "x.jpg", "-o", tmp_path / "out"), 30, 2000)
    assert found.exit_code == 2
    assert "x.jpg: it is a pipe" in words(found)


def test_the_limit_is_of_what_is_decoded(tmp_path):
    """A picture that is within it is read, also one that is very flat or has layers."""
    picture = Image.new("RGBA", (3000, 50), (10, 20, 30, 255))
    found = outcome(written(tmp_path, "a.png", saved(picture, "PNG")))
    assert found[0].size == (3000, 50)
