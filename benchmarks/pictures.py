"""Pictures as models take them, for benchmarks of chains: photographs with published models, scenes with the zoo's."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

import hilrp
from hilrp.jobs.bench.context import CELLS, Context, Effort
from hilrp.jobs.bench.data import Sample, find, inputs_for
from hilrp.jobs.bench.suites import PUBLISHED
from hilrp.models.libraries.loaded import Loaded
from hilrp.zoo.architectures import ARCHITECTURES

#: Photographs with boxes, and photographs with masks.
FOLDERS = ("imagenet_val", "pets")
#: Settings are chosen on photographs of odd number, and figures are reported on those of even number.
TUNING, REPORT = 1, 0
SOURCES = ("photographs", "scenes")


def add_options(parser: argparse.ArgumentParser, images: int) -> None:
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="folder with checkpoints and images")
    parser.add_argument("--output", type=Path, required=True, help="folder for the results, which are written at once")
    parser.add_argument("--images", type=int, default=images, help="photographs for each model, half with boxes")
    parser.add_argument("--sources", nargs="*", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--models", nargs="*", choices=list(PUBLISHED.values()), default=list(PUBLISHED.values()))
    parser.add_argument("--zoo", nargs="*", choices=list(ARCHITECTURES), default=list(ARCHITECTURES))
    parser.add_argument("--batch", type=int, help="images at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="nothing is begun after this time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="record passes as CUDA graphs")


def photographs(shared: Path, count: int, half: int) -> list[Sample]:
    """So many photographs of even or odd number, evenly chosen, from both folders in turn."""
    found = []
    for number, folder in enumerate(FOLDERS):
        own = find(str(shared / "images" / folder))[half::2]
        part = (count + 1 - number) // 2
        found.append([own[round(i * (len(own) - 1) / max(1, part - 1))] for i in range(min(part, len(own)))])
    longest = max(map(len, found))
    return [own[i] for i in range(longest) for own in found if i < len(own)]


def contexts(
    options: argparse.Namespace, half: int, permutations: int, steps: int
) -> Iterator[tuple[str, str, Context]]:
    """The source of pictures and the name of each model, with its pictures and what the measures share.

    Args:
        options: What `add_options` has asked for.
        half: Photographs of even or of odd number. Of scenes there is one half, that which is reported.
        permutations: Of Shapley values.
        steps: Of pixel flipping.
    """

    def context(loaded: Loaded, samples: list[Sample], folder: str) -> Context:
        size = len(samples)
        effort = Effort(
            images=size, few=min(8, size), changed=size, runs=1, steps=steps, shapley_images=size,
            permutations=permutations, cells=8, removal_permutations=permutations,
        )  # fmt: skip
        folder = f"{folder}-{size}-{permutations}"
        return Context(loaded, inputs_for(loaded, samples), effort, options.output / "shared" / folder)

    if "photographs" in options.sources:
        samples = photographs(options.shared, options.images, half)
        for name, file in PUBLISHED.items():
            if file in options.models:
                loaded = hilrp.load(name, options.shared / "checkpoints" / f"{file}.safetensors", device=options.device)
                yield "photographs", file, context(loaded, samples, f"{file}-{half}")
    if "scenes" in options.sources and half == REPORT:
        scenes = find("scenes", options.images)
        for family in options.zoo:
            yield "scenes", family, context(hilrp.load(f"zoo/{family}", device=options.device), scenes, f"zoo-{family}")


def known_cells(context: Context) -> list[str]:
    """The kinds of cells that can be had: superpixels need scikit-image, or a run with it into the same folder."""
    found = []
    for kind in CELLS:
        try:
            context.cells(kind)
        except ModuleNotFoundError as error:
            print(f"no {kind}: {error.name} is not installed, and none are kept in {context.folder}", flush=True)
            continue
        found.append(kind)
    return found


def batch_of(options: argparse.Namespace) -> int:
    """How many images are explained at once."""
    return options.batch or (48 if torch.device(options.device).type == "cuda" else 4)
