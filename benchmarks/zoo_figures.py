"""The columns of docs/zoo.md that are of maps: the paper's preset on objects of scenes, for every family of the zoo.

    python benchmarks/zoo_figures.py [--objects 500]    # docs/results/figures/zoo.csv.gz

The objects are those that `hilrp demo --objects 500` measures, whose own figures are of the default rules.
"""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path

from PIL import Image
from torch import Tensor

import hilrp
from hilrp.jobs.bench.methods.controls import bell
from hilrp.jobs.bench.metrics.localisation import energy, pointing
from hilrp.jobs.demo import Question, masks_of, measured
from hilrp.zoo.architectures import ARCHITECTURES

Row = tuple[str, str, str, int, str]


def of_family(family: str, questions: list[Question], masks: Tensor) -> list[Row]:
    """What a model's maps of the questions are worth, and what its pixels hold."""
    loaded = hilrp.load(f"zoo/{family}")
    explainer = hilrp.Explainer(loaded.model, "hilrp", stages=None)
    x = loaded.batch([Image.fromarray(each.scene.image) for each in questions])
    found = explainer.explain(x, [each.label for each in questions], batch=16)
    shares = {"pixels' share": found.ledger.share, "residual": found.ledger.residual}
    return rows(family, "hilrp", shares | where(found.map, masks))


def of_bell(masks: Tensor) -> list[Row]:
    """The same of the centre Gaussian, which looks at no model."""
    return rows("", "centre-gaussian", where(bell(*masks.shape[-2:]).expand(masks.shape), masks))


def where(maps: Tensor, masks: Tensor) -> dict[str, Tensor]:
    return {"pointing": pointing(maps, masks), "relevance on object": energy(maps, masks)}


def rows(model: str, method: str, figures: dict[str, Tensor]) -> list[Row]:
    return [
        (model, method, figure, i, f"{value:.6g}")
        for figure, values in figures.items()
        for i, value in enumerate(values.tolist())
    ]


def main() -> None:
    """Measures, and writes a row for each object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=500)
    questions = measured(parser.parse_args().objects)
    masks = masks_of(questions)
    found = of_bell(masks)
    for family in ARCHITECTURES:
        found += of_family(family, questions, masks)
        print(family, flush=True)
    write = runpy.run_path(str(Path(__file__).resolve().parents[1] / "scripts" / "keep_figures.py"))["write"]
    print(write("zoo", found), len(found), "values")


if __name__ == "__main__":
    main()
