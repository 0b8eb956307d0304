"""Charts of the books as SVG, for pages."""

from __future__ import annotations

from html import escape

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.plotting import AGAINST, FOR, shares

_WHOLE = "#555f6b"
_ROW, _NAMES, _BARS, _ENDS = 26, 190, 520, 80


def waterfall(explanation: Explanation, sample: int = 0) -> str:
    """The books of a sample: what the score is made of, one bar after the other, and the score itself."""
    parts = shares(explanation, sample)
    score = float(explanation.ledger.score[sample])
    bars, start = [], 0.0
    for name, value in parts:
        bars.append((name, start, start + value, value, FOR if value >= 0 else AGAINST))
        start += value
    bars.append(("score", 0.0, score, score, _WHOLE))
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
            drawn.append(f'<path d="M{edge:.1f} {top + _ROW - 5}V{top + _ROW + 4}" stroke="#98a1ab" stroke-width="1"/>')
    return _svg(_NAMES + _BARS + _ENDS, len(bars) * _ROW + 2, "Waterfall of the books", "".join(drawn))


def trace(explanation: Explanation, sample: int = 0) -> str:
    """The sum of relevance at each stage relative to the score, from the pixels to the last stage."""
    points = [(name, float(value[sample])) for name, value in explanation.trace.items()]
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
        f'<path d="M{left} {down(v):.1f}H{left + width}" stroke="#d9dee4"/><text x="{left - 8}" y="{down(v) + 4:.1f}" '
        f'text-anchor="end">{v:g}</text>'
        for v in (0.0, 1.0)
    )
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#1f6feb"><title>{escape(name)}: {value:.3f}</title></circle>'
        for (x, y), (name, value) in zip(places, points, strict=True)
    )
    ends = (
        f'<text x="{left + 10}" y="{height + 34}">{escape(points[0][0])}</text>'
        f'<text x="{left + width}" y="{height + 34}" text-anchor="end">{escape(points[-1][0])}</text>'
    )
    text = "Conservation trace: relevance at each stage as a part of the score"
    head = f'<text x="{left}" y="{height + 54}" fill="#59636e">{text}</text>'
    body = f'{lines}<path d="M{path}" fill="none" stroke="#1f6feb" stroke-width="1.8"/>{dots}{ends}{head}'
    return _svg(left + width + 20, height + 62, text, body)


def _svg(width: float, height: float, text: str, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} '
        f'{height:g}" role="img" aria-label="{text}" font-family="system-ui, sans-serif" font-size="13" '
        f'fill="#1b1f24">{body}</svg>'
    )
