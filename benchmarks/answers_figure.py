"""Draws docs/answers.webp: words of an answer by three methods, and a prejudice in the books.

    python benchmarks/answers_figure.py

The scene is the first of a collection with three objects that the captioner describes rightly, whatever the maps look
like. The same word is asked of its twin, to which every cross is red.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from answer_methods import METHODS, Case
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import hilrp
from answers import SEED, answered, case_of
from hilrp.attribution.plotting import AGAINST, FOR, blend
from hilrp.attribution.sentences import number
from hilrp.models.picture_files import opened
from hilrp.scenes import Scene, Scenes
from hilrp.scenes.questions import questions

ROOT = Path(__file__).resolve().parent.parent
METHODS_DRAWN = {"secant": "HiLRP", "AttnLRP": "AttnLRP", "last attention": "attention, last layer"}
#: Bars are of these parts of a score.
PARTS = ("the picture", "the prompt", "without any of them")


def example(loaded: Any) -> tuple[Scene, Case]:
    """The first scene of three objects whose caption is right."""
    for scene in Scenes(SEED, 200):
        question = questions(scene)[0]
        found = case_of(loaded, scene, question)
        if len(scene.things) == 3 and found and answered(loaded, scene, question) == question.said:
            return scene, found[0]
    raise LookupError("no scene of three objects is described rightly")


def maps(axes: np.ndarray, case: Case) -> None:
    """A row for each method, and a column for each word."""
    picture = np.asarray(case.picture, np.float32) / 255
    for row, (name, title) in zip(axes, METHODS_DRAWN.items(), strict=True):
        row[0].imshow(picture)
        row[0].set_ylabel(title, fontsize=11)
        for axis, span, relevance in zip(row[1:], case.spans, METHODS[name](case), strict=False):
            axis.imshow(blend(picture, relevance.numpy()))
            axis.set_title(f"\u201c{span.text}\u201d", fontsize=11)
        for axis in row:
            axis.set(xticks=[], yticks=[])
    axes[0][0].set_title("the picture", fontsize=11)


def bars(axis: Axes, name: str, scene: Scene) -> None:
    """What the word "red" owes to picture and question, asked of a red cross."""
    loaded = hilrp.load(f"zoo/{name}")
    word = hilrp.explain_answer(
        loaded.model, loaded.processor, Image.fromarray(scene.image), "what colour is the cross?", "red"
    )[0]
    values = [word.parts[part] for part in PARTS]
    axis.barh(range(len(PARTS)), values, color=[FOR if value > 0 else AGAINST for value in values])
    axis.set(yticks=range(len(PARTS)), yticklabels=PARTS)
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.8)
    axis.spines[["top", "right"]].set_visible(False)
    scores = f"{number(word.score)}, without the picture {number(word.prior)}"
    axis.set_title(f"zoo/{name}: \u201cred\u201d scores {scores}", fontsize=10, loc="right")


def main() -> None:
    """Draws the figure."""
    loaded = hilrp.load("zoo/captioner")
    _, case = example(loaded)
    columns = 1 + min(len(case.spans), 8)
    figure = Figure(figsize=(1.65 * columns, 8.2), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[3.3, 1])
    maps(above.subplots(len(METHODS_DRAWN), columns, squeeze=False), case)
    red = next(
        scene
        for scene in Scenes(SEED, 400)
        if [thing.colour for thing in scene.things if thing.shape == "cross"] == ["red"] and len(scene.things) > 1
    )
    left, middle, right = below.subplots(1, 3, width_ratios=[1, 2, 2])
    left.imshow(red.image)
    left.set(xticks=[], yticks=[], title="what colour is\nthe cross?")
    for axis, name in ((middle, "captioner"), (right, "captioner-prior")):
        bars(axis, name, red)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    buffer.seek(0)
    with opened(buffer) as picture:
        picture.convert("RGB").save(ROOT / "docs" / "answers.webp", quality=88, method=6)
    print(ROOT / "docs" / "answers.webp", case.answer)


if __name__ == "__main__":
    main()
