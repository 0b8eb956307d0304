"""The page of `hilrp demo`: one row per family of the zoo, the same questions for all."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.plotting import STAGES, blend, coloured, shares, stages_shown
from hilrp.attribution.verdicts import Verdict
from hilrp.jobs.bench.metrics.localisation import pointing
from hilrp.jobs.demo import Control, Family, Question, masks_of
from hilrp.pages.parts import badge, image, meanings, page
from hilrp.scenes import Mask

#: Pictures are enlarged this much before outlines are drawn, so that these stay thin.
_ZOOM = 2

_STYLE = """
.wall { overflow-x: auto; padding: 6px 18px 14px; }
.wall td, .wall th { padding: 5px 5px; text-align: center; }
.wall td.name { text-align: left; white-space: nowrap; padding-right: 12px; }
.wall td.name b { font-size: 16px; }
.wall td img { width: 112px; max-width: none; border-radius: 7px; margin: 0 auto; }
.wall th img { width: 234px; max-width: none; border-radius: 9px; margin: 0 auto 3px; }
.wall th.scene { max-width: 236px; font-weight: 400; line-height: 1.3; vertical-align: top; }
.wall td.figure { min-width: 74px; font-variant-numeric: tabular-nums; }
.wall tr + tr td { border-top: 1px solid #eef0f3; }
.gap { padding-left: 18px !important; }
.yes { color: #1a7f37; } .no { color: #c00020; }
.legend { text-align: left; font-weight: 400; max-width: 400px; white-space: normal; }
.legend .scale {
  height: 12px; border-radius: 6px;
  background: linear-gradient(90deg, #00004d, #0000ff, #ffffff, #ff0000, #800000);
  border: 1px solid var(--line);
}
.legend .ends { display: flex; justify-content: space-between; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 5px; }
.bar { display: flex; width: 260px; height: 14px; border-radius: 4px; overflow: hidden; background: #eef0f3; }
.stages td img { width: 96px; image-rendering: pixelated; }
.small { font-size: 12.5px; color: var(--soft); }
"""
#: What the colours of objects look like beside their names.
_DOTS = {"red": "#d1242f", "yellow": "#e3b341", "blue": "#1f6feb"}


def demo_page(families: Sequence[Family], questions: Sequence[Question], control: Control) -> str:
    """The whole page."""
    count = len(families[0].hits)
    verdicts = {v for family in families for v in family.shown.verdicts}
    intro = """<h1>Twelve architectures, one question: what in the picture speaks for this class?</h1>
<p>Each row is a model of another family, trained on scenes like these and explained from one forward and one backward
pass. Each scene is explained for two of its objects, and the relevance has to move from one to the other.</p>"""
    legend = f"""<div class="legend"><div class="scale"></div>
<div class="ends"><span>against the class</span><span>for it</span></div>
<p>The white line is the true object. <b class="yes">✓</b>: the most relevant pixel lies on it. The number is the score,
the logit of the class.</p>
<p>The figures below are measured on {count} objects of other scenes. An object covers {control.area:.0%} of a picture;
a bell over the middle, which looks at no model, points to {control.pointing:.0%} of them and has
{control.inside:.0%} of its mass on them.</p></div>"""
    head = "".join(_scene(questions[i : i + 2]) for i in range(0, len(questions), 2))
    labels = "".join(f'<th class="{"gap" if i % 2 == 0 else ""}">{_label(q)}</th>' for i, q in enumerate(questions))
    figures = (
        "<th class='gap'>pixels'<br>share</th><th>books'<br>residual</th><th>pointing</th>"
        "<th>relevance<br>on object</th><th>verdict</th>"
    )
    rows = "".join(_row(family, questions) for family in families)
    wall = (
        f'<div class="card wall"><table><tr><th></th>{head}<th colspan="5" class="gap">{legend}</th></tr>'
        f"<tr><th></th>{labels}{figures}</tr>{rows}</table></div>"
    )
    stages = "".join(_stages(family) for family in families)
    return page(
        "HiLRP: twelve architectures explained",
        f"{intro}{wall}{meanings(verdicts)}"
        '<h2>From the last stage to the pixels</h2><p class="soft">The first question again, at the stages of each '
        'model, and where its score went: to the <b style="color:#b2182b">pixels</b>, or to <b '
        'style="color:#e58267">constants of the model</b> (<b style="color:#2166ac">blue</b> where they speak '
        f'against the class).</p><div class="card wall stages"><table>{stages}</table></div><p class="soft">Do it '
        "yourself: <code>hilrp scenes 8 -o scenes</code>, <code>hilrp explain scenes/images --model zoo/swin "
        "--target top3</code>, "
        "or a photograph of yours: <code>hilrp explain photo.jpg</code>.</p>",
        _STYLE,
    )


def _scene(pair: Sequence[Question]) -> str:
    scene = pair[0].scene
    picture = image(_enlarged(scene.image / 255), scene.caption, lossless=True)
    return f'<th class="scene gap" colspan="2">{picture}{escape(scene.caption)}</th>'


def _label(question: Question) -> str:
    thing = next(t for t in question.scene.things if t.label == question.label)
    return f'<span class="dot" style="background:{_DOTS[thing.colour]}"></span>{escape(thing.name)}'


def _row(family: Family, questions: Sequence[Question]) -> str:
    found = family.shown
    cells = "".join(_map(found, i, question) for i, question in enumerate(questions))
    low, high = np.quantile(family.share, [0.1, 0.9])
    verdicts = "<br>".join(badge(verdict) for verdict in Verdict if verdict in found.verdicts)
    return (
        f'<tr><td class="name"><b>{escape(family.title)}</b><br>'
        f'<span class="small">zoo/{escape(str(family.card["name"]))}<br>'
        f"{family.card['parameters'] / 1e6:.1f} M, "  # type: ignore[operator]
        f"mAP {family.card['mean_average_precision']:.4f}</span></td>{cells}"
        f'<td class="figure gap">{np.median(family.share):.2f}<br><span class="small">{low:.2f} – '
        f'{high:.2f}</span></td><td class="figure">{max(family.residual):.0e}</td><td '
        f'class="figure">{np.mean(family.hits):.0%}</td><td class="figure">{np.mean(family.inside):.0%}</td>'
        f"<td>{verdicts}</td></tr>"
    )


def _map(found: Explanation, i: int, question: Question) -> str:
    relevance, mask = found.map[i], question.mask
    picture = _enlarged(blend(question.scene.image / 255, relevance.numpy()), mask)
    on_it = bool(pointing(relevance[None], masks_of([question])) == 1)
    mark = f'<b class="{"yes" if on_it else "no"}">{"✓" if on_it else "✗"}</b>'
    text = f"{question.scene.caption}: relevance for {_plain(question)}, score {float(found.score[i]):.2f}"
    below = f'<span class="small number">{mark} {float(found.score[i]):.2f}</span>'
    return f'<td class="{"gap" if i % 2 == 0 else ""}">{image(picture, text, quality=88)}{below}</td>'


def _plain(question: Question) -> str:
    return next(t.name for t in question.scene.things if t.label == question.label)


def _stages(family: Family) -> str:
    found = family.shown
    cells = []
    for name in reversed(stages_shown(found, [0])):
        stage = found.stages[name][0].numpy()
        text = f"{name}: {float(found.trace[name][0]):.2f} of the score"
        small = Image.fromarray((255 * coloured(stage)).astype(np.uint8))
        cells.append(
            f'<td>{image(small, text, lossless=True)}<span class="small">{escape(name)} · {stage.shape[0]} x '
            f"{stage.shape[1]}</span></td>"
        )
    cells = ["<td></td>"] * (STAGES - len(cells)) + cells
    pixels = Image.fromarray((255 * coloured(found.map[0].numpy())).astype(np.uint8))
    cells.append(f'<td>{image(pixels, "the pixels", lossless=True)}<span class="small">pixels · 128 x 128</span></td>')
    return (
        f'<tr><td class="name"><b>{escape(family.title)}</b></td>{"".join(cells)}'
        f'<td class="gap">{_books(found)}</td></tr>'
    )


def _books(found: Explanation) -> str:
    """Where the first score went: bars as long as the parts, red for and blue against."""
    ledger, parts = found.ledger, shares(found, 0)
    total = sum(abs(value) for _, value in parts)
    colours = {True: ("#b2182b", "#e58267"), False: ("#2166ac", "#67a9cf")}
    bars = "".join(
        f'<div title="{escape(name)}: {value:.2f}" '
        f'style="width:{abs(value) / total:.1%};background:{colours[value >= 0][name != "pixels"]}"></div>'
        for name, value in parts
    )
    words = " ".join(f"{'+' if value >= 0 else '−'} {abs(value):.2f} {escape(name)}" for name, value in parts)
    equation = f"{float(ledger.score[0]):.2f} = {words.removeprefix('+ ')}"
    return f'<div class="bar">{bars}</div><span class="small">{equation}</span>'


def _enlarged(picture: np.ndarray, mask: Mask | None = None) -> Image.Image:
    """A picture ``[H,W,3]`` of values from 0 to 1, enlarged; with a white line around the mask."""
    size = (picture.shape[1] * _ZOOM, picture.shape[0] * _ZOOM)
    large = Image.fromarray((255 * np.clip(picture, 0, 1)).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
    if mask is None:
        return large
    solid = np.pad(mask.repeat(_ZOOM, 0).repeat(_ZOOM, 1), 1)
    core = solid[1:-1, 1:-1] & solid[:-2, 1:-1] & solid[2:, 1:-1] & solid[1:-1, :-2] & solid[1:-1, 2:]
    pixels = np.array(large)
    pixels[solid[1:-1, 1:-1] & ~core] = 255
    return Image.fromarray(pixels)
