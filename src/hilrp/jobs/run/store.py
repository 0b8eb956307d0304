"""The folder of a run: what it is of, which items it has, and which pieces are done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

from hilrp.jobs.run.item import Item, parquet_file
from hilrp.jobs.run.rows import damage, map_schema, schema
from hilrp.jobs.store import begin, note, read_settings, versions
from hilrp.util.atomic_files import name_whole, partial, sweep
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
        sha256: The checksum of its part of the list.
    """

    number: int
    offset: int
    count: int
    first: int
    sha256: str

    @property
    def name(self) -> str:
        """What its files are named by."""
        return f"part-{self.number:06d}"


@dataclass(frozen=True)
class Store:
    """The folder of a run.

    Attributes:
        folder: Where it is.
        damaged: What was found damaged in it, and why; nothing of that counts as done.
    """

    folder: Path
    damaged: list[str] = field(default_factory=list, compare=False)
    _checked: dict[Path, tuple[tuple[int, ...], str | None]] = field(default_factory=dict, compare=False, repr=False)

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
            path = self._list(manifest)
            if not path.is_file() or _sha256(path) != manifest["items_sha256"]:
                if path.exists():
                    note(self.damaged, path, "the list of items is cut off or altered")
                name_whole(fresh, path)
        sweep(self.folder / name for name in ("", "rows", "maps"))
        return manifest

    def manifest(self) -> dict[str, Any]:
        """What the run is of."""
        return self._facts

    @cached_property
    def _facts(self) -> dict[str, Any]:
        if not self._manifest.is_file():
            raise InputError(
                f"{self.folder}: there is no run of `hilrp run` in it. Give the folder that was its --output."
            )
        return read_settings(self._manifest)

    def pieces(self) -> list[Piece]:
        """All pieces, in order; an error if the list of items isn't the one that the run began with."""
        manifest = self.manifest()
        size, path = manifest["piece"], self._list(manifest)
        pieces: list[Piece] = []
        offset, whole = 0, hashlib.sha256()
        try:
            with path.open("rb") as file:
                while lines := list(islice(file, size)):
                    content = b"".join(lines)
                    whole.update(content)
                    number, own = len(pieces), hashlib.sha256(content).hexdigest()
                    pieces.append(Piece(number, offset, len(lines), number * size, own))
                    offset += len(content)
        except OSError as error:
            raise _no_list(path, f"the list of items can't be read ({error.strerror})") from error
        if whole.hexdigest() != manifest["items_sha256"]:
            raise _no_list(path, "the list of items is cut off or altered")
        return pieces

    def items(self, piece: Piece) -> list[Item]:
        """The items of a piece."""
        path = self._list(self.manifest())
        with path.open("rb") as file:
            file.seek(piece.offset)
            lines = list(islice(file, piece.count))
        if hashlib.sha256(b"".join(lines)).hexdigest() != piece.sha256:
            raise _no_list(path, "the list of items was cut off or altered meanwhile")
        return [json.loads(line) for line in lines]

    def rows(self, piece: Piece) -> Path:
        """The file with a piece's rows."""
        return self.folder / "rows" / f"{piece.name}.parquet"

    def maps(self, piece: Piece) -> Path:
        """The file with a piece's maps, where they are not in the rows."""
        return self.folder / "maps" / f"{piece.name}.parquet"

    def identity(self, piece: Piece) -> str:
        """What the files of a piece say that they are of: this run, and these images."""
        facts = json.dumps(self.manifest(), sort_keys=True).encode()
        return f"{hashlib.sha256(facts).hexdigest()[:16]} {piece.name}"

    def done(self, piece: Piece) -> bool:
        """Whether all of a piece is there, and whole; what is damaged is noted. Its rows are written last."""
        rows, maps, facts = self.rows(piece), self.maps(piece), self.manifest()
        if not rows.is_file():
            return False
        count = piece.count * len(facts["models"]) * len(facts["methods"])
        if self._damage(piece, rows, schema(facts["maps"] == "column"), count) is not None:
            return False
        if facts["maps"] != "files":
            return True
        count = sum(error is None for error in self._errors(piece))
        return self._damage(piece, maps, map_schema(), count) is None

    def _damage(self, piece: Piece, path: Path, columns: Any, count: int) -> str | None:
        """Why a file can't be used; looked at again only if it has changed."""
        about = path.stat() if path.is_file() else None
        key = (about.st_mtime_ns, about.st_size, about.st_ino) if about is not None else ()
        if path not in self._checked or self._checked[path][0] != key:
            why = "it is missing" if about is None else damage(path, columns, self.identity(piece), count)
            self._checked[path] = key, why
            if why is not None:
                note(self.damaged, path, why)
        return self._checked[path][1]

    def _errors(self, piece: Piece) -> list[str | None]:
        with parquet_file(self.rows(piece)) as file:
            found: list[str | None] = file.read(columns=["error"]).column(0).to_pylist()
        return found

    def failures(self, pieces: Sequence[Piece]) -> dict[Piece, list[str]]:
        """What went wrong with each image of pieces that have rows with an error."""
        found = {}
        for piece in filter(self.done, pieces):
            with parquet_file(self.rows(piece)) as file:
                table = file.read(columns=["number", "error"])
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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _no_list(path: Path, why: str) -> InputError:
    return InputError(f"{path}: {why}. Run the same `hilrp run` again: it writes the list again, and keeps the rows.")


def share_of(pieces: Sequence[Piece], shard: tuple[int, int]) -> Iterator[Piece]:
    """The pieces of one of several runs beside each other: every n-th."""
    number, count = shard
    return (piece for piece in pieces if piece.number % count == number - 1)
