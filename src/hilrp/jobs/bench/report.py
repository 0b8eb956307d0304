"""The report of a run: the same tables as a page, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hilrp.jobs.bench import methods
from hilrp.jobs.bench.grid import Cell
from hilrp.jobs.bench.over_removals import CEILING
from hilrp.jobs.bench.rankings import compared_figures, rankings
from hilrp.jobs.bench.sections import COMPARED, PAIR, PAIRED, RULES, SECTIONS, Section
from hilrp.jobs.bench.summary import Estimate, Table, differences, estimate, tables
from hilrp.util.markdown import paragraph
from hilrp.util.nested import jsonable

#: The heading of the last column: the mean and the standard deviation over the models.
OVERALL = "all"


def is_variant(name: str) -> bool:
    """Whether a method is a rule set that is compared with HiLRP, and not a method of its own."""
    return name.startswith(("rules:", "hilrp:"))


def split(cells: Iterable[Cell]) -> tuple[list[Cell], list[Cell]]:
    """The cells of the methods, and those of rule sets and gammas with the three that they are compared with."""
    cells = list(cells)
    varied = any(is_variant(cell.method) for cell in cells)
    rules = [
        c for c in cells if varied and (is_variant(c.method) or c.method in ("hilrp", "secant", "epsilon", "attnlrp"))
    ]
    return [cell for cell in cells if not is_variant(cell.method)], rules


@dataclass(frozen=True)
class Row:
    """A row of a table as it is shown.

    A method's title, its kind, a cell for each model, and one for all of them together.
    """

    name: str
    title: str
    kind: str
    cells: list[Shown]
    overall: Shown


@dataclass(frozen=True)
class Shown:
    """A cell as it is shown.

    Attributes:
        value: The estimate.
        why: Why there is none.
        mark: ``"best"`` or ``"worst"`` of the methods that look at the model; of a difference, whether all of its
            interval is better or worse.
    """

    value: Estimate | None
    why: str = ""
    mark: str = ""


def rows(table: Table, better: int) -> list[Row]:
    """A table's rows: methods in their order, variants of rules after them, controls last."""
    kinds = {name: methods.find(name) for name in table.methods}
    judged = [name for name in table.methods if kinds[name].kind != "control"]
    marks = {model: _marks(table.column(model, judged), better) for model in table.models}
    together = {name: value for name in table.methods if (value := table.over_models(name)) is not None}
    best = _marks({name: value for name, value in together.items() if name in judged}, better)
    found = []
    for name in [*judged, *(n for n in table.methods if n not in judged)]:
        cells = [
            Shown(
                table.cells.get((m, name)),
                table.undefined.get((m, name), ""),
                marks[m].get(name, ""),
            )
            for m in table.models
        ]
        overall = Shown(together.get(name), "it has no value on some of the models", best.get(name, ""))
        if any(cell.value is not None for cell in cells) or all(cell.why for cell in cells):
            found.append(Row(name, kinds[name].title, kinds[name].kind, cells, overall))
    return found


def section_rows(found: dict[str, Table], name: str, better: int) -> list[Row]:
    """The rows of a figure, with its ceiling as the last one where it has one."""
    shown, highest = rows(found[name], better), found.get(CEILING + name)
    if highest is None:
        return shown
    # It is the model's, and the same beside every method.
    values = {model: next(iter(highest.column(model, highest.methods).values())) for model in highest.models}
    overall = estimate(value.mean for value in values.values()) if len(values) == len(found[name].models) > 1 else None
    cells = [Shown(values.get(model)) for model in found[name].models]
    return [*shown, Row("ceiling", "ceiling: the removals among themselves", "control", cells, Shown(overall))]


def paired_rows(cells: Iterable[Cell]) -> tuple[list[str], list[Row]]:
    """The models, and a row for each figure: by how much the first of the pair is above the second."""
    found = differences(cells, *PAIR)
    models = list(dict.fromkeys(model for _, model in found))
    rows = []
    for name, better in PAIRED.figures.items():
        values = {model: found[name, model] for model in models if (name, model) in found}
        if values:
            overall = estimate(value.mean for value in values.values()) if len(values) == len(models) > 1 else None
            shown = [Shown(values.get(model), "", _side(values.get(model), better)) for model in models]
            rows.append(Row(name, name, "", shown, Shown(overall)))
    return models, rows


def ranking_rows(found: dict[str, Table]) -> tuple[list[str], list[Row]]:
    """Figures, and a row for each of them: how alike it and each of the others rank the methods."""
    pairs = rankings(found)
    names = compared_figures(pairs)
    rows = [
        Row(
            a,
            a,
            "",
            [Shown(pairs.get((a, b), pairs.get((b, a))), "" if a == b else "no model has both") for b in names],
            Shown(None),
        )
        for a in names
    ]
    return names, rows


def _side(value: Estimate | None, better: int) -> str:
    """On which side of zero all of an interval is."""
    if value is None or value.count < 2 or value.low <= 0 <= value.high:
        return ""
    return "best" if value.mean * better > 0 else "worst"


def _marks(column: dict[str, Estimate], better: int) -> dict[str, str]:
    """The best and the worst values of a column, by method."""
    ends = sorted({better * value.mean for value in column.values()})
    if not better or len(ends) < 2:
        return {}
    words = {ends[0]: "worst", ends[-1]: "best"}
    return {name: words.get(better * value.mean, "") for name, value in column.items()}


def short(model: str) -> str:
    """A model's name in a heading."""
    return model.partition("@")[0].rpartition("/")[2].partition(".")[0]


def number(value: float) -> str:
    """A figure as it is printed: as many digits as can be read."""
    if abs(value) < 1e-12:  # rounding
        return "0.00"
    if abs(value) < 0.005 or abs(value) >= 1000:
        return f"{value:.0e}"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def markdown(cells: Iterable[Cell], title: str, facts: dict[str, Any]) -> str:
    """All tables as Markdown. Best values are bold, worst ones in italics.

    A dash is a method that has no meaning on the model.
    """
    cells = list(cells)
    lines = [f"# {title}", "", paragraph(_introduction(facts)), ""]
    main, rules = split(cells)
    found = tables(main)
    for section in SECTIONS:
        lines += _section(section, found)
    models, pairs = paired_rows(main)
    if pairs:
        lines += [f"## {PAIRED.title}", "", paragraph(PAIRED.text), "", *as_table(models, pairs)]
    figures, ranked = ranking_rows(found)
    if ranked:
        lines += [f"## {COMPARED.title}", "", paragraph(COMPARED.text), "", *_matrix(figures, ranked)]
    lines += _section(RULES, tables(rules))
    errors = [cell for cell in cells if cell.error is not None]
    if errors:
        said = (f"{cell.model}, {cell.method}, {cell.measure}: {cell.error}" for cell in errors)
        lines += ["## Errors", "", *(paragraph(text, "- ", "  ") for text in said), ""]
    return "\n".join(lines)


def _section(section: Section, found: dict[str, Table]) -> list[str]:
    present = [name for name in section.figures if name in found]
    lines = [f"## {section.title}", "", paragraph(section.text), ""] if present else []
    for name in present:
        lines += [f"**{name}**", "", *as_table(found[name].models, section_rows(found, name, section.figures[name]))]
    return lines


def as_table(models: list[str], shown: list[Row]) -> list[str]:
    """Rows as the lines of a Markdown table, with a last column for all models together where there is a value."""
    several = len(models) > 1 and has_overall(shown)
    heads = [short(model) for model in models] + [OVERALL] * several
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for row in shown:
        cells = [_plain(cell) for cell in row.cells] + [_plain(row.overall, overall=True)] * several
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _matrix(figures: list[str], shown: list[Row]) -> list[str]:
    """Rows of numbers alone as the lines of a Markdown table, the figures numbered."""
    heads = [str(number) for number in range(1, len(figures) + 1)]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for head, row in zip(heads, shown, strict=True):
        cells = [f"{cell.value.mean:.2f}" if cell.value else "–" if cell.why else "" for cell in row.cells]
        lines.append(f"| {head} {row.title} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def has_overall(shown: list[Row]) -> bool:
    """Whether anything can be said of all models together."""
    return any(row.overall.value is not None for row in shown)


def own_settings(facts: dict[str, Any]) -> str:
    """On which models the row of HiLRP has another setting than on the rest; nothing, if on none."""
    options = {name: model.get("options of hilrp") for name, model in facts.get("models", {}).items()}
    found = [
        f"{', '.join(f'{key}={value}' for key, value in own.items())} on {short(name)}"
        for name, own in options.items()
        if own
    ]
    if not found or "hilrp" not in facts.get("methods", ()):
        return ""
    return f" The row of HiLRP has {', '.join(found)}, as in the paper; rules:hilrp is the same on every model."


def _introduction(facts: dict[str, Any]) -> str:
    effort = facts.get("effort", {})
    return (
        f"Up to {effort.get('images')} images of {facts.get('data')}; hilrp {facts.get('hilrp')}, torch "
        f"{facts.get('packages', {}).get('torch')}, {facts.get('device')}. Means over images with 95 % bootstrap "
        "intervals. The best value of a column is bold, the worst in italics, of the methods that look at the model; "
        "a dash is a method that has no meaning on the model. The last column is the mean and the standard deviation "
        f"over the models.{own_settings(facts)}"
    )


def _plain(cell: Shown, overall: bool = False) -> str:
    if cell.value is None:
        return "–" if cell.why else ""
    value = number(cell.value.mean)
    if overall:
        value += f" ± {number(cell.value.spread)}"
    elif cell.value.count > 1:
        value += f" [{number(cell.value.low)}, {number(cell.value.high)}]"
    return {"best": f"**{value}**", "worst": f"*{value}*"}.get(cell.mark, value)


def as_json(cells: Iterable[Cell], facts: dict[str, Any]) -> str:
    """Every estimate, every value behind it, and how alike figures rank the methods."""
    cells = list(cells)
    pairs = rankings(tables(split(cells)[0]))
    ranked = [{"first": first, "second": second, "estimate": vars(value)} for (first, second), value in pairs.items()]
    found = tables(cells)
    figures = [
        {"model": c.model, "method": c.method, "figure": name, "values": values, "estimate": _estimate(found, c, name)}
        for c in cells
        for name, values in c.figures.items()
    ]
    missing = [
        {
            "model": c.model,
            "method": c.method,
            "measure": c.measure,
            "undefined": c.undefined,
            "error": c.error,
        }
        for c in cells
        if c.undefined is not None or c.error is not None
    ]
    return json.dumps(jsonable({"manifest": facts, "figures": figures, "rankings": ranked, "missing": missing}))


def _estimate(found: dict[str, Table], cell: Cell, name: str) -> dict[str, Any] | None:
    value = found[name].cells.get((cell.model, cell.method))
    return None if value is None else vars(value)
