"""Damaged runs: a small run of each job is damaged in one way and run again.

What is there then is what an undamaged run writes, and the damage was said; or there is an error that names the damage
and the remedy.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tarfile
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from helpers.commands import invoke, words
from helpers.figures import small_figure, small_places
from helpers.runs import png, rows
from hilrp.attribution.shown import Shown
from hilrp.jobs import coverage
from hilrp.jobs.bench.grid import Grid
from hilrp.jobs.bench.suites import suite
from hilrp.jobs.coverage import runner
from hilrp.scenes import Scenes
from hilrp.scenes.folder import write
from hilrp.util.errors import InputError

Damage = Callable[[Path], None]

#: A model of 8 x 8 pixels, since runs are made many times here.
TINY = """
import numpy as np, torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)).eval()
    return model, lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255, ["a", "b", "c"]
"""
COUNT = 6


# Ways to damage a file ------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def deleted(path: Path) -> None:
    path.unlink()


def zeroed(path: Path) -> None:
    """As a file may be after a power cut: of the right size, and without content."""
    path.write_bytes(bytes(path.stat().st_size))


def altered(path: Path) -> None:
    """A few bytes of what it holds; the beginning and the end are as they were."""
    content = bytearray(path.read_bytes())
    place = len(content) // 2
    if path.suffix == ".parquet":  # whose directory may be the larger half
        column = pq.ParquetFile(path).metadata.row_group(0).column(0)
        place = column.data_page_offset + column.total_compressed_size // 2
    content[place : place + 4] = bytes(byte ^ 0x55 for byte in content[place : place + 4])
    path.write_bytes(content)


def with_content(content: str) -> Damage:
    return lambda path: path.write_text(content)


def without_last_lines(path: Path) -> None:
    """Whole lines are missing."""
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))


def another_order(path: Path) -> None:
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))


def another_digit(path: Path) -> None:
    """JSON as good as before, but for one digit."""
    text = path.read_text()
    place = next(i for i, letter in enumerate(text) if letter in "012345678" and text[i - 1] in " .[")
    path.write_text(f"{text[:place]}{int(text[place]) + 1}{text[place + 1 :]}")


def from_elsewhere(path: Path) -> None:
    """The file of another piece, which is whole."""
    shutil.copy(path.with_name("part-000002.parquet"), path)


def with_fewer_rows(path: Path) -> None:
    """A file of Parquet that is whole, and says that it is of this piece."""
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)


def without_arrays(path: Path) -> None:
    np.savez(path, other=np.zeros(2))


def only(folder: Path, pattern: str) -> Path:
    """The first file that fits a pattern."""
    return sorted(folder.glob(pattern))[0]


# hilrp run ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """Where a tiny model and tiny pictures are."""
    folder = tmp_path_factory.mktemp("attack")
    (folder / "tiny.py").write_text(TINY)
    (folder / "data").mkdir()
    for i in range(COUNT):
        pixels = np.random.default_rng(i).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        (folder / "data" / f"{i}.png").write_bytes(png(pixels))
    with chdir(folder):
        yield folder


def run(place: Path, out: Path, data: str = "data", *options: Any) -> Any:
    data = data if ":" in data else str(place / data)
    return invoke("run", "--data", data, "--model", "tiny:make", "--piece", 2, "--maps", "files", "-o", out, *options)


def maps(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("maps/*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.fixture(scope="module")
def whole_run(place) -> Path:
    result = run(place, place / "run")
    assert result.exit_code == 0, result.output
    return place / "run"


LIST, ROWS, MAPS = "items-*.jsonl", "rows/part-000001.parquet", "maps/part-000001.parquet"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *((LIST, each) for each in (cut, emptied, zeroed, altered, without_last_lines, another_order)),
        *((ROWS, each) for each in (cut, emptied, zeroed, altered, from_elsewhere, with_fewer_rows)),
        *((MAPS, each) for each in (cut, zeroed, altered, from_elsewhere, deleted)),
    ],
)
def test_a_damaged_run(file, damage, whole_run, place, tmp_path):
    out = Path(shutil.copytree(whole_run, tmp_path / "out"))
    path = only(out, file)
    damage(path)
    result = run(place, out)
    assert result.exit_code == 0, result.output
    assert f"damaged, and made again: {path}: " in words(result)
    assert f"{COUNT} images are done." in words(result)
    assert rows(out) == rows(whole_run)
    assert maps(out) == maps(whole_run)
    assert only(out, LIST).read_bytes() == only(whole_run, LIST).read_bytes()
    assert "made again" not in run(place, out).output


def test_a_list_that_is_gone(whole_run, place, tmp_path):
    out = Path(shutil.copytree(whole_run, tmp_path / "out"))
    only(out, LIST).unlink()
    assert run(place, out).exit_code == 0
    assert rows(out) == rows(whole_run)


@pytest.mark.parametrize("damage", [cut, emptied, zeroed, another_digit, with_content("[]")])
def test_a_damaged_manifest(damage, whole_run, place, tmp_path):
    out = Path(shutil.copytree(whole_run, tmp_path / "out"))
    damage(out / "manifest.json")
    for result in (run(place, out), invoke("merge", out, "-o", tmp_path / "all.parquet")):
        assert result.exit_code == 2
        assert f"{out / 'manifest.json'}: can't be read (" in words(result)
        assert "Choose another folder, or discard what is in this one." in words(result)


@pytest.mark.parametrize(
    ("file", "damage", "said"),
    [
        (LIST, without_last_lines, "the list of items is cut off or altered. Run the same `hilrp run` again"),
        (LIST, altered, "the list of items is cut off or altered. Run the same `hilrp run` again"),
        (LIST, deleted, "the list of items can't be read (No such file or directory). Run the same `hilrp run` again"),
        (ROWS, altered, "it is cut off or altered"),
        (MAPS, cut, "it is cut off or altered"),
    ],
)
def test_a_damaged_run_is_not_merged(file, damage, said, whole_run, tmp_path):
    out = Path(shutil.copytree(whole_run, tmp_path / "out"))
    path = only(out, file)
    damage(path)
    result = invoke("merge", out, "-o", tmp_path / "all.parquet")
    assert result.exit_code == 2
    assert f"{path}: {said}" in words(result)
    assert "again" in words(result)
    assert not (tmp_path / "all.parquet").exists()


def test_a_list_that_is_damaged_while_it_runs(whole_run, tmp_path):
    """Whoever reads a part of it checks that part."""
    from hilrp.jobs.run.store import Store

    store = Store(Path(shutil.copytree(whole_run, tmp_path / "out")))
    pieces = store.pieces()
    path = only(store.folder, LIST)
    path.write_bytes(path.read_bytes().replace(b"3.png", b"4.png"))
    assert len(store.items(pieces[0])) == 2
    with pytest.raises(InputError, match=r"altered meanwhile\. Run the same `hilrp run` again"):
        store.items(pieces[1])


def test_any_byte_of_a_piece(whole_run, tmp_path):
    """A file of rows whose bytes are altered is noticed, or has the same rows."""
    from hilrp.jobs.run.store import Store

    out = Path(shutil.copytree(whole_run, tmp_path / "out"))
    path, expected = out / ROWS, rows(whole_run)
    content = path.read_bytes()
    noticed = 0
    for place in range(0, len(content), 97):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        store = Store(out)
        noticed += not (done := store.done(store.pieces()[1]))
        assert not done or rows(out) == expected
    assert noticed > 0.5 * len(content) / 97


# Data of a run --------------------------------------------------------------------------------------------------------


def shard(place: Path, path: Path, pictures: list[int]) -> list[int]:
    """Writes a tar file; returns where its members begin."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in pictures:
            tar.add(place / "data" / f"{i}.png", f"{i}.png")
    with tarfile.open(path) as tar:
        return [member.offset for member in tar]


def found(result: Any, out: Path) -> tuple[list[str], list[str]]:
    """The pictures that were explained, and what was said of the others; the exit status says whether there are any."""
    all_rows = rows(out)
    said = [row["error"] for row in all_rows if row["error"] is not None]
    assert result.exit_code == bool(said), result.output
    return sorted(row["id"].split("/")[-1] for row in all_rows if row["error"] is None), said


def with_zeroed_header(path: Path, begins: list[int]) -> None:
    content = bytearray(path.read_bytes())
    content[begins[1] : begins[1] + 512] = bytes(512)
    path.write_bytes(content)


def with_damaged_header(path: Path, begins: list[int]) -> None:
    content = bytearray(path.read_bytes())
    content[begins[1] + 148] ^= 0xFF  # its checksum
    path.write_bytes(content)


def cut_at_a_member(path: Path, begins: list[int]) -> None:
    path.write_bytes(path.read_bytes()[: begins[2]])


def cut_in_a_member(path: Path, begins: list[int]) -> None:
    path.write_bytes(path.read_bytes()[: begins[2] + 600])


def cut_in_a_header(path: Path, begins: list[int]) -> None:
    path.write_bytes(path.read_bytes()[: begins[2] + 100])


def with_more_behind(path: Path, begins: list[int]) -> None:
    path.write_bytes(path.read_bytes() + b"no tar" * 300)


@pytest.mark.parametrize(
    ("damage", "read", "said"),
    [
        (with_zeroed_header, "023", "1024 bytes from byte 1024 on belong to no file. 3 files were read"),
        (with_damaged_header, "023", "1024 bytes from byte 1024 on belong to no file. 3 files were read"),
        (cut_at_a_member, "01", "it is cut off at byte 2048, since the mark at its end is missing. 2 files were read"),
        (cut_in_a_member, "01", "unexpected end of data). 3 files were read"),
        (cut_in_a_header, "01", "100 bytes from byte 2048 on belong to no file. 2 files were read"),
        (with_more_behind, "0123", "belong to no file. 4 files were read"),
    ],
)
def test_a_damaged_tar(damage, read, said, place, tmp_path):
    """What can be read is explained, and what is missing has a row."""
    begins = shard(place, tmp_path / "a.tar", [0, 1, 2, 3])
    damage(tmp_path / "a.tar", begins)
    result = run(place, tmp_path / "out", str(tmp_path / "a.tar"))
    pictures, errors = found(result, tmp_path / "out")
    assert pictures == list(read)
    assert "a.tar: a damaged tar file: " in errors[-1]
    assert said in errors[-1]
    assert "Fetch or write it again." in errors[-1]


def test_tars_in_one_file(place, tmp_path):
    """One after the other, as `cat` puts them together: all are read."""
    shard(place, tmp_path / "a.tar", [0, 1])
    shard(place, tmp_path / "b.tar", [2, 3])
    with (tmp_path / "a.tar").open("ab") as file:
        file.write((tmp_path / "b.tar").read_bytes())
    (tmp_path / "b.tar").unlink()
    result = run(place, tmp_path / "out", str(tmp_path / "a.tar"))
    assert found(result, tmp_path / "out") == (["0", "1", "2", "3"], [])


def test_links(place, tmp_path):
    """Each real path is visited once, and what has a name of its own is called by that."""
    data = tmp_path / "data"
    shutil.copytree(place / "data", data / "b")
    (data / "b" / "2.png").rename(data / "2.png")
    (data / "again").symlink_to(data)
    (data / "a").symlink_to(data / "b")
    (data / "b" / "back").symlink_to("..")
    (data / "b" / "self.png").symlink_to("self.png")
    (data / "self").symlink_to("self")
    (data / "b" / "copy.png").symlink_to("0.png")
    (data / "elsewhere").symlink_to(place / "data")
    result = run(place, tmp_path / "out", str(data))
    pictures, errors = found(result, tmp_path / "out")
    assert pictures == sorted(2 * [f"{i}.png" for i in range(COUNT)])
    assert [said.partition(" (")[0] for said in errors] == ["b/self.png: can't be looked at"]
    assert not [row["id"] for row in rows(tmp_path / "out") if row["id"].startswith(("a/", "again"))]


def test_a_pattern_and_a_link_to_the_folder_itself(place, tmp_path):
    data = Path(shutil.copytree(place / "data", tmp_path / "data"))
    (data / "again").symlink_to(data)
    result = run(place, tmp_path / "out", f"{data}/**/*.png")
    assert found(result, tmp_path / "out")[0] == [f"{i}.png" for i in range(COUNT)]


def test_what_is_no_file(place, tmp_path):
    """Pipes, sockets and devices are never opened."""
    data = Path(shutil.copytree(place / "data", tmp_path / "data"))
    os.mkfifo(data / "pipe.png")
    (data / "zero.png").symlink_to("/dev/zero")
    with chdir(data), socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.png")
    result = run(place, tmp_path / "out", str(data))
    pictures, errors = found(result, tmp_path / "out")
    assert pictures == [f"{i}.png" for i in range(COUNT)]
    kinds = ["pipe.png: a named pipe", "socket.png: a socket", "zero.png: a device"]
    assert errors == [f"{kind}, and not a file. Take it out of the data." for kind in kinds]


@pytest.mark.parametrize("name", ["pipe.tar", "pipe.parquet"])
def test_shards_that_are_no_files(name, place, tmp_path):
    os.mkfifo(tmp_path / name)
    result = run(place, tmp_path / "out", str(tmp_path / name))
    assert result.exit_code == 2
    assert f"{name}: a named pipe, and not a file." in words(result)


def test_pipes_in_an_index(place, tmp_path):
    data = Path(shutil.copytree(place / "data", tmp_path / "data"))
    os.mkfifo(data / "pipe.png")
    entries = [
        {"file": "pipe.png"},
        {"file": "0.png", "mask": "pipe.png"},
        {"file": "nul\0.png"},
        {"file": "\ud800.png"},
    ]
    (data / "index.json").write_text(json.dumps(entries))
    result = run(place, tmp_path / "out", str(data))
    pictures, errors = found(result, tmp_path / "out")
    assert pictures == ["0.png"]
    assert len(errors) == 3
    assert "a named pipe" in errors[0]
    assert "not a name that a file can have" in errors[1]


@pytest.fixture
def closed(monkeypatch) -> Callable[[Path], None]:
    """Makes a folder one that nobody may look into; rights alone don't keep out who is root."""
    closed_folders: list[str] = []

    def refusing(function: Any) -> Any:
        def look(path: Any = ".") -> Any:
            if os.fspath(path) in closed_folders:
                raise PermissionError(13, "Permission denied", path)
            return function(path)

        return look

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    return lambda folder: closed_folders.append(str(folder))


@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_folder_that_cannot_be_looked_into(command, closed, place, tmp_path):
    data = Path(shutil.copytree(place / "data", tmp_path / "data"))
    shutil.copytree(place / "data", data / "secret")
    closed(data / "secret")
    if command == "run":
        result = run(place, tmp_path / "out", str(data))
        pictures, (said,) = found(result, tmp_path / "out")
        assert pictures == [f"{i}.png" for i in range(COUNT)]
        assert said.startswith("secret/: the folder can't be looked into (Permission denied).")
    else:
        from hilrp.models.images import find

        sources, problems = find([data])
        assert [source.name for source in sources] == [str(i) for i in range(COUNT)]
        assert problems == {
            str(data / "secret"): "the folder can't be looked into (Permission denied). Give yourself the right to."
        }


ODD = os.fsdecode(b"caf\xe9")


def test_names_that_are_no_letters(place, tmp_path):
    """In rows, in errors, on the page, in JSON."""
    data = Path(shutil.copytree(place / "data", tmp_path / ODD))
    (data / f"{ODD}.png").write_bytes(png(np.zeros((8, 8, 3), np.uint8)))
    (data / f"{ODD}-cut.png").write_bytes(b"no picture")
    os.mkfifo(data / f"{ODD}-pipe.png")
    out = tmp_path / f"out-{ODD}"
    result = run(place, out, str(data), "--json")
    pictures, errors = found(result, out)
    assert "caf\\udce9.png" in pictures
    assert len(pictures) == COUNT + 1
    assert any("caf\\udce9-pipe.png: a named pipe" in said for said in errors)
    assert json.loads(result.stdout)["failed"] == 2
    assert invoke("summary", out).exit_code == 0
    assert "caf\\udce9: 9 images" in (out / "summary.html").read_text()


# hilrp explain --------------------------------------------------------------------------------------------------------


def explain(place: Path, out: Path, *sources: Any) -> Any:
    return invoke("explain", *(sources or [place / "data" / "0.png"]), "--model", "tiny:make", "-o", out)


@pytest.fixture
def _small_figures(monkeypatch) -> None:
    """Figures take most of the time, and what is drawn on them doesn't matter here."""
    monkeypatch.setattr(Shown, "encoded", small_figure)
    monkeypatch.setattr(Shown, "drawn", small_places)


@pytest.fixture(scope="module")
def whole_explanation(place) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shown, "encoded", small_figure)
        patch.setattr(Shown, "drawn", small_places)
        assert explain(place, place / "explained").exit_code == 0
    return place / "explained"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".png", ".json")}


def arrays(path: Path) -> dict[str, list[Any]]:
    with np.load(path) as stored:
        return {name: value.tolist() for name, value in stored.items()}


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *(("0.png", each) for each in (cut, emptied, zeroed, altered)),
        ("0.details.png", cut),
        *(("0.npz", each) for each in (cut, emptied, altered, without_arrays)),
        *(("0.json", each) for each in (cut, emptied, another_digit, with_content("{}"), with_content("null"))),
    ],
)
@pytest.mark.usefixtures("_small_figures")
def test_a_damaged_explanation(file, damage, whole_explanation, place, tmp_path):
    out = Path(shutil.copytree(whole_explanation, tmp_path / "out"))
    damage(out / file)
    result = explain(place, out)
    assert result.exit_code == 0, result.output
    assert f"damaged, and made again: {out / file}: it is cut off or altered" in words(result)
    facts, expected = (json.loads((folder / "0.json").read_text()) for folder in (out, whole_explanation))
    assert {**facts, "sha256": 0, "checksum": 0} == {**expected, "sha256": 0, "checksum": 0}
    assert arrays(out / "0.npz") == arrays(whole_explanation / "0.npz")
    assert (out / "index.html").read_text().count('src="data:image/') == 2  # the picture, and its details
    again = explain(place, out)
    assert "1 of 1 explained (1 of them by an earlier run)." in words(again)
    assert "made again" not in again.output


@pytest.mark.usefixtures("_small_figures")
def test_a_page_beside_a_figure_that_is_cut(place, tmp_path, monkeypatch):
    """By somebody else, between the check and the page."""
    from hilrp.pages import gallery

    whole = gallery.gallery_page

    def page(folder: Path, *rest: Any) -> str:
        cut(folder / "0.png")
        return whole(folder, *rest)

    monkeypatch.setattr(gallery, "gallery_page", page)
    result = explain(place, tmp_path, place / "data" / "0.png", place / "data" / "1.png")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "index.html").read_text()
    assert text.count('src="data:image/') == 3  # of two pictures with their details
    assert "Its figure can't be read" in text


@pytest.mark.usefixtures("_small_figures")
def test_a_page_with_names_that_are_no_letters(place, tmp_path):
    picture = tmp_path / f"{ODD}.png"
    shutil.copy(place / "data" / "0.png", picture)
    for reused in (False, True):
        result = explain(place, tmp_path / "out", picture)
        assert result.exit_code == 0, result.output
        assert ("by an earlier run" in words(result)) == reused
        page = (tmp_path / "out" / "index.html").read_text()
        assert "<b>caf\\udce9</b>" in page
        assert 'href="./caf%E9.png"' in page


@pytest.mark.usefixtures("_small_figures")
def test_one_explanation_that_cannot_be_drawn(place, tmp_path, monkeypatch):
    drawn = []

    def encoded(self: Shown, kind: str, *rest: Any) -> bytes:
        drawn.append(kind)
        if kind == "details.png" and drawn.count(kind) == 1:
            raise ValueError("a name that can't be drawn")
        return small_figure(self, kind, *rest)

    monkeypatch.setattr(Shown, "encoded", encoded)
    result = explain(place, tmp_path / "out", place / "data" / "0.png", place / "data" / "1.png")
    assert result.exit_code == 1
    assert "a name that can't be drawn" in words(result)
    assert sorted(contents(tmp_path / "out")) == ["1.details.png", "1.json", "1.png"]


# hilrp bench ----------------------------------------------------------------------------------------------------------


def grid(data: Path, out: Path) -> Grid:
    quick = suite("quick", str(data))
    effort = replace(quick.effort, images=2)
    small = {"models": ("zoo/resnet",), "methods": ("uniform", "centre-gaussian"), "measures": ("localisation",)}
    return Grid(replace(quick, effort=effort, **small), out)


def figures(found: Grid) -> list[Any]:
    cells = list(found.run())
    assert [cell.error for cell in cells] == [None, None]
    return cells


@pytest.fixture(scope="module")
def whole_bench(tmp_path_factory) -> tuple[Path, Path, list[Any]]:
    """Data, a run, and its cells."""
    folder = tmp_path_factory.mktemp("bench")
    write(Scenes(seed=2, count=2), folder / "data")
    return folder / "data", folder / "out", figures(grid(folder / "data", folder / "out"))


CELL = "cells/zoo_resnet/uniform/localisation.json"
BENCH_MAPS, SHOWN = "cells/zoo_resnet/uniform/maps.npz", "cells/zoo_resnet/shared/shown.npz"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *((CELL, each) for each in (cut, emptied, zeroed, another_digit, with_content("{}"), with_content("[1]"))),
        *((BENCH_MAPS, each) for each in (cut, emptied, altered, without_arrays)),
        *((SHOWN, each) for each in (cut, without_arrays)),
    ],
)
def test_a_damaged_benchmark(file, damage, whole_bench, tmp_path):
    data, whole, cells = whole_bench
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    damage(out / file)
    again = grid(data, out)
    assert figures(again) == cells
    assert len(again.damaged) == 1
    assert again.damaged[0].startswith(f"{out / file}: it")
    assert np.array_equal(again.maps("zoo/resnet", "uniform"), grid(data, whole).maps("zoo/resnet", "uniform"))
    assert np.array_equal(again.shown("zoo/resnet")[1], grid(data, whole).shown("zoo/resnet")[1])
    third = grid(data, out)
    assert figures(third) == cells
    assert third.damaged == []


@pytest.mark.parametrize("damage", [cut, emptied, another_digit])
def test_damaged_settings_of_a_benchmark(damage, whole_bench, tmp_path):
    data, whole, _ = whole_bench
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    damage(out / "settings.json")
    with pytest.raises(InputError, match=r"settings\.json: can't be read \(.*Choose another folder, or discard"):
        grid(data, out)


def test_weights_of_a_benchmark_that_are_damaged(whole_bench, tmp_path):
    data, whole, _ = whole_bench
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    cut(out / "cells/zoo_resnet/weights.json")
    for cell in grid(data, out).run():
        assert "weights.json: can't be read" in str(cell.error)
        assert "Choose another folder, or discard" in str(cell.error)


@pytest.mark.parametrize("what", ["file", "mask", "label", "boxes"])
def test_a_benchmark_whose_data_was_replaced(what, whole_bench, tmp_path):
    """The path is the same, and the content isn't: figures of both must not stand beside each other."""
    data, whole, _ = whole_bench
    data, out = (Path(shutil.copytree(each, tmp_path / each.name)) for each in (data, whole))
    index = json.loads((data / "index.json").read_text())
    # The folder of the data is part of the settings, too: the copy begins anew.
    shutil.rmtree(out)
    figures(grid(data, out))
    if what in ("file", "mask"):
        shutil.copy(data / index[-1][what], data / index[0][what])
    else:
        index[0][what] = index[0]["label"] + 1 if what == "label" else [[1, 2, 30, 40]]
        (data / "index.json").write_text(json.dumps(index))
    with pytest.raises(InputError) as caught:
        grid(data, out)
    assert f"pictures: 0: {index[0]['file']}: " in str(caught.value)
    assert "can't be mixed. Choose another folder, or discard what is in this one." in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"file": "a.png"}]', '{"file": 1}'])
def test_a_benchmark_with_a_damaged_index(content, tmp_path):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(InputError, match=r"index\.json: not a list of entries with file and label"):
        grid(tmp_path, tmp_path / "out")


def test_a_benchmark_with_a_pipe(whole_bench, tmp_path):
    data = Path(shutil.copytree(whole_bench[0], tmp_path / "data"))
    picture = data / json.loads((data / "index.json").read_text())[0]["file"]
    picture.unlink()
    os.mkfifo(picture)
    with pytest.raises(InputError, match=r"a named pipe, and not a file\."):
        grid(data, tmp_path / "out")


# hilrp coverage -------------------------------------------------------------------------------------------------------

MODELS = ["timm/a", "timm/b", "timm/c"]


@pytest.fixture
def audited(monkeypatch) -> list[str]:
    """Models are audited without processes; the names of those that were."""
    names: list[str] = []

    def audit(self: Any, wanted: list[str]) -> Iterator[dict[str, Any]]:
        for name in wanted:
            names.append(name)
            yield {"name": name, "status": "pass", "residual": 2.5e-7, "leak": float("nan"), "splits": {}}

    monkeypatch.setattr(runner._Pool, "run", audit)
    return names


@pytest.fixture
def covered(audited, tmp_path) -> Path:
    coverage.run(MODELS, coverage.Store(tmp_path, coverage.Settings(batch=1)))
    assert audited == MODELS
    audited.clear()
    return tmp_path


def with_line(content: bytes) -> Damage:
    def damage(path: Path) -> None:
        lines = path.read_bytes().splitlines()
        path.write_bytes(b"\n".join([lines[0], content, lines[2]]) + b"\n")

    return damage


@pytest.mark.parametrize(
    ("damage", "again"),
    [
        (with_line(b'{"name": "timm/b", "sta'), ["timm/b"]),
        (with_line(b"null"), ["timm/b"]),
        (with_line(b"\xff\xfe\x00"), ["timm/b"]),
        (with_line(b'{"name": "timm/b", "status": "pass"}'), ["timm/b"]),
        (another_digit, ["timm/a"]),
        (altered, ["timm/b"]),
        (cut, ["timm/b", "timm/c"]),
        (zeroed, MODELS),
    ],
)
def test_damaged_rows_of_a_coverage_run(damage, again, covered, audited):
    path = covered / "results.jsonl"
    expected = repr(sorted(coverage.Store(covered, coverage.Settings(batch=1)).rows().items()))
    damage(path)
    store = coverage.Store(covered, coverage.Settings(batch=1))
    assert all(said.startswith(f"{path}: line ") for said in store.damaged)
    assert store.damaged
    coverage.run(MODELS, store)
    assert audited == again
    assert repr(sorted(store.rows().items())) == expected
    assert coverage.Store(covered, coverage.Settings(batch=1)).damaged == []


@pytest.mark.parametrize("damage", [cut, emptied, zeroed, with_content("5"), with_content('{"a": 1}')])
def test_damaged_requests_of_a_coverage_run(damage, covered, audited):
    """Those that have a row were asked for."""
    path = covered / "requested.json"
    damage(path)
    store = coverage.Store(covered, coverage.Settings(batch=1))
    assert store.damaged == [f"{path}: the list of models is cut off or altered"]
    coverage.run(["timm/d"], store)
    assert json.loads(path.read_text()) == [*MODELS, "timm/d"]


@pytest.mark.parametrize("damage", [cut, emptied, another_digit])
def test_damaged_settings_of_a_coverage_run(damage, covered):
    damage(covered / "settings.json")
    with pytest.raises(InputError, match=r"settings\.json: can't be read \(.*with --fresh\."):
        coverage.Store(covered, coverage.Settings(batch=1))
    assert coverage.Store(covered, coverage.Settings(batch=1), fresh=True).rows() == {}
