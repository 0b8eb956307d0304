"""The page of one explanation: its map to look into, its stages, its ledger.

It needs nothing else, not even a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import torch
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.marking import DRAWN_AROUND, MARKED, Marked
from hilrp.attribution.plotting import COLOURS, displayable, held, stages_shown
from hilrp.attribution.sentences import sentence, titled
from hilrp.pages.arrays import as_bytes, as_floats, errors_of
from hilrp.pages.charts import trace, waterfall
from hilrp.pages.parts import folded, inline, legend, page, safe, sheet
from hilrp.pages.words import has_shares, surety, verdict

#: What is said of the colours; the style of all pages of one explanation.
SATURATES = "Blue speaks against it, red for it. The strongest half per cent saturates."
STYLE = """
main { max-width: 1180px; padding: 14px 18px 26px; } body { background: var(--card); }
#headline { font-size: 17px; }
h1 { font-size: 20px; } h2 { margin: 26px 0 6px; font-size: 17px; }
.two { display: flex; flex-wrap: wrap; gap: 22px; align-items: flex-start; }
.left { flex: 1 1 400px; min-width: 0; max-width: 560px; } .right { flex: 1 1 320px; min-width: 0; max-width: 520px; }
#view { width: 100%; display: block; cursor: crosshair; touch-action: pinch-zoom; }
.controls {
  display: grid; grid-template-columns: auto 1fr auto; gap: 6px 10px; align-items: center; font-size: 14px;
  margin: 10px 0;
}
.controls input[type=range] { width: 100%; accent-color: var(--accent); }
.controls .all { grid-column: 1 / 4; }
.controls .unit { min-width: 62px; text-align: right; color: var(--soft); }
.checks { display: flex; flex-wrap: wrap; gap: 4px 16px; }
#region { min-height: 4.5em; background: var(--sunken); border-radius: 8px; padding: 8px 12px; }
#pixel { font-variant-numeric: tabular-nums; color: var(--soft); font-size: 13.5px; }
button {
  font: inherit; font-size: 13.5px; border: 1px solid var(--line); background: var(--card); color: var(--ink);
  border-radius: 7px; padding: 4px 11px; cursor: pointer;
}
button:hover { background: var(--sunken); }
.stages { display: flex; flex-wrap: wrap; gap: 14px; }
.stages div { width: 128px; font-size: 13px; overflow-wrap: anywhere; }
canvas.stage {
  width: 128px; image-rendering: pixelated; border: 1px solid var(--line); border-radius: 6px; display: block;
  margin-bottom: 4px;
}
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 560px) { main { padding: 10px; } .left, .right { flex-basis: 100%; } }
@media print {
  .controls, button, #pixel, .hint { display: none; }
  .two { flex-wrap: nowrap; gap: 14px; } .left { flex: 0 0 9cm; } .right { flex: 1; } #region { min-height: 0; }
}
"""


def viewer_page(
    explanation: Explanation,
    title: str | None,
    about: str,
    notes: Sequence[str] = (),
    picture: Tensor | None = None,
    asked: Tensor | None = None,
    truth: Tensor | None = None,
    regions: bool = False,
    code: str = "",
    name: str = "hilrp",
    against: str | None = None,
) -> str:
    """The whole page of an explanation of one sample.

    Args:
        explanation: Of one sample.
        title: What is explained, in words: the name of a class, where it has one.
        about: Of which picture, with which model and rules, in words.
        notes: What should be known of the picture.
        picture: What the model saw, ``[3,H,W]`` from 0 to 1.
        asked: Where the region is, ``[H,W]``, that is asked about; without one the region is `marked`.
        truth: Where the object is, ``[H,W]``, where that is known.
        regions: Whether a part of the picture can be asked about (a segmentation model).
        code: The lines of Python that make the same explanation.
        name: What files that are saved from the page are named by.
        against: What the title is contrasted with.
    """
    relevance = explanation.map[0].detach().float().cpu().numpy()
    height, width = relevance.shape
    seen = displayable(_image(explanation)) if picture is None else picture.permute(1, 2, 0).cpu().numpy()
    names = stages_shown(explanation, [0], all_stages=True)
    stages = {n: explanation.stages[n][0].detach().float().cpu().numpy() for n in names}
    around, where = _region(explanation, asked)
    said = sentence(explanation, 0, title, around.held, where, against)
    title = titled(title, against) or "the score"
    whole = "the difference" if explanation.relative_to is not None else "the score"
    data = {
        "width": width,
        "height": height,
        "name": name,
        "map": as_floats(relevance),
        "picture": inline(Image.fromarray((255 * np.clip(seen, 0, 1)).round().astype(np.uint8)), "PNG"),
        "colours": as_bytes((255 * colormaps[COLOURS](np.arange(256))[:, :3]).round().astype(np.uint8)),
        "region": _mask(around.mask[0]),
        "truth": None if truth is None else _mask(truth),
        "explained": float(explanation.ledger.explained[0]),
        "whole": whole,
        "shares": has_shares(explanation),
        "held": said.held,
        "errors": errors_of(explanation),
        "stages": {n: {"map": as_floats(v), "width": v.shape[1], "height": v.shape[0]} for n, v in stages.items()},
        "regions": regions,
        "hint": f"Hover over the picture to read a pixel; drag a rectangle to read how much of {whole} comes from it.",
    }
    lines = {"around": f"white line: {where}"} | ({} if truth is None else {"true": "dark line: the true object"})
    checks = "".join(
        f'<label><input type="checkbox" id="{i}"{" checked" * (i == "around")}> {text}</label>'
        for i, text in lines.items()
    )
    noted = "".join(f'<p class="note">Note: {escape(note)}.</p>' for note in notes)
    label = f"{escape(title, quote=True)}: relevance on the picture"
    script = f"{sheet('maps.js')}{sheet('viewer.js')}"
    inside = f"{_stages(explanation, names)}{ledger_of(explanation)}"
    body = f"""<h1>{escape(title)}</h1>
<p id="headline" aria-live="polite">{escape(said.start)}<span id="held">{escape(said.held)}</span>{escape(said.end)}</p>
<p class="soft">{escape(about)}</p>{noted}
<div class="two"><div class="left"><canvas id="view" role="img" aria-label="{label}"></canvas>
{legend('against it, <span id="low"></span>', '<span id="high"></span> per pixel, for it', SATURATES)}</div>
<div class="right">{verdict(explanation)}
<div class="controls">
<label for="opacity">Opacity</label>
<input type="range" id="opacity" min="0" max="100" value="90"><span class="unit"></span>
<label for="smoothing">Smoothing</label>
<input type="range" id="smoothing" min="0" max="{max(4, width // 12)}" value="{max(1, width // 48)}">
<span class="unit" id="radius"></span>
<span class="all soft">Smoothing changes what you see and nothing else: all numbers are those of the map itself.</span>
<div class="all checks">
<label><input type="checkbox" id="positive" checked> evidence for</label>
<label><input type="checkbox" id="negative" checked> evidence against</label>
<label><input type="checkbox" id="coloured" checked> picture in colour</label>{checks}</div></div>
<div id="region" aria-live="polite"></div><div id="pixel">&nbsp;</div><p class="soft">{escape(surety(explanation))}</p>
<p><button id="save" type="button">Save this view</button>
<button id="ask" type="button" hidden>Explain this region</button></p></div></div>
{folded("Stage by stage, and the ledger", inside)}
{folded("The same in Python", f"<pre>{escape(code)}</pre>") if code else ""}
<script type="application/json" id="data">{safe(data)}</script><script>{script}</script>"""
    return page(title, body, STYLE)


def _region(explanation: Explanation, asked: Tensor | None) -> tuple[Marked, str]:
    """The region that is spoken of, and what it is called: as `hilrp explain` has it."""
    if asked is None:
        return explanation.marked(), MARKED
    inside = (asked > 0.5).unsqueeze(0)
    return Marked(inside, explanation.region(inside.float())), DRAWN_AROUND


def _mask(mask: Tensor) -> str:
    return as_bytes((mask > 0.5).cpu().numpy().astype(np.uint8))


def _image(explanation: Explanation) -> np.ndarray:
    found: np.ndarray = explanation.image_of(explanation.input)[0].detach().float().cpu().numpy()
    return found


def _stages(explanation: Explanation, names: list[str]) -> str:
    if not names:
        return ""
    boxes = "".join(
        f'<div><canvas class="stage" data-stage="{escape(name, quote=True)}" role="img" aria-label="relevance at '
        f'{escape(name, quote=True)}"></canvas>'
        f"<b>{escape(name)}</b><br><span class=soft>{escape(held(explanation, name, 0))}</span></div>"
        for name in names
    )
    chart = f'<div class="scroll">{trace(explanation)}</div>'
    if explanation.reference is None:
        holds = "Where one holds less or more than the one behind it, constants between them took or gave the rest."
    elif _all_alike(explanation):
        holds, chart = "Each of them holds all of the difference, and so do the pixels.", ""
    else:
        holds = "What one does not hold of the difference passes beside it."
    return (
        '<h2>Stage by stage</h2><p class="soft">The same relevance inside the model, from fine to coarse, each on a '
        f"scale of its own. {holds}</p>"
        f'<div class="stages">{boxes}</div>{chart}'
    )


def _all_alike(explanation: Explanation) -> bool:
    """Whether all stages hold the same, so that a chart would be a straight line."""
    held_by = torch.stack([value[0] for value in explanation.trace.values()])
    return bool((held_by - held_by[0]).abs().max() <= 1e-3 * held_by[0].abs())


def ledger_of(explanation: Explanation) -> str:
    """The ledger of an explanation of one sample, and its notes, as HTML."""
    head = "Where the score comes from" if explanation.relative_to is not None else "Where the score went"
    chart = waterfall(explanation, relative_to=explanation.relative_to)
    return f'<h2>{head}</h2><div class="scroll">{chart}</div>{_notes(explanation)}'


def _notes(explanation: Explanation) -> str:
    return "".join(
        f'<p class="soft">Note: {escape(note)} ({count} times).</p>' for note, count in explanation.notes.items()
    )
