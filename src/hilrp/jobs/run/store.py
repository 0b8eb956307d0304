"""The folder of a run: what it is of, which items it has, and which pieces are done."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from hilrp.jobs.run.items import Item, arrow
from hilrp.jobs.store import begin, read_settings, versions
from hilrp.util.atomic_files import partial, sweep
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
        """What its files are named by."""
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
        """Writes the manifest and the list of items, or checks that those that are there are the same.

        Returns the manifest. Of several that begin at once in one folder the first counts.
        """
        (self.folder / "rows").mkdir(parents=True, exist_ok=True)
        digest, count = hashlib.sha256(), 0

        def write(file: IO[bytes]) -> None:
            nonlocal count
            for item in islice(items, limit):
                line = json.dumps(item).encode() + b"\n"
                digest.update(line)
                file.write(line)
                count += 1

        with partial(self.folder / "items.jsonl", write) as fresh:
            if not count:
                raise InputError(f"--data {settings['data']}: there is no image in it.")
            facts = {"images": count, "items_sha256": digest.hexdigest(), "piece": size}
            manifest = begin(self._manifest, settings | facts | versions(_PACKAGES))
            # Only now: who is refused leaves none, and who is killed here leaves it to the next.
            if not self._list(manifest).exists():
                fresh.replace(self._list(manifest))
        sweep(self.folder / name for name in ("", "rows", "maps"))
        return manifest

    def manifest(self) -> dict[str, Any]:
        """What the run is of."""
        if not self._manifest.is_file():
            raise InputError(
                f"{self.folder}: there is no run of `hilrp run` in it. Give the folder that was its --out."
            )
        return read_settings(self._manifest)

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


def share_of(pieces: Sequence[Piece], shard: tuple[int, int]) -> Iterator[Piece]:
    """The pieces of one of several runs beside each other: every n-th."""
    number, count = shard
    return (piece for piece in pieces if piece.number % count == number - 1)
