"""The page of a run of `hilrp explain`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hilrp.attribution.references import NAMED
from hilrp.attribution.verdicts import Verdict
from hilrp.jobs.explain_files import Outcome
from hilrp.method.ledger import REFERENCE
from hilrp.method.rules import PRESETS
from hilrp.models.picture_files import opened
from hilrp.pages.parts import badge, card, folded, image, legend, page
from hilrp.pages.words import meaning, meanings

if TYPE_CHECKING:
    from PIL import Image

#: At most this many images are shown: the page holds them all in itself.
_SHOWN = 100
#: Figures of details are shown this much smaller, so that their letters are as large as the page's.
_SCALE = 0.63

_STYLE = """
main { max-width: 1180px; }
.head { display: flex; flex-wrap: wrap; gap: 2px 18px; align-items: baseline; margin-bottom: 10px; }
.head b { font-size: 17px; overflow-wrap: anywhere; }
.explained { display: flex; flex-wrap: wrap; gap: 8px 22px; margin: 0 0 22px; align-items: flex-start; }
.explained > .figure { flex: 1 1 420px; max-width: 760px; }
.explained .legend { max-width: none; }
.explained > .said { flex: 1 1 260px; max-width: 520px; font-size: 16px; }
.said b { font-size: 20px; line-height: 1.25; overflow-wrap: anywhere; }
@media print {
  .card:has(.explained) { break-inside: avoid; }
  .explained { flex-wrap: nowrap; break-inside: avoid; }
  .explained > .figure { flex: 0 0 10cm; }
  .explained > .said { flex: 1; font-size: 11pt; }
}
"""


def gallery_page(folder: Path, outcomes: Sequence[Outcome], problems: Mapping[str, str], title: str) -> str:
    """One card per image: relevance on it, the class, a sentence, and, folded, the figure of details."""
    done = [o for o in outcomes if o.error is None]
    failed = {str(o.source.path): o.error for o in outcomes if o.error is not None} | dict(problems)
    parts = [f"<h1>{escape(title)}</h1>"]
    if done:
        parts.append(f'<p class="soft">{_settings(done[0].facts)}</p>')
    colours = " Red raises the score that is explained, blue lowers it." if done else ""
    parts.append(f"<p>{len(done)} of {len(done) + len(failed)} explained.{colours}</p>")
    relative = any(_is_relative(o.facts) for o in done)
    parts.append(meanings((Verdict(v) for o in done for v in o.facts["verdict"]), relative))
    if failed:
        rows = "".join(f"<p><b>{escape(name)}</b>: {escape(str(why))}</p>" for name, why in failed.items())
        parts.append(card(f"<b>Not explained</b>{rows}", "alert"))
    parts += [_card(folder, o) for o in done[:_SHOWN]]
    if len(done) > _SHOWN:
        parts.append(f"<p>{len(done) - _SHOWN} more are in the folder; this page shows the first {_SHOWN}.</p>")
    return page(title, "\n".join(parts), _STYLE)


def _settings(facts: Mapping[str, Any]) -> str:
    """What was asked for, in words."""
    settings = facts["settings"]
    plain = ", ".join(f"{k} {v}" for k, v in settings["rules"].items() if v is not None)
    rules = next((name for name, known in PRESETS.items() if known.described() == settings["rules"]), plain)
    said = [f"{settings['model']}, {settings['weights']}", f"target: {settings['target']}", f"rules: {rules}"]
    if settings.get("reference"):
        # Of a file the name alone would not say which.
        said.append(f"reference: {facts['relative_to'] if settings['reference'] in NAMED else settings['reference']}")
    if settings.get("passes", 1) > 1:
        said.append(f"{settings['passes']} passes")
    return escape("; ".join([*said, f"hilrp {settings['hilrp']}"]))


def _is_relative(facts: Mapping[str, Any]) -> bool:
    return REFERENCE in facts["entries"]


def _card(folder: Path, outcome: Outcome) -> str:
    facts, name = outcome.facts, outcome.source.name
    said = [*facts["image_notes"], *(f"not checked: {reason}" for reason in facts.get("unchecked", ()))]
    notes = "".join(f'<p class="note">Note: {escape(note)}.</p>' for note in said)
    kinds = [kind for kind in ("html", "png", "details.png", "npz") if kind in facts["sha256"]]
    kinds += [kind for kind in facts["sha256"] if kind.startswith("map.")]
    files = ", ".join(
        f'<a href="./{quote(os.fsencode(name))}.{kind}">{_LINKS.get(kind, kind)}</a>' for kind in [*kinds, "json"]
    )
    head = (
        f'<div class="head"><b>{escape(outcome.label)}</b><span class="soft">{_size(facts)}</span>'
        f'<span class="soft">{files}</span></div>'
    )
    shown = _figure(folder / f"{name}.png", lambda figure: _drawn(facts, name, figure))
    details = _figure(folder / f"{name}.details.png", lambda figure: _details(name, figure))
    return card(f"{head}{notes}{shown}{folded('Stage by stage, and the ledger', details)}")


#: What links to files are called that are not called by their endings.
_LINKS = {"html": "a page with sliders"}


def _size(facts: Mapping[str, Any]) -> str:
    """How large a picture or a recording is, and what the model saw of it."""
    if "grid" in facts:
        seen = " x ".join(map(str, facts["seen"]))
        return f"{' x '.join(map(str, facts['grid']))} values; the model was given {seen}"
    sizes = [f"{width} x {height}" for width, height in (facts["size"], facts["seen"])]
    scaled = f", of which the model saw {sizes[1]}, scaled and cropped" if sizes[0] != sizes[1] else ""
    return f"{sizes[0]} pixels{scaled}"


def _figure(path: Path, show: Callable[[Image.Image], str]) -> str:
    """What is shown of a figure in a file; somebody else may have had it since: all others stay."""
    try:
        with opened(path) as figure:
            return show(figure.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        return f"<p>Its figure can't be read ({escape(str(error))}). Run it again.</p>"


def _drawn(facts: Mapping[str, Any], name: str, figure: Image.Image) -> str:
    """The pictures in a figure, each with its words as text."""
    if not facts["drawn"]:  # a chart
        return f'<div class="scroll"><div class="paper">{image(figure, f"{name}: relevance", quality=88)}</div></div>'
    shown = "".join(_explained(facts, i, name, figure.crop(each["place"])) for i, each in enumerate(facts["drawn"]))
    rest = len(facts["score"]) - len(facts["drawn"])
    return shown + (f"<p>{rest} more are not drawn; {escape(name)}.npz holds them.</p>" if rest else "")


def _details(name: str, figure: Image.Image) -> str:
    size = (round(_SCALE * figure.width), round(_SCALE * figure.height))
    small = image(figure.resize(size), f"{name}: input, signed map, stages, ledger", quality=85)
    return f'<div class="scroll"><div class="paper">{small}</div></div>'


def _explained(facts: Mapping[str, Any], i: int, name: str, picture: Image.Image) -> str:
    """One explanation: relevance on the picture, its colours, and what is said of it."""
    drawn, word = facts["drawn"][i], Verdict(facts["verdict"][i])
    scale = legend(drawn["low"], drawn["high"], "pale: not seen by the model" if drawn["pale"] else "")
    return (
        f'<div class="explained"><div class="figure">{image(picture, f"{name}: relevance on the picture", quality=88)}'
        f'{scale}</div><div class="said"><b>{escape(drawn["title"])}</b>'
        f'<p class="soft">{escape(drawn["likelihood"])}</p><p>{escape(facts["sentence"][i])}</p>'
        f'<p>{badge(word, meaning(word, _is_relative(facts)))} <span class="small number">missing: '
        f"{facts['residual'][i]:.0e} of the score</span></p></div></div>"
    )
