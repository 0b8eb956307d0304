"""Draws the pictures of docs/truth.md: maps of a volume, of a film and of a detection whose truth is known.

    python scripts/truth_figures.py            # all of them
    python scripts/truth_figures.py film       # one

Each is of the first sample that `measure_space_time.py` or `measure_detector.py` measures, whatever its maps look like.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import measure_detector
import measure_space_time
import numpy as np
import torch
from figures import DOCS
from matplotlib.figure import Figure
from measure_space_time import LAYERS, METHODS, Case, grad_cam
from torch import Tensor

from hilrp.attribution.plotting import blend
from hilrp.models.picture_files import opened

TITLES = {"secant": "HiLRP", "hilrp": "HiLRP, the paper's preset", "saliency": "Saliency",
          "input-x-gradient": "Input x Gradient", "integrated-gradients": "Integrated Gradients"}  # fmt: skip


def maps_of(case: Case, name: str, cams: dict[str, str]) -> dict[str, Tensor]:
    """Title -> map of a sample."""
    zeros = torch.zeros(1, dtype=torch.long)
    methods = {title: METHODS[method] for method, title in TITLES.items()}
    methods |= {title: grad_cam(LAYERS[name][place]) for place, title in cams.items()}
    return {title: method(case.question, case.x, zeros)[0].detach() for title, method in methods.items()}


def volume() -> None:
    """Slices through both lesions and through a spot that is none, beside each other; a map is drawn on one scale."""
    case = next(measure_space_time.volumes(3, "cpu"))
    shown = [*(mask for mask, _ in case.parts), case.truth["spots that are none"]]
    middles = [int(mask[0].flatten(1).sum(1).argmax()) for mask in shown]

    def slices(t: Any) -> np.ndarray:
        return np.concatenate([np.asarray(t)[k] for k in middles], 1)

    grey = np.repeat(slices(case.x[0, 0] * 0.5 + 0.5)[..., None], 3, 2)
    lesions, _, spots = (slices(mask[0]) for mask in case.truth.values())
    cams = {"last": "Grad-CAM, last features", "deepest": "Grad-CAM, deepest features"}
    rows = [("three slices of a volume", grey)]
    rows += [(title, blend(grey, slices(found))) for title, found in maps_of(case, "unet3d", cams).items()]
    drawing = Figure(figsize=(9.6, 7.2), layout="constrained")
    for i, (axis, (title, picture)) in enumerate(zip(drawing.subplots(4, 2).flat, rows, strict=True)):
        axis.imshow(picture)
        axis.contour(lesions, levels=[0.5], colors="black" if i else "white", linewidths=1)
        axis.contour(spots, levels=[0.5], colors="orange", linewidths=1)
        axis.set_title(title, fontsize=9)
    finish(drawing, "volume")


def film() -> None:
    """All frames, beside each other, a row for each method; those in which the object is changed are framed."""
    case = next(measure_space_time.films(3, "cpu"))

    def strip(t: Any) -> np.ndarray:
        return np.concatenate(list(np.asarray(t)), 1)

    frames = strip(case.x[0].permute(1, 2, 3, 0) * 0.5 + 0.5)
    thing = strip(case.truth["object"][0])
    moment = case.truth["object while it is changed"][0].flatten(1).any(1).nonzero()[:, 0].tolist()
    side = case.x.shape[-1]
    rows = [("a film", frames)]
    found = maps_of(case, "film", {"last": "Grad-CAM, last features"})
    rows += [(title, blend(frames, strip(relevance))) for title, relevance in found.items()]
    drawing = Figure(figsize=(9.6, 8.4), layout="constrained")
    for i, (axis, (title, picture)) in enumerate(zip(drawing.subplots(len(rows), 1), rows, strict=True)):
        axis.imshow(picture)
        axis.contour(thing, levels=[0.5], colors="white" if i == 0 else "black", linewidths=0.7)
        for t in moment:
            outline = ([t * side, (t + 1) * side - 1] * 2, [0.5, 0.5, side - 1.5, side - 1.5])
            axis.plot(*(np.array(each)[[0, 1, 3, 2, 0]] for each in outline), color="orange", linewidth=1.5)
        axis.set_title(title, fontsize=9)
    finish(drawing, "film")


def detector() -> None:
    """A picture, and maps of one of its objects."""
    model, told, _ = measure_detector.objects(4, "cpu")
    found = next(each for each in told if len(each.one.scene.things) >= 3)
    picture, mask = found.one.scene.image / 255, found.one.thing.mask
    names = {"secant": TITLES["secant"], "hilrp": TITLES["hilrp"], "integrated-gradients": "Integrated Gradients",
             "odam:fine": "ODAM, an eighth", "odam:coarse": "ODAM, a thirty-second",
             "grad-cam:fine": "Grad-CAM, an eighth", "d-rise": "D-RISE, less its mean"}  # fmt: skip
    panels = [(f"a {found.one.thing.name}", picture)]
    for name, title in names.items():
        relevance = measure_detector.METHODS[name](model, found)[0].detach()
        # Its values are all about alike: what is above the mean says something.
        relevance = relevance - relevance.mean() if name == "d-rise" else relevance
        panels.append((title, blend(picture, relevance.numpy())))
    drawing = Figure(figsize=(9.6, 5.2), layout="constrained")
    for i, (axis, (title, panel)) in enumerate(zip(drawing.subplots(2, 4).flat, panels, strict=True)):
        axis.imshow(panel)
        axis.contour(mask, levels=[0.5], colors="white" if i == 0 else "black", linewidths=1)
        axis.set_title(title, fontsize=9)
    finish(drawing, "detector")


def finish(drawing: Figure, name: str) -> None:
    """Writes a drawing without its axes."""
    for axis in drawing.axes:
        axis.set_axis_off()
    stream = BytesIO()
    drawing.savefig(stream, format="png", dpi=100)
    (DOCS / "truth").mkdir(exist_ok=True)
    with opened(stream) as picture:
        picture.convert("RGB").save(DOCS / "truth" / f"{name}.webp", quality=86, method=6)
    print(f"docs/truth/{name}.webp")


FIGURES: dict[str, Callable[[], None]] = {"volume": volume, "film": film, "detector": detector}


def main(names: Sequence[str] | None = None) -> None:
    """Draws what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *FIGURES], help=f"of {', '.join(FIGURES)}; default: all")
    for name in parser.parse_args(names).names or FIGURES:
        FIGURES[name]()


if __name__ == "__main__":
    main()
