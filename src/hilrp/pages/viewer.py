"""The page of one explanation: its map to look into, its stages, its books.

It needs nothing else, not even a connection.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.plotting import COLOURS, displayable, held, stages_shown
from hilrp.pages.charts import trace, waterfall
from hilrp.pages.parts import badge, inline, page

_STYLE = """
main { max-width: 1180px; padding: 14px 18px 26px; } body { background: #fff; }
h1 { font-size: 20px; overflow-wrap: anywhere; } h2 { margin: 26px 0 6px; font-size: 17px; }
.two { display: flex; flex-wrap: wrap; gap: 22px; align-items: flex-start; }
.left { flex: 1 1 400px; max-width: 560px; } .right { flex: 1 1 320px; max-width: 520px; }
#view { width: 100%; display: block; cursor: crosshair; touch-action: pinch-zoom; }
.legend { height: 12px; border-radius: 6px; border: 1px solid var(--line); margin-top: 8px; }
.ends { display: flex; justify-content: space-between; font-size: 13px; color: var(--soft); }
.controls {
  display: grid; grid-template-columns: auto 1fr auto; gap: 6px 10px; align-items: center; font-size: 14px;
  margin: 10px 0;
}
.controls input[type=range] { width: 100%; accent-color: #1f6feb; }
.controls .all { grid-column: 1 / 4; }
.controls .unit { min-width: 62px; text-align: right; color: var(--soft); }
.checks { display: flex; flex-wrap: wrap; gap: 4px 16px; } label { white-space: nowrap; }
#region { min-height: 4.5em; background: var(--ground); border-radius: 8px; padding: 8px 12px; }
#pixel { font-variant-numeric: tabular-nums; color: var(--soft); font-size: 13.5px; }
button {
  font: inherit; font-size: 13.5px; border: 1px solid var(--line); background: #fff; border-radius: 7px;
  padding: 4px 11px; cursor: pointer;
}
button:hover { background: var(--ground); }
.stages { display: flex; flex-wrap: wrap; gap: 14px; }
.stages div { width: 128px; font-size: 13px; overflow-wrap: anywhere; }
canvas.stage {
  width: 128px; image-rendering: pixelated; border: 1px solid var(--line); border-radius: 6px; display: block;
  margin-bottom: 4px;
}
.note { color: #7a4e00; }
.scroll { overflow-x: auto; }
svg { max-width: 100%; min-width: 520px; height: auto; display: block; }
pre { background: var(--ground); border-radius: 8px; padding: 10px 14px; overflow-x: auto; font-size: 12.5px; }
@media (max-width: 560px) { main { padding: 10px; } }
"""


def viewer_page(
    explanation: Explanation,
    title: str,
    about: str,
    notes: Sequence[str] = (),
    picture: Tensor | None = None,
    outline: Tensor | None = None,
    outlined: str = "the object\u2019s outline",
    regions: bool = False,
    code: str = "",
    name: str = "hilrp",
) -> str:
    """The whole page of an explanation of one sample.

    Args:
        explanation: Of one sample.
        title: What is explained, in words.
        about: Of which picture, with which model and rules, in words.
        notes: What should be known of the picture.
        picture: What the model saw, ``[3,H,W]`` from 0 to 1.
        outline: What is drawn around, ``[H,W]``.
        outlined: What that is.
        regions: Whether a part of the picture can be asked about (a segmentation model).
        code: The lines of Python that make the same explanation.
        name: What files that are saved from the page are named by.
    """
    relevance = explanation.map[0].detach().float().cpu().numpy()
    height, width = relevance.shape
    seen = displayable(_image(explanation)) if picture is None else picture.permute(1, 2, 0).cpu().numpy()
    names = stages_shown(explanation, [0], all_stages=True)
    stages = {n: explanation.stages[n][0].detach().float().cpu().numpy() for n in names}
    relative = explanation.reference is not None
    data = {
        "width": width,
        "height": height,
        "name": name,
        "map": _floats(relevance),
        "picture": inline(Image.fromarray((255 * np.clip(seen, 0, 1)).round().astype(np.uint8)), "PNG"),
        "colours": _bytes((255 * colormaps[COLOURS](np.arange(256))[:, :3]).round().astype(np.uint8)),
        "outline": None if outline is None else _bytes((outline > 0.5).cpu().numpy().astype(np.uint8)),
        "explained": float(explanation.ledger.explained[0]),
        "whole": "the difference" if relative else "the score",
        "stages": {n: {"map": _floats(v), "width": v.shape[1], "height": v.shape[0]} for n, v in stages.items()},
        "regions": regions,
        "hint": "Hover over the picture to read a pixel; drag a rectangle to read how much of the evidence it holds.",
    }
    checks = (
        f'<label><input type="checkbox" id="outlined" checked> {escape(outlined)}</label>'
        if outline is not None
        else ""
    )
    noted = "".join(f'<p class="note">Note: {escape(note)}.</p>' for note in notes)
    label = f"{escape(title, quote=True)}: relevance on the picture"
    script = (files("hilrp.pages") / "viewer.js").read_text()
    body = f"""<h1>{escape(title)}</h1><p class="soft">{escape(about)}</p>{noted}
<div class="two"><div class="left"><canvas id="view" role="img" aria-label="{label}"></canvas>
<div class="legend" style="background: linear-gradient(90deg, {_gradient()})"></div>
<div class="ends"><span>against <span id="low"></span></span><span>0</span>
<span><span id="high"></span> for</span></div>
<div class="ends"><span>Relevance per pixel. The strongest half per cent saturates.</span></div></div>
<div class="right">{_verdict(explanation)}
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
<label><input type="checkbox" id="coloured"> picture in colour</label>{checks}</div></div>
<div id="region" aria-live="polite"></div><div id="pixel">&nbsp;</div>
<p><button id="save" type="button">Save this view</button>
<button id="ask" type="button" hidden>Explain this region</button></p></div></div>
{_stages(explanation, names)}
<h2>Where the score went</h2><div class="scroll">{waterfall(explanation)}</div>{_notes(explanation)}
{f"<h2>The same in Python</h2><pre>{escape(code)}</pre>" if code else ""}
<script type="application/json" id="data">{_safe(data)}</script><script>{script}</script>"""
    return page(title, body, _STYLE)


def _image(explanation: Explanation) -> np.ndarray:
    found: np.ndarray = explanation.image_of(explanation.input)[0].detach().float().cpu().numpy()
    return found


def _floats(values: np.ndarray) -> str:
    return _bytes(np.ascontiguousarray(values, dtype="<f4"))


def _bytes(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _safe(data: dict[str, Any]) -> str:
    """JSON that nothing in it can end: names of files and classes may be anything."""
    return json.dumps(data).replace("<", "\\u003c")


def _gradient() -> str:
    stops = [[round(255 * v) for v in colormaps[COLOURS](t)[:3]] for t in (0, 0.25, 0.5, 0.75, 1.0)]
    return ", ".join(f"rgb({', '.join(map(str, stop))})" for stop in stops)


def _verdict(explanation: Explanation) -> str:
    word, ledger = explanation.verdicts[0], explanation.ledger
    if explanation.reference is None:
        parts = [f"{name} hold {float(value[0] / ledger.score[0]):.1%}" for name, value in ledger.arrived.items()]
        kept = float(ledger.constants[0] / ledger.score[0])
        figures = (
            f"Of the score {float(ledger.score[0]):.3f} the {' and the '.join(parts)}; "
            f"constants of the model keep {kept:.1%}."
        )
    else:
        before = float(ledger.score[0] - ledger.explained[0])
        figures = (
            f"The score is {float(ledger.score[0]):.3f}, that of the reference {before:.3f}; the pixels hold "
            f"{float(ledger.pixels[0]):.3f} of the difference {float(ledger.explained[0]):.3f}."
        )
    return (
        f"<p>{badge(word)} {escape(word.meaning)}</p><p>{figures} The books miss {float(ledger.residual[0]):.0e}.</p>"
    )


def _stages(explanation: Explanation, names: list[str]) -> str:
    if not names:
        return ""
    boxes = "".join(
        f'<div><canvas class="stage" data-stage="{escape(name, quote=True)}" role="img" aria-label="relevance at '
        f'{escape(name, quote=True)}"></canvas>'
        f"<b>{escape(name)}</b><br><span class=soft>{escape(held(explanation, name, 0))}</span></div>"
        for name in names
    )
    return (
        '<h2>Stage by stage</h2><p class="soft">The same relevance inside the model, from fine to coarse, each on a '
        "scale of its own. Where a stage holds less or more "
        "than the one behind it, constants between them have taken or given the difference.</p>"
        f'<div class="stages">{boxes}</div><div class="scroll">{trace(explanation)}</div>'
    )


def _notes(explanation: Explanation) -> str:
    return "".join(
        f'<p class="soft">Note: {escape(note)} ({count} times).</p>' for note, count in explanation.notes.items()
    )
