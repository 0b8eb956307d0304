"""Whether classic LRP, with a rule for each class of module, runs on an architecture as its libraries have it.

    python benchmarks/classic_lrp.py [-o docs/results/classic_lrp.csv]

captum's LRP has rules for some classes of modules and refuses the others. zennit's composites have rules for linear
layers, convolutions, norms and activations that are modules, and leave everything else (attention's products, softmax,
functions) to the plain gradient: it runs, and the question is what its map sums to. For the twelve families of the zoo
on a scene, and for the models with published weights on a photograph where the shared material is (see
scripts/figures.py): whether each runs, the error, and the sum of the map relative to the score.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

import hilrp
from hilrp.jobs.bench.data import find
from hilrp.jobs.bench.suites import PUBLISHED
from hilrp.models.libraries.loaded import Loaded
from hilrp.scenes import Scenes
from hilrp.zoo.architectures import ARCHITECTURES

SHARED = Path(os.environ.get("HILRP_SHARED") or Path(__file__).resolve().parents[2] / "shared")
Attribution = Callable[[nn.Module, Tensor, int], Tensor]


def captum_lrp(model: nn.Module, x: Tensor, label: int) -> Tensor:
    """Captum's default: epsilon for linear layers, convolutions, pooling; what does nothing is told to pass it on."""
    from captum.attr import LRP
    from captum.attr._utils.lrp_rules import IdentityRule

    for module in model.modules():
        if isinstance(module, nn.Identity):
            module.rule = IdentityRule()  # type: ignore[assignment]
    found: Tensor = LRP(model).attribute(x.requires_grad_(), target=label)
    return found


def zennit_lrp(model: nn.Module, x: Tensor, label: int) -> Tensor:
    """Zennit's EpsilonPlusFlat: epsilon for linear layers, z-plus for convolutions, flat for the first."""
    from zennit.attribution import Gradient
    from zennit.composites import EpsilonPlusFlat

    def seed(output: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor([label]), output.shape[1]) * output

    with Gradient(model, EpsilonPlusFlat()) as attributor:
        _, found = attributor(x, seed)
    relevance: Tensor = found
    return relevance


FACTS = ("runs", "error", "sum relative to the score")
LIBRARIES: dict[str, Attribution] = {"captum": captum_lrp, "zennit": zennit_lrp}


def cases() -> Iterator[tuple[str, Callable[[], Loaded], Image.Image, int]]:
    """Names, how to load each model, and the picture and the class that are explained."""
    scene = Scenes(seed=500_000)[0]
    for family in ARCHITECTURES:
        yield f"zoo/{family}", partial(hilrp.load, f"zoo/{family}"), Image.fromarray(scene.image), scene.things[0].label
    photographs = SHARED / "images" / "pets"
    if not photographs.is_dir():
        print(f"no photographs in {photographs}: set HILRP_SHARED")
        return
    photograph = find(str(photographs), 1)[0]
    assert photograph.label is not None
    for name, file in PUBLISHED.items():
        weights = SHARED / "checkpoints" / f"{file}.safetensors"
        yield name, partial(hilrp.load, name, weights), photograph.open(), photograph.label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/results/classic_lrp.csv"))
    rows = []
    for name, load, picture, label in cases():
        for library, attribute in LIBRARIES.items():
            loaded = load()  # anew: libraries leave their hooks where they fail
            x = loaded.batch([picture])
            with torch.no_grad():
                score = float(loaded.model(x)[0, label])
            row = {"model": name, "library": library} | dict.fromkeys(FACTS, "")
            try:
                found = attribute(loaded.model, x, label)
                row |= {"runs": "yes", "sum relative to the score": f"{float(found.detach().sum()) / score:.4g}"}
            except Exception as error:  # that it fails is the result
                row |= {"runs": "no", "error": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
            rows.append(row)
            print(*row.values(), sep=" | ", flush=True)
    with parser.parse_args().output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
