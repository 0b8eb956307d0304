"""Charts as SVG, for pages: in the colours of the page, be it light or dark."""

from __future__ import annotations

import re
from html import escape
from io import StringIO

from matplotlib import rc_context
from matplotlib.figure import Figure

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.plotting import shares
from hilrp.method.ledger import REFERENCE

#: Colours of style.css.
_FOR, _AGAINST, _BEFORE, _WHOLE = "var(--for)", "var(--against)", "var(--before)", "var(--whole)"
_ROW, _NAMES, _BARS, _ENDS = 26, 190, 520, 80


def waterfall(explanation: Explanation, sample: int = 0, relative_to: str | None = None) -> str:
    """The ledger of a sample: what the score is made of, one bar after the other, and the score itself.

    Relative to a reference, in words ``relative_to``, the first is the reference's own score, and the last what is
    missing.
    """
    parts = shares(explanation, sample) if relative_to is None else _of_difference(explanation, sample, relative_to)
    score = float(explanation.ledger.score[sample])
    bars, start = [], 0.0
    for row, (name, value) in enumerate(parts):
        colour = _FOR if value >= 0 else _AGAINST
        bars.append((name, start, start + value, value, _BEFORE if relative_to is not None and row == 0 else colour))
        start += value
    bars.append(("score" if relative_to is None else "score on this picture", 0.0, score, score, _WHOLE))
    low, high = min(0.0, *(min(b[1:3]) for b in bars)), max(0.0, *(max(b[1:3]) for b in bars))
    scale = _BARS / (high - low or 1.0)

    def across(value: float) -> float:
        return _NAMES + (value - low) * scale

    drawn = []
    for row, (name, first, last, value, colour) in enumerate(bars):
        top, left, width = row * _ROW, across(min(first, last)), max(abs(last - first) * scale, 1.0)
        drawn.append(
            f'<text x="{_NAMES - 8}" y="{top + 17}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{left:.1f}" y="{top + 4}" width="{width:.1f}" height="{_ROW - 9}" rx="2" fill="{colour}"/>'
            f'<text x="{left + width + 6:.1f}" y="{top + 17}">{value:.3g}</text>'
        )
        if row + 1 < len(bars):
            edge = across(last if row + 2 < len(bars) else score)
            drawn.append(
                f'<path d="M{edge:.1f} {top + _ROW - 5}V{top + _ROW + 4}" stroke="var(--soft)" stroke-width="1"/>'
            )
    return _svg(_NAMES + _BARS + _ENDS, len(bars) * _ROW + 2, "Waterfall of the ledger", "".join(drawn))


def _of_difference(explanation: Explanation, sample: int, relative_to: str) -> list[tuple[str, float]]:
    """What the ledger of a sample is made of relative to a reference, in the order in which it is told."""
    ledger = explanation.ledger
    kept = {name: value for name, value in ledger.entries.items() if name != REFERENCE}
    return [
        (f"score on {relative_to}", float(ledger.entries[REFERENCE][sample])),
        *((name, float(value[sample])) for name, value in (ledger.arrived | kept).items()),
        ("missing", float(ledger.difference[sample])),
    ]


def trace(explanation: Explanation, sample: int = 0) -> str:
    """The sum of relevance at each stage as a part of what is explained, from the pixels to the last stage."""
    whole = "score" if explanation.reference is None else "difference"
    # Where there is nothing to explain, nobody holds a part of it.
    points = [(name, float(value[sample].nan_to_num(0.0, 0.0, 0.0))) for name, value in explanation.trace.items()]
    values = [value for _, value in points]
    low, high = min(0.0, *values), max(1.0, *values)
    margin = 0.08 * (high - low)
    low, high = low - margin, high + margin
    left, width, height = 60, 640, 130
    step = (width - 20) / max(1, len(points) - 1)

    def down(value: float) -> float:
        return 10 + (high - value) / (high - low) * height

    places = [(left + 10 + i * step, down(value)) for i, value in enumerate(values)]
    lines = "".join(
        f'<path d="M{left} {down(v):.1f}H{left + width}" stroke="var(--line)"/>'
        f'<text x="{left - 8}" y="{down(v) + 4:.1f}" text-anchor="end">{v:g}</text>'
        for v in (0.0, 1.0)
    )
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="var(--accent)">'
        f"<title>{escape(name)}: {value:.3f}</title></circle>"
        for (x, y), (name, value) in zip(places, points, strict=True)
    )
    ends = (
        f'<text x="{left + 10}" y="{height + 34}">{escape(points[0][0])}</text>'
        f'<text x="{left + width}" y="{height + 34}" text-anchor="end">{escape(points[-1][0])}</text>'
    )
    text = f"Conservation trace: relevance at each stage as a part of the {whole}"
    head = f'<text x="{left}" y="{height + 54}">{text}</text>'
    body = f'{lines}<path d="M{path}" fill="none" stroke="var(--accent)" stroke-width="1.8"/>{dots}{ends}{head}'
    return _svg(left + width + 20, height + 62, text, body)


def _svg(width: float, height: float, text: str, body: str) -> str:
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 '
        f'{width:g} {height:g}" role="img" aria-label="{text}" font-family="system-ui, sans-serif" font-size="13">'
        f"{body}</svg>"
    )


def drawn(drawing: Figure, text: str) -> str:
    """A figure of matplotlib as SVG that takes the page's colours for its letters, axes and ground."""
    buffer = StringIO()
    # Letters stay letters: they can be found, and coloured. Names are those of the text, so that none is there twice.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": text}):
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub("<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"fill: #ffffff[^;\"]*", "fill: none", svg)
    svg = re.sub(r"(stroke|fill): #(?:000000|cccccc)", r"\1: currentColor", svg)
    # Groups are named alike in all figures.
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)
    head = f'<svg class="chart" role="img" aria-label="{escape(text, quote=True)}" '
    return head + svg.removeprefix("<svg ")
