"""Files that are opened only if they are files: a pipe, a device or a socket may be waited for without end."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from hilrp.util.errors import InputError

#: Errors of disks and networks that pass: they are not a file's own, and what is tried again later may succeed.
PASSING = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT, errno.ENOTCONN)

#: What else a path may lead to.
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_regular(path: Path, most: int | None = None, remedy: str = "Give a smaller one.") -> BufferedReader:
    """Opens a regular file for reading, and nothing else, without waiting.

    Args:
        path: The file; links are followed.
        most: The most bytes that it may have.
        remedy: What to do about a larger one.

    Raises:
        InputError: It is something else, empty or too large. The message doesn't name it: whoever calls does.
        OSError: It can't be opened.
    """
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):
        kind = _KINDS.get(stat.S_IFMT(about.st_mode), "something else")
        raise InputError(f"it is {kind}, not a file. Give a regular file.")
    if about.st_size == 0:
        raise InputError("it is empty. Is the file complete?")
    if most is not None and about.st_size > most:
        raise InputError(f"it has {about.st_size / 1e6:,.0f} MB; at most {most / 1e6:,.0f} are read. {remedy}")
    # Should it have become a pipe meanwhile, nobody waits for who writes to it.
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))


def printable(value: Any) -> str:
    r"""A value as text that can be written, also where bytes of a file's name are no letters.

    Example:
        >>> print(printable(os.fsdecode(b"caf\xe9.png")))
        caf\udce9.png
    """
    return str(value).encode("utf-8", "backslashreplace").decode()


def not_a_file(path: Path) -> str | None:
    """Why a path can't be read as a file, or ``None``.

    To open a pipe or a device may take for ever, so that this has to be asked before.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno in PASSING:
            raise
        return f"can't be looked at ({error.strerror}). Is it a link to what isn't there any more?"
    except ValueError as error:
        return f"not a name that a file can have ({error})."
    kind = _KINDS.get(stat.S_IFMT(mode))
    return None if kind is None else f"{kind}, and not a file. Take it out of the data."
