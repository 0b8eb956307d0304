"""What all pages consist of: the frame, the style, and components.

Components are cards, tables that scroll, folded details, legends, pictures inside the page, and verdicts. Their looks,
and the colours of light, dark and paper, are in style.css alone.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, Any

from hilrp.attribution.verdicts import Verdict

if TYPE_CHECKING:
    from PIL import Image

#: So many colours are between the ends of a legend.
_STOPS = 16


def sheet(name: str) -> str:
    """A style sheet or a script of this folder."""
    return (files("hilrp.pages") / name).read_text()


def page(title: str, body: str, style: str = "") -> str:
    """A whole page; ``style`` is of it alone."""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        'initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{sheet('style.css')}{sheet('page.css')}{style}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def safe(data: Mapping[str, Any]) -> str:
    """Data for a script of the page, as JSON that nothing in it can end: names may be anything."""
    return json.dumps(data).replace("<", "\\u003c")


def card(body: str, kind: str = "") -> str:
    """A card; of the kind ``"alert"`` it says what is wrong."""
    return f'<div class="{f"card {kind}".strip()}">{body}</div>'


def cards(found: Iterable[str]) -> str:
    """Cards beside each other, as many as the page is wide."""
    return f'<div class="cards">{"".join(found)}</div>'


def table(head: Sequence[str], rows: Iterable[str], kind: str = "") -> str:
    """A table from the HTML of its heads and of whole rows; where it is too wide it scrolls, and not the page."""
    heads = "".join(cell if cell.startswith("<th") else f"<th>{cell}</th>" for cell in head)
    above = f"<thead><tr>{heads}</tr></thead>" if heads else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="{f"grid {kind}".strip()}">{above}'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def folded(summary: str, body: str) -> str:
    """Details that are shown when somebody asks for them, and on paper."""
    return f'<details class="folded"><summary>{escape(summary)}</summary>{body}</details>'


def legend(low: str = "against it", high: str = "for it", note: str = "") -> str:
    """The colours of relevance, and what their ends mean, as HTML; ``note`` stands below."""
    below = f"<div>{note}</div>" if note else ""
    return (
        f'<div class="legend"><div class="scale" style="background:{signed_colours()}"></div>'
        f'<div class="ends"><span>{low}</span><span>0</span><span>{high}</span></div>{below}</div>'
    )


@cache
def signed_colours() -> str:
    """The colours of relevance from the one end to the other, for a style sheet."""
    from matplotlib import colormaps

    from hilrp.attribution.plotting import COLOURS

    stops = [[round(255 * v) for v in colormaps[COLOURS](i / _STOPS)[:3]] for i in range(_STOPS + 1)]
    return f"linear-gradient(90deg, {', '.join(f'rgb({r}, {g}, {b})' for r, g, b in stops)})"


def stack(parts: Iterable[tuple[float, str, str]]) -> str:
    """A bar of parts, each with how much of the whole it is, its colour, and what it is."""
    spans = "".join(
        f'<span style="width:{100 * part:.2f}%;background:{colour}" title="{escape(text, quote=True)}"></span>'
        for part, colour, text in parts
    )
    return f'<div class="stack">{spans}</div>'


def inline(picture: Image.Image, form: str = "WEBP", **options: Any) -> str:
    """A picture as an address that holds all of it."""
    buffer = BytesIO()
    picture.save(buffer, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def image(picture: Image.Image, text: str, **options: Any) -> str:
    """A picture inside the page; ``text`` says what is on it."""
    said = escape(text, quote=True)
    return f'<img src="{inline(picture, **options)}" alt="{said}" title="{said}">'


def badge(verdict: Verdict, meaning: str | None = None) -> str:
    """A verdict; hovering over it tells what it means."""
    title = escape(meaning or verdict.meaning, quote=True)
    return f'<span class="badge" style="background:{verdict.colour}" title="{title}">{verdict}</span>'
