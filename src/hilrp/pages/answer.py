"""The page of an answer: each word can be clicked, and shows its map and the words that it came from.

It needs nothing else, not even a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib import colormaps
from PIL import Image

from hilrp.answers.answer import Answer, Word
from hilrp.attribution.plotting import COLOURS
from hilrp.attribution.sentences import number
from hilrp.pages.arrays import as_bytes, as_halves
from hilrp.pages.parts import badge, folded, inline, legend, page, safe, sheet, table
from hilrp.pages.words import meaning, meanings

_STYLE = """
main { max-width: 1180px; padding: 14px 18px 26px; } body { background: var(--card); }
h1 { font-size: 20px; } h2 { margin: 22px 0 6px; font-size: 16px; }
.words { display: flex; flex-wrap: wrap; gap: 6px; margin: 10px 0; }
.words button {
  font: inherit; font-size: 17px; border: 1px solid var(--line); background: var(--sunken); color: var(--ink);
  border-radius: 8px; padding: 5px 11px; cursor: pointer;
}
.words button:hover { border-color: var(--accent); }
.words button[aria-pressed=true] { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
.words small { display: block; font-size: 11.5px; color: var(--soft); }
#said { font-size: 16px; min-height: 3em; }
.two { display: flex; flex-wrap: wrap; gap: 22px; align-items: flex-start; }
.left { flex: 1 1 380px; min-width: 0; max-width: 560px; } .right { flex: 1 1 320px; min-width: 0; max-width: 540px; }
canvas.picture { width: 100%; display: block; margin-bottom: 8px; }
.controls { display: grid; grid-template-columns: auto 1fr; gap: 6px 10px; align-items: center; font-size: 14px; }
.controls input { width: 100%; accent-color: var(--accent); }
.parts { display: grid; grid-template-columns: auto 1fr auto; gap: 5px 10px; align-items: center; font-size: 14px; }
.parts .bar { position: relative; height: 14px; background: var(--sunken); border-radius: 4px; }
.parts .bar span { position: absolute; top: 0; bottom: 0; border-radius: 3px; }
.tokens { line-height: 1.9; white-space: pre-wrap; overflow-wrap: anywhere; }
.tokens span { border-radius: 4px; padding: 2px 1px; }
.tokens .mark { color: var(--soft); font-size: 12.5px; }
.tokens .own { outline: 1px solid var(--accent); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 560px) { main { padding: 10px; } .left, .right { flex-basis: 100%; } }
@media print { .controls { display: none; } .two { flex-wrap: nowrap; } .left { flex: 0 0 8cm; } .right { flex: 1; } }
"""


def answer_page(
    answer: Answer, title: str, about: str, notes: Sequence[str] = (), code: str = "", name: str = "hilrp"
) -> str:
    """The whole page of an answer.

    Args:
        answer: The answer, explained.
        title: What was asked, in words.
        about: Of which picture and which model, with which rules, in words.
        notes: What else should be known.
        code: The lines of Python that make the same.
        name: What the maps that are saved from the page are named by.
    """
    relative = answer.explanation.relative_to
    data = {
        "name": name,
        "colours": as_bytes((255 * colormaps[COLOURS](np.arange(256))[:, :3]).round().astype(np.uint8)),
        "pictures": [_picture(each) for each in answer.pictures],
        "prompt": _joined(answer.prompt_labels, answer.prompt_marks),
        "answer": answer.labels,
        "words": [_word(each, i, answer) for i, each in enumerate(answer.words)],
    }
    noted = "".join(f'<p class="note">Note: {escape(note)}.</p>' for note in [*notes, *answer.notes])
    relation = f"Relative to {escape(relative)}." if relative else "Constants of the model keep a part of each score."
    maps = ""
    if answer.pictures:
        canvases = "".join(
            f'<canvas class="picture" role="img" aria-label="relevance on picture {i + 1}"></canvas>'
            for i in range(len(answer.pictures))
        )
        maps = f"""<div class="left">{canvases}
{legend('against it, <span id="low"></span>', '<span id="high"></span> per pixel, for it')}
<div class="controls"><label for="opacity">Opacity</label>
<input type="range" id="opacity" min="0" max="100" value="90"><label for="smoothing">Smoothing</label>
<input type="range" id="smoothing" min="0" max="100" value="20"></div></div>"""
    verdicts = meanings((word.verdict for word in answer.words), relative is not None)
    body = f"""<h1>{escape(title)}</h1>
<p class="soft">{escape(about)}. {relation}</p>{noted}
<p>The answer. Click a word to see where it comes from:</p>
<div class="words" role="group" aria-label="the words of the answer"></div>
<p id="said" aria-live="polite"></p><p id="verdict"></p>
<div class="two">{maps}<div class="right">
<h2>What its score is the sum of</h2><div class="parts"></div>
<h2>The prompt</h2><p class="tokens" id="prompt"></p>
<h2>The answer</h2><p class="tokens" id="answer"></p>
<p class="soft">Red speaks for the word, blue against it; hover over a word to read how much.</p></div></div>
{folded("All words, in numbers", _table(answer))}{verdicts}
{folded("The same in Python", f"<pre>{escape(code)}</pre>") if code else ""}
<script type="application/json" id="data">{safe(data)}</script>
<script>{sheet("maps.js")}{sheet("answer.js")}</script>"""
    return page(title, body, _STYLE)


def _picture(picture: Any) -> dict[str, Any]:
    values = (255 * picture.clamp(0, 1)).round().byte().cpu().numpy()
    return {"width": values.shape[1], "height": values.shape[0], "image": inline(Image.fromarray(values), "PNG")}


def _joined(labels: Sequence[str], marks: Sequence[bool]) -> list[dict[str, Any]]:
    """The tokens of a prompt, of which those that repeat a mark (a picture's places) are one."""
    found: list[dict[str, Any]] = []
    for i, (label, mark) in enumerate(zip(labels, marks, strict=True)):
        if mark and found and found[-1]["mark"] and found[-1]["text"] == label:
            found[-1]["to"] = i + 1
        else:
            found.append({"text": label, "mark": mark, "from": i, "to": i + 1})
    return found


def _word(word: Word, i: int, answer: Answer) -> dict[str, Any]:
    share = word.prior_share if answer.pictures else None
    return {
        "text": word.text,
        "below": "" if share is None else f"{share:.0%} without the picture{'s' * (len(answer.pictures) > 1)}",
        "said": answer.sentence(i),
        "verdict": badge(word.verdict, meaning(word.verdict, answer.explanation.relative_to is not None)),
        "picture": word.image,
        "parts": list(word.parts.items()),
        "prompt": [float(value) for value in word.prompt],
        "earlier": [float(value) for value in word.earlier],
        "own": [word.start, word.start + len(word.ids)],
        "maps": [as_halves(each.float().cpu().numpy()) for each in word.maps],
    }


def _table(answer: Answer) -> str:
    names = answer.part_names
    head = ["word", "rather than", "score", *(escape(name.removeprefix("the ")) for name in names)]
    head += ["without the picture"] if answer.pictures else []
    rows = []
    for word in answer.words:
        cells = [f'<td class="text">{escape(word.against)}</td>', f"<td>{number(word.score)}</td>"]
        cells += [f"<td>{number(word.parts[name]) if name in word.parts else ''}</td>" for name in names]
        cells += [f"<td>{number(word.prior)}</td>"] if answer.pictures else []
        rows.append(f"<tr><td>{escape(word.text)}</td>{''.join(cells)}</tr>")
    return table(head, rows)
