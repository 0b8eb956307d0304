"""Steps, cells, softness and fill of chains at each budget, and their maps beside those of other methods.

    python benchmarks/chain_settings.py --output out/chains [--seconds 500] [--images 48] [--most 128] [--device cuda]
    python benchmarks/chain_settings.py --output out/chains --part report [--images 100]
    python benchmarks/chain_settings.py --output out/chains --part prepare    # superpixels, on a machine with skimage
    python benchmarks/chain_settings.py --output out/chains --part summary    # what there is so far, also as .csv

``tune`` goes through settings on photographs of odd number, the most important first; a setting that is done is not
done again. All budgets of a setting are read off one run, since the pairs of a small budget are the first of a larger
one. ``report`` measures methods of the benchmark on photographs of even number, with published weights, and on scenes
with the models of the zoo. Figures are those of `hilrp bench`: Shapley agreement over four removals with its ceiling,
calibration, flip, localisation; and ``seam``, how much maps change across the borders of steps relative to elsewhere,
divided by the same of the map of one pass (1: no borders show). Each row goes to ``tune.jsonl`` or ``report.jsonl``
with the figures of every image, and their means to a ``.csv`` beside it.

Variants that are tried beside the mean of pairs:
    mixed fill     half of the pairs with the reference, half with the blurred picture as the fill
    mixed cells    half of the pairs with other cells
    toward one     a part of the map of one pass mixed in (it sums to the same, so that the mixture does, too)
    shrunk         the same with a part for each image that the spread of the pairs says (James and Stein)
"""

from __future__ import annotations

import argparse
import csv
import io
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pictures
import torch
from torch import Tensor

import hilrp
from hilrp.attribution import chains as chains_module
from hilrp.jobs.bench import methods
from hilrp.jobs.bench.context import Context
from hilrp.jobs.bench.measures import MEASURES
from hilrp.jobs.bench.metrics.cells import SUPERPIXELS
from hilrp.jobs.bench.metrics.seams import borders, seam_ratio
from hilrp.jobs.bench.over_removals import over_removals
from hilrp.jobs.store import append_row, computed_once, read_rows
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError
from hilrp.util.memory import in_parts

#: Settings are tried with so many passes at first, and then those that are worth it with more.
SMALL = 32
BUDGETS = (2, 4, 8, 16, 32, 64, 128)
STEPS, CELLS, SOFTNESS = (2, 4, 3, 8), (7, 14, 10, 4), (1.0, 2.0, 0.5)
#: About how many superpixels chains have: another number than those of the measure.
OWN_SUPERPIXELS = 2 * SUPERPIXELS
PARTS = (0.1, 0.25, 0.5)
PERMUTATIONS = 24
METHODS = (
    *(f"secant:passes={n}" if n > 1 else "secant" for n in (8, 1, 32, 2, 4, 16, 64, 128)),
    "lime", "rise", "occlusion", "hilrp", "grad-cam", "integrated-gradients", "grad-cam++", "smoothgrad", "vargrad",
    "gradient-shap", "saliency", "input-x-gradient", "epsilon", "attnlrp", "rollout", "attention-gradient",
    "uniform", "random", "centre-gaussian",
)  # fmt: skip
#: What a line on the screen and the summary show.
SHOWN = {
    "Shapley agreement, four removals (Voronoi)": "Shapley", "Shapley agreement, four removals (superpixels)": "SLIC",
    "flip": "flip", "calibration (Voronoi)": "calibration", "energy excess": "energy", "pointing": "pointing",
    "average precision": "AP", "seam": "seam",
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What is tried."""

    steps: int
    cells: int | str
    softness: float = 1.0
    fill: str = "reference"

    def chains(self, draws: int, superpixels: Tensor | None) -> hilrp.Chains:
        """Chains of this setting; softness is a constant of the module."""
        cells = superpixels if isinstance(self.cells, str) else self.cells
        return hilrp.Chains(self.steps, draws, cells, None if self.fill == "reference" else self.fill)

    @property
    def is_main(self) -> bool:
        """Whether it is one of those that variants are made of."""
        return self == Setting(self.steps, self.cells) and self.steps in (2, 4) and self.cells in (7, 14)


def settings(most: int) -> Iterator[tuple[Setting, int]]:
    """Settings with their largest budgets, the most important first."""
    first = [Setting(steps, cells) for steps in STEPS for cells in (*CELLS, "superpixels")]
    order = sorted(first, key=lambda each: STEPS.index(each.steps) + (*CELLS, "superpixels").index(each.cells))
    small = min(most, SMALL)
    yield from ((each, small) for each in order)
    main = [each for each in order if each.is_main]
    for softness in SOFTNESS[1:]:
        yield from ((replace(each, softness=softness), small) for each in main)
    yield from ((replace(each, fill="blurred"), small) for each in main)
    if most > small:
        yield from ((each, most) for each in order if each.cells != 4)
    rest = [each for each in order if each not in main]
    for softness in SOFTNESS[1:]:
        yield from ((replace(each, softness=softness), small) for each in rest if each.cells != "superpixels")
    yield from ((replace(each, fill="blurred"), small) for each in rest)


class Judge:
    """One model with its pictures, ready to judge maps."""

    def __init__(self, source: str, name: str, context: Context, options: argparse.Namespace) -> None:
        self.source, self.name, self.context, self.batch = source, name, context, pictures.batch_of(options)
        known = pictures.known_cells(context)
        self.kinds = known if options.part == "report" else known[:1]
        self.explainer = hilrp.Explainer(
            context.loaded.model, "secant", audit="off", stages=None, compile=options.compile
        )
        self.superpixels: Tensor | None = None
        if "superpixels" in known:
            kept = computed_once(context.folder / "cells-chains.npz", self._own_superpixels, ["cells"])
            self.superpixels = torch.from_numpy(kept["cells"]).to(context.inputs.x.device)
        self._one: Tensor | None = None
        self.kept: dict[tuple[Setting, int], Tensor] = {}

    def _own_superpixels(self) -> dict[str, np.ndarray]:
        context = self.context
        found = [context.superpixels(i, OWN_SUPERPIXELS) for i in range(len(context.inputs.x))]
        return {"cells": torch.stack(found).numpy()}

    @property
    def one_pass(self) -> Tensor:
        """The map of one pass."""
        if self._one is None:
            self._one = self._explained(lambda part: 1).map
        return self._one

    def _explained(self, passes: Any) -> Any:
        x, labels = self.context.inputs.x, self.context.inputs.labels

        def run(part: slice) -> Any:
            return self.explainer.explain(x[part], labels[part], passes=passes(part))

        parts, _ = in_parts(run, len(x), self.batch)
        joined = {"map": torch.cat([part.map for part in parts])}
        if parts[0].pairs is not None:
            joined["pairs"] = torch.cat([part.pairs for part in parts])
        return argparse.Namespace(**joined)

    def chains(self, setting: Setting, draws: int, part: slice = slice(None)) -> hilrp.Chains:
        """Chains of a setting for some of the photographs."""
        return setting.chains(draws, None if self.superpixels is None else self.superpixels[part])

    def single(self, setting: Setting) -> Tensor:
        """The map of one chain."""
        with softness(setting.softness):
            return self._explained(partial(self.chains, setting, 1)).map

    def pairs(self, setting: Setting, budget: int) -> Tensor:
        """The maps of as many pairs as a budget has, ``[images,pairs,H,W]``."""
        if (setting, budget) in self.kept:
            return self.kept[setting, budget]
        count = max(1, budget // (2 * setting.steps))
        with softness(setting.softness):
            found = self._explained(partial(self.chains, setting, 2 * count))
        pairs = found.pairs if count > 1 else found.map[:, None]
        if setting.is_main and budget <= SMALL:  # those that others are mixed with
            self.kept[setting, budget] = pairs
        return pairs

    def judged(self, maps: Tensor) -> dict[str, list[float]]:
        """The benchmark's figures, one for each image."""
        found: dict[str, Tensor] = {}
        for name in ("localisation", "flipping"):
            found |= MEASURES[name].function(self.context, methods.METHODS["secant"], maps)
        for kind in self.kinds:
            found |= over_removals(self.context, maps, kind)
        return {name: value.double().cpu().tolist() for name, value in found.items()}

    def seams(self, setting: Setting, draws: int, maps: Tensor) -> dict[str, list[float]]:
        """How much the borders of chains show, relative to how much the map of one pass changes there."""
        with softness(setting.softness):
            found = borders(self.chains(setting, draws), self.context.inputs.x)
        own, before = seam_ratio(maps, found), seam_ratio(self.one_pass, found)
        return {"seam": (own / before).tolist(), "seam, as it is": own.tolist()}


class softness:
    """Sets the softness of masks for some time."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __enter__(self) -> None:
        self.before, chains_module.SOFTNESS = chains_module.SOFTNESS, self.value

    def __exit__(self, *error: object) -> None:
        chains_module.SOFTNESS = self.before


def passes_of(setting: Setting, budget: int) -> int | None:
    """The most passes within a budget that chains of a setting can have; ``None`` if that is a smaller budget's."""
    whole = budget - budget % (2 * setting.steps) or (setting.steps if setting.steps <= budget else 0)
    return whole if whole > budget // 2 else None


def tune_one(judge: Judge, setting: Setting, most: int) -> Iterator[dict[str, Any]]:
    """Rows of one setting: each budget, and variants of it."""
    largest = passes_of(setting, most)
    pairs = None if largest is None or largest < 2 * setting.steps else judge.pairs(setting, largest)
    for budget in BUDGETS:
        passes = passes_of(setting, budget)
        if budget > most or passes is None:
            continue
        count = passes // (2 * setting.steps)
        if not count:
            maps = judge.single(setting)
        else:
            assert pairs is not None
            maps = pairs[:, :count].mean(1)
        row = {"budget": budget, "passes": passes, **asdict(setting), "pairs": count, "variant": "mean"}
        seams = judge.seams(setting, 2 * count or 1, maps) if passes <= SMALL else {}
        yield row | {"figures": judge.judged(maps) | seams}
        for name, extra, other in variants(judge, setting, largest or 0, pairs, count, maps):
            yield row | {"variant": name, "passes": passes + extra, "figures": judge.judged(other)}


def variants(
    judge: Judge, setting: Setting, largest: int, pairs: Tensor | None, count: int, maps: Tensor
) -> Iterator[tuple[str, int, Tensor]]:
    """Other maps from the same pairs: a name, how many passes more they take, and the maps."""
    if setting.is_main:
        one = judge.one_pass
        for part in PARTS:
            yield f"toward one, {part}", 1, (1 - part) * maps + part * one
        if count > 1:
            assert pairs is not None
            spread = pairs[:, :count].double().var(1).sum((1, 2)) / count
            away = (maps - one).double().square().sum((1, 2))
            kept = (1 - spread / away).clamp(0, 1).to(maps)[:, None, None]
            yield "shrunk", 1, one + kept * (maps - one)
    half = count // 2
    if pairs is None or not half:
        return
    others = {"mixed fill": replace(setting, fill="reference"), "mixed cells 7 and 14": replace(setting, cells=7)}
    for name, other in others.items():
        if other.is_main and other != setting and (name == "mixed fill" or setting.is_main):
            # The second half of the pairs: the first ones of both settings are drawn from the same numbers.
            mixed = torch.cat([judge.pairs(other, largest)[:, :half], pairs[:, half : 2 * half]], 1)
            yield name, 0, mixed.mean(1)


def tune(options: argparse.Namespace, rows: Rows, start: float) -> None:
    judges = made(options, pictures.TUNING, steps=8)
    for setting, most in settings(options.most):
        for judge in judges:
            if time.monotonic() - start > options.seconds:
                print("no time left", flush=True)
                return
            key = {"source": judge.source, "model": judge.name, **asdict(setting), "most": most}
            if (isinstance(setting.cells, str) and judge.superpixels is None) or rows.has(key):
                continue
            began = time.monotonic()
            for row in tune_one(judge, setting, most):
                rows.add(key | row)
            rows.done(key | {"seconds": time.monotonic() - began})


def report(options: argparse.Namespace, rows: Rows, start: float) -> None:
    judges = made(options, pictures.REPORT, steps=16)
    for name in options.methods or METHODS:
        for judge in judges:
            if time.monotonic() - start > options.seconds:
                print("no time left", flush=True)
                return
            key = {"source": judge.source, "model": judge.name, "method": name}
            if rows.has(key):
                continue
            x, labels = judge.context.inputs.x, judge.context.inputs.labels
            began = time.monotonic()
            try:
                maps = torch.cat([
                    methods.find(name)(judge.context.loaded.model, *part)
                    for part in zip(x.split(judge.batch), labels.split(judge.batch), strict=True)
                ])  # fmt: skip
            except HilrpError as error:  # it has no meaning on this model, or needs a package
                print(f"{judge.name} {name}: {error}", flush=True)
                continue
            taken = time.monotonic() - began
            rows.add(key | {"seconds": taken, "figures": judge.judged(maps)})
            rows.done(key)


def made(options: argparse.Namespace, half: int, steps: int) -> list[Judge]:
    found = []
    for source, name, context in pictures.contexts(options, half, options.permutations, steps):
        began = time.monotonic()
        found.append(Judge(source, name, context, options))
        if options.part != "prepare":
            for kind in found[-1].kinds:
                context.removal_values(kind)
        taken = time.monotonic() - began
        print(f"{name}: {len(context.inputs.x)} {source}, Shapley values in {taken:.0f} s", flush=True)
    return found


class Rows:
    """Rows of results, written as they come. A row without figures says that all of a kind are there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.finished: list[dict[str, Any]] = []
        self.means: list[dict[str, Any]] = []
        for row in read_rows(path):
            self._note(row)

    def has(self, key: Mapping[str, Any]) -> bool:
        """Whether all rows of a kind are there."""
        return any(key.items() <= row.items() for row in self.finished)

    def add(self, row: dict[str, Any]) -> None:
        """Writes a row, and shows it."""
        append_row(self.path, row)
        self._note(row)
        shown = "  ".join(
            f"{short} {self.means[-1][name]:.3f}" for name, short in SHOWN.items() if name in row["figures"]
        )
        about = " ".join(str(value) for name, value in row.items() if name != "figures")
        print(f"{about:70s}", shown, flush=True)

    def done(self, key: dict[str, Any]) -> None:
        """Writes that all rows of a kind are there, and the means of all so far."""
        append_row(self.path, key | {"done": True})
        self._note(key)
        self.write_means()

    def write_means(self) -> None:
        """Writes the mean of every figure over the images, a line for each row."""
        columns = list(dict.fromkeys(name for row in self.means for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(self.means)
        write_whole(self.path.with_suffix(".csv"), text.getvalue())

    def _note(self, row: dict[str, Any]) -> None:
        """Keeps the mean of every figure of a row, or that all rows of a kind are there."""
        if "figures" not in row:
            self.finished.append(row)
            return
        facts = {name: value for name, value in row.items() if name != "figures"}
        self.means.append(facts | {name: mean(values) for name, values in row["figures"].items()})

    def summary(self, top: int) -> str:
        """Means over models: of each budget the settings with the best Shapley agreement, or all methods."""
        own = ["source", *(f.name for f in Setting.__dataclass_fields__.values()), "budget", "variant", "method"]
        groups: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
        for row in self.means:  # of runs with several largest budgets the last one counts
            groups.setdefault(tuple(row.get(name) for name in own), {})[row["model"]] = row
        models: dict[str, set[str]] = {}
        for row in self.means:
            models.setdefault(row["source"], set()).add(row["model"])
        lines: dict[Any, list[tuple[float, str]]] = {}
        for key, by_model in groups.items():
            if set(by_model) != models[key[0]]:
                continue
            figures = {
                short: fmean(row.get(name, float("nan")) for row in by_model.values()) for name, short in SHOWN.items()
            }
            about = " ".join(str(part) for part in key if part is not None)
            shown = "  ".join(f"{short} {value:.3f}" for short, value in figures.items())
            found = lines.setdefault((key[0], key[own.index("budget")]), [])
            found.append((figures["Shapley"], f"{about:56s} {shown}"))
        return "\n\n".join(
            "\n".join(line for _, line in sorted(found, reverse=True)[:top]) for _, found in sorted(lines.items())
        )


def mean(values: list[float]) -> float:
    """The mean of those that are numbers."""
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def main() -> None:
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("tune", "report", "prepare", "summary"), default="tune")
    parser.add_argument("--most", type=int, default=128, help="the largest budget")
    parser.add_argument("--permutations", type=int, default=PERMUTATIONS, help="of Shapley values, for each removal")
    parser.add_argument("--methods", nargs="*", help="methods of the report instead of all")
    pictures.add_options(parser, images=48)
    options = parser.parse_args()
    if options.part == "prepare":
        for half in (pictures.TUNING, pictures.REPORT):
            made(options, half, steps=8)
        return
    if options.part == "summary":
        for name, top in (("tune", 25), ("report", 100)):
            rows = Rows(options.output / f"{name}.jsonl")
            rows.write_means()
            print(rows.summary(top), "\n")
        return
    rows = Rows(options.output / f"{options.part}.jsonl")
    (tune if options.part == "tune" else report)(options, rows, start)
    print(f"{time.monotonic() - start:.0f} s, in {options.output}", flush=True)


if __name__ == "__main__":
    main()
