"""What is in a folder: each file once, whatever links lead to it, and what can't be looked at."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hilrp.util.regular_files import PASSING


@dataclass(frozen=True)
class Unreadable:
    """A folder that can't be looked into, and why."""

    path: Path
    why: str


def walk(folder: Path, endings: tuple[str, ...], without: Path | None = None) -> Iterator[Path | Unreadable]:
    """The files with some endings in a folder and below it, in order, and the folders that can't be looked into.

    Each real path is visited once. Links are followed last, so that what has a name of its own in the folder is called
    by that; one that leads to what is listed already adds nothing. Hidden files and folders are left out, but what a
    link leads to may be hidden.

    Args:
        folder: Where to begin.
        endings: Of the files, with their dot and in small letters.
        without: A folder in it that is left out.
    """
    visited: set[str] = set()
    linked: set[str] = set()
    left_out = None if without is None else os.path.realpath(without)
    links: deque[Path] = deque([folder])
    files: list[Path] = []
    while links:
        link = links.popleft()
        real = os.path.realpath(link)
        if not os.path.isdir(real):
            files.append(link)
        elif link is folder or not _within(real, left_out):
            yield from _tree(link, real, endings, left_out, visited, links)
    for link in files:
        real = os.path.realpath(link)
        if _wanted(link.name, endings) and not (_listed(real, endings, visited) or real in linked):
            linked.add(real)
            yield link


def _tree(
    top: Path, real: str, endings: tuple[str, ...], left_out: str | None, visited: set[str], links: deque[Path]
) -> Iterator[Path | Unreadable]:
    """The files below one folder, without those that links lead to: these are noted in ``links``."""
    # A stack and not a recursion: folders may be nested deeper than Python's calls.
    waiting: list[tuple[Path, str, bool]] = [(top, real, True)]
    while waiting:
        path, place, is_folder = waiting.pop()
        if not is_folder:
            yield path
            continue
        if place in visited or (path is not top and place == left_out):
            continue
        visited.add(place)
        try:
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            if error.errno in PASSING:
                raise
            yield Unreadable(path, f"the folder can't be looked into ({error.strerror}). Give yourself the right to.")
            continue
        entries = [entry for entry in entries if not entry.name.startswith(".")]
        links += [path / entry.name for entry in entries if entry.is_symlink()]
        for entry in reversed(entries):
            inner = entry.is_dir(follow_symlinks=False)
            if inner or (not entry.is_symlink() and _wanted(entry.name, endings)):
                waiting.append((path / entry.name, os.path.join(place, entry.name), inner))


def _wanted(name: str, endings: tuple[str, ...]) -> bool:
    return os.path.splitext(name)[1].lower() in endings


def _within(path: str, folder: str | None) -> bool:
    return folder is not None and Path(path).is_relative_to(folder)


def _listed(real: str, endings: tuple[str, ...], visited: set[str]) -> bool:
    """Whether a file was listed under its own name: it is in a folder that was visited, and looks like one of them."""
    place, name = os.path.split(real)
    return place in visited and not name.startswith(".") and _wanted(name, endings) and os.path.exists(real)
