"""Files that are opened only if they are files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers.bounded import bounded
from hilrp.util.errors import InputError
from hilrp.util.regular_files import open_regular, printable


def test_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    (tmp_path / "link").symlink_to("a")
    for name in ("a", "link"):
        with open_regular(tmp_path / name, 5) as file:
            assert file.read() == b"hello"


def test_what_is_none(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(bytes(10**6))
    for path, words in (
        (tmp_path / "pipe", "it is a named pipe"),
        (tmp_path, "it is a folder"),
        (Path("/dev/null"), "it is a device"),
        (tmp_path / "empty", "it is empty"),
        (tmp_path / "large", "it has 1 MB; at most 0 are read. Give a smaller one."),
    ):
        error = bounded(lambda path=path: open_regular(path, 10**5), 1, 50)
        assert isinstance(error, InputError)
        assert words in str(error)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_names_that_are_no_text():
    assert printable(Path(os.fsdecode(b"a\xff"))) == r"a\udcff"
