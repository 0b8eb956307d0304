"""The folder of a run: what it is of, which items it has, and which pieces are done."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import hilrp
from hilrp.errors import InputError
from hilrp.files import write_whole
from hilrp.run.items import Item

#: What results depend on besides hilrp.
_PACKAGES = ("torch", "timm", "numpy", "pillow")


@dataclass(frozen=True)
class Piece:
    """Neighbouring items that are explained and written together.

    Attributes:
        number: Counted from zero.
        offset: Where its items begin in the list, in bytes.
        count: How many there are.
        first: The number of the first of them.
    """

    number: int
    offset: int
    count: int
    first: int

    @property
    def name(self) -> str:
        """Of its files."""
        return f"part-{self.number:06d}"


@dataclass(frozen=True)
class Store:
    """The folder of a run."""

    folder: Path

    @property
    def _items(self) -> Path:
        return self.folder / "items.jsonl"

    @property
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    def begin(self, items: Iterable[Item], settings: dict[str, Any], size: int, limit: int | None) -> dict[str, Any]:
        """Writes the list of items and the manifest, or checks that those that are there are the same. Returns the manifest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "rows").mkdir(exist_ok=True)
        fresh = _partial(self._items)
        try:
            digest, count = hashlib.sha256(), 0
            with fresh.open("wb") as file:
                for item in islice(items, limit):
                    line = json.dumps(item).encode() + b"\n"
                    digest.update(line)
                    file.write(line)
                    count += 1
            if not count:
                raise InputError(f"--data {settings['data']}: there is no image in it.")
            wanted = json.loads(
                json.dumps(settings | {"images": count, "items_sha256": digest.hexdigest(), "piece": size} | versions())
            )
            if self._manifest.exists():
                self._compare(wanted)
            else:
                fresh.replace(self._items)
                text = json.dumps(wanted, indent=1)
                write_whole(self._manifest, lambda file: file.write(text.encode()))
        finally:
            fresh.unlink(missing_ok=True)
        self._sweep()
        return wanted

    def _compare(self, wanted: dict[str, Any]) -> None:
        found = self.manifest()
        other = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
        if other:
            lines = "; ".join(
                f"{name}: {_short(found.get(name))} there, {_short(wanted.get(name))} now" for name in other
            )
            raise InputError(
                f"{self.folder}: a run with other settings is in it ({lines}). Its rows and new ones would not be of one run. Choose another folder, or take the same settings."
            )

    def manifest(self) -> dict[str, Any]:
        """What the run is of."""
        try:
            found: dict[str, Any] = json.loads(self._manifest.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder}: there is no run of `hilrp run` in it ({error}).") from error
        return found

    def pieces(self) -> list[Piece]:
        """All pieces, in order."""
        size = self.manifest()["piece"]
        pieces: list[Piece] = []
        offset = start = count = 0
        with self._items.open("rb") as file:
            for line in file:
                count += 1
                offset += len(line)
                if count == size:
                    pieces.append(Piece(len(pieces), start, count, len(pieces) * size))
                    start, count = offset, 0
        return [*pieces, Piece(len(pieces), start, count, len(pieces) * size)] if count else pieces

    def items(self, piece: Piece) -> list[Item]:
        """The items of a piece."""
        with self._items.open("rb") as file:
            file.seek(piece.offset)
            return [json.loads(line) for line in islice(file, piece.count)]

    def rows(self, piece: Piece) -> Path:
        """The file with a piece's rows."""
        return self.folder / "rows" / f"{piece.name}.parquet"

    def maps(self, piece: Piece) -> Path:
        """The file with a piece's maps, where they are not in the rows."""
        return self.folder / "maps" / f"{piece.name}.parquet"

    def done(self, piece: Piece) -> bool:
        """Whether all of a piece is there: its rows are written last."""
        return self.rows(piece).is_file()

    def attempt(self, piece: Piece) -> int:
        """Notes that a piece is begun; returns how often that was before without an end, in this run."""
        path = self.folder / "attempts" / piece.name
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            before = file.tell()
            file.write(b".")
        return before

    def settle(self, pieces: Sequence[Piece]) -> None:
        """Forgets attempts: they came to an end, or were those of an earlier run."""
        for piece in pieces:
            (self.folder / "attempts" / piece.name).unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Removes what processes of this machine left half-written when they were killed."""
        for path in self.folder.rglob(f"*.{platform.node()}~*.part"):
            if not Path(f"/proc/{path.name.split('~')[-2]}").exists() and Path("/proc/self").exists():
                path.unlink(missing_ok=True)


def write(path: Path, content: bytes) -> None:
    """Writes a file that appears whole; two who write the same don't meet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = _partial(path)
    try:
        own.write_bytes(content)
        own.replace(path)
    finally:
        own.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    """A name beside a file's own, with the machine and the process that writes it."""
    return path.with_name(f"{path.name}.{platform.node()}~{os.getpid()}~{uuid.uuid4().hex[:8]}.part")


def versions() -> dict[str, Any]:
    """Of hilrp and of what results depend on."""
    found = {name: _version(name) for name in _PACKAGES}
    return {"hilrp": hilrp.__version__, "python": platform.python_version(), "packages": found}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 90 else f"{text[:80]}..."


def share_of(pieces: Sequence[Piece], shard: tuple[int, int]) -> Iterator[Piece]:
    """The pieces of one of several runs beside each other: every n-th."""
    number, count = shard
    return (piece for piece in pieces if piece.number % count == number - 1)
