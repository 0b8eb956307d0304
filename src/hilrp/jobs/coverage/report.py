"""The results of coverage runs as a page, and those that documents keep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hilrp.attribution.audit import SHORT_NAMES
from hilrp.jobs.coverage.catalogue import representatives
from hilrp.jobs.coverage.splits import judge
from hilrp.jobs.coverage.store import Settings
from hilrp.jobs.store import read_rows, read_settings
from hilrp.util.markdown import paragraph

Row = dict[str, Any]
Run = tuple[Settings, list[Row]]

_INTRODUCTION = """# Coverage

Every model here was built with random weights, fed random images, and audited: its explained output must equal its
plain output bit for bit, its books must close (*residual*), no operation may keep relevance that its constants don't
explain (*leak*), and no operation may be without a rule. *Share* is the pixels' part of the score.

Parameters that a fresh model has all alike (biases of zero, branches that start at zero) have random values, and
layers and batch normalisations are scaled to the signal, so that relevance arrives at the pixels. In some models the
pixels' share is still less than ten times the tolerance (1e-4 in float32), so that an error in it would be lost. Such
a model is audited in float64 instead (tolerance 1e-10; marked). If it can't run in float64, it is marked with a star:
its pixels' share says little about whether the books are right.
"""


def markdown_page(runs: Sequence[Run]) -> str:
    """A page with a summary, what did not pass, the even splits with what was said of them, and all rows."""
    parts = [_INTRODUCTION, summary(runs), failures(runs), splits(runs)]
    parts += [_details(settings, rows) for settings, rows in runs]
    return "\n".join(parts)


def kept_runs(folder: Path) -> list[Run]:
    """The runs whose rows documents keep in a folder: for each ``NAME.jsonl`` its settings, and what was asked for."""
    runs = []
    for path in sorted(folder.glob("*.jsonl")):
        requested = json.loads(path.with_suffix(".requested.json").read_text())
        # Runs from before the source was kept have none.
        settings = Settings(**{"source": ""} | read_settings(path.with_suffix(".settings.json")))
        runs.append((settings, with_missing(read_rows(path, lenient=True), requested)))
    return runs


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def library_of(row: Row) -> str:
    """The part of the name before the slash; a factory's model is of no library."""
    return row["name"].split("/")[0] if ":" not in row["name"] else "own"


#: The status of a model that was asked for and not reached.
NOT_RUN = "not run"


def with_missing(rows: Iterable[Row], requested: Iterable[str]) -> list[Row]:
    """The rows, and one for each model that was asked for and has none."""
    reason = "the run ended before it was reached"
    missing = {name: {"name": name, "status": NOT_RUN, "reason": reason} for name in requested}
    return list((missing | {row["name"]: row for row in rows}).values())


def setting(settings: Settings) -> str:
    """How models were audited, and with which code, in short."""
    rules = "" if settings.rules == "hilrp" else f"{settings.rules}, "
    how = f"{rules}{settings.dtype}, {settings.device}, batch {settings.batch}, torch {settings.versions['torch']}"
    return f"{how}, {code(settings)}"


def code(settings: Settings) -> str:
    """The fingerprint of the code that was audited: rows say nothing of any other."""
    return f"code {settings.source}" if settings.source else "state of the code not recorded"


def version(settings: Settings, library: str) -> str:
    """That of a library."""
    return settings.versions.get("open_clip_torch" if library == "open_clip" else library, "")


def totals(rows: list[Row]) -> list[str]:
    """How many models there are, passed, and have an even split.

    The largest residual and leak of all, passed or not.
    """
    sound = [row for row in rows if row["status"] == "pass"]
    worst = []
    for key in ("residual", "leak"):
        found = [row[key] for row in rows if row.get(key) is not None]
        worst.append(f"{max(found):.0e}" if found else "-")
    return [str(len(rows)), str(len(sound)), str(sum(bool(row["splits"]) for row in sound)), *worst]


def by_library(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each library."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(library_of(row), []).append(row)
    return found


def summary(runs: Sequence[Run]) -> str:
    """How many models of each library passed in each run, and the largest errors."""
    lines = []
    for settings, rows in runs:
        for library, own in by_library(rows).items():
            models, passed, split, *worst = totals(own)
            name = f"{library} {version(settings, library)}"
            lines.append([name, setting(settings), f"**{passed} of {models}**", *worst, split])
    head = ("library", "how", "pass", "largest residual", "largest leak", "with an even split")
    return "## Summary\n\n" + _table(head, lines) + f"\n{_together(runs)}\n"


def _together(runs: Sequence[Run]) -> str:
    """How many different models were run, and passed wherever they were."""
    verdicts: dict[str, dict[str, set[str]]] = {}
    for row in (row for _, rows in runs for row in rows):
        verdicts.setdefault(library_of(row), {}).setdefault(row["name"], set()).add(row["status"])
    counts = []
    for library, models in verdicts.items():
        sound = sum(found - {NOT_RUN} == {"pass"} for found in models.values())
        counts.append(f"{library} {sound} of {len(models)} ({100 * sound / len(models):.1f} %)")
    return paragraph(f"Different models that were run, and passed wherever they were: {', '.join(counts)}.")


def failures(runs: Sequence[Run]) -> str:
    """The models that did not pass, with the reason."""
    lines = [
        [f"`{row['name']}`", setting(settings), row["status"], _plain(row.get("reason", ""))]
        for settings, rows in runs
        for row in rows
        if row["status"] != "pass"
    ]
    if not lines:
        return "## What did not pass\n\nNothing.\n"
    return "## What did not pass\n\n" + _table(("model", "how", "verdict", "reason"), lines)


def _plain(text: str) -> str:
    """On one line, and without what a table's cell can't hold."""
    return " ".join(text.split()).replace("|", "/")[:300]


def splits(runs: Sequence[Run]) -> str:
    """Each kind of even split, the models that have it, and why it is even."""
    models: dict[tuple[str, str], set[str]] = {}
    for _, rows in runs:
        for row in rows:
            for place in row.get("splits") or ():
                judgement = judge(row["name"], place)
                key = (judgement.what, judgement.why) if judgement else (f"`{place}`", "**Not looked at yet.**")
                models.setdefault(key, set()).add(row["name"])
    lines = [
        [
            what,
            f"{len(names)}: {', '.join(f'`{name}`' for name in sorted(names)[:3])}{', ...' if len(names) > 3 else ''}",
            why,
        ]
        for (what, why), names in sorted(models.items())
    ]
    text = paragraph(
        "In a product of two factors that depend on the input, the one that is less of a gate carries the relevance "
        "(it is the signal). Where neither is, they share evenly. All products in the runs above where that happened:"
    )
    return f"## Even splits\n\n{text}\n\n" + _table(("product", "models", "why it is split"), lines)


def _details(settings: Settings, rows: list[Row]) -> str:
    parts = []
    modules = {f"timm/{name}": module for module, name in representatives().items()}
    for library, found in by_library(rows).items():
        own = sorted(found, key=lambda row: row["name"])
        title = f"## {library} {version(settings, library)}, {len(own)} models: {setting(settings)}\n\n"
        by_module = library == "timm" and all(row["name"] in modules for row in own)
        table = _table(
            ("module", "model", *COLUMNS) if by_module else ("model", *COLUMNS),
            ([modules[row["name"]], *cells(row)] if by_module else cells(row) for row in own),
        )
        folded = f"<details><summary>All rows</summary>\n\n{table}\n</details>\n" if len(own) > 150 else table
        parts.append(title + folded)
    return "\n".join(parts)


#: Of a table of models, after the name.
COLUMNS = ("parameters", "input", "verdict", "forward difference", "residual", "leak", "share", "primitives", "splits")


def cells(row: Row) -> list[str]:
    """What a table says of a model, by `COLUMNS`."""
    name = f"`{row['name'].removeprefix(library_of(row) + '/')}`"
    size = f"{row['parameters'] / 1e6:.1f} M" if "parameters" in row else ""
    shape = "x".join(map(str, row["input"][0])) if row.get("input") else ""
    figures = [f"{row[key]:.0e}" if row.get(key) else "0" for key in ("forward_difference", "residual", "leak")]
    if row["status"] != "pass" and row.get("residual") is None:
        figures = ["", "", ""]
    share = f"{row['share'][0]:.2g}" if row.get("share") else ""
    verdict = (
        row["status"] + (" (float64)" if row.get("dtype") == "float64" else "") + (" *" if row.get("unseen") else "")
    )
    found = row.get("operations") or {}
    counts = (f"{short} {sum(found[name].values())}" for name, short in SHORT_NAMES.items() if name in found)
    splits = str(sum((row.get("splits") or {}).values()) or "")
    return [name, size, shape, verdict, *figures, share, " ".join(counts), splits]
