"""Keeps the figures of a benchmark's run image by image: one compressed CSV, from which the documents' tables are made.

    python scripts/keep_figures.py RUN [RUN...] NAME    # docs/results/figures/NAME.csv.gz

Columns: model, method, figure, number of the image in the cell, value. Models are named without the path of their
checkpoint. Rows are in order, and the file holds no time: the same run gives the same file.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
from pathlib import Path

from hilrp.jobs.store import read_result

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "results" / "figures"
COLUMNS = ("model", "method", "figure", "image", "value")
Row = tuple[str, str, str, int, str]


def rows_of(run: Path) -> list[Row]:
    """The values of all cells of a run."""
    found: list[Row] = []
    for path in sorted(run.glob("cells/*/*/*.json")):
        facts = read_result(path, [])
        if facts is None or "figures" not in facts:
            continue
        model, method = path.parent.parent.name, path.parent.name
        for figure, values in facts["figures"].items():
            for number, value in enumerate(values):
                found.append((short(model), method, figure, number, "" if value is None else f"{value:.6g}"))
    return found


def short(model: str) -> str:
    """A model's folder in a run, as it is called in tables.

    Example:
        >>> short("timm_deit_tiny_patch16_224_somewhere_deit_tiny_patch16_224.safetensors"), short("zoo_swin")
        ('deit_tiny_patch16_224', 'swin')
    """
    for name in ("deit_tiny_patch16_224", "tiny_vit_5m_224", "mobilenetv2_100"):
        if name in model:
            return name
    return model.removeprefix("zoo_")


def write(name: str, rows: list[Row]) -> Path:
    """The rows as a file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(sorted(rows))
    path = FOLDER / f"{name}.csv.gz"
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    return path


def main() -> None:
    """Reads the runs that are named, and writes the file."""
    *runs, name = sys.argv[1:]
    rows = [row for run in runs for row in rows_of(Path(run))]
    if not rows:
        sys.exit(f"{', '.join(runs)}: no cells of a benchmark's run. Give the folder that hilrp bench -o wrote.")
    print(write(name, rows), len(rows), "values")


if __name__ == "__main__":
    main()
