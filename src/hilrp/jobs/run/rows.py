"""What is written of each image, model and method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hilrp.attribution.explanation import Explanation
from hilrp.jobs.bench.metrics.localisation import energy, pointing
from hilrp.jobs.run.item import arrow, parquet_file
from hilrp.method.ledger import REFERENCE
from hilrp.util.atomic_files import write_whole
from hilrp.util.regular_files import printable

#: Cells a side of the coarse map that every row has.
GRID = 16

Row = dict[str, Any]


def schema(maps: bool) -> Any:
    """The columns and their types."""
    pa = arrow("pyarrow")
    columns = [
        ("number", pa.int64()), ("id", pa.string()), ("model", pa.string()), ("method", pa.string()),
        ("error", pa.string()), ("notes", pa.list_(pa.string())),
        ("width", pa.int32()), ("height", pa.int32()), ("label", pa.int64()), ("label_name", pa.string()),
        ("prediction", pa.int32()), ("prediction_name", pa.string()), ("confidence", pa.float64()),
        ("target", pa.int32()), ("target_name", pa.string()),
        ("against", pa.int32()), ("against_name", pa.string()), ("score", pa.float64()),
        ("reference_score", pa.float64()), ("pixels", pa.float64()), ("pixel_share", pa.float64()),
        ("ledger", pa.map_(pa.string(), pa.float64())), ("residual", pa.float64()), ("verdict", pa.string()),
        ("energy", pa.float64()), ("area", pa.float64()), ("pointing", pa.float64()), ("entropy", pa.float64()),
        ("grid", pa.binary(2 * GRID * GRID)),
    ]  # fmt: skip
    return pa.schema(columns + (_map_columns(pa) if maps else []))


def map_schema() -> Any:
    """The columns of files with maps alone."""
    pa = arrow("pyarrow")
    return pa.schema(
        [
            ("number", pa.int64()),
            ("id", pa.string()),
            ("model", pa.string()),
            ("method", pa.string()),
            *_map_columns(pa),
        ]
    )


def _map_columns(pa: Any) -> list[tuple[str, Any]]:
    return [("map_height", pa.int32()), ("map_width", pa.int32()), ("map_scale", pa.float32()), ("map", pa.binary())]


#: Where a file of rows says which run and piece it is of.
_IDENTITY = b"hilrp"


def write(path: Path, rows: Sequence[Row], columns: Any, identity: str) -> None:
    """Writes rows as a Parquet file, which says what it is of."""
    plain = [{name: _text(row.get(name)) for name in columns.names} for row in rows]
    table = arrow("pyarrow").Table.from_pylist(plain, schema=columns)
    write_tables(path, [table], columns.with_metadata({_IDENTITY: identity}))


def _text(value: Any) -> Any:
    """A file's name may hold bytes that are no letters, and so may errors and notes that name it."""
    if isinstance(value, str):
        return printable(value)
    return [_text(each) for each in value] if isinstance(value, list) else value


def write_tables(path: Path, tables: Iterable[Any], columns: Any) -> None:
    """Writes tables as one Parquet file."""

    def write(file: IO[bytes]) -> None:
        options = {"compression": "zstd", "write_page_checksum": True}
        with arrow("pyarrow.parquet").ParquetWriter(file, columns, **options) as writer:
            for table in tables:
                writer.write_table(table)

    write_whole(path, write)


def damage(path: Path, columns: Any, identity: str, count: int) -> str | None:
    """Why a file of rows can't be used, or ``None``: all of it is read, and compared with its checksums."""
    try:
        with parquet_file(path, page_checksum_verification=True) as file:
            if (file.schema_arrow.metadata or {}).get(_IDENTITY) != identity.encode():
                return "it is of another run, or of other images"
            if not file.schema_arrow.equals(columns):
                return "its columns are others"
            found = sum(batch.num_rows for batch in file.iter_batches(batch_size=256))
    except Exception as error:  # pyarrow has many
        return f"it is cut off or altered ({(str(error).splitlines() or [''])[0]})"
    return None if found == count else f"it has {found} rows instead of {count}"


def figures(relevance: Tensor, masks: Tensor | None) -> list[Row]:
    """What maps ``[B,H,W]`` say, by themselves and beside the places of objects (zeros where none is known)."""
    maps = relevance.detach().float()
    positive = maps.clamp(min=0)
    total = positive.flatten(1).sum(1)
    part = positive.flatten(1) / total.where(total > 0, torch.ones_like(total))[:, None]
    # One for a map that is the same everywhere, zero for one that is a single pixel.
    entropy = -(part * part.clamp(min=1e-30).log()).sum(1) / math.log(part.shape[1])
    grid = F.adaptive_avg_pool2d(positive[:, None], GRID)[:, 0]
    whole = grid.flatten(1).sum(1)
    grid = grid.flatten(1) / whole.where(whole > 0, torch.ones_like(whole))[:, None]
    columns = {"entropy": entropy.tolist()}
    if masks is not None:
        inside = masks.to(maps.device).bool()
        columns |= {"energy": energy(maps, inside).tolist(), "pointing": pointing(maps, inside).tolist()}
        columns |= {"area": inside.flatten(1).float().mean(1).tolist()}
    found: list[Row] = [{"grid": each.tobytes()} for each in grid.half().cpu().numpy()]
    for i, row in enumerate(found):
        known = ("entropy",) if masks is None or not columns["area"][i] else columns
        row |= {name: columns[name][i] for name in known}
    return found


def books(found: Explanation) -> list[Row]:
    """What the ledger says of each sample."""
    ledger = found.ledger
    columns = {"score": ledger.score, "pixels": ledger.pixels, "pixel_share": ledger.share, "residual": ledger.residual}
    if REFERENCE in ledger.entries:
        columns["reference_score"] = ledger.entries[REFERENCE]
    # As a whole: a GPU is asked for each number else.
    plain = {name: value.tolist() for name, value in columns.items()}
    entries = {name: value.tolist() for name, value in ledger.entries.items()}
    return [
        {name: values[i] for name, values in plain.items()}
        | {"ledger": [(name, values[i]) for name, values in entries.items()], "verdict": str(verdict)}
        for i, verdict in enumerate(found.verdicts)
    ]


def grid_of(row: Row) -> np.ndarray:
    """The coarse map of a row, ``[16,16]``: the part of the positive relevance that each cell holds."""
    found: np.ndarray = np.frombuffer(row["grid"], np.float16).reshape(GRID, GRID).astype(np.float64)
    return found


def map_of(relevance: Tensor) -> Row:
    """A map ``[H,W]`` in half precision, relative to its largest value, the scale."""
    values = relevance.detach().float().cpu().numpy()
    scale = float(np.abs(values).max()) or 1.0
    half = (values / scale).astype(np.float16)
    return {"map_height": half.shape[0], "map_width": half.shape[1], "map_scale": scale, "map": half.tobytes()}


def whole_map(row: Row) -> np.ndarray:
    """The map of a row, ``[H,W]``."""
    found: np.ndarray = np.frombuffer(row["map"], np.float16).reshape(row["map_height"], row["map_width"])
    return found.astype(np.float64) * row["map_scale"]
