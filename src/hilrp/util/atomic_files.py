"""Files that appear whole or not at all, also after a power cut.

A file is written under a partial name, which says who writes it, and then renamed.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

#: What is written: text, bytes, or a function that fills the open file.
Content = str | bytes | Callable[[IO[bytes]], Any]

#: This process, also beside an earlier one that had the same number; and how many files it has begun.
_PROCESS, _BEGUN = uuid4().hex[:8], count()


def write_whole(path: Path, content: Content, durable: bool = True) -> None:
    """Writes a file, in place of one of its name; it is on the disk when this returns, unless it isn't ``durable``."""
    with partial(path, content, durable) as own:
        name_whole(own, path, durable)


def name_whole(own: Path, path: Path, durable: bool = True) -> None:
    """Gives a file that `partial` wrote its name, in place of one that has it."""
    own.replace(path)
    if durable:
        sync_folder(path.parent)


def create_whole(path: Path, content: Content) -> bool:
    """Writes a file, unless one of its name is there or appears meanwhile; returns whether it did."""
    with partial(path, content) as own:
        try:
            os.link(own, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links, where the later one of two at the same instant counts
            if path.exists():
                return False
            own.replace(path)
        sync_folder(path.parent)
    return True


@contextmanager
def partial(path: Path, content: Content, durable: bool = True) -> Iterator[Path]:
    """Writes what will be ``path`` under a name of its own, and yields that name.

    A file that still has this name at the end is removed. Text that isn't of letters (a file's name may hold any
    bytes) is written with what these bytes are, since half a page is worse than an odd name on it.
    """
    _make(path.parent, durable)
    # The name of a file has at most 255 bytes.
    own = path.with_name(f"{path.name[:40]}.{platform.node()}~{os.getpid()}~{_PROCESS}-{next(_BEGUN)}.part")
    try:
        with own.open("xb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield own
    finally:
        own.unlink(missing_ok=True)


def _make(folder: Path, durable: bool) -> None:
    """Makes a folder and those above it; their names are on the disk before anything is written into them."""
    if folder.is_dir():
        return
    _make(folder.parent, durable)
    folder.mkdir(exist_ok=True)
    if durable:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Puts the names of a folder's files on the disk, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sweep(folders: Iterable[Path]) -> None:
    """Removes the partial files in folders that processes of this machine left when they were killed."""
    for path in (path for folder in folders for path in folder.glob("*~*~*.part")):
        name, number, process = path.name.rsplit("~", 2)
        if name.endswith(f".{platform.node()}") and not _runs(int(number), process.partition("-")[0]):
            path.unlink(missing_ok=True)


def _runs(number: int, process: str) -> bool:
    """Whether a process may still be running."""
    if number == os.getpid():
        return process == _PROCESS
    try:
        if os.name == "posix":  # elsewhere this is no question, but a signal
            os.kill(number, 0)
    except OSError as error:  # it isn't there, or is somebody else's
        return not isinstance(error, ProcessLookupError)
    return True
