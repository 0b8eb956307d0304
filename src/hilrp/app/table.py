"""Methods beside each other, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image

from hilrp.app import problems
from hilrp.app.comparison import Compared
from hilrp.app.results import Result
from hilrp.attribution.plotting import blend, displayable
from hilrp.attribution.sentences import number
from hilrp.jobs.bench.methods import find
from hilrp.pages.parts import card, image, legend, table

_SIDE = 116


def comparison_table(
    found: Sequence[Compared], result: Result, waiting: Sequence[str] = (), stopped: bool = False
) -> str:
    """One row per method: its map, how well it lies on the object, what it adds up to, what it took."""
    seen = result.seen
    picture = (
        displayable(result.explanation.image_of(result.explanation.input)[0].float().numpy())
        if seen is None
        else seen[0].permute(1, 2, 0).numpy()
    )
    measures = list(dict.fromkeys(name for each in found for name in each.figures))
    best = {name: max(each.figures[name] for each in found if name in each.figures) for name in measures}
    head = [escape(name) for name in ("method", "map", *measures, "adds up to", "seconds", "passes")]
    rows = (_row(each, picture, measures, best) for each in found)
    known = (
        "Pointing, energy, average precision and IoU are measured on the true object. The best of each is bold."
        if measures or result.truth is not None
        else "Where the object is isn\u2019t known here, so the maps get no marks; "
        "take a scene for that, and a class that is in it."
    )
    more = "Stopped." if stopped else ""
    if waiting:
        more = f"Now {find(waiting[0]).title}; {len(found)} of {len(found) + len(waiting)} are done."
    return (
        f'<div class="compared"><p><b>{escape(result.title)}</b>, {escape(result.about)}. '
        f"{escape(_scores(result))} {escape(more)}</p>{legend()}{card(table(head, rows))}"
        f"<p>{known} Adds up to: the sum of the map, of methods whose values have signs. "
        "Passes: the time in plain forward and backward passes of the model, one run.</p></div>"
    )


def _scores(result: Result) -> str:
    """What maps could add up to."""
    ledger = result.explanation.ledger
    score = f"The score is {number(float(ledger.score[0]))}"
    if result.relative_to is None:
        return f"{score}."
    return f"{score}, its difference to that on {result.relative_to} {number(float(ledger.explained[0]))}."


def _row(each: Compared, picture: np.ndarray, measures: list[str], best: dict[str, float]) -> str:
    name = escape(each.method.title)
    if each.map is None:
        why = escape(problems.shown(each.error or ""))
        return f'<tr><td>{name}</td><td colspan="{4 + len(measures)}" class="none">{why}</td></tr>'
    blended = (255 * np.clip(blend(picture, each.map), 0, 1)).astype(np.uint8)
    small = Image.fromarray(blended)
    scale = _SIDE / max(small.size)
    small = small.resize((round(scale * small.width), round(scale * small.height)))
    shown = image(small, f"map of {each.method.title}", quality=88)
    marks = "".join(
        f"<td{' class=best' if each.figures[m] == best[m] else ''}>{each.figures[m]:.2f}</td>"
        if m in each.figures
        else "<td></td>"
        for m in measures
    )
    total = "" if each.total is None else number(each.total)
    return (
        f"<tr><td>{name}</td><td>{shown}</td>{marks}<td>{total}</td>"
        f"<td>{each.seconds:.2f}</td><td>{each.passes:.1f}</td></tr>"
    )
