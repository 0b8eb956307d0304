"""Two of the paper's claims on scenes: what the architecture changes, and how the zoo's Swin follows shifts by windows.

    python benchmarks/claims_on_scenes.py    # docs/results/figures/architectures.csv.gz and transfer.csv.gz

The zoo's twelve families are trained for one objective: how alike (Spearman) their maps of the preset ``hilrp`` are, of
50 scenes, summed over the same cells as `hilrp views` sums those of four objectives. And `hilrp verify`'s measurement
of shifts, for the zoo's Swin on 16 scenes, shifted by one, two and four of its windows.
"""

from __future__ import annotations

import runpy
from itertools import combinations
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import hilrp
from hilrp.jobs.bench.data import SCENES, find, inputs_for
from hilrp.jobs.bench.metrics.shapley import spearman
from hilrp.scenes import Scenes
from hilrp.verify.transfer import measure
from hilrp.zoo.architectures import ARCHITECTURES

#: Cells a side, as in `hilrp views`.
COMMON = 56
Row = tuple[str, str, str, int, str]


def architectures(count: int = 50) -> list[Row]:
    """How alike the maps of each two families are, scene by scene."""
    maps: dict[str, Tensor] = {}
    for family in sorted(ARCHITECTURES):
        loaded = hilrp.load(f"zoo/{family}")
        inputs = inputs_for(loaded, find("scenes", count))
        explainer = hilrp.Explainer(loaded.model, "hilrp", audit="off", stages=None)
        pairs = zip(inputs.x.split(8), inputs.labels.split(8), strict=True)
        found = torch.cat([explainer.explain(x, labels).map for x, labels in pairs])
        maps[family] = F.adaptive_avg_pool2d(found[:, None].float(), COMMON).flatten(1).double()
    return [
        (f"{one} and {other}", "hilrp", "agreement", i, f"{value:.4g}")
        for one, other in combinations(maps, 2)
        for i, value in enumerate(spearman(maps[one], maps[other]).tolist())
    ]


def windows(count: int = 16) -> list[Row]:
    """How the maps of the zoo's Swin follow shifts by its windows: four tokens of four pixels."""
    loaded = hilrp.load("zoo/swin")
    x = loaded.batch([Image.fromarray(Scenes(SCENES)[i].image) for i in range(count)])
    return [
        ("swin", f"{shift} px", figure, i, f"{value:.4g}")
        for shift, found in measure(loaded.model, x, 4, (16, 32, 64)).items()
        for figure, values in found.items()
        for i, value in enumerate(values.tolist())
    ]


def main() -> None:
    """Measures both."""
    keep = runpy.run_path(str(Path(__file__).resolve().parents[1] / "scripts" / "keep_figures.py"))
    print(keep["write"]("transfer", windows()))
    print(keep["write"]("architectures", architectures()))


if __name__ == "__main__":
    main()
