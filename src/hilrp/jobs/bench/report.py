"""The report of a run: the same tables as a page, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hilrp.jobs.bench import methods
from hilrp.jobs.bench.grid import Cell
from hilrp.jobs.bench.summary import Estimate, Table, differences, estimate, tables
from hilrp.util.markdown import paragraph
from hilrp.util.nested import jsonable


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        title: Its heading.
        text: What is measured, and how to read it.
        figures: Figure -> 1 if larger is better, -1 if smaller is, 0 if neither.
    """

    title: str
    text: str
    figures: dict[str, int]


SECTIONS = (
    Section(
        "Pointing Game",
        "How often the strongest pixel lies on the object. Where several pixels are the strongest, the part of them "
        "that does. The controls look at no model.",
        {"pointing": 1},
    ),
    Section(
        "Relevance mass, average precision, IoU",
        "Energy excess: the part of the positive relevance on the object, less the part of the picture that it "
        "covers. Average precision: how well the map tells the object's pixels from the others. IoU: of the object "
        "with as many of the strongest pixels as it has.",
        {"energy excess": 1, "average precision": 1, "IoU": 1},
    ),
    Section(
        "Conservation",
        "Of relevance methods: the sum of the map relative to the explained score (median; 1 is exact), and the part "
        "of the score that the books can't account for (0 is exact).",
        {"pixels' share": 0, "residual": -1},
    ),
    Section(
        "Agreement with Shapley values",
        "Spearman correlation, over segments of the picture (the cells of a grid, unless superpixels or objects were "
        "asked for), of the map's sum with sampled Shapley values of the score. LIME fits a linear model to the same "
        "grid and the same mean colour, and Occlusion and RISE put the same colour: they are close to this reference "
        "by construction.",
        {"Shapley agreement": 1},
    ),
    Section(
        "The true effect of an object",
        "In scenes: Spearman correlation, over the objects of a scene, of the relevance on each with what the score "
        "loses when that object is taken out of the picture.",
        {"true effect": 1},
    ),
    Section(
        "Pixel flipping",
        "Area under the score while pixels are replaced by the mean colour: most relevant first (MoRF, smaller is "
        "better), least relevant first (LeRF, larger), and the difference. Images that score no better than their "
        "mean colour are left out.",
        {"flip": 1, "morf": -1, "lerf": 1},
    ),
    Section(
        "Faithfulness Correlation",
        "Correlation, over random subsets of pixels, of their relevance with what the score loses when they are "
        "replaced by the mean colour: 224 single pixels (Quantus's number), and a tenth of the model's patches.",
        {"faithfulness correlation (pixels)": 1, "faithfulness correlation (patches)": 1},
    ),
    Section(
        "Class sensitivity",
        "In scenes with several objects: how alike (Spearman) the maps of two classes are, and how often each of the "
        "two has more of its mass on its own object than on the other's.",
        {"class sensitivity": -1, "moves to the other object": 1},
    ),
    Section(
        "Sanity check",
        "How alike (size of the Spearman correlation) maps are before and after weights are shuffled: a map that "
        "stays the same doesn't depend on what the model has learned.",
        {
            "sanity, cascading: head": -1,
            "sanity, cascading: upper half": -1,
            "sanity, cascading: all": -1,
            "sanity, independent: one layer": -1,
        },
    ),
    Section(
        "Equivariance",
        "How alike (Spearman) the map of a shifted picture and the shifted map are: the mean over cyclic shifts by "
        "an eighth and a quarter of the picture. The models themselves are not equivariant.",
        {"equivariance": 1},
    ),
    Section(
        "Misclassified samples",
        "Where the model is wrong: the energy excess, on the true object, of the map of the class that it says, and "
        "of the true class.",
        {"misclassified: predicted class": 0, "misclassified: true class": 0},
    ),
    Section(
        "Cost",
        "Images that go through the model for one map; time and (on a GPU) peak memory relative to a plain forward "
        "and backward pass.",
        {"forward passes": -1, "time ratio": -1, "memory ratio": -1},
    ),
)


#: The heading of the last column: the mean and the standard deviation over the models.
OVERALL = "all"
#: What is shown of rule sets and gammas beside each other.
RULES = Section(
    "Rules and gamma",
    "HiLRP with other rules and other gammas. `hilrp` is gamma 0.25 with conservation-preserving attention; `secant` "
    "is relative to each image's mean colour.",
    {"pointing": 1, "energy excess": 1, "pixels' share": 0, "residual": -1, "Shapley agreement": 1, "flip": 1},
)


#: What is set against each other image by image.
PAIR = ("secant", "hilrp")
PAIRED = Section(
    "Secant against the paper's preset",
    "HiLRP, secant less HiLRP: means of the differences on the same images with their intervals. Marked as best or "
    "worst is a difference whose whole interval is better or worse.",
    {
        name: better
        for section in SECTIONS
        if section.title not in ("Conservation", "Cost")
        for name, better in section.figures.items()
        if better
    },
)


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
        lines += [f"**{name}**", "", *as_table(found[name].models, rows(found[name], section.figures[name]))]
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


def has_overall(shown: list[Row]) -> bool:
    """Whether anything can be said of all models together."""
    return any(row.overall.value is not None for row in shown)


def _introduction(facts: dict[str, Any]) -> str:
    effort = facts.get("effort", {})
    return (
        f"Up to {effort.get('images')} images of {facts.get('data')}; hilrp {facts.get('hilrp')}, torch "
        f"{facts.get('packages', {}).get('torch')}, {facts.get('device')}. Means over images with 95 % bootstrap "
        "intervals. The best value of a column is bold, the worst in italics, of the methods that look at the model; "
        "a dash is a method that has no meaning on the model. The last column is the mean and the standard deviation "
        "over the models."
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
    """Every estimate, and every value behind it."""
    cells = list(cells)
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
    return json.dumps(jsonable({"manifest": facts, "figures": figures, "missing": missing}))


def _estimate(found: dict[str, Table], cell: Cell, name: str) -> dict[str, Any] | None:
    value = found[name].cells.get((cell.model, cell.method))
    return None if value is None else vars(value)
