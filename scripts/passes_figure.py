"""Draws docs/passes.webp: maps of more and more passes with their standard errors, and how good they become.

    python scripts/passes_figure.py

The two photographs are the first and the hundredth of the Oxford-IIIT Pet set (CC BY-SA 4.0), whatever their maps look
like; the model is TinyViT-5M with its published weights. Both lie in the shared material, beside the checkout or where
HILRP_SHARED points. The curves are those of docs/results/passes.csv, which is ``report.csv`` of
`benchmarks/chain_settings.py`.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import hilrp
from hilrp.attribution.plotting import blend, symmetric
from hilrp.models.images import read
from hilrp.models.picture_files import opened

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("HILRP_SHARED") or ROOT.parent / "shared")
MODEL = "tiny_vit_5m_224.dist_in22k_ft_in1k"
PASSES, WITH_ERRORS = (1, 4, 16, 64), (16, 64)
#: Errors are drawn this much darker than relevance.
ENLARGED = 4
#: What the curves show: the figure of the benchmark, and what it is called here.
CURVES = {
    "Shapley agreement, four removals (Voronoi)": "Shapley agreement",
    "flip": "pixel flipping (LeRF - MoRF)",
    "calibration (Voronoi)": "calibration (less is better)",
}
OTHERS = {"lime": "LIME, 300 passes", "rise": "RISE, 500 passes", "hilrp": "the paper's preset, 1 pass"}


def maps(axes: list[list[Axes]]) -> None:
    """A row for each photograph: itself, maps, and what they are unsure of."""
    loaded = hilrp.load(MODEL, SHARED / "checkpoints" / f"{MODEL.split('.')[0]}.safetensors")
    index = json.loads((SHARED / "images" / "pets" / "index.json").read_text())
    for row, item in zip(axes, (index[0], index[100]), strict=True):
        x = loaded.batch([read(SHARED / "images" / "pets" / item["file"])[0]])
        with opened(SHARED / "images" / "pets" / item["mask"]) as drawn:
            mask = loaded.seen_mask(np.asarray(drawn) == 255)
        picture = loaded.preprocess.picture(x[0]).permute(1, 2, 0).numpy()
        row[0].imshow(picture)
        row[0].contour(mask, levels=[0.5], colors="white", linewidths=1)
        errors = iter(row[1 + len(PASSES) :])
        target = None
        for passes, axis in zip(PASSES, row[1:], strict=False):
            found = hilrp.explain(loaded.model, x, target, stages=None, passes=passes)
            target = int(found.target)
            axis.imshow(blend(picture, found.map[0].numpy()))
            inside = found.region(mask.float()).text()
            axis.set_title(f"{passes} pass{'es' if passes > 1 else ''}\non the animal: {inside}", fontsize=10)
            if passes in WITH_ERRORS:
                assert found.stderr is not None
                error = next(errors)
                limit = symmetric(found.map[0].numpy())["vmax"] / ENLARGED
                error.imshow(found.stderr[0], cmap="Greys", vmin=0, vmax=limit)
                error.set_title(f"standard error (x {ENLARGED}),\n{passes} passes", fontsize=10)
        score, higher = float(found.score), float(found.ledger.explained)
        label = loaded.named(target).split(",")[0]
        row[0].set_title(f"{label}\nlogit {score:.1f}, {higher:.1f} higher", fontsize=10)
        assert float(found.ledger.residual.max()) < 1e-5
    for axis in (axis for row in axes for axis in row):
        axis.set_axis_off()


def curves(axes: list[Axes]) -> None:
    """Means over the three published models on photographs that no setting was chosen on."""
    with (ROOT / "docs" / "results" / "passes.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "photographs"]
    models = {row["model"] for row in rows}

    def mean(method: str, figure: str) -> float | None:
        own = {row["model"]: float(row[figure]) for row in rows if row["method"] == method}
        return fmean(own.values()) if set(own) == models else None

    for axis, (figure, title) in zip(axes, CURVES.items(), strict=True):
        budgets = [1, *(2**i for i in range(1, 8))]
        found = {n: mean("secant" if n == 1 else f"secant:passes={n}", figure) for n in budgets}
        known = {n: value for n, value in found.items() if value is not None}
        axis.plot(list(known), list(known.values()), "o-", color="#b2182b", label="HiLRP")
        for (method, name), style in zip(OTHERS.items(), (":", "-.", "--"), strict=True):
            value = mean(method, figure)
            assert value is not None
            axis.axhline(value, color="#555555", linestyle=style, linewidth=1, label=name)
        highest = mean("secant", f"ceiling: {figure}") if f"ceiling: {figure}" in rows[0] else None
        if highest is not None:
            axis.axhline(highest, color="#2166ac", linewidth=1, label="the removals among themselves")
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(known), [str(n) for n in known])
        axis.set_xlabel("passes")
        axis.set_title(title, fontsize=10)
    axes[-1].legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="center right")


def main() -> None:
    """Draws the figure."""
    drawing = Figure(figsize=(17, 9.2), layout="constrained")
    above, below = drawing.subfigures(2, 1, height_ratios=[5.4, 3.2])
    maps(above.subplots(2, 1 + len(PASSES) + len(WITH_ERRORS)).tolist())
    curves(below.subplots(1, len(CURVES)).tolist())
    drawing.savefig(ROOT / "docs" / "passes.webp", dpi=80, pil_kwargs={"quality": 88})


if __name__ == "__main__":
    if SHARED.exists():
        main()
    else:
        print("docs/passes.webp: the shared material is not there, skipped")
