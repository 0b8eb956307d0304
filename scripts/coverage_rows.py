"""Takes runs of `hilrp coverage` over into docs/coverage/, from which the site makes its pages of models.

    hilrp coverage timm -o FOLDER
    python scripts/coverage_rows.py NAME=FOLDER

The run is then docs/coverage/NAME.jsonl, with its settings and the names that were asked for beside it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from hilrp.jobs.store import read_rows

ROWS = Path(__file__).resolve().parents[1] / "docs" / "coverage"


def _rounded(tree: Any) -> Any:
    """Numbers to three digits, which is more than anybody reads in them."""
    if isinstance(tree, dict):
        return {key: _rounded(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_rounded(item) for item in tree]
    return float(f"{tree:.3g}") if isinstance(tree, float) else tree


def take_over(folder: Path, name: str, rows: Path = ROWS) -> None:
    """Copies a run, with rounded numbers and one row for each model, sorted by name."""
    rows.mkdir(exist_ok=True)
    for part in ("settings", "requested"):
        shutil.copyfile(folder / f"{part}.json", rows / f"{name}.{part}.json")
    latest = {row["name"]: row for row in read_rows(folder / "results.jsonl")}
    lines = (json.dumps(_rounded(latest[each])) for each in sorted(latest))
    (rows / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        name, _, folder = argument.partition("=")
        take_over(Path(folder), name)
