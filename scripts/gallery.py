"""Draws the pictures of docs/gallery.md: one for each kind of target, on the first scenes with at least three objects.

    python scripts/gallery.py             # all of them
    python scripts/gallery.py captions    # one

The photographs (`views`) need the shared material beside the checkout or where HILRP_SHARED points: DINOv2 and every
33rd picture of Oxford-IIIT Pet (CC BY-SA 4.0), whatever the maps look like.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from figures import DOCS, SHARED
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from measure_targets import SceneObject, absent, embedded, finder
from PIL import Image
from torch import Tensor

import hilrp
from hilrp.attribution.plotting import as_text, blend
from hilrp.attribution.texts import ImageText, ImageTower, similarity
from hilrp.jobs.bench.views import METHODS, OBJECTIVES, encoder
from hilrp.models.images import read
from hilrp.models.picture_files import opened
from hilrp.scenes import CLASSES, Scene, Scenes
from hilrp.targets import Contrast, Cosine, Detection, Direction, Region, Views
from hilrp.zoo.towers import pieces, tokenise

SEED = 31


class Panel(NamedTuple):
    """A picture, or relevance on one; perhaps with the outline of a mask, or with a box (left, top, right, bottom)."""

    title: str
    picture: np.ndarray
    relevance: Tensor | None = None
    mask: np.ndarray | None = None
    box: Sequence[float] | None = None


def chosen(count: int) -> list[Scene]:
    """The first scenes with at least three objects."""
    return [scene for scene in Scenes(SEED, 40) if len(scene.things) >= 3][:count]


def show(name: str, rows: list[list[Panel]], words: list[tuple[list[str], Tensor]] | None = None) -> None:
    """Writes the panels, row by row; with words, a column of what each of them holds."""
    columns = len(rows[0]) + (words is not None)
    drawing = Figure(figsize=(2.4 * columns, 2.75 * len(rows)), layout="constrained")
    axes = drawing.subplots(len(rows), columns, squeeze=False)
    for row, panels in zip(axes, rows, strict=True):
        for axis, panel in zip(row, panels, strict=False):
            _draw(axis, panel)
    for row, (names, held) in zip(axes, words or [], strict=False):
        axis = row[-1]
        axis.barh(range(len(names)), held, color=["#b2182b" if v >= 0 else "#2166ac" for v in held], height=0.7)
        axis.set_yticks(range(len(names)), map(as_text, names), fontsize=9)
        axis.invert_yaxis()
        axis.tick_params(axis="x", labelsize=7)
        axis.set_title("the words' part", fontsize=9)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    stream = BytesIO()
    drawing.savefig(stream, format="png", dpi=90)
    with opened(stream) as picture:
        picture.convert("RGB").save(DOCS / "gallery" / f"{name}.webp", quality=86, method=6)
    print(f"docs/gallery/{name}.webp")


def _draw(axis: Any, panel: Panel) -> None:
    if panel.relevance is None:
        axis.imshow(panel.picture)
    else:
        axis.imshow(blend(panel.picture, panel.relevance.numpy()))
    if panel.mask is not None:
        axis.contour(panel.mask, levels=[0.5], colors="black", linewidths=0.9)
    if panel.box is not None:
        left, top, right, bottom = panel.box
        axis.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor="black", linewidth=1))
    axis.set_title(as_text(panel.title), fontsize=9)
    axis.set_axis_off()


def seen(scene: Scene) -> np.ndarray:
    """A scene's picture, from 0 to 1."""
    return scene.image / 255


def batch(loaded: hilrp.Loaded, scene: Scene) -> Tensor:
    """A scene as a model takes it."""
    return loaded.batch([Image.fromarray(scene.image)])


def classes() -> None:
    """Two classes, one rather than the other, and a function of the output: any object of that colour."""
    loaded, rows = hilrp.load("zoo/maxvit"), []
    for scene in chosen(2):
        a, b = (thing.label for thing in scene.things[:2])
        x, picture = batch(loaded, scene), seen(scene)
        colour = CLASSES[a].split()[0]
        alike = [i for i, name in enumerate(CLASSES) if name.startswith(colour)]

        def anything(output: Tensor, alike: list[int] = alike) -> Tensor:
            return output[:, alike].logsumexp(1)

        targets: dict[str, Any] = {
            CLASSES[a]: a,
            CLASSES[b]: b,
            f"{CLASSES[a]}\nrather than {CLASSES[b]}": Contrast(a, b),
        }
        panels = [Panel(title, picture, hilrp.explain(loaded.model, x, t).map[0]) for title, t in targets.items()]
        found = hilrp.explain(loaded.model, x, anything)
        rows.append(
            [
                Panel("", picture),
                *panels,
                Panel(f"anything {colour}\n(a function of the output)", picture, found.map[0]),
            ]
        )
    show("classes", rows)


def embeddings() -> None:
    """What makes a picture like another one, and what lies along a direction of features."""
    loaded = hilrp.load("zoo/vit")
    model: Any = loaded.model
    heads = model.head.weight.detach()
    model.reset_classifier(0)
    rows = []
    for scene in chosen(2):
        label = scene.things[0].label
        other = next(s for s in Scenes(SEED + 1) if len(s.things) == 1 and s.things[0].label == label)
        x, picture = batch(loaded, scene), seen(scene)
        away = heads[[i for i in range(len(CLASSES)) if i != label]].mean(0)
        rows.append(
            [
                Panel("", picture),
                Panel("like this picture?", seen(other)),
                Panel(
                    "Cosine to its embedding",
                    picture,
                    hilrp.explain(model, x, Cosine(model(batch(loaded, other)))).map[0],
                ),
                Panel(
                    f"Direction: {CLASSES[label]}\nless the other classes",
                    picture,
                    hilrp.explain(model, x, Direction(heads[label] - away)).map[0],
                ),
            ]
        )
    show("embeddings", rows)


def captions() -> None:
    """Matching captions and one of what is not there; then pixels and words at once."""
    loaded = hilrp.load("zoo/towers")
    assert loaded.texts is not None
    towers = loaded.texts.model
    tower = ImageTower(towers).eval()
    rows, words = [], []
    for scene in chosen(3):
        x, picture = batch(loaded, scene), seen(scene)
        panels = [Panel("", picture)]
        for thing in scene.things[:2]:
            found = hilrp.explain(tower, x, Cosine(embedded(towers, [thing.caption])))
            panels.append(Panel(f"{thing.caption}\n{float(found.score):.2f}", picture, found.map[0], thing.mask))
        nothing = absent(SceneObject(scene, scene.things[0]))
        found = hilrp.explain(tower, x, Cosine(embedded(towers, [nothing])))
        panels.append(Panel(f"{nothing}\n{float(found.score):.2f}", picture, found.map[0]))
        pair = ImageText(towers, tokenise(scene.things[0].caption)).eval()
        both = hilrp.explain(pair, pair.inputs(x), similarity, "hilrp", stages=None)
        rows.append(panels)
        names = pieces(scene.things[0].caption)
        words.append((names, both.relevance[1][0, : len(names)]))
    show("captions", rows, words)


def regions() -> None:
    """A class in the region of each object; the outline is the region."""
    loaded, rows = hilrp.load("zoo/segmenter"), []
    for scene in chosen(2):
        x, picture = batch(loaded, scene), seen(scene)
        panels = [Panel("", picture)]
        for thing in scene.things[:3]:
            found = hilrp.explain(loaded.model, x, Region(thing.label, mask=torch.from_numpy(thing.mask)))
            panels.append(Panel(f"{thing.name}\nhere: {float(found.score):.1f}", picture, found.map[0], thing.mask))
        rows.append(panels)
    show("regions", rows)


def detections() -> None:
    """The class of one detection, and the sides of its box."""
    loaded, rows = hilrp.load("zoo/detector"), []
    for scene in chosen(2):
        x, picture = batch(loaded, scene), seen(scene)
        with torch.no_grad():
            output = loaded.model(x)
        thing, query = next((t, q) for t in scene.things if (q := finder(output, 0, t)) is not None)
        middle, extent = (128 * output["pred_boxes"][0, query]).split(2)
        box = torch.cat([middle - extent / 2, middle + extent / 2]).tolist()
        panels = [Panel("", picture, box=box)]
        targets = {f"query {query}: {thing.name}": Detection(query, thing.label)}
        targets |= {f"the box's {side}": Detection(query, side=side) for side in ("left", "top", "right", "bottom")}
        for title, target in targets.items():
            panels.append(Panel(title, picture, hilrp.explain(loaded.model, x, target).map[0], box=box))
        rows.append(panels)
    show("detections", rows)


def objectives() -> None:
    """One architecture, four objectives: what makes a picture and its mirror image alike."""
    models = {title: encoder(name) for name, title in OBJECTIVES.items()}
    rows = []
    for scene in chosen(3):
        picture = seen(scene)
        panels = [
            Panel(title, picture, hilrp.explain(m.model, batch(m, scene), Views()).map[0])
            for title, m in models.items()
        ]
        rows.append([Panel("", picture), *panels])
    show("objectives", rows)


def views() -> None:
    """DINOv2 on photographs, without any label."""
    checkpoint = SHARED / "checkpoints" / "vit_small_patch14_dinov2.safetensors"
    if not checkpoint.exists():
        print("docs/gallery/views.webp: the shared material is not there, skipped")
        return
    loaded = encoder(f"timm/vit_small_patch14_dinov2@{checkpoint}", size=224)
    index = json.loads((SHARED / "images" / "pets" / "index.json").read_text())[::33][:6]
    pictures = [read(SHARED / "images" / "pets" / item["file"])[0] for item in index]
    x = loaded.batch(pictures)
    shown = [loaded.preprocess.picture(each) for each in x]
    rows = [[Panel("", p.permute(1, 2, 0).numpy()) for p in shown if p is not None]]
    for name in ("hilrp", "saliency", "class-token"):
        title, method = METHODS[name]
        maps = method(loaded.model, x).detach()
        rows.append(
            [Panel(title, p.permute(1, 2, 0).numpy(), m) for p, m in zip(shown, maps, strict=True) if p is not None]
        )
    show("views", rows)


FIGURES: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (classes, embeddings, captions, regions, detections, objectives, views)
}


def main() -> None:
    """Draws what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*FIGURES, []], help=f"of {', '.join(FIGURES)}; default: all")
    (DOCS / "gallery").mkdir(exist_ok=True)
    for name in parser.parse_args().names or FIGURES:
        FIGURES[name]()


if __name__ == "__main__":
    main()
