"""Makes two pages of the site from the rows in docs/coverage/: every model that was audited, and the even splits.

They take the place of two short files, which say so to whoever reads the documents without the site.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from hilrp.jobs.coverage.report import COLUMNS, Run, cells, failures, kept_runs, setting, splits, summary

_HEAD = """---
search:
  exclude: true
hide:
  - toc
---
"""


def on_files(files: Files, *, config: Any) -> Files:
    """Puts the pages in their places."""
    runs = kept_runs(Path(config.docs_dir) / "coverage")
    for name, text in (("models", models(runs)), ("splits", splits(runs).replace("## ", "# ", 1))):
        place = f"coverage/{name}.md"
        if (file := files.get_file_from_path(place)) is not None:
            files.remove(file)
        files.append(File.generated(config, place, content=text))
    return files


def models(runs: Sequence[Run]) -> str:
    """A page with the runs, what did not pass, and a table of all rows that can be searched and sorted."""
    return f"""{_HEAD}# Every model that was audited

[What the columns mean](../coverage.md#how-to-read-a-row). The rows themselves are
[files in docs/coverage](../coverage.md#the-data).

<p><label for="models-filter">Search:</label> <input id="models-filter" type="search" autocomplete="off"
placeholder="swin, secant, float64, not run"> <span id="models-count" role="status"></span></p>

{table(runs)}

<script src="../assets/models.js"></script>

{summary(runs).replace("Summary", "The runs", 1)}

{failures(runs)}
"""


def table(runs: Sequence[Run]) -> str:
    """All rows as HTML; a click on a heading sorts by it."""
    heads = "".join(f'<th><button type="button">{name}</button></th>' for name in ("model", "run", *COLUMNS))
    lines = []
    for settings, rows in runs:
        run = setting(settings)
        for row in sorted(rows, key=lambda row: row["name"]):
            values = [row["name"], run, *cells(row)[1:]]
            lines.append(f"<tr>{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>")
    body = "\n".join(lines)
    return f'<table id="models" class="models">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table>'
