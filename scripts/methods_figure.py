"""Draws docs/methods.webp: one photograph explained by shap, Grad-CAM, Integrated Gradients and HiLRP.

    python scripts/methods_figure.py [--measure]

Below each map stands what its sum misses of what it should add up to: how much higher the class scores on the
photograph than on the reference, the photograph's mean colour. All methods have the same model, class and reference.
The numbers are in docs/results/methods_figure.json, with those of the next nine photographs; --measure makes them anew,
which takes about twenty minutes on one core, nearly all of them for shap.

The photographs are chosen by a rule: the first of the 200 of Oxford-IIIT Pet (CC BY-SA 4.0) that both models name
rightly. They and the published weights lie in the shared material, beside the checkout or where HILRP_SHARED points.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib.metadata import version
from statistics import median
from typing import Any

import numpy as np
import torch
from figures import DOCS, MODELS, SHARED
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from methods_maps import METHODS, Map, fresh, partition_of, runs_deep
from PIL import Image
from torch import Tensor

from hilrp.attribution.marking import smoothed
from hilrp.attribution.panels import Panel
from hilrp.attribution.pictures import composed
from hilrp.models.images import read

#: How many photographs are measured; the first one is drawn.
COUNT = 10
#: What is said of a model, beside its row.
KINDS = {"TinyViT-5M": "TinyViT-5M, hierarchical", "DeiT-Tiny": "DeiT-Tiny, isotropic"}
#: Pixels of a panel, and of the figure for an inch.
SIDE, DOTS = 320, 100
PHOTOS = SHARED / "images" / "pets"
#: How far what a sum misses may be from what was measured, when the figure is drawn elsewhere.
_APART = 0.02
RESULTS = DOCS / "results" / "methods_figure.json"


def photographs() -> list[dict[str, Any]]:
    """The first ones that both models name rightly."""
    models = [fresh(name) for name in MODELS]
    found: list[dict[str, Any]] = []
    for item in json.loads((PHOTOS / "index.json").read_text()):
        picture = read(PHOTOS / item["file"])[0]
        with torch.no_grad():
            named = [int(loaded.model(loaded.batch([picture])).argmax()) for loaded in models]
        if set(named) == {item["label"]}:
            found.append(item)
        if len(found) == COUNT:
            break
    return found


def question(name: str, item: dict[str, Any]) -> tuple[Tensor, Tensor, float]:
    """A photograph as the model takes it, its mean colour, and how much higher its class scores than on that."""
    loaded = fresh(name)
    x = loaded.batch([PHOTOS / item["file"]])
    reference = x.mean((2, 3), keepdim=True).expand_as(x).contiguous()
    with torch.no_grad():
        scores = loaded.model(torch.cat([x, reference]))[:, item["label"]].double()
    return x, reference, float(scores[0] - scores[1])


def facts(found: Map, difference: float) -> dict[str, Any]:
    """A map in numbers."""
    missing = found.missing(difference)
    total = {} if missing is None else {"sum": float(found.values.double().sum()), "missing": missing}
    return {"how": found.how, "remark": found.remark, **total}


def said(missing: float | None) -> str:
    """What a sum misses, in words: "misses 89 %", "9 % too much", "misses nothing"; "no sum", where there is none."""
    if missing is None:
        return "no sum"
    if abs(missing) < 5e-4:
        return "misses nothing"
    return f"misses {part(missing)}" if missing > 0 else f"{part(missing)} too much"


def part(missing: float) -> str:
    """The size of a part: "89 %", "0.9 %"."""
    return f"{abs(missing) * 100:.{0 if abs(missing) >= 0.01 else 1}f} %"


def draw_map(axis: Axes, picture: Tensor, values: Tensor) -> None:
    """A map on the photograph, as HiLRP draws its own."""
    relevance = smoothed(values.float()[None])[0].numpy()
    limit = float(np.quantile(np.abs(relevance), 0.995)) or 1.0
    shown = Panel(picture.permute(1, 2, 0).numpy(), relevance, limit, None, np.zeros(relevance.shape, bool))
    enlarged = Image.fromarray(composed(shown)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    axis.imshow(np.asarray(enlarged))


def measure() -> dict[str, Any]:
    """Explains all photographs with all methods, in numbers."""
    items, models = photographs(), {}
    for name, title in MODELS.items():
        measured = []
        for item in items:
            x, reference, difference = question(name, item)
            asked = {method: function for method, (_, function) in METHODS.items()}
            if item is items[0]:
                asked["shap, PartitionExplainer"] = partition_of
            found = {
                method: facts(function(name, x, reference, item["label"]), difference)
                for method, function in asked.items()
            }
            measured.append({"file": item["file"], "label": item["label"], "difference": difference, "maps": found})
            print(
                title, item["file"], {method: said(each.get("missing")) for method, each in found.items()}, flush=True
            )
        models[name] = {
            "DeepExplainer": runs_deep(name) or "runs",
            "medians": medians(measured),
            "photographs": measured,
        }
    libraries = {library: version(library) for library, _ in METHODS.values() if library != "hilrp"}
    return {"reference": "the photograph's mean colour", "versions": libraries, "models": models}


def medians(measured: list[dict[str, Any]]) -> dict[str, float]:
    """The median size of what the sums of each method miss."""
    adds_up = [method for method in METHODS if "missing" in measured[0]["maps"][method]]
    return {method: median(abs(each["maps"][method]["missing"]) for each in measured) for method in adds_up}


def draw(known: dict[str, Any]) -> Figure:
    """The first photograph with all methods; its numbers have to be those that were measured."""
    figure = Figure(figsize=(17.1, 10.6), dpi=DOTS)
    places = {"left": 0.03, "right": 0.997, "top": 0.926, "bottom": 0.13, "wspace": 0.03, "hspace": 0.53}
    rows = figure.subplots(len(MODELS), 1 + len(METHODS), gridspec_kw=places)
    for row, (name, title) in zip(rows, MODELS.items(), strict=True):
        own = known["models"][name]
        item = own["photographs"][0]
        x, reference, difference = question(name, item)
        maps = {method: function(name, x, reference, item["label"]) for method, (_, function) in METHODS.items()}
        for method, each in maps.items():
            before, now = item["maps"][method].get("missing"), each.missing(difference)
            if before is not None and now is not None and abs(before - now) > _APART:
                raise SystemExit(
                    f"{title}, {method}: misses {now:.3f}, and {before:.3f} when it was measured: --measure"
                )
        draw_row(row, name, title, item, x, maps, own["medians"])
    for axis, method in zip(rows[0], ["photograph", *METHODS], strict=True):
        axis.text(0.5, 1.13, method, transform=axis.transAxes, ha="center", fontsize=21, weight="bold")
    return figure


def draw_row(
    row: list[Axes],
    name: str,
    title: str,
    item: dict[str, Any],
    x: Tensor,
    maps: dict[str, Map],
    sizes: dict[str, float],
) -> None:
    """The photograph and its maps, and what is said of each."""
    loaded, difference = fresh(name), item["difference"]
    picture = loaded.picture(x[0])
    assert picture is not None
    row[0].imshow(picture.permute(1, 2, 0).numpy())
    row[0].text(-0.07, 0.5, KINDS[title], transform=row[0].transAxes, rotation=90, va="center", fontsize=18)
    label = loaded.named(item["label"]).split(",")[0]
    words = [(f"“{label}”", f"scores {difference:.2f} higher than\non the mean colour")]
    for method, each in maps.items():
        missing = each.missing(difference)
        sums = "does not add up\nto anything" if missing is None else ""
        if missing is not None:
            sums = f"sums to {float(each.values.double().sum()):.2f} of {difference:.2f}\n"
            sums += f"median of {COUNT} photos: {part(sizes[method])}\n{each.remark}"
        words.append((said(missing), sums))
    for axis, (large, small) in zip(row, words, strict=True):
        axis.text(0.5, -0.05, large, transform=axis.transAxes, ha="center", va="top", fontsize=22, weight="bold")
        axis.text(0.5, -0.17, small, transform=axis.transAxes, ha="center", va="top", fontsize=16, linespacing=1.25)
        axis.set_axis_off()
    for axis, each in zip(row[1:], maps.values(), strict=True):
        draw_map(axis, picture, each.values)
        axis.text(0.5, 1.025, each.how, transform=axis.transAxes, ha="center", fontsize=15)


def main(again: bool) -> None:
    """Measures, where that is wanted or was never done, and draws the figure."""
    warnings.filterwarnings("ignore", message="unrecognized nn.Module")  # shap's, of layers that it has no rules for
    if again or not RESULTS.exists():
        RESULTS.write_text(json.dumps(measure(), indent=1) + "\n")
    draw(json.loads(RESULTS.read_text())).savefig(DOCS / "methods.webp", dpi=DOTS, pil_kwargs={"quality": 90})


if __name__ == "__main__":
    if SHARED.exists():
        main("--measure" in sys.argv[1:])
    else:
        print("docs/methods.webp: the shared material is not there, skipped")
