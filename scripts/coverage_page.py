"""Writes docs/coverage.md from the rows of coverage runs in docs/coverage/.

To add or renew a run: `hilrp coverage ... -o FOLDER`, then `python scripts/coverage_page.py NAME=FOLDER`, which takes
the run over as docs/coverage/NAME.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from hilrp.jobs.coverage.report import markdown_page, with_missing
from hilrp.jobs.coverage.store import Settings
from hilrp.jobs.store import read_rows, read_settings

DOCS = Path(__file__).resolve().parents[1] / "docs"


REMARK = """This page is made by `make coverage-page` from the rows in `docs/coverage/`, which `hilrp coverage` wrote:

    hilrp coverage                                       # one model of each kind of every installed library
    hilrp coverage timm --all --device cuda              # all of timm
"""


def _rounded(tree: Any) -> Any:
    """Numbers to three digits, which is more than anybody reads in them."""
    if isinstance(tree, dict):
        return {key: _rounded(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_rounded(item) for item in tree]
    return float(f"{tree:.3g}") if isinstance(tree, float) else tree


if __name__ == "__main__":
    rows = DOCS / "coverage"
    rows.mkdir(exist_ok=True)
    for argument in sys.argv[1:]:
        name, _, folder = argument.partition("=")
        for part in ("settings", "requested"):
            shutil.copyfile(Path(folder) / f"{part}.json", rows / f"{name}.{part}.json")
        latest = {row["name"]: row for row in read_rows(Path(folder) / "results.jsonl")}
        lines = (json.dumps(_rounded(latest[each])) for each in sorted(latest))
        (rows / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    runs = []
    for path in sorted(rows.glob("*.jsonl")):
        requested = json.loads(path.with_suffix(".requested.json").read_text())
        # Runs from before the source was kept have none.
        settings = Settings(**{"source": ""} | read_settings(path.with_suffix(".settings.json")))
        runs.append((settings, with_missing(read_rows(path, lenient=True), requested)))
    (DOCS / "coverage.md").write_text(markdown_page(runs, REMARK))
