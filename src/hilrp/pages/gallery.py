"""The page of a run of `hilrp explain`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hilrp.attribution.verdicts import Verdict
from hilrp.jobs.explain_files import Outcome
from hilrp.method.ledger import REFERENCE
from hilrp.method.rules import PRESETS
from hilrp.models.picture_files import opened
from hilrp.pages.parts import badge, image, meanings, page

#: At most this many images are shown: the page holds them all in itself.
_SHOWN = 100
#: Figures are shown this much smaller, so that their letters are as large as the page's.
_SCALE = 0.63

_STYLE = """
.head { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: baseline; margin-bottom: 8px; }
.head b { font-size: 17px; overflow-wrap: anywhere; }
.failed { border-left: 4px solid #c00020; }
.card { overflow-x: auto; }
.card img { max-width: max(100%, 1080px); height: auto; }
"""


def gallery_page(folder: Path, outcomes: Sequence[Outcome], problems: Mapping[str, str], title: str) -> str:
    """One card per image: its figure, the class, the score, and what the books say."""
    done = [o for o in outcomes if o.error is None]
    failed = {str(o.source.path): o.error for o in outcomes if o.error is not None} | dict(problems)
    settings = done[0].facts["settings"] if done else {}
    parts = [f"<h1>{escape(title)}</h1>"]
    if settings:
        plain = ", ".join(f"{k} {v}" for k, v in settings["rules"].items() if v is not None)
        rules = next((name for name, known in PRESETS.items() if vars(known) == settings["rules"]), plain)
        relative = f"relative to: {escape(settings['reference'])}; " if settings.get("reference") else ""
        parts.append(
            f'<p class="soft">{escape(settings["model"])}, {escape(settings["weights"])}; target: '
            f"{escape(settings['target'])}; "
            f"rules: {escape(rules)}; {relative}hilrp {escape(settings['hilrp'])}</p>"
        )
    colours = " Red raises the score that is explained, blue lowers it." if done else ""
    parts.append(f"<p>{len(done)} of {len(done) + len(failed)} explained.{colours}</p>")
    parts.append(meanings(Verdict(v) for o in done for v in o.facts["verdict"]))
    if failed:
        rows = "".join(f"<p><b>{escape(name)}</b>: {escape(str(why))}</p>" for name, why in failed.items())
        parts.append(f'<div class="card failed"><b>Not explained</b>{rows}</div>')
    parts += [_card(folder, o) for o in done[:_SHOWN]]
    if len(done) > _SHOWN:
        parts.append(f"<p>{len(done) - _SHOWN} more are in the folder; this page shows the first {_SHOWN}.</p>")
    return page(title, "\n".join(parts), _STYLE)


def _card(folder: Path, outcome: Outcome) -> str:
    from PIL import Image

    facts, name = outcome.facts, outcome.source.name
    try:
        with opened(folder / f"{name}.png") as figure:
            small = figure.convert("RGB")
        small = small.resize((round(_SCALE * small.width), round(_SCALE * small.height)), Image.Resampling.LANCZOS)
        drawn = image(small, f"{name}: input, relevance on it, signed map, stages, books", quality=85)
    except (OSError, SyntaxError, ValueError) as error:  # somebody else may have had it since: the other cards stay
        drawn = f"<p>Its figure can't be read ({escape(str(error))}). Run it again.</p>"
    heads = "".join(_head(facts, i) for i in range(len(facts["score"])))
    sizes = [f"{width} x {height}" for width, height in (facts["size"], facts["seen"])]
    saw = f"{sizes[0]} pixels" + (
        f", of which the model saw {sizes[1]}, scaled and cropped" if sizes[0] != sizes[1] else ""
    )
    said = [*facts["image_notes"], *(f"not checked: {reason}" for reason in facts.get("unchecked", ()))]
    notes = "".join(f'<p class="soft">Note: {escape(note)}.</p>' for note in said)
    files = ", ".join(f'<a href="./{quote(os.fsencode(name))}.{kind}">{kind}</a>' for kind in ("png", "npz", "json"))
    return (
        f'<div class="card"><div class="head"><b>{escape(outcome.label)}</b><span class="soft">{saw}</span><span '
        f'class="soft">{files}</span></div>{heads}{notes}'
        f"{drawn}</div>"
    )


def _head(facts: Mapping[str, Any], i: int) -> str:
    explained = facts["names"][i] if facts["names"] else "score"
    if facts["against_names"]:
        explained += f" rather than {facts['against_names'][i]}"
    before = facts["entries"].get(REFERENCE)
    of = f"{facts['pixel_share'][i]:.1%} of it" if before is None else f"{facts['pixels'][i]:.3f}"
    relative = "" if before is None else f'<span class="number">reference {before[i]:.3f}</span>'
    return (
        f'<div class="head"><span>{escape(explained)}</span><span class="number">score {facts["score"][i]:.3f}</span>'
        f'{relative}<span class="number">pixels {of}</span>'
        f'<span class="number">residual {facts["residual"][i]:.0e}</span>{badge(Verdict(facts["verdict"][i]))}</div>'
    )
