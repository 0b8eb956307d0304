"""Why a detector missed an object: what speaks against it, beside the true effect of taking away what hides it.

    python benchmarks/missed.py [--cases 60] [--figure FILE]    # docs/results/figures/missed.csv.gz

A drawn scene has an object that is mostly hidden by another, and a third one elsewhere. Kept are scenes in which the
zoo's detector finds the hidden object when nothing hides it, and doesn't where it is hidden. What is explained is the
logit of the hidden object's class at its box (`targets.Missed`), also less that of the class found in its place. What a
map has on each object is compared with the true effect: how the score changes when that object is taken away, and what
was behind it is seen.
"""

from __future__ import annotations

import argparse
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import hilrp
from hilrp.jobs.bench.methods import find
from hilrp.scenes import CLASSES
from hilrp.scenes.background import background
from hilrp.scenes.objects import COLOURS, SHAPES, TEXTURES, Sprite, sprite
from hilrp.scenes.scene import compose, visible
from hilrp.targets import Missed

ROOT = Path(__file__).resolve().parents[1]
SEED, SIDE = 53, 128
#: What the objects are called, from back to front.
PARTS = ("hidden", "occluder", "bystander")
#: How much of the hidden object is seen.
SEEN = (0.1, 0.5)
#: Name -> rules of HiLRP, or a method of the benchmark.
OURS = {"HiLRP, secant": "secant", "HiLRP": "hilrp"}
OTHERS = {"Integrated Gradients": "integrated-gradients", "Input x Gradient": "input-x-gradient"}
#: What is asked: the class's logit, or that less the logit of what is found in its place.
ASKED = {"the class": None, "the class rather than what is found": "found"}


@dataclass(frozen=True)
class Case:
    """A scene, the same without each of its objects, where these are seen, and what is asked."""

    image: np.ndarray
    without: list[np.ndarray]
    masks: list[np.ndarray]
    label: int
    box: tuple[float, float, float, float]


class Question(nn.Module):
    """A model whose only output is the score that is asked for: all methods of the benchmark can explain it."""

    def __init__(self, model: nn.Module, query: int, target: Missed) -> None:
        super().__init__()
        self.model, self.query, self.target = model, query, target

    def forward(self, x: Tensor) -> Tensor:
        """``[B,1]``."""
        logits = self.model(x)["logits"][:, self.query]
        score = logits[:, self.target.label]
        return (score if self.target.against is None else score - logits[:, self.target.against])[:, None]


def drawn(rng: np.random.Generator) -> Case | None:
    """A scene with an object that another hides, if enough of it is hidden and the third is apart."""
    labels = rng.choice(len(CLASSES), 3, replace=False)
    y, x = rng.uniform(0.3, 0.7, 2) * SIDE
    area = rng.uniform(0.04, 0.08) * SIDE**2
    away = rng.uniform(-0.35, 0.35, 2) * area**0.5
    angle = rng.uniform(0, 2 * np.pi)
    places = [
        (area, y, x),
        (area * rng.uniform(0.7, 1.4), y + away[0], x + away[1]),
        (rng.uniform(0.04, 0.08) * SIDE**2, y + 58 * np.sin(angle), x + 58 * np.cos(angle)),
    ]
    if not all(12 < c < SIDE - 12 for c in places[2][1:]):
        return None
    sprites = [_sprite(rng, int(label), *place) for label, place in zip(labels, places, strict=True)]
    masks, alone = visible(sprites, SIDE), [visible([each], SIDE)[0] for each in sprites]
    seen = masks[0].sum() / alone[0].sum()
    if not SEEN[0] <= seen <= SEEN[1] or (alone[2] & (alone[0] | alone[1])).any():
        return None
    ground = background(rng, SIDE)
    rows, columns = alone[0].nonzero()
    box = (float(columns.min()), float(rows.min()), float(columns.max() + 1), float(rows.max() + 1))
    without = [compose(ground, [s for j, s in enumerate(sprites) if j != i]) for i in range(3)]
    return Case(compose(ground, sprites), without, masks, int(labels[0]), box)


def _sprite(rng: np.random.Generator, label: int, area: float, y: float, x: float) -> Sprite:
    texture = TEXTURES[rng.integers(len(TEXTURES))]
    return sprite(rng, SHAPES[label // len(COLOURS)], COLOURS[label % len(COLOURS)], texture, area, y, x)


def missed(loaded: hilrp.Loaded, count: int) -> Iterator[tuple[Case, Tensor, list[dict[str, Tensor]]]]:
    """Cases that the detector misses, with the input, and its output on that and without each object."""
    number = 0
    while count:
        case, number = drawn(np.random.default_rng([SEED, number])), number + 1
        if case is None:
            continue
        x = loaded.batch([Image.fromarray(image) for image in (case.image, *case.without)])
        with torch.no_grad():
            output = loaded.model(x)
        outputs = [{name: t[i : i + 1] for name, t in output.items()} for i in range(len(x))]
        # Found where nothing hides it, and not where something does.
        if _finds(outputs[2], case) and not _finds(outputs[0], case):
            count -= 1
            yield case, x[:1], outputs


def score_of(target: Missed, x: Tensor, output: dict[str, Tensor]) -> float:
    """The score of the query that would be the hidden object's, in a picture with that output."""
    return float(target.prepare(x, lambda _: output)(output))


def settled(case: Case, against: Any, output: dict[str, Tensor]) -> Missed:
    """The question, with what is found instead as a class."""
    if against is None:
        return Missed(case.label, case.box)
    (query,) = Missed(case.label, case.box).queries(output, (SIDE, SIDE))
    logits = output["logits"][0, query].clone()
    logits[case.label] = -torch.inf
    return Missed(case.label, case.box, int(logits.argmax()))


def _finds(output: dict[str, Tensor], case: Case) -> bool:
    """Whether an object of the class is found where the hidden one is."""
    sure = output["logits"][0, :, case.label].sigmoid() > 0.5
    overlap = Missed(case.label, case.box).overlaps(output, (SIDE, SIDE))[0]
    return bool((sure & (overlap > 0.3)).any())


def maps(loaded: hilrp.Loaded, x: Tensor, target: Missed, question: Question) -> Iterator[tuple[str, Tensor]]:
    """Of each method the map of a case, ``[H,W]``."""
    for name, rules in OURS.items():
        yield name, hilrp.explain(loaded.model, x, target, rules, stages=None).map[0]
    for name, method in OTHERS.items():
        yield name, find(method).function(question, x, torch.zeros(1, dtype=torch.long)).detach()[0]


def covered(question: Question, case: Case, x: Tensor) -> float:
    """How the score of the same query changes with the mean colour in place of the occluder."""
    mask = torch.from_numpy(case.masks[1])
    with torch.no_grad():
        return float(question(torch.where(mask, x.mean((2, 3), keepdim=True), x)) - question(x))


def figures_of(case: Case, found: Tensor, effects: list[float], plain: float) -> dict[str, float]:
    """What a map says of each object, beside the true effect of taking it away, and of covering it with a colour."""
    held = [float(found[torch.from_numpy(mask)].sum()) for mask in case.masks]
    return {
        "occluder speaks against": float(held[1] < 0),
        "occluder speaks most against": float(held[1] == min(held)),
        "what is seen of the hidden speaks for": float(held[0] > 0),
        "sign of the mean colour": float((held[1] < 0) == (plain > 0)),
        "objects in order": rank_agreement([-each for each in held], effects),
    }


def rank_agreement(ours: list[float], theirs: list[float]) -> float:
    """Of the pairs of objects, how many more are in the same order than in the other (Kendall), from -1 to 1."""
    pairs = [(i, j) for i in range(len(ours)) for j in range(i)]
    signs = [np.sign(ours[i] - ours[j]) * np.sign(theirs[i] - theirs[j]) for i, j in pairs]
    return float(np.mean(signs))


def drawn_figure(shown: list[tuple[Case, Tensor, float, list[float]]], path: Path) -> None:
    """Scenes, what speaks for and against the hidden object, and the same scenes without what hides it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(3, len(shown), figsize=(2.3 * len(shown), 7.6), constrained_layout=True)
    for column, (case, found, score, effects) in zip(axes.T, shown, strict=True):
        limit = float(found.abs().flatten().kthvalue(int(0.995 * found.numel())).values)
        left, top, right, bottom = case.box
        for axis, picture in zip(column, (case.image, case.image.mean(2) * 0.35 + 150, case.without[1]), strict=True):
            axis.imshow(picture, cmap="gray", vmin=0, vmax=255)
            axis.add_patch(plt.Rectangle((left, top), right - left, bottom - top, fill=False, color="white", lw=1.5))
            axis.set(xticks=[], yticks=[])
        column[1].imshow(found, cmap="RdBu_r", vmin=-limit, vmax=limit, alpha=0.75)
        column[0].set_title(f"{CLASSES[case.label]}?\n{score:+.1f}", fontsize=9)
        column[1].set_title("for it red, against it blue", fontsize=9)
        column[2].set_title(f"nothing before it: {score + effects[1]:+.1f}", fontsize=9)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measures, and writes a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    loaded = hilrp.load("zoo/detector")
    rows, shown = list[tuple[str, str, str, int, str]](), []
    for number, (case, x, outputs) in enumerate(missed(loaded, options.cases)):
        for question, against in ASKED.items():
            target = settled(case, against, outputs[0])
            score, *others = (score_of(target, x, output) for output in outputs)
            effects = [other - score for other in others]
            (query,) = target.queries(outputs[0], (SIDE, SIDE))
            asked = Question(loaded.model, query, target).eval()
            plain = covered(asked, case, x)
            figures: dict[str, dict[str, float]] = {
                "truth": {"score": score}
                | {f"effect of the {name}": effect for name, effect in zip(PARTS, effects, strict=True)}
                | {"occluder has the largest effect": float(effects[1] == max(effects))}
                | {"effect of the mean colour": plain, "mean colour raises": float(plain > 0)}
            }
            for name, found in maps(loaded, x, target, asked):
                figures[name] = figures_of(case, found, effects, plain)
                if name == "HiLRP, secant" and against is not None and len(shown) < 5:
                    shown.append((case, found, score, effects))
            rows += [
                (question, method, figure, number, f"{value:.6g}")
                for method, own in figures.items()
                for figure, value in own.items()
            ]
        if number % 10 == 9:
            print(number + 1, flush=True)
    write = runpy.run_path(str(ROOT / "scripts" / "keep_figures.py"))["write"]
    print(write("missed", rows), len(rows), "values")
    for key in dict.fromkeys(row[:3] for row in rows):
        values = [float(row[4]) for row in rows if row[:3] == key]
        print(f"{key[0]:36} {key[1]:22} {key[2]:40} {np.mean(values):.3f}")
    if options.figure is not None:
        drawn_figure(shown, options.figure)


if __name__ == "__main__":
    main()
