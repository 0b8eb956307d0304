"""Folders: each file once, whatever links lead to it, and what can't be looked at."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hilrp.util import folders
from hilrp.util.folders import Unreadable, walk
from hilrp.util.regular_files import not_a_file, printable


def names(folder: Path, without: Path | None = None) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in walk(folder, (".png",), without)]


def made(folder: Path, *files: str) -> Path:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return folder


def test_files_in_order(tmp_path):
    made(tmp_path, "b/2.png", "b/10.PNG", "a.png", "c.txt", ".hidden/a.png", "b/.a.png", "d/e/f.png")
    assert names(tmp_path) == ["a.png", "b/10.PNG", "b/2.png", "d/e/f.png"]
    assert names(tmp_path, tmp_path / "d") == ["a.png", "b/10.PNG", "b/2.png"]


def test_links_that_lead_back(tmp_path):
    made(tmp_path, "a.png", "b/c.png")
    for link, target in (("again", "."), ("b/up", ".."), ("b/up2", ".."), ("self", "self"), ("z", "nowhere")):
        (tmp_path / link).symlink_to(target)
    assert names(tmp_path) == ["a.png", "b/c.png"]
    assert [path.name for path in walk(tmp_path / "again" / "again", (".png",))] == ["a.png", "c.png"]


def test_what_has_a_name_of_its_own_is_called_by_that(tmp_path):
    made(tmp_path, "data/cats/1.png", "pool/2.png", "pool/3.png", "data/.store/blob.png", "pool/blob")
    for link, target in (
        ("alias", "cats"),
        ("0.png", "cats/1.png"),
        ("5.png", "../pool/2.png"),
        ("more", "../pool"),
        ("from-store.png", ".store/blob.png"),
        ("ending.png", "../pool/blob"),
        ("gone.png", "nowhere.png"),
        ("self.png", "self.png"),
    ):
        (tmp_path / "data" / link).symlink_to(target)
    found = ["cats/1.png", "more/2.png", "more/3.png", "ending.png", "from-store.png", "gone.png", "self.png"]
    assert names(tmp_path / "data") == found


def test_a_folder_that_cannot_be_looked_into(tmp_path, monkeypatch):
    made(tmp_path, "a.png", "b/c.png", "d/e.png")
    look, number = os.scandir, errno.EACCES

    def refused(path):
        if os.path.basename(path) == "b":
            raise OSError(number, os.strerror(number), path)
        return look(path)

    monkeypatch.setattr(folders.os, "scandir", refused)
    first, closed, last = walk(tmp_path, (".png",))
    assert (first, last) == (tmp_path / "a.png", tmp_path / "d/e.png")
    why = "the folder can't be looked into (Permission denied). Give yourself the right to."
    assert closed == Unreadable(tmp_path / "b", why)
    number = errno.EIO  # a disk's error passes, and must not be kept as if it were the folder's
    with pytest.raises(OSError, match="Input/output error"):
        list(walk(tmp_path, (".png",)))


def test_folders_deeper_than_calls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    deep = 1500
    for _ in range(deep):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(tmp_path)
    found = list(walk(Path("d"), (".png",)))
    assert all(isinstance(each, Unreadable) for each in found)
    for _ in range(deep - 1):
        os.rename("d/d", "e")
        os.rmdir("d")
        os.rename("e", "d")


def test_what_is_no_file(tmp_path):
    made(tmp_path, "a.png")
    os.mkfifo(tmp_path / "pipe")
    assert not_a_file(tmp_path / "a.png") is None
    assert str(not_a_file(tmp_path / "pipe")).startswith("a named pipe, and not a file")
    assert str(not_a_file(tmp_path)).startswith("a folder")
    assert str(not_a_file(Path("/dev/null"))).startswith("a device")
    assert "No such file" in str(not_a_file(tmp_path / "b.png"))
    assert "not a name" in str(not_a_file(Path("nul\0")))


def test_names_that_are_no_letters():
    assert printable(os.fsdecode(b"caf\xe9 \xc3\xa9")) == "caf\\udce9 é"
