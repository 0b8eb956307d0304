"""Measures, on scenes, where the maps of captions, regions and detections lie: writes docs/results/targets.md.

    python scripts/measure_targets.py --scenes 100

Truth is known: a caption names one object, a region is one object's, a detection is one object's box. Each map is held
against the mask of that object, beside maps of other questions, of the same model with random weights, and of methods
that look at nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.ops import box_iou

import hilrp
from hilrp.attribution.texts import ImageText, ImageTower, caption_embeddings, similarity
from hilrp.jobs.bench.methods import find
from hilrp.jobs.bench.metrics import localisation
from hilrp.jobs.bench.report import Row, Shown, as_table
from hilrp.jobs.bench.summary import estimate
from hilrp.method.rules import DEFAULT_RULES
from hilrp.scenes import CLASSES, Scene, Scenes, Thing
from hilrp.scenes.objects import COLOURS
from hilrp.targets import Cosine, Detection, Region, settled
from hilrp.util.markdown import paragraph
from hilrp.zoo.architectures import OTHERS
from hilrp.zoo.towers import tokenise

ROOT = Path(__file__).resolve().parent.parent
SEED = 31
METHODS = {"hilrp": "HiLRP", "secant": "HiLRP, secant", "saliency": "Saliency", "input-x-gradient": "Input x Gradient"}
#: What is used by default; other questions and random weights are measured with it alone.
OURS = METHODS[DEFAULT_RULES]
CONTROLS = {"centre-gaussian": "centre Gaussian", "uniform": "uniform"}
FIGURES = {
    "pointing": localisation.pointing,
    "energy excess": localisation.energy_excess,
    "average precision": localisation.average_precision,
}
BATCH = 16


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene."""

    scene: Scene
    thing: Thing


class Question(nn.Module):
    """A model whose only output is the value of a target: all methods of the benchmark can explain it."""

    def __init__(self, model: nn.Module, target: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.target = model, target

    def forward(self, x: Tensor) -> Tensor:
        """``[B,1]``."""
        return self.target(self.model(x))[:, None]


Target = Callable[[list[SceneObject]], Any]


def measure(
    model: nn.Module, batch: Callable[..., Tensor], objects: list[SceneObject], target: Target, method: str
) -> Tensor:
    """The figures of one method, ``[objects,figures]``."""
    found = []
    for i in range(0, len(objects), BATCH):
        part = objects[i : i + BATCH]
        x = batch([Image.fromarray(one.scene.image) for one in part])
        masks = torch.from_numpy(np.stack([one.thing.mask for one in part]))

        def run(inputs: Tensor) -> Any:
            with torch.no_grad():
                return model(inputs)

        question = Question(model, settled(target(part), x, run)).eval()
        maps = find(method).function(question, x, torch.zeros(len(x), dtype=torch.long)).detach()
        found.append(torch.stack([figure(maps, masks).double() for figure in FIGURES.values()], 1))
    return torch.cat(found)


def table(rows: Iterator[tuple[str, Tensor]]) -> list[str]:
    """A row for each method, a column for each figure."""
    shown = []
    for title, values in rows:
        print(title, values.mean(0).tolist(), flush=True)
        count = f" ({len(values)})"
        shown.append(Row(title, title + count, "", [Shown(estimate(v.tolist())) for v in values.T], Shown(None)))
    return as_table(list(FIGURES), shown)


def rows(
    name: str, model: nn.Module, loaded: hilrp.Loaded, objects: list[SceneObject], target: Target
) -> Iterator[tuple[str, Tensor]]:
    """All methods, controls, and the model with random weights."""
    for method, title in (METHODS | CONTROLS).items():
        yield title, measure(model, loaded.batch, objects, target, method)
    torch.manual_seed(0)
    blank = OTHERS[name].make().eval()
    blank = ImageTower(blank) if isinstance(model, ImageTower) else blank
    yield f"{OURS}, random weights", measure(blank, loaded.batch, objects, target, DEFAULT_RULES)


# Captions
# --------------------------------------------------------------------------------------------------------------


def embedded(towers: nn.Module, captions: list[str]) -> Tensor:
    """The embeddings of captions."""
    return caption_embeddings(towers, torch.stack([tokenise(caption) for caption in captions]))


def absent(one: SceneObject) -> str:
    """A caption of what is not there, and has neither the colour nor the shape of the object in question."""
    there = {thing.label for thing in one.scene.things}
    colours, own = len(COLOURS), one.thing.label
    free = [
        i
        for i in range(len(CLASSES))
        if i not in there and i % colours != own % colours and i // colours != own // colours
    ]
    # Any of them, and always the same one for the same object.
    chosen = np.random.default_rng([own, int(one.thing.mask.sum())]).choice(free)
    return f"a {CLASSES[int(chosen)]}"


def captions(objects: list[SceneObject]) -> list[str]:
    """The picture's tower asked for an object, for another one in the picture, and for one that is not there."""
    loaded = hilrp.load("zoo/towers")
    assert loaded.texts is not None
    towers = loaded.texts.model
    model = ImageTower(towers).eval()

    def own(part: list[SceneObject]) -> Cosine:
        return Cosine(embedded(towers, [one.thing.caption for one in part]))

    def other(part: list[SceneObject]) -> Cosine:
        return Cosine(
            embedded(towers, [next(t.caption for t in one.scene.things if t is not one.thing) for one in part])
        )

    def nothing(part: list[SceneObject]) -> Cosine:
        return Cosine(embedded(towers, [absent(one) for one in part]))

    several = [one for one in objects if len(one.scene.things) > 1]

    def all_rows() -> Iterator[tuple[str, Tensor]]:
        yield from rows("towers", model, loaded, objects, own)
        title = f"{OURS}, caption of another object in the picture"
        yield title, measure(model, loaded.batch, several, other, DEFAULT_RULES)
        yield (
            f"{OURS}, caption of what is not there, of another colour and shape",
            measure(model, loaded.batch, objects, nothing, DEFAULT_RULES),
        )

    said = table(all_rows())
    scores = {}
    for title, target in (("own", own), ("nothing", nothing)):
        with torch.no_grad():
            parts = [objects[i : i + BATCH] for i in range(0, len(objects), BATCH)]
            found = [target(p)(model(loaded.batch([Image.fromarray(o.scene.image) for o in p]))) for p in parts]
        scores[title] = torch.cat(found)
    apart = float((scores["own"][:, None] > scores["nothing"][None]).float().mean())
    return [
        paragraph(
            "`zoo/towers`: the cosine of the picture and the caption of one of its objects, such as *a striped red "
            f"star*. In the mean it is {float(scores['own'].mean()):.2f}, and "
            f"{float(scores['nothing'].mean()):.2f} for captions of objects that are not there; of two such pairs the "
            f"right one is higher in {100 * apart:.1f} % of all cases."
        ),
        "",
        *said,
        *words(towers, loaded, objects),
    ]


def words(towers: nn.Module, loaded: hilrp.Loaded, objects: list[SceneObject]) -> list[str]:
    """What share each kind of word has, and whether that goes with what is lost when the word is left out."""
    textured = [one for one in objects if one.thing.texture != "plain"]
    shares, drops = [], []
    for i in range(0, len(textured), BATCH):
        part = textured[i : i + BATCH]
        x = loaded.batch([Image.fromarray(one.scene.image) for one in part])
        ids = torch.stack([tokenise(one.thing.caption) for one in part])
        pair = ImageText(towers, ids).eval()
        found = hilrp.explain(pair, pair.inputs(x), similarity, "hilrp", stages=None)
        shares.append(found.relevance[1][:, :4] / found.score[:, None])
        with torch.no_grad():
            for j in range(4):
                kept = torch.cat([ids[:, :j], ids[:, j + 1 :], torch.zeros_like(ids[:, :1])], 1)
                drops.append(found.score - ImageText(towers, kept)(x))
    share = torch.cat(shares)
    drop = torch.cat([torch.stack(drops[i : i + 4], 1) for i in range(0, len(drops), 4)])
    agree = [float(np.corrcoef(a, b)[0, 1]) for a, b in zip(share.numpy(), drop.numpy(), strict=True)]
    lines = [
        paragraph(
            "The words' half without a reference, of captions that name a texture (medians): the share of the cosine "
            "that each word has, and how much the cosine falls without it."
        ),
        "",
    ]
    lines += ["| | " + " | ".join(("a", "texture", "colour", "shape")) + " |", "|---" * 5 + "|"]
    for title, values in (("share", share), ("falls by", drop)):
        lines.append(f"| {title} | " + " | ".join(f"{float(v):.2f}" for v in values.median(0).values) + " |")
    value = estimate(agree)
    assert value is not None
    return [
        *lines,
        "",
        paragraph(
            "Correlation of the two over the words of a caption: "
            f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]. A caption without its texture fits the picture as "
            "well, and mostly better: the share of a texture's word says that the cosine with it is what it is because "
            "of it, not that it would be lower without."
        ),
        "",
    ]


# Regions and detections
# ---------------------------------------------------------------------------------------------------


def regions(objects: list[SceneObject]) -> list[str]:
    """The segmentation model asked for the class of an object where that object is."""
    loaded = hilrp.load("zoo/segmenter")

    def target(part: list[SceneObject]) -> Region:
        masks = torch.from_numpy(np.stack([one.thing.mask for one in part]))
        return Region([one.thing.label for one in part], mask=masks)

    return [
        "`zoo/segmenter`: the mean logit of an object's class where the object is.",
        "",
        *table(rows("segmenter", loaded.model, loaded, objects, target)),
    ]


def detections(objects: list[SceneObject]) -> list[str]:
    """The detector asked for the query that found an object, and for the sides of its box."""
    loaded = hilrp.load("zoo/detector")
    known = []
    for i in range(0, len(objects), BATCH):
        part = objects[i : i + BATCH]
        with torch.no_grad():
            found = loaded.model(loaded.batch([Image.fromarray(one.scene.image) for one in part]))
        for j, one in enumerate(part):
            known.append((one, finder(found, j, one.thing)))
    queries = {id(one): query for one, query in known if query is not None}
    told = [one for one, query in known if query is not None]

    def target(part: list[SceneObject]) -> Detection:
        return Detection([queries[id(one)] for one in part], [one.thing.label for one in part])

    def side(which: Any) -> Target:
        return lambda part: Detection([queries[id(one)] for one in part], side=which)

    def all_rows() -> Iterator[tuple[str, Tensor]]:
        yield from rows("detector", loaded.model, loaded, told, target)
        for which in ("left", "top", "right", "bottom"):
            yield f"{OURS}, the box's {which}", measure(loaded.model, loaded.batch, told, side(which), DEFAULT_RULES)

    return [
        paragraph(
            "`zoo/detector`: the logit of an object's class in the query that finds the object (a box that overlaps by "
            f"a half: {len(told)} of {len(objects)} objects have one), and the sides of its box."
        ),
        "",
        *table(all_rows()),
    ]


def finder(found: dict[str, Tensor], sample: int, thing: Thing) -> int | None:
    """The query that is surest of an object's class, if its box is right."""
    query = int(found["logits"][sample, :, thing.label].argmax())
    middle, extent = found["pred_boxes"][sample, query].split(2)
    rows, columns = thing.mask.nonzero()
    size = thing.mask.shape[0]
    truth = torch.tensor([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / size
    overlap = box_iou(torch.cat([middle - extent / 2, middle + extent / 2])[None], truth[None].float())
    return query if float(overlap) >= 0.5 else None


def main() -> None:
    """Measures all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=100)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "targets.md")
    chosen = parser.parse_args()
    objects = [SceneObject(scene, thing) for scene in Scenes(SEED, chosen.scenes) for thing in scene.things]
    covered = float(np.mean([one.thing.mask.mean() for one in objects]))
    lines = [
        "# Captions, regions and detections",
        "",
        paragraph(
            f"All {len(objects)} objects of {chosen.scenes} scenes that no model has seen (`Scenes(seed={SEED})`), the "
            "maps of each held against the object's mask. Means over objects with 95 % bootstrap intervals, the number "
            f"of objects in brackets; an object covers {covered:.1%} of a picture in the mean. Made by "
            "`scripts/measure_targets.py`."
        ),
        "",
    ]
    for title, part in (("Captions", captions), ("Regions", regions), ("Detections", detections)):
        lines += [f"## {title}", "", *part(objects)]
    chosen.output.write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
