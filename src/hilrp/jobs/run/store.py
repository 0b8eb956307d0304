"""The folder of a run: what it is of, which items it has, and which pieces are done."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import hilrp
from hilrp.jobs.bench.manifest import version_of
from hilrp.jobs.run.items import Item, arrow
from hilrp.util.errors import InputError

#: What results depend on besides hilrp.
_PACKAGES = ("torch", "torchvision", "timm", "transformers", "open_clip_torch", "captum", "grad-cam", "numpy", "pillow")


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
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    def _list(self, manifest: dict[str, Any]) -> Path:
        """The list of items that a manifest is of."""
        return self.folder / f"items-{manifest['items_sha256'][:16]}.jsonl"

    def begin(self, items: Iterable[Item], settings: dict[str, Any], size: int, limit: int | None) -> dict[str, Any]:
        """Writes the list of items and the manifest, or checks that those that are there are the same.

        Returns the manifest.

        Several may begin at once in one folder: the first to write the manifest wins, and all others have to fit it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "rows").mkdir(exist_ok=True)
        fresh, own = _partial(self.folder / "items.jsonl"), _partial(self._manifest)
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
            facts = settings | {"images": count, "items_sha256": digest.hexdigest(), "piece": size} | versions()
            wanted: dict[str, Any] = json.loads(json.dumps(facts))
            if self._manifest.exists():
                self._compare(wanted)
            else:
                fresh.replace(self._list(wanted))
                own.write_text(json.dumps(wanted, indent=1))
                try:
                    os.link(own, self._manifest)
                except FileExistsError:
                    self._compare(wanted)
                except OSError:  # a file system without links: who comes at the same instant isn't noticed there
                    own.replace(self._manifest)
        finally:
            fresh.unlink(missing_ok=True)
            own.unlink(missing_ok=True)
        self._sweep()
        return wanted

    def _compare(self, wanted: dict[str, Any]) -> None:
        found = self.manifest()
        other = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
        if other:
            if self._list(wanted) != self._list(found):
                self._list(wanted).unlink(missing_ok=True)
            lines = "; ".join(
                f"{name}: {_short(found.get(name))} there, {_short(wanted.get(name))} now" for name in other
            )
            raise InputError(
                f"{self.folder}: a run with other settings is in it ({lines}). Its rows and new ones would not be of "
                "one run. Choose another folder, or take the same settings."
            )

    def manifest(self) -> dict[str, Any]:
        """What the run is of."""
        try:
            found: dict[str, Any] = json.loads(self._manifest.read_text())
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.folder}: there is no run of `hilrp run` in it. Give the folder that was its --out."
            ) from error
        return found

    def pieces(self) -> list[Piece]:
        """All pieces, in order."""
        manifest = self.manifest()
        size = manifest["piece"]
        pieces: list[Piece] = []
        offset = start = count = 0
        with self._list(manifest).open("rb") as file:
            for line in file:
                count += 1
                offset += len(line)
                if count == size:
                    pieces.append(Piece(len(pieces), start, count, len(pieces) * size))
                    start, count = offset, 0
        return [*pieces, Piece(len(pieces), start, count, len(pieces) * size)] if count else pieces

    def items(self, piece: Piece) -> list[Item]:
        """The items of a piece."""
        with self._list(self.manifest()).open("rb") as file:
            file.seek(piece.offset)
            return [json.loads(line) for line in islice(file, piece.count)]

    def rows(self, piece: Piece) -> Path:
        """The file with a piece's rows."""
        return self.folder / "rows" / f"{piece.name}.parquet"

    def maps(self, piece: Piece) -> Path:
        """The file with a piece's maps, where they are not in the rows."""
        return self.folder / "maps" / f"{piece.name}.parquet"

    def done(self, piece: Piece) -> bool:
        """Whether all of a piece is there: its rows are written last. A file that was cut short since doesn't count."""
        try:
            with self.rows(piece).open("rb") as file:
                file.seek(-4, os.SEEK_END)
                return file.read() == b"PAR1"
        except OSError:
            return False

    def failures(self, pieces: Sequence[Piece]) -> dict[Piece, list[str]]:
        """What went wrong with each image of pieces that have rows with an error."""
        parquet, found = arrow("pyarrow.parquet"), {}
        for piece in filter(self.done, pieces):
            table = parquet.read_table(self.rows(piece), columns=["number", "error"])
            rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
            failed = {number: error for number, error in rows if error is not None}
            if failed:
                found[piece] = list(failed.values())
        return found

    def attempts(self, piece: Piece) -> int:
        """How often a piece was begun without an end, in this run."""
        path = self.folder / "attempts" / piece.name
        return path.stat().st_size if path.exists() else 0

    def attempt(self, piece: Piece) -> None:
        """Notes that a piece is begun."""
        path = self.folder / "attempts" / piece.name
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(b".")

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
        with own.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # what has its name must be there, also after a power cut
        own.replace(path)
    finally:
        own.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    """A name beside a file's own, with the machine and the process that writes it."""
    return path.with_name(f"{path.name}.{platform.node()}~{os.getpid()}~{uuid.uuid4().hex[:8]}.part")


def versions() -> dict[str, Any]:
    """Of hilrp and of what results depend on."""
    found = {name: version_of(name) for name in _PACKAGES}
    return {"hilrp": hilrp.__version__, "python": platform.python_version(), "packages": found}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 90 else f"{text[:80]}..."


def share_of(pieces: Sequence[Piece], shard: tuple[int, int]) -> Iterator[Piece]:
    """The pieces of one of several runs beside each other: every n-th."""
    number, count = shard
    return (piece for piece in pieces if piece.number % count == number - 1)
