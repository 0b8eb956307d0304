"""What the four long jobs keep, and how: files that are whole whoever is killed, settings, rows, leftovers."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from hilrp.cli import app
from hilrp.jobs import coverage
from hilrp.jobs.bench.grid import Grid
from hilrp.jobs.bench.suites import suite
from hilrp.jobs.run.store import Store as RunStore
from hilrp.jobs.store import (
    append_row,
    begin,
    computed_once,
    differing,
    read_arrays,
    read_result,
    read_rows,
    read_settings,
    versions,
    write_result,
)
from hilrp.util.atomic_files import create_whole, partial, sweep, write_whole
from hilrp.util.errors import InputError

SETTINGS = {"seed": 1, "effort": {"images": 3, "runs": 5}, "methods": ("a", "b"), "size": None}

#: A process that has written half of a file when it says so, and goes on as it is told.
HALF = """
import sys
from pathlib import Path
from hilrp.util.atomic_files import {write}

def half(file):
    file.write(b"new, but only ha")
    file.flush()
    print("half", flush=True)
    sys.stdin.readline()

{write}(Path(sys.argv[1]), half)
"""


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


def half_written(path: Path, write: str = "write_whole") -> subprocess.Popen[str]:
    """Another process in the midst of writing a file."""
    command = [sys.executable, "-c", HALF.format(write=write), str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    return process


def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def left_by(number: int, path: Path, process: str = "0123abcd") -> Path:
    """What a process of that number would have left of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    left = path.with_name(f"{path.name}.{platform.node()}~{number}~{process}-0.part")
    left.write_bytes(b"ha")
    return left


# Whole files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", ["write_whole", "create_whole"])
@pytest.mark.parametrize("old", [None, b"old"])
def test_killed_in_the_middle_of_a_write(old, write, tmp_path):
    path = tmp_path / "result.json"
    if old is not None:
        path.write_bytes(old)
    with half_written(path, write) as process:
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert (path.read_bytes() if path.exists() else None) == old
    assert len(leftovers(tmp_path)) == 1
    sweep([tmp_path])
    assert leftovers(tmp_path) == []
    write_whole(path, "new")
    assert path.read_text() == "new"


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "deeper" / "result.json"
    write_whole(path, "old")

    def full(file):
        file.write(b"ha")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_whole(path, full)
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []


@pytest.fixture
def steps(monkeypatch) -> list[str]:
    """What is put on the disk, and when files get their names."""
    steps: list[str] = []
    rename = Path.replace

    def synchronised(handle):
        steps.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")

    def renamed(self, target):
        steps.append("name")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synchronised)
    monkeypatch.setattr(Path, "replace", renamed)
    return steps


def test_a_file_is_on_the_disk_before_it_has_its_name(steps, tmp_path):
    write_whole(tmp_path / "a", b"content")
    assert steps == ["file", "name", "folder"]
    steps.clear()
    write_whole(tmp_path / "b", b"content", durable=False)
    assert steps == ["name"]


def test_folders_are_on_the_disk_before_what_is_in_them(steps, tmp_path):
    write_whole(tmp_path / "b" / "c" / "a", b"content")
    assert steps == ["folder", "folder", "file", "name", "folder"]


def test_the_list_of_a_run_is_on_the_disk(steps, tmp_path):
    """The list, the manifest by a link, and then the list's name."""
    store = RunStore(tmp_path)
    store.begin([{"id": "a"}, {"id": "b"}], {"data": "x", "models": {}, "methods": [], "maps": "none"}, 2, None)
    assert steps == ["file", "file", "folder", "name", "folder"]
    assert [piece.count for piece in store.pieces()] == [2]


def test_text_that_is_not_of_letters(tmp_path):
    write_whole(tmp_path / "a", os.fsdecode(b"caf\xe9 \xc3\xa9"))
    assert (tmp_path / "a").read_text() == "caf\\udce9 é"


def test_a_folder_that_cannot_be_synchronised(tmp_path, monkeypatch):
    real = os.open

    def refused(path, *rest):
        if Path(path).is_dir():
            raise PermissionError("a folder can't be opened here")
        return real(path, *rest)

    monkeypatch.setattr(os, "open", refused)
    write_whole(tmp_path / "a", "content")
    assert (tmp_path / "a").read_text() == "content"


def test_writers_of_one_file_do_not_meet(tmp_path):
    texts = [str(i) * 100_000 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_whole(tmp_path / "a", text, durable=False), texts * 4))
    assert (tmp_path / "a").read_text() in texts
    assert os.listdir(tmp_path) == ["a"]


def test_names_as_long_as_a_name_can_be(tmp_path):
    for name in ("a" * 255, "ä" * 127):
        write_whole(tmp_path / name, "content")
        assert (tmp_path / name).read_text() == "content"


def test_the_first_one_stays(tmp_path):
    assert create_whole(tmp_path / "a", "first")
    assert not create_whole(tmp_path / "a", "second")
    assert (tmp_path / "a").read_text() == "first"
    assert leftovers(tmp_path) == []


# Leftovers ------------------------------------------------------------------------------------------------------------


def test_leftovers_are_swept_but_not_those_of_the_living(tmp_path):
    kept = [tmp_path / "x.elsewhere~1~0123abcd-0.part", tmp_path / "a~b~c.part", tmp_path / "movie.part"]
    for path in kept:
        path.touch()
    left_by(dead(), tmp_path / "a.json")
    # An earlier process that had this one's number, as in a container that is started again.
    left_by(os.getpid(), tmp_path / "b.json")
    with partial(tmp_path / "own.json", "ha") as own, half_written(tmp_path / "other.json") as process:
        sweep([tmp_path])
        assert len(leftovers(tmp_path)) == len(kept) + 2
        assert own.exists()
        process.communicate("go on\n")
    assert process.returncode == 0
    assert (tmp_path / "other.json").read_text() == "new, but only ha"
    assert sorted(leftovers(tmp_path)) == sorted(kept)


def test_processes_of_others_are_living(tmp_path, monkeypatch):
    def refused(number, sign):
        raise PermissionError

    left = left_by(dead(), tmp_path / "a.json")
    monkeypatch.setattr(os, "kill", refused)
    sweep([tmp_path])
    assert left.exists()


def explain(folder: Path) -> None:
    picture = folder.parent / "data" / "deeper" / "0.png"
    picture.parent.mkdir(parents=True)
    Image.new("RGB", (128, 128), "red").save(picture)
    command = ["explain", str(picture.parent.parent), "--model", "zoo/resnet", "-o", str(folder)]
    assert CliRunner().invoke(app, command).exit_code == 0


def run(folder: Path) -> None:
    pytest.importorskip("pyarrow")
    command = ["run", "--data", "scenes:2:2", "--model", "zoo/resnet", "-o", str(folder)]
    assert CliRunner().invoke(app, command).exit_code == 0


def bench(folder: Path) -> None:
    quick = suite("quick")
    effort = replace(quick.effort, images=2)
    small = replace(quick, models=("zoo/resnet",), methods=("uniform",), measures=("localisation",), effort=effort)
    (cell,) = Grid(small, folder).run()
    assert cell.error is None


def cover(folder: Path) -> None:
    coverage.Store(folder, coverage.Settings(batch=1))


@pytest.mark.parametrize(
    ("job", "files"),
    [
        (explain, ["index.html", "deeper/0.json"]),
        (run, ["items.jsonl", "manifest.json", "rows/part-000000.parquet", "maps/part-000000.parquet"]),
        (bench, ["settings.json", "cells/zoo_resnet/weights.json", "cells/zoo_resnet/uniform/localisation.json"]),
        (cover, ["settings.json", "requested.json"]),
    ],
)
def test_every_job_sweeps(job: Callable[[Path], None], files, tmp_path):
    number = dead()
    for file in files:
        left_by(number, tmp_path / "out" / file)
    job(tmp_path / "out")
    assert leftovers(tmp_path) == []


# Settings -------------------------------------------------------------------------------------------------------------


def test_settings_are_written_once_and_compared_after_that(tmp_path):
    path = tmp_path / "out" / "settings.json"
    stored = begin(path, SETTINGS)
    assert stored == read_settings(path) == json.loads(json.dumps(SETTINGS))
    before = path.stat()
    assert begin(path, SETTINGS) == stored
    assert path.stat() == before


def test_other_settings_are_refused_and_each_difference_is_named(tmp_path):
    begin(tmp_path / "settings.json", SETTINGS | {"old": "x" * 1000})
    other = {"seed": 2, "effort": {"images": 3, "runs": 6}, "methods": ["a", "b"], "size": 224}
    with pytest.raises(InputError) as caught:
        begin(tmp_path / "settings.json", other, "weights", "Do this.")
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}: a run with other weights is in it (")
    assert said.endswith("Do this.")
    for difference in ("seed: 1 there, 2 now", "effort: runs: 5 there, 6 now", "size: nothing there, 224 now"):
        assert difference in said
    assert "... there, nothing now" in said
    assert len(said) < 400
    assert "images" not in said
    assert "methods" not in said
    assert read_settings(tmp_path / "settings.json")["seed"] == 1
    assert leftovers(tmp_path) == []


def test_what_differs():
    assert differing(SETTINGS, SETTINGS) == {}
    assert differing({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}) == {"a: b: c": (1, 2)}
    assert differing({"a": {"b": 1}}, {"a": 1}) == {"a": ({"b": 1}, 1)}


@pytest.mark.parametrize("content", [b"", b'{"seed": 1, "eff', b"[1, 2]", b"null", b"\xff\x00\xff", bytes(100)])
def test_damaged_settings_are_an_error(content, tmp_path):
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        begin(path, SETTINGS)
    said = str(caught.value)
    assert said.startswith(f"{path}: can't be read (")
    assert "Choose another folder" in said
    assert path.read_bytes() == content


def test_altered_settings_are_an_error(tmp_path):
    path = tmp_path / "settings.json"
    begin(path, SETTINGS)
    path.write_text(path.read_text().replace('"images": 3', '"images": 4'))
    with pytest.raises(InputError, match=r"settings\.json: can't be read \(it was altered"):
        read_settings(path)


def test_few_of_many_differences_are_named(tmp_path):
    begin(tmp_path / "settings.json", {"pictures": {str(i): "a" for i in range(50)}})
    with pytest.raises(InputError) as caught:
        begin(tmp_path / "settings.json", {"pictures": {str(i): "b" for i in range(50)}})
    assert 'pictures: 5: "a" there, "b" now; and 44 more)' in str(caught.value)


@pytest.mark.parametrize(("job", "file"), [(run, "manifest.json"), (bench, "settings.json"), (cover, "settings.json")])
def test_every_job_says_that_its_settings_are_damaged(job, file, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / file).write_bytes(b'{"cut o')
    if job is run:
        command = ["run", "--data", "scenes:2:2", "--model", "zoo/resnet", "-o", str(tmp_path / "out")]
        said = CliRunner().invoke(app, command).output
    else:
        with pytest.raises(InputError) as caught:
            job(tmp_path / "out")
        said = str(caught.value)
    assert f"{file}: can't be read (Unterminated string" in said
    assert ("--fresh" in said) == (job is cover)


def test_processes_that_begin_at_once(tmp_path):
    """The first one's settings count; equal ones go on, and others hear what differs."""
    context = multiprocessing.get_context("fork")
    path, count = tmp_path / "out" / "settings.json", 8
    for attempt in range(5):
        barrier, results = context.Barrier(count), context.Queue()

        def started(seed: int, barrier=barrier, results=results, path=path) -> None:
            barrier.wait()
            try:
                results.put((seed, begin(path, {"seed": seed})["seed"]))
            except InputError as error:
                results.put((seed, str(error)))

        processes = [context.Process(target=started, args=(i % 2,)) for i in range(count)]
        for process in processes:
            process.start()
        found = [results.get(timeout=60) for _ in processes]
        for process in processes:
            process.join()
        winner = read_settings(path)["seed"]
        for seed, said in found:
            assert said == seed if seed == winner else f"seed: {winner} there, {seed} now" in said, attempt
        assert os.listdir(path.parent) == ["settings.json"]
        path.unlink()


def test_versions_of_what_is_installed_and_what_is_not():
    found = versions(["numpy", "no-such-package"])
    assert found["packages"] == {"numpy": np.__version__, "no-such-package": None}


# Results --------------------------------------------------------------------------------------------------------------


def test_rows_of_a_file_that_was_cut_anywhere(tmp_path):
    rows = [{"name": "first", "share": 0.5}, {"name": "ä\u2028", "splits": {}}]
    path = tmp_path / "results.jsonl"
    assert list(read_rows(path)) == []
    for row in rows:
        append_row(path, row)
    whole = path.read_bytes()
    ends = [whole.index(b"\n"), len(whole) - 1]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        expected = rows[: sum(end <= length for end in ends)]
        assert list(read_rows(path)) == expected
        append_row(path, {"name": "next"})
        assert list(read_rows(path)) == [*expected, {"name": "next"}]


def test_damaged_results_are_not_there(tmp_path):
    path, damaged = tmp_path / "cell.json", []
    assert read_result(path, damaged) is None
    assert damaged == []
    for content in (b"", b'{"figures": {"poin', b"\xff\xff", b"{}", b"null", b"[" * 100_000, b'{"checksum": 5}'):
        path.write_bytes(content)
        assert read_result(path, damaged) is None
    assert damaged == [f"{path}: it is cut off or altered"]
    write_result(path, {"share": float("nan")})
    assert repr(read_result(path)) == "{'share': nan}"
    write_result(path, {"figures": {"share": (0.1, 2)}, 1: None})
    assert read_result(path) == {"figures": {"share": [0.1, 2]}, "1": None}
    whole = path.read_bytes()
    for place in range(len(whole)):
        for byte in (b"0", b" ", bytes([whole[place] ^ 1])):
            path.write_bytes(whole[:place] + byte + whole[place + 1 :])
            # What is left out between letters doesn't matter.
            assert read_result(path) is None or json.loads(path.read_bytes()) == json.loads(whole)


def test_arrays_are_computed_once_and_again_where_they_are_damaged(tmp_path):
    arrays = {"maps": np.random.default_rng(0).normal(size=(2, 5, 5)), "names": np.array(["a", "b"])}
    path, computed = tmp_path / "shared" / "maps.npz", []

    def compute():
        computed.append(1)
        return arrays

    def same(found):
        return set(found) == set(arrays) and all(np.array_equal(found[name], arrays[name]) for name in arrays)

    assert same(computed_once(path, compute))
    assert same(computed_once(path, compute))
    assert len(computed) == 1
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    version = whole[: directory + 6] + b"\xff" + whole[directory + 7 :]  # of a format that doesn't exist
    middle = whole[:100] + bytes(50) + whole[150:]
    for damaged in (b"", whole[:10], whole[: len(whole) // 2], whole[:-1], middle, version):
        path.write_bytes(damaged)
        assert read_arrays(path) is None
        assert same(computed_once(path, compute))
    assert len(computed) == 7
