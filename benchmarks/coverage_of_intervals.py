"""How often intervals of nominal 95 % hold the value of many more passes: on photographs, and on scenes.

    python benchmarks/coverage_of_intervals.py --output out/coverage [--images 16] [--passes 16 32 64] [--truth 1024]
        [--sources photographs scenes] [--seconds 500] [--device cuda]
    python benchmarks/coverage_of_intervals.py --output out/coverage --summary

For each model, image and region: whether the interval from so many passes holds the region's relevance in ``--truth``
passes of the same steps, cells and fill with other seeds. Regions are random rectangles, Voronoi cells, superpixels
(where scikit-image is installed), and the object. Photographs are those of even number, with the published models;
scenes have the models of the zoo. What is done is kept: a run that was stopped goes on. Rows go to ``coverage.jsonl``.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pictures
import torch
from torch import Tensor

import hilrp
from hilrp.attribution.error_bars import RegionSum, standard_error
from hilrp.jobs.bench.context import Context
from hilrp.jobs.store import append_row, computed_once, read_rows
from hilrp.util.memory import in_parts

RECTANGLES = 40
#: Passes of one part of the truth, which has a seed of its own.
PART = 128


@dataclass(frozen=True, eq=False)
class Regions:
    """Regions of every image.

    Attributes:
        masks: ``[images,regions,H,W]``, 0 or 1.
        kinds: The kind of each region.
    """

    masks: Tensor
    kinds: list[str]

    def sums(self, maps: Tensor) -> Tensor:
        """The sums of maps ``[images,n,H,W]`` over regions: ``[images,n,regions]``."""
        pairs = zip(maps.double(), self.masks, strict=True)
        return torch.stack([each.flatten(1) @ masks.double().flatten(1).T for each, masks in pairs])


def regions_of(context: Context) -> Regions:
    """Random rectangles, cells, and the object."""
    masks, kinds = [], []
    height, width = context.inputs.x.shape[-2:]
    chance = torch.Generator().manual_seed(0)
    for _ in range(RECTANGLES):
        share = 0.1 + 0.5 * torch.rand(2, generator=chance)
        place = torch.rand(2, generator=chance) * (1 - share)
        top, left, bottom, right = (
            int(p * side) for p, side in zip([*place, *(place + share)], (height, width) * 2, strict=True)
        )
        mask = torch.zeros(height, width)
        mask[top:bottom, left:right] = 1
        masks.append(mask.expand(len(context.inputs.x), -1, -1).to(context.inputs.x.device))
        kinds.append("rectangles")
    for kind in pictures.known_cells(context):
        cells = context.cells(kind)
        for number in range(int(cells.max()) + 1):
            masks.append((cells == number).float())
            kinds.append(kind)
    return Regions(torch.stack([*masks, context.inputs.masks.float()], 1), [*kinds, "object"])


class Intervals:
    """One model with its images and regions."""

    def __init__(self, context: Context, options: argparse.Namespace) -> None:
        self.context, self.regions, self.batch = context, regions_of(context), pictures.batch_of(options)
        self.explainer = hilrp.Explainer(
            context.loaded.model, "secant", audit="off", stages=None, compile=options.compile
        )

    def pairs(self, chains: hilrp.Chains) -> Tensor:
        """What each pair of chains finds in each region, ``[images,pairs,regions]``."""
        x, labels = self.context.inputs.x, self.context.inputs.labels

        def run(part: slice) -> Tensor:
            found = self.explainer.explain(x[part], labels[part], passes=chains).pairs
            return replace(self.regions, masks=self.regions.masks[part]).sums(found)

        return torch.cat(in_parts(run, len(x), self.batch)[0])

    def kept(self, chains: hilrp.Chains) -> Tensor:
        """The same, computed once."""
        name = f"pairs-{chains.steps}-{chains.cells}-{chains.seed}-{chains.draws}.npz"
        found = computed_once(
            self.context.folder / name, lambda: {"pairs": self.pairs(chains).cpu().numpy()}, ["pairs"]
        )
        return torch.from_numpy(found["pairs"])

    def coverage(self, pairs: Tensor, truth: Tensor) -> dict[str, dict[str, float]]:
        """Of each kind of regions: how many there are, in how many the interval holds the truth, and its width."""
        total, error = pairs.mean(1), standard_error(pairs)
        interval = RegionSum(total, total, error, error, pairs.shape[1]).interval(0.95)
        assert interval is not None
        low, high = interval
        there = torch.stack([masks.flatten(1).any(1) for masks in self.regions.masks]).cpu()
        inside = (low <= truth) & (truth <= high)
        found = {}
        for kind in dict.fromkeys(self.regions.kinds):
            own = there & torch.tensor([each == kind for each in self.regions.kinds])
            width = ((high - low) / 2 / truth.abs().clamp(min=1e-12))[own].median()
            counts = {"regions": int(own.sum()), "inside": int(inside[own].sum())}
            found[kind] = counts | {"half width, relative (median)": float(width)}
        return found


def measure(options: argparse.Namespace, path: Path, start: float) -> None:
    rows = list(read_rows(path))
    groups: dict[tuple[int, Any], list[hilrp.Chains]] = {}
    for passes in sorted(options.passes):
        chains = hilrp.Chains.of(passes)
        groups.setdefault((chains.steps, chains.cells), []).append(chains)
    for source, name, context in pictures.contexts(options, pictures.REPORT, permutations=2, steps=1):
        intervals = Intervals(context, options)
        for (steps, cells), own in groups.items():
            key = {"source": source, "model": name, "steps": steps, "cells": cells, "truth": options.truth}
            key |= {"images": len(context.inputs.x)}
            wanted = [key | {"passes": each.passes} for each in own]
            if all(any(each.items() <= row.items() for row in rows) for each in wanted):
                continue
            began, parts = time.monotonic(), []
            for seed in range(1, 1 + math.ceil(options.truth / PART)):
                if time.monotonic() - start > options.seconds:
                    print("no time left", flush=True)
                    return
                parts.append(intervals.kept(hilrp.Chains(steps, min(PART, options.truth) // steps, cells, seed=seed)))
            truth = torch.cat(parts, 1).mean(1)
            pairs = intervals.kept(own[-1])
            for each in own:
                kinds = intervals.coverage(pairs[:, : each.draws // 2], truth)
                row = key | {"passes": each.passes, "kinds": kinds, "seconds": time.monotonic() - began}
                append_row(path, row)
                print(line(f"{source} {name} {each.passes}", [row]), flush=True)


def line(title: str, rows: list[dict[str, Any]]) -> str:
    """The share of regions inside, of each kind and of all, over some rows."""
    kinds = dict.fromkeys(kind for row in rows for kind in row["kinds"])
    counted = {kind: [row["kinds"][kind] for row in rows if kind in row["kinds"]] for kind in kinds}
    counted["all"] = [each for own in counted.values() for each in own]
    shares = {kind: sum(e["inside"] for e in own) / sum(e["regions"] for e in own) for kind, own in counted.items()}
    return f"{title:34s}" + "  ".join(f"{kind} {share:.3f}" for kind, share in shares.items())


def summary(path: Path) -> str:
    """Coverage over all models of a source, at each number of passes; each model counts by its regions."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in read_rows(path):
        groups.setdefault((row["source"], row["passes"]), []).append(row)
    return "\n".join(
        line(f"{source}, {passes} passes, {len({row['model'] for row in rows})} models", rows)
        for (source, passes), rows in sorted(groups.items())
    )


def main() -> None:
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pictures.add_options(parser, images=16)
    parser.add_argument("--passes", type=int, nargs="*", default=[16, 32, 64])
    parser.add_argument("--truth", type=int, default=1024)
    parser.add_argument("--summary", action="store_true", help="say what there is so far")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "coverage.jsonl"
    if not options.summary:
        measure(options, path, start)
    print(summary(path))


if __name__ == "__main__":
    main()
