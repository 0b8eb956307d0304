"""What all pages share: the frame, the style, pictures inside the page, verdicts."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any

from hilrp.attribution.verdicts import Verdict

if TYPE_CHECKING:
    from PIL import Image

_STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --soft: #59636e; --line: #d9dee4; --ground: #f6f7f9; --card: #ffffff; }
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1480px; margin: 0 auto; padding: 36px 28px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.02em; }
h2 { font-size: 19px; margin: 34px 0 10px; }
p { max-width: 78ch; margin: 6px 0; }
.soft { color: var(--soft); }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 18px;
  margin: 14px 0;
}
.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.badge {
  display: inline-block; border-radius: 999px; padding: 1px 10px; color: #fff; font-size: 12.5px;
  font-weight: 600; white-space: nowrap;
}
table { border-collapse: collapse; }
th, td { text-align: left; padding: 5px 12px 5px 0; vertical-align: middle; }
th { font-weight: 600; color: var(--soft); font-size: 13px; }
img { display: block; max-width: 100%; }
code { background: #eceff2; border-radius: 5px; padding: 1px 5px; font-size: 13px; }
details > summary { cursor: pointer; color: var(--soft); }
"""


def page(title: str, body: str, style: str = "") -> str:
    """A whole page."""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        'initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )


def inline(picture: Image.Image, form: str = "WEBP", **options: Any) -> str:
    """A picture as an address that holds all of it."""
    buffer = BytesIO()
    picture.save(buffer, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def image(picture: Image.Image, text: str, **options: Any) -> str:
    """A picture inside the page; ``text`` says what is on it."""
    return (
        f'<img src="{inline(picture, **options)}" alt="{escape(text, quote=True)}" title="{escape(text, quote=True)}">'
    )


def badge(verdict: Verdict) -> str:
    """A verdict; hovering over it tells what it means."""
    title = escape(verdict.meaning, quote=True)
    return f'<span class="badge" style="background:{verdict.colour}" title="{title}">{verdict}</span>'


def meanings(verdicts: Iterable[Verdict]) -> str:
    """What the verdicts on a page mean."""
    found = set(verdicts)
    return "".join(f"<p>{badge(v)} {escape(v.meaning)}</p>" for v in Verdict if v in found)
