"""What the metrics of one model share.

Its inputs, and what doesn't depend on the method, computed once and kept on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from hilrp.jobs.bench.batches import Read, each_class, one_class, scores
from hilrp.jobs.bench.data import Inputs
from hilrp.jobs.bench.methods.perturbation import grid
from hilrp.jobs.bench.metrics.cells import SUPERPIXELS, numbered, superpixels, voronoi
from hilrp.jobs.bench.metrics.faithfulness import Subsets, subset_drops
from hilrp.jobs.bench.metrics.grids import candidates, composites
from hilrp.jobs.bench.metrics.insertion import end_probabilities
from hilrp.jobs.bench.metrics.removals import removed, values_over_removals
from hilrp.jobs.bench.metrics.shapley import shapley_values
from hilrp.jobs.store import Arrays, computed_once
from hilrp.models.libraries.loaded import Loaded
from hilrp.util.errors import InputError

#: What Shapley values over four removals are of: Voronoi cells of seeded points, and superpixels.
CELLS = ("Voronoi", "superpixels")
#: How many pictures the background of a run holds, and how many grids are tried for each one that is kept.
_BACKGROUND, _TRIED = 32, 8


@dataclass(frozen=True)
class Effort:
    """How much is spent on a figure.

    Attributes:
        images: How many images.
        few: On how many of them what needs the method again is measured (other classes, random weights, shifts).
        changed: On how many of them the score of changed pictures is looked at for each method (Faithfulness
            Correlation, pixel flipping, ROAD, SaCo, insertion and deletion).
        runs: Random subsets of Faithfulness Correlation.
        steps: Of pixel flipping.
        shapley_images, permutations: Of Shapley values: images and permutations.
        segments: What Shapley values are of: ``"grid"``, ``"slic"`` (superpixels) or ``"objects"`` (the true objects of
            a scene, and all the rest as one).
        cells: Cells of the grid a side; about as many superpixels as cells.
        paper_images, paper_permutations: Of Shapley values as in the paper, of superpixels: images and permutations.
        removal_permutations: Permutations of Shapley values over four removals, for each of them; of the same images.
        again: Whether methods that take hundreds of passes are run again for sanity checks, shifts and grids.
        grids: How many grids the grid pointing game has, of each size; each asks for a map of each of its classes.
        road: At which percentages of removed pixels ROAD looks.
        groups: Of SaCo.
        insertion_steps: Of insertion and of deletion.
    """

    images: int
    few: int
    changed: int
    runs: int
    steps: int
    shapley_images: int
    permutations: int
    cells: int
    segments: str = "grid"
    paper_images: int = 50
    paper_permutations: int = 64
    again: bool = True
    removal_permutations: int = 24
    grids: int = 10
    road: tuple[int, ...] = (10, 30, 50, 70)
    groups: int = 10
    insertion_steps: int = 16


@dataclass(eq=False)
class Context:
    """A model with the inputs of the benchmark.

    Attributes:
        loaded: The model.
        inputs: The inputs.
        effort: What is spent.
        folder: Where what is computed once is kept.
        damaged: What was found damaged there.
        randomised: Copies with shuffled parameters, by what is shuffled; made once for all methods.
    """

    loaded: Loaded
    inputs: Inputs
    effort: Effort
    folder: Path
    damaged: list[str] = field(default_factory=list)
    randomised: dict[str, nn.Module] = field(default_factory=dict)
    _segments: dict[int, Tensor] = field(default_factory=dict)

    @cached_property
    def baseline(self) -> Tensor:
        """Each image's mean colour: what is put where a pixel is taken away."""
        return self.inputs.x.mean((2, 3), keepdim=True).expand_as(self.inputs.x)

    @property
    def changed(self) -> tuple[Tensor, Tensor, Tensor]:
        """The images whose changed pictures are looked at, their classes and baselines."""
        count = self.effort.changed
        return self.inputs.x[:count], self.inputs.labels[:count], self.baseline[:count]

    @cached_property
    def score(self) -> Tensor:
        """The logits of the explained classes."""
        return scores(self.loaded.model, self.inputs.x, self.inputs.labels, fast=False)

    @property
    def read(self) -> Read:
        """What is read of logits: a class's probability, and whether the model says that class.

        In scenes several classes are right, and models are trained to say of each whether it is there.
        """
        scenes = all(sample.scene is not None for sample in self.inputs.samples)
        return each_class if scenes else one_class

    @cached_property
    def ends(self) -> Tensor:
        """The class's probability on the whole, on nothing and on the blurred picture of the first images."""
        x, labels, _ = self.changed
        return end_probabilities(self.loaded.model, x, labels, self.read)

    @cached_property
    def background(self) -> Tensor:
        """Pictures of the run, in a random order that is always the same: what methods take as their background."""
        order = torch.randperm(len(self.inputs.x), generator=torch.Generator().manual_seed(0))
        return self.inputs.x[order[:_BACKGROUND].to(self.inputs.x.device)]

    def grids(self, side: int) -> tuple[Tensor, Tensor]:
        """Grids of ``side`` x ``side`` pictures, ``[G,3,H,W]``, and the classes of their cells, ``[G,side * side]``.

        Of pictures that the model classifies correctly. Of grids that are tried those are kept whose least probable
        class is the most probable: where the model sees nothing, no map can point.
        """
        x, labels, model = self.inputs.x, self.inputs.labels, self.loaded.model

        def make() -> Arrays:
            right = scores(model, x, labels, read=self.read)[:, 1].nonzero()[:, 0]
            own = labels[right].tolist()
            shown = [{label, *self.inputs.things[i]} for i, label in zip(right.tolist(), own, strict=True)]
            tried = right[candidates(own, shown, side, _TRIED * self.effort.grids).to(x.device)]
            if not len(tried):
                return {"numbers": tried.cpu().numpy()}

            def least(logits: Tensor, grid: Tensor) -> Tensor:
                classes = labels[tried[grid]].unbind(1)
                return torch.stack([self.read(logits, each)[:, 0] for each in classes]).amin(0)

            grids = torch.arange(len(tried), device=x.device)
            order = scores(model, composites(x, tried, side), grids, read=least).argsort(descending=True, stable=True)
            return {"numbers": tried[order[: self.effort.grids]].cpu().numpy()}

        kept = computed_once(self.folder / f"grids-{side}.npz", make, ["numbers"], self.damaged)
        numbers = torch.from_numpy(kept["numbers"]).to(x.device)
        return composites(x, numbers, side), labels[numbers]

    def segments(self, i: int) -> Tensor:
        """The number of each pixel's segment in image ``i``, ``[H,W]``."""
        if i not in self._segments:
            height, width = self.inputs.x.shape[-2:]
            if self.effort.segments == "objects":
                # What is no object is one segment.
                cells = torch.zeros(height, width, dtype=torch.long)
                for number, mask in enumerate(self.inputs.things[i].values()):
                    cells[mask.cpu()] = 1 + number
            elif self.effort.segments == "slic":
                cells = self.superpixels(i, self.effort.cells**2)
            else:
                cells = grid(height, width, self.effort.cells)
            self._segments[i] = numbered(cells).to(self.inputs.x.device)
        return self._segments[i]

    def superpixels(self, i: int, count: int) -> Tensor:
        """About so many superpixels of image ``i``, ``[H,W]``, on the host."""
        seen = self.loaded.preprocess.picture(self.inputs.x[i])
        return superpixels(self.inputs.x[i] if seen is None else seen, count)

    def cells(self, kind: str) -> Tensor:
        """Cells of the first images that no method uses, one of the `CELLS`: each pixel's number, ``[B,H,W]``."""
        count, (height, width) = min(self.effort.shapley_images, len(self.inputs.x)), self.inputs.x.shape[-2:]

        def make() -> Arrays:
            found = [
                voronoi(height, width, i) if kind == "Voronoi" else self.superpixels(i, SUPERPIXELS)
                for i in range(count)
            ]
            return {"cells": torch.stack(found).numpy()}

        kept = computed_once(self.folder / f"cells-{kind}.npz", make, ["cells"], self.damaged)
        return torch.from_numpy(kept["cells"]).to(self.inputs.x.device)

    def removal_values(self, kind: str) -> list[Tensor]:
        """Shapley values of such cells with each removal, ``[removals,cells]`` for each of the first images."""
        cells = self.cells(kind)
        x, labels, model, count = self.inputs.x, self.inputs.labels, self.loaded.model, len(cells)
        known = self.loaded.preprocess

        def make() -> Arrays:
            if known.mean is None or known.std is None:
                raise InputError(f"{self.loaded.name}: what black is after its preprocessing isn't known.")
            black = -torch.tensor(known.mean) / torch.tensor(known.std)
            fills = removed(model, x[:count], black)
            found = values_over_removals(
                model, x[:count], labels[:count], cells, fills, self.effort.removal_permutations
            )
            return {str(i): values.cpu().numpy() for i, values in enumerate(found)}

        kept = computed_once(self.folder / f"removals-{kind}.npz", make, map(str, range(count)), self.damaged)
        return [torch.from_numpy(kept[str(i)]).to(x.device) for i in range(count)]

    @property
    def patch(self) -> int:
        """The side of the model's patches; a sixteenth of the picture, where it has none of that size."""
        side = self.inputs.x.shape[-1] // 16
        size = getattr(getattr(self.loaded.model, "patch_embed", None), "patch_size", None)
        own = size[0] if isinstance(size, (tuple, list)) else size
        return own if isinstance(own, int) and own >= 8 else side

    def subset_drops(self, subsets: Subsets) -> Tensor:
        """What the score of the first images loses without each of some random subsets of pixels."""
        x, labels, baseline = self.changed

        def make() -> Arrays:
            return {"drops": subset_drops(self.loaded.model, x, labels, baseline, subsets).cpu().numpy()}

        kept = computed_once(self.folder / f"subsets-{subsets.cell}.npz", make, ["drops"], self.damaged)
        return torch.from_numpy(kept["drops"]).to(x.device)

    @cached_property
    def paper(self) -> Context:
        """The same inputs with Shapley values as the paper has them: SLIC segments, 50 images, 64 permutations."""
        images, permutations = self.effort.paper_images, self.effort.paper_permutations
        effort = replace(self.effort, segments="slic", shapley_images=images, permutations=permutations)
        return replace(self, effort=effort, folder=self.folder / "paper", _segments={})

    def shapley(self) -> list[Tensor]:
        """Shapley values of the segments of the first images."""
        x, labels, model = self.inputs.x, self.inputs.labels, self.loaded.model
        count = min(self.effort.shapley_images, len(x))

        def make() -> Arrays:
            found = [
                shapley_values(model, x[i], labels[i], self.segments(i), self.baseline[i], self.effort.permutations, i)
                for i in range(count)
            ]
            return {str(i): values.cpu().numpy() for i, values in enumerate(found)}

        kept = computed_once(self.folder / "shapley.npz", make, map(str, range(count)), self.damaged)
        return [torch.from_numpy(kept[str(i)]).to(x.device) for i in range(count)]

    def effects(self) -> dict[int, Tensor]:
        """What the score of the explained class loses without each object, by the number of the sample.

        Only scenes with several objects have an entry.
        """
        from PIL import Image

        several = {
            i: sample.scene
            for i, sample in enumerate(self.inputs.samples)
            if sample.scene is not None and len(sample.scene.things) > 1
        }

        def make() -> Arrays:
            found = {}
            for i, scene in several.items():
                without = [Image.fromarray(scene.without(thing.label)) for thing in scene.things]
                labels = self.inputs.labels[i].expand(len(without))
                lost = self.score[i] - scores(self.loaded.model, self.loaded.batch(without), labels)
                found[str(i)] = lost.cpu().numpy()
            return found

        kept = computed_once(self.folder / "effects.npz", make, map(str, several), self.damaged)
        return {i: torch.from_numpy(kept[str(i)]).to(self.inputs.x.device) for i in several}
