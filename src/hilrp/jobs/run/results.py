"""Reading what runs have written: of one folder, or of several that are parts of one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hilrp.jobs.run.item import Item, parquet_file
from hilrp.jobs.run.rows import schema, write_tables
from hilrp.jobs.run.store import Piece, Store
from hilrp.jobs.store import differing
from hilrp.util.errors import InputError


@dataclass(frozen=True)
class Results:
    """The rows of a run, in order, whichever folder they are in."""

    stores: tuple[Store, ...]

    @staticmethod
    def of(folders: Sequence[Path]) -> Results:
        """The results in folders; an error if they are not of one run."""
        stores = tuple(Store(folder) for folder in folders)
        first = stores[0].manifest()
        for store in stores[1:]:
            names = differing(first, store.manifest())
            if names:
                raise InputError(
                    f"{store.folder} and {stores[0].folder} are of different runs: they differ in {', '.join(names)}."
                )
        return Results(stores)

    @property
    def manifest(self) -> dict[str, Any]:
        """What the run is of."""
        return self.stores[0].manifest()

    @cached_property
    def pieces(self) -> list[Piece]:
        """All pieces."""
        return self.stores[0].pieces()

    def file(self, piece: Piece) -> Path | None:
        """The file with a piece's rows, if it is done."""
        return next((store.rows(piece) for store in self.stores if store.done(piece)), None)

    def map_file(self, piece: Piece) -> Path | None:
        """The file with a piece's maps, if it is done."""
        return next((store.maps(piece) for store in self.stores if store.done(piece)), None)

    @property
    def missing(self) -> list[Piece]:
        """Pieces that nobody has done."""
        return [piece for piece in self.pieces if self.file(piece) is None]

    @property
    def damaged(self) -> list[str]:
        """What was found damaged, and why."""
        return [said for store in self.stores for said in store.damaged]

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The rows, piece by piece, as tables of pyarrow."""
        for piece in self.pieces:
            path = self.file(piece)
            if path is not None:
                with parquet_file(path) as file:
                    yield file.read(columns=None if columns is None else list(columns))

    def item(self, number: int) -> Item:
        """An item by its number."""
        piece = self.pieces[number // self.manifest["piece"]]
        return self.stores[0].items(piece)[number - piece.first]

    def merge(self, output: Path) -> int:
        """Writes all rows into one Parquet file; returns how many. An error if some are missing."""
        if self.missing:
            names = ", ".join(piece.name for piece in self.missing[:3])
            damaged = "".join(f" Damaged: {said}." for said in self.damaged[:3])
            raise InputError(
                f"{len(self.missing)} of {len(self.pieces)} pieces are not done "
                f"({names}{', ...' if len(self.missing) > 3 else ''}).{damaged} Run `hilrp run` again with the same "
                "settings first."
            )
        count = 0

        def counted() -> Iterator[Any]:
            nonlocal count
            for table in self.tables():
                count += table.num_rows
                yield table

        write_tables(output, counted(), schema(self.manifest["maps"] == "column"))
        return count
