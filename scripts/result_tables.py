"""Makes tables of the documents from committed figures.

    python scripts/result_tables.py            # writes them into the documents
    python scripts/result_tables.py --check    # says which are not what the figures give; exit status 1

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. Its text is in ``docs/results/tables/NAME.txt``,
where ``{...}`` looks a figure up. A figure is

- ``masks.csv.gz | pointing | hilrp | tiny_vit_5m_224`` in ``docs/results/figures``, of every image: the mean, or one of
  the `STATISTICS` after another ``|``, with another number of digits after a colon (``median:3``). In place of a model,
  ``*`` is all of them, each counted once;
- ``boxes | pointing | HiLRP | tiny_vit_5m_224`` in a table of ``docs/results/boxes.md``, as printed there; ``all``
  is the mean over the models, ``all | spread`` what follows its ±; ``scenes/Rules and gamma`` is a section of it.
  ``| interval`` is the value with its interval, ``| difference`` the same with its sign. With ``*`` as the column,
  ``| better, worse`` counts the models whose cell is marked as better and as worse;
- ``passes.csv | photographs | secant:passes=8 | flip`` the mean over the models of a row's figure, with another number
  of digits after another ``|``; ``photographs/deit_tiny_patch16_224 mobilenetv2_100`` of those models alone;
- ``chain_settings.csv | 2, 7 | 16 | flip`` the mean over the models for chains of so many steps, cells and passes, with
  another number of digits after another ``|``;
- ``intervals.jsonl | photographs | 16 | object`` the part of such regions that lay inside of their intervals;
- ``verify.json | taxonomy | leak`` the largest of a number in a section of what `hilrp verify --json` printed;
  ``equivariance | HiLRP | transfer | range`` the least and the largest, of rows whose name begins so;
- ``classic_lrp.csv | zennit | zoo | largest`` the largest sum that `benchmarks/classic_lrp.py` found with a library on
  models whose name begins so;
- ``concepts.jsonl | resnet | layer2 | secant`` how closely what one pass says of channels follows activation patching
  (Pearson, the mean over scenes); ``resnet | layer3 | colour | auc`` the mean over the properties of a kind of a figure
  of `benchmarks/concepts_on_scenes.py`;
- ``card | swin | parameters`` what the card of a model of the zoo says: that, its ``mAP`` or its ``accuracy``.

A number in a table that isn't so made is a setting, a count or the paper's.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
DOCUMENTS = tuple(path for path in sorted((ROOT / "docs").rglob("*.md")) if "<!-- table: " in path.read_text())
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "largest": max,
    "error": lambda values: statistics.stdev(values) / len(values) ** 0.5,
    "low": lambda values: statistics.quantiles(values, n=10)[0],
    "high": lambda values: statistics.quantiles(values, n=10)[-1],
}


class MissingFigureError(LookupError):
    """A table asks for a figure that isn't in the data."""


def shown(value: float, digits: int = 2) -> str:
    """A number as tables show it.

    Example:
        >>> shown(0.907), shown(-0.0004), shown(3e14), shown(0.0), shown(12.24), shown(0.0151, 3)
        ('0.91', '-4e-04', '3e+14', '0.00', '12.24', '0.015')
    """
    if value == 0 or (abs(value) * 10**digits >= 0.5 and abs(value) < 1000):
        return f"{value:.{digits}f}"
    return f"{value:.0e}"


@cache
def images(name: str) -> dict[tuple[str, str, str], list[float]]:
    """Figure, method and model -> the values of all images, of a file of `scripts/keep_figures.py`."""
    found: dict[tuple[str, str, str], list[float]] = {}
    with gzip.open(RESULTS / "figures" / name, "rt") as file:
        for row in csv.DictReader(file):
            if row["value"]:
                found.setdefault((row["figure"], row["method"], row["model"]), []).append(float(row["value"]))
    return found


@cache
def report(name: str) -> dict[tuple[str, str], dict[str, dict[str, str]]]:
    """Section and figure -> row -> column -> cell, of a report in Markdown."""
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    section, figure, columns = "", "", list[str]()
    for line in (RESULTS / f"{name}.md").read_text().splitlines():
        if line.startswith("## "):
            section = figure = line[3:]
        elif heading := re.fullmatch(r"\*\*(.+)\*\*", line):
            figure = heading[1]
        if not line.startswith("|"):
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns = cells[1:]
        elif set(cells[0]) - set("-"):
            rows = found.setdefault((section, figure), {})
            rows[cells[0]] = dict(zip(columns, cells[1:], strict=True))
    return found


def look_up(query: str) -> str:
    """The figure that a query in braces asks for, as it is shown."""
    source, *keys = (part.strip() for part in query.split("|"))
    try:
        if source.endswith(".csv.gz"):
            return _of_images(source, *keys)
        return OF_FILES[source](*keys) if source in OF_FILES else _of_report(source, *keys)
    except (KeyError, ValueError, TypeError, ZeroDivisionError, OSError) as error:
        said = f"{{{query}}}: no such figure in the data ({type(error).__name__}: {error})"
        raise MissingFigureError(said) from error


def _of_images(name: str, figure: str, method: str, model: str, statistic: str = "mean") -> str:
    known = images(name)
    models = [key[2] for key in known if key[:2] == (figure, method)] if model == "*" else [model]
    if not models:
        raise KeyError(figure, method)
    statistic, _, digits = statistic.partition(":")
    each = [STATISTICS[statistic](known[figure, method, own]) for own in models]
    return shown(max(each) if statistic == "largest" else statistics.fmean(each), int(digits or 2))


def _of_report(name: str, figure: str, row: str, column: str, part: str = "value") -> str:
    name, _, section = name.partition("/")
    tables = {key: rows for key, rows in report(name).items() if key[1] == figure and section in ("", key[0])}
    if not section:
        tables.pop(("Rules and gamma", figure), None)
    (rows,) = tables.values()
    if part == "better, worse":
        cells = [cell for model, cell in rows[row].items() if model != "all"]
        better = sum(cell.startswith("**") for cell in cells)
        return f"{better}, {sum(cell.startswith('*') for cell in cells) - better}"
    cell = rows[row][column].replace("*", "")
    value, _, rest = cell.partition(" ")
    if part == "spread":
        return rest.removeprefix("± ")
    if part not in ("value", "interval", "difference") or not value or value == "–":
        raise KeyError(cell)
    sign = "+" if part == "difference" and float(value) > 0 else ""
    return value if part == "value" else f"{sign}{cell}"


def _of_passes(source: str, method: str, figure: str, digits: str = "2") -> str:
    source, _, only = source.partition("/")
    with (RESULTS / "passes.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["source"], row["method"]) == (source, method)]
    if missing := set(only.split()) - {row["model"] for row in rows}:
        raise KeyError(*missing)
    values = [float(row[figure]) for row in rows if not only or row["model"] in only.split()]
    return shown(statistics.fmean(values), int(digits))


def _of_settings(chains: str, passes: str, figure: str, digits: str = "3") -> str:
    steps, cells = (part.strip() for part in chains.split(","))
    wanted = {"source": "photographs", "steps": steps, "cells": cells, "budget": passes, "variant": "mean"}
    wanted |= {"softness": "1.0", "fill": "reference"}
    with (RESULTS / "chain_settings.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if wanted.items() <= row.items()]
    if len(rows) != 3:
        raise KeyError(f"{len(rows)} rows of three models")
    return shown(statistics.fmean(float(row[figure]) for row in rows), int(digits))


def _of_intervals(source: str, passes: str, kind: str) -> str:
    runs = [json.loads(line) for line in (RESULTS / "intervals.jsonl").read_text().splitlines()]
    found = [run["kinds"] for run in runs if (run["source"], run["passes"]) == (source, int(passes))]
    counts = [kinds[name] for kinds in found for name in (kinds if kind == "all" else [kind])]
    return shown(sum(each["inside"] for each in counts) / sum(each["regions"] for each in counts), 3)


def _of_verify(section: str, figure: str, name: str = "", which: str = "largest") -> str:
    sections = {each["name"]: each["rows"] for each in json.loads((RESULTS / "verify.json").read_text())["sections"]}
    rows = [row["errors"] for row in sections[section] if row["name"].startswith(name)]
    found = [row[figure] for row in rows if figure in row]
    return shown(max(found)) if which == "largest" else f"{shown(min(found))} to {shown(max(found))}"


#: What of concepts says what patching to the reference finds; all else, patching to zero.
_TO_REFERENCE = ("secant", "gradient_difference")


def _of_concepts(model: str, at: str, what: str, figure: str = "") -> str:
    rows = [json.loads(line) for line in (RESULTS / "concepts.jsonl").read_text().splitlines()]
    rows = [row for row in rows if (row["model"], row["at"]) == (model, at)]
    if figure:
        return shown(statistics.fmean(row[figure] for row in rows if row.get("of") == what))
    truth = "to_reference" if what in _TO_REFERENCE else "to_zero"
    by_scene = defaultdict(list)
    for row in rows:
        if row["kind"] == "patching":
            by_scene[row["scene"]].append((row[truth], row[what]))
    return shown(statistics.fmean(statistics.correlation(*zip(*pairs, strict=True)) for pairs in by_scene.values()))


def _of_card(name: str, fact: str) -> str:
    card = json.loads((ROOT / "src" / "hilrp" / "zoo" / "weights" / f"{name}.json").read_text())
    if fact == "parameters":
        return f"{card['parameters'] / 1e6:.2f} M"
    key, digits = {"mAP": ("mean_average_precision", 4), "accuracy": ("test_accuracy", 3)}[fact]
    return f"{card[key]:.{digits}f}"


def _of_classic_lrp(library: str, models: str, which: str) -> str:
    with (RESULTS / "classic_lrp.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["library"] == library and row["model"].startswith(models)]
    sums = [float(row["sum relative to the score"]) for row in rows if row["runs"] == "yes"]
    return shown({"smallest": min, "largest": max}[which](sums))


OF_FILES: dict[str, Callable[..., str]] = {
    "passes.csv": _of_passes,
    "chain_settings.csv": _of_settings,
    "intervals.jsonl": _of_intervals,
    "verify.json": _of_verify,
    "classic_lrp.csv": _of_classic_lrp,
    "concepts.jsonl": _of_concepts,
    "card": _of_card,
}


def made(name: str) -> str:
    """A table with its figures looked up."""
    text = (RESULTS / "tables" / f"{name}.txt").read_text()
    return re.sub(r"\{([^{}]+)\}", lambda found: look_up(found[1]), text)


def with_tables(text: str) -> str:
    """A document with each of its tables made anew; a mark without an end would leave a table out of the check."""
    found, marks = len(_TABLE.findall(text)), text.count("<!-- table: ")
    if found != marks:
        raise ValueError(f"{marks} tables begin and {found} end: write <!-- end --> after each")
    return _TABLE.sub(lambda found: found[1] + made(found[2]) + found[3], text)


def main() -> None:
    """Writes or checks all documents."""
    wrong = [path for path in DOCUMENTS if with_tables(path.read_text()) != path.read_text()]
    if "--check" in sys.argv[1:]:
        sys.exit("\n".join(f"{path}: a table is not what the figures give" for path in wrong) or 0)
    for path in wrong:
        path.write_text(with_tables(path.read_text()))
        print(path)


if __name__ == "__main__":
    main()
