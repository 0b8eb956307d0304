"""The page of a benchmark run: every table, the figures of the paper, and the maps behind the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from hilrp.attribution.plotting import as_text, blend
from hilrp.jobs.bench import methods
from hilrp.jobs.bench.grid import Cell, Grid
from hilrp.jobs.bench.report import (
    OVERALL,
    Row,
    Shown,
    has_overall,
    number,
    own_settings,
    paired_rows,
    ranking_rows,
    rows,
    section_rows,
    short,
    split,
)
from hilrp.jobs.bench.sections import COMPARED, PAIRED, RULES, SECTIONS
from hilrp.jobs.bench.summary import Table, tables
from hilrp.pages.charts import drawn
from hilrp.pages.parts import card, cards, image, legend, page
from hilrp.pages.parts import table as grid_table

#: The style of maps in tables.
STYLE = """
.maps img { width: 84px; }
.maps th, .maps td { padding: 2px 3px; text-align: center; font-size: 12px; }
.maps th { max-width: 84px; white-space: normal; overflow-wrap: anywhere; }
.maps td:first-child { padding-right: 10px; }
@media print { .maps img { width: 100%; } }
"""
#: The colours of the lines of a figure, one for each model.
_COLOURS = [colormaps["tab20"](i) for i in (*range(0, 20, 2), *range(1, 20, 2))]


def bench_page(grid: Grid, cells: Sequence[Cell], facts: dict[str, Any], title: str) -> str:
    """The whole page."""
    main, rules = split(cells)
    found, varied = tables(main), tables(rules)
    effort = facts["effort"]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">Up to {effort["images"]} images of {escape(str(facts["data"]))}; hilrp {facts["hilrp"]}, '
        f"torch {facts['packages']['torch']}, {escape(str(facts['device']))}. Means over images "
        "with 95 % bootstrap intervals. The best value of a column is bold, the worst underlined, of the methods "
        "that look at the model. A dash: the method has no meaning on the model (hover for the reason). The last "
        "column: mean and standard deviation over the models. Grey: controls that look at no model."
        f"{escape(own_settings(facts))}</p>",
    ]
    for section in SECTIONS:
        present = [name for name in section.figures if name in found]
        if not present:
            continue
        parts.append(f"<h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>")
        shown = [table(name, found[name].models, section_rows(found, name, section.figures[name])) for name in present]
        parts.append(cards(shown))
        if section.title == "Conservation":
            parts += [_naive(found), _traces(main)]
        if section.title == "Faithfulness Correlation":
            parts.append(_noise(found))
    models, pairs = paired_rows(main)
    if pairs:
        parts.append(f"<h2>{escape(PAIRED.title)}</h2><p>{escape(PAIRED.text)}</p>{table('difference', models, pairs)}")
    parts.append(_rankings(found))
    if varied:
        parts.append(f"<h2>{RULES.title}</h2><p>{escape(RULES.text)}</p>{_gammas(varied)}")
        figures = [(name, better) for name, better in RULES.figures.items() if name in varied]
        parts.append(cards(table(name, varied[name].models, rows(varied[name], better)) for name, better in figures))
    parts.append(_maps(grid, main))
    errors = [c for c in cells if c.error is not None]
    if errors:
        lines = "".join(
            f"<p>{escape(c.model)}, {escape(c.method)}, {c.measure}: {escape(c.error or '')}</p>" for c in errors
        )
        parts.append(f"<h2>Errors</h2>{card(lines, 'alert')}")
    return page(title, "\n".join(part for part in parts if part), STYLE)


def table(name: str, models: list[str], shown: list[Row]) -> str:
    """Rows as a card with a table."""
    several = len(models) > 1 and has_overall(shown)
    head = [escape(name) for name in (name, *map(short, models), *[OVERALL] * several)]
    lines = []
    for row in shown:
        kind = (
            "control" if row.kind == "control" else "ours" if row.name.partition(":")[0] in ("hilrp", "secant") else ""
        )
        cells = [_cell(cell) for cell in row.cells] + [_cell(row.overall, overall=True)] * several
        lines.append(f'<tr class="{kind}"><td>{escape(row.title)}</td>{"".join(cells)}</tr>')
    return card(grid_table(head, lines))


def _cell(cell: Shown, overall: bool = False) -> str:
    if cell.value is None:
        return f'<td title="{escape(cell.why, quote=True)}">{"–" if cell.why else ""}</td>'
    interval = ""
    if overall:
        interval = f' <span class="interval">± {number(cell.value.spread)}</span>'
    elif cell.value.count > 1:
        interval = f' <span class="interval">{number(cell.value.low)} – {number(cell.value.high)}</span>'
    return f'<td class="{cell.mark}">{number(cell.value.mean)}{interval}</td>'


def _rankings(found: dict[str, Table]) -> str:
    """How alike figures rank the methods: blue where they agree, red where they contradict each other."""
    names, shown = ranking_rows(found)
    if not shown:
        return ""
    heads = [f'<th title="{escape(name, quote=True)}">{i}</th>' for i, name in enumerate(names, 1)]
    lines = []
    for i, row in enumerate(shown, 1):
        cells = []
        for cell, other in zip(row.cells, names, strict=True):
            if cell.value is None:
                cells.append(f'<td title="{escape(cell.why, quote=True)}">{"–" if cell.why else ""}</td>')
                continue
            value, several = cell.value, f", ± {cell.value.spread:.2f} over {cell.value.count} models"
            text = f"{row.title} and {other}: {value.mean:.2f}{several if value.count > 1 else ''}"
            colour = "var(--against)" if value.mean > 0 else "var(--for)"
            part = 50 * min(1.0, abs(value.mean))
            shade = f"background: color-mix(in srgb, {colour} {part:.0f}%, transparent)"
            cells.append(f'<td style="{shade}" title="{escape(text, quote=True)}">{value.mean:.2f}</td>')
        lines.append(f"<tr><td>{i} {escape(row.title)}</td>{''.join(cells)}</tr>")
    grid = card(grid_table(["", *heads], lines))
    return f"<h2>{escape(COMPARED.title)}</h2><p>{escape(COMPARED.text)}</p>{grid}"


def _naive(found: dict[str, Table]) -> str:
    """The paper's conservation table: the naive extension beside HiLRP."""
    pointing, share, residual = (found.get(n) for n in ("pointing", "pixels' share", "residual"))
    if pointing is None or share is None or residual is None or "attnlrp" not in share.methods:
        return ""
    lines = []
    for model in share.models:
        texts = []
        for name in ("attnlrp", "hilrp"):
            if any((model, name) not in table.cells for table in (pointing, share, residual)):
                texts.append("<td>–</td>")
                continue
            lost = residual.cells[model, name].mean
            word = f"the ledger misses {lost:.0%} of the score" if lost > 1e-3 else "the ledger closes"
            texts.append(
                f"<td>{number(pointing.cells[model, name].mean)} / {number(share.cells[model, name].mean)} <span "
                f"class='interval'>{word}</span></td>"
            )
        lines.append(f"<tr><td>{escape(short(model))}</td>{''.join(texts)}</tr>")
    return card(grid_table(["pointing / pixels' share", "AttnLRP (naive)", "HiLRP"], lines))


def _figure(drawing: Figure, text: str) -> str:
    return card(f'<div class="scroll">{drawn(drawing, text)}</div>')


def _traces(cells: Sequence[Cell]) -> str:
    """The sum of relevance at each stage relative to the score, from the input to the last stage, under HiLRP."""
    drawing = Figure(figsize=(8, 3.2), layout="constrained")
    axis = drawing.subplots()
    axis.set_prop_cycle(color=_COLOURS)
    for cell in cells:
        stages = [values for name, values in cell.figures.items() if name.startswith("trace ")]
        if cell.method == "hilrp" and stages:
            points = [float(np.median([v for v in values if v is not None])) for values in stages]
            axis.plot(
                np.linspace(0, 1, len(points)), points, marker="o", markersize=3, label=as_text(short(cell.model))
            )
    if not axis.lines:
        return ""
    axis.axhline(1, color="#888888", linewidth=0.8)
    axis.set_xlabel("from the pixels (0) to the last stage (1)")
    axis.set_ylabel("relevance / score, median")
    axis.legend(fontsize=7, ncols=2)
    return _figure(drawing, "Conservation trace: the sum of relevance at each stage relative to the score, HiLRP")


def _noise(found: dict[str, Table]) -> str:
    """The paper's figure: the means of all cells beside the spread of single images."""
    kinds = [n for n in ("faithfulness correlation (pixels)", "faithfulness correlation (patches)") if n in found]
    drawing = Figure(figsize=(8, 2.8), layout="constrained")
    axes = drawing.subplots(1, len(kinds), squeeze=False)[0]
    for axis, name in zip(axes, kinds, strict=True):
        table = found[name]
        judged = [e for (_, m), e in table.cells.items() if methods.find(m).kind != "control"]
        spread = float(np.median([e.spread for e in judged]))
        axis.hist([e.mean for e in judged], bins=20, density=True, color="#1f6feb", alpha=0.75, label="means of cells")
        place = np.linspace(-1, 1, 200)
        if spread:
            density = np.exp(-0.5 * (place / spread) ** 2) / spread / np.sqrt(2 * np.pi)
            axis.fill_between(place, density, color="#999999", alpha=0.4, label=f"single images, spread {spread:.2f}")
        axis.set_title(as_text(name), fontsize=9)
        axis.legend(fontsize=7)
    return _figure(drawing, "Faithfulness Correlation: means of all cells beside the spread of single images")


def _gammas(found: dict[str, Table]) -> str:
    """Pointing and the pixels' share over gamma, per model."""
    figures = [name for name in ("pointing", "pixels' share") if name in found]
    if not figures:
        return ""
    names = {0.25: "hilrp"}
    for name in found[figures[0]].methods:
        options = dict(methods.find(name).options)
        if name.startswith("hilrp:") and set(options) == {"gamma"}:
            names[float(options["gamma"])] = name
    if len(names) < 3:
        return ""
    drawing = Figure(figsize=(9, 3), layout="constrained")
    axes = drawing.subplots(1, len(figures), squeeze=False)[0]
    for axis, figure in zip(axes, figures, strict=True):
        table = found[figure]
        axis.set_prop_cycle(color=_COLOURS)
        for model in table.models:
            points = [(g, table.cells[model, names[g]].mean) for g in sorted(names) if (model, names[g]) in table.cells]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=as_text(short(model)))
        axis.set_xscale("log")
        axis.set_xlabel("gamma")
        axis.set_title(as_text(figure), fontsize=9)
        if figure != "pointing":
            axis.set_ylim(-1, 4)
    axes[0].legend(fontsize=6, ncols=2)
    return _figure(drawing, "Pointing and the pixels' share over gamma")


def _maps(grid: Grid, cells: Sequence[Cell]) -> str:
    """The maps of the first images, on what each model saw of them."""
    models, names = (list(dict.fromkeys(getattr(c, k) for c in cells)) for k in ("model", "method"))
    shown = {model: grid.shown(model) for model in models}
    parts = []
    for i in range(max((len(called) for called, _ in shown.values()), default=0)):
        heads = [f"{_picture(*shown[model], i)}{escape(short(model))}" for model in models]
        lines = []
        for name in names:
            boxes = "".join(f"<td>{_overlay(grid, model, name, shown[model][1], i)}</td>" for model in models)
            lines.append(f"<tr><td>{escape(methods.find(name).title)}</td>{boxes}</tr>")
        parts.append(card(grid_table(["", *heads], lines, "maps")))
    return f"<h2>Maps</h2>{legend()}{cards(parts)}"


def _picture(names: list[str], pictures: np.ndarray, i: int) -> str:
    if i >= len(names):
        return ""
    return image(Image.fromarray(pictures[i]).resize((126, 126)), names[i], quality=90)


def _overlay(grid: Grid, model: str, method: str, pictures: np.ndarray, i: int) -> str:
    stored = grid.maps(model, method)
    if stored is None or i >= len(pictures):
        return "–"
    blended = np.clip(blend(pictures[i] / 255, stored[i]), 0, 1)
    return image(
        Image.fromarray((255 * blended).astype(np.uint8)).resize((126, 126)), f"{method} on {short(model)}", quality=80
    )
