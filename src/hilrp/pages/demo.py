"""The page of `hilrp demo`: one row per family of the zoo, the same questions for all."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.plotting import STAGES, blend, coloured, held, shares, stages_shown
from hilrp.attribution.verdicts import Verdict
from hilrp.jobs.bench.metrics.localisation import pointing
from hilrp.jobs.demo import Control, Family, Question, masks_of
from hilrp.pages.parts import badge, card, image, legend, page, stack, table
from hilrp.pages.words import meaning, meanings
from hilrp.scenes import Mask

#: Pictures are enlarged this much before outlines are drawn, so that these stay thin.
_ZOOM = 2

_STYLE = """
.wall td, .wall th { padding: 5px 5px; text-align: center; }
.wall td:first-child { padding-right: 12px; }
.wall td:first-child b { font-size: 16px; }
.wall td img { width: 106px; }
.wall th img { width: 222px; border-radius: 9px; margin: 0 auto 3px; }
.wall th.scene { max-width: 224px; font-weight: 400; line-height: 1.3; vertical-align: top; white-space: normal; }
.wall .gap { padding-left: 14px; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 5px; }
.stages .stack { width: 260px; }
.stages td img { width: 96px; image-rendering: pixelated; }
.keys { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); gap: 4px 32px; }
@media print {
  .wall td img { width: 1.5cm; max-width: none; } .wall th img { width: 3.1cm; } .stages td img { width: 1.7cm; }
  .wall th { overflow-wrap: normal; font-size: 7pt; } .wall td:first-child b { font-size: 9pt; }
  .stages .stack { width: 4cm; }
  .wall td, .wall th { padding: 2px; }
  .wall .badge { padding: 0 5px; font-size: 6.5pt; }
}
"""
#: What the colours of objects look like beside their names.
_DOTS = {"red": "#d1242f", "yellow": "#e3b341", "blue": "#1f6feb"}


def demo_page(families: Sequence[Family], questions: Sequence[Question], control: Control) -> str:
    """The whole page."""
    count = len(families[0].hits)
    verdicts = {v for family in families for v in family.shown.verdicts}
    relative_to = families[0].shown.relative_to
    passes = "one forward and one backward pass" if relative_to is None else "two forward passes and one backward"
    beside = "" if relative_to is None else f" The map says why the score is higher than on {escape(relative_to)}."
    intro = f"""<h1>Twelve architectures, one question: what in the picture speaks for this class?</h1>
<p>Each row is a model of another family, trained on scenes like these and explained from {passes}.{beside} Each
scene is explained for two of its objects, and the relevance has to move from one to the other.</p>"""
    keys = f"""<div class="keys"><div>{legend("against the class", "for it")}</div>
<p>The white line is the true object. <b class="good">✓</b>: the most relevant pixel lies on it. The number is the
score, the logit of the class.</p>
<p>The figures on the right are measured on {count} objects of other scenes. An object covers {control.area:.0%} of a
picture; a bell over the middle, which looks at no model, points to {control.pointing:.0%} of them and has
{control.inside:.0%} of its mass on them.</p></div>"""
    head = "".join(_scene(questions[i : i + 2]) for i in range(0, len(questions), 2))
    labels = "".join(f'<th class="{"gap" if i % 2 == 0 else ""}">{_label(q)}</th>' for i, q in enumerate(questions))
    figures = "".join(
        f"<th{place}>{name}</th>"
        for place, name in (
            (' class="gap"', "missing,<br>largest"),
            ("", "pointing"),
            ("", "evidence<br>on object"),
            ("", "verdict"),
        )
    )
    rows = (_row(family, questions) for family in families)
    above = f'<tr><th></th>{head}<th colspan="4" class="gap"></th></tr>'
    wall = card(table([], [above, f"<tr><th></th>{labels}{figures}</tr>", *rows], "wall"))
    stages = card(table([], map(_stages, families), "wall stages"))
    return page(
        "HiLRP: twelve architectures explained",
        f"{intro}{keys}{wall}{meanings(verdicts, relative_to is not None)}"
        '<h2>From the last stage to the pixels</h2><p class="soft">The first question again, at the stages of each '
        'model, and what its score is made of: of the score on the reference (<b style="color:var(--before)">grey</b>) '
        'and of what the pixels add (<b style="color:var(--for)">red</b>) or take (<b style="color:var(--against)">'
        f'blue</b>).</p>{stages}<p class="soft">Do it yourself: <code>hilrp scenes 8 -o scenes</code>, '
        "<code>hilrp explain scenes/images --model zoo/swin "
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
    relative = found.relative_to is not None
    verdicts = "<br>".join(
        badge(verdict, meaning(verdict, relative)) for verdict in Verdict if verdict in found.verdicts
    )
    return (
        f"<tr><td><b>{escape(family.title)}</b><br>"
        f'<span class="small">zoo/{escape(str(family.card["name"]))}<br>'
        f"{family.card['parameters'] / 1e6:.1f} M, "  # type: ignore[operator]
        f"mAP {family.card['mean_average_precision']:.4f}</span></td>{cells}"
        f'<td class="gap">{max(family.residual):.0e}</td><td>{np.mean(family.hits):.0%}</td>'
        f"<td>{np.mean(family.inside):.0%}</td>"
        f"<td>{verdicts}</td></tr>"
    )


def _map(found: Explanation, i: int, question: Question) -> str:
    relevance, mask = found.map[i], question.mask
    picture = _enlarged(blend(question.scene.image / 255, relevance.numpy()), mask)
    on_it = bool(pointing(relevance[None], masks_of([question])) == 1)
    mark = f'<b class="{"good" if on_it else "bad"}">{"✓" if on_it else "✗"}</b>'
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
        text = f"{name}: {held(found, name, 0)}"
        small = Image.fromarray((255 * coloured(stage)).astype(np.uint8))
        cells.append(
            f'<td>{image(small, text, lossless=True)}<span class="small">{escape(name)} · {stage.shape[0]} x '
            f"{stage.shape[1]}</span></td>"
        )
    cells = ["<td></td>"] * (STAGES - len(cells)) + cells
    pixels = Image.fromarray((255 * coloured(found.map[0].numpy())).astype(np.uint8))
    cells.append(f'<td>{image(pixels, "the pixels", lossless=True)}<span class="small">pixels · 128 x 128</span></td>')
    return f'<tr><td><b>{escape(family.title)}</b></td>{"".join(cells)}<td class="gap">{_ledger(found)}</td></tr>'


def _ledger(found: Explanation) -> str:
    """What the first score is made of: bars as long as the parts, red for and blue against."""
    ledger, parts = found.ledger, shares(found, 0)
    total = sum(abs(value) for _, value in parts)
    colours = ["var(--for)" if value >= 0 else "var(--against)" for _, value in parts]
    if found.relative_to is not None:
        colours[0] = "var(--before)"
    bar = stack(
        (abs(value) / total, colour, f"{name}: {value:.2f}")
        for (name, value), colour in zip(parts, colours, strict=True)
    )
    words = " ".join(f"{'+' if value >= 0 else '−'} {abs(value):.2f} {escape(name)}" for name, value in parts)
    equation = f"{float(ledger.score[0]):.2f} = {words.removeprefix('+ ')}"
    return f'{bar}<span class="small">{equation}</span>'


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
