"""What the metrics of one model share.

Its inputs, and what doesn't depend on the method, computed once and kept on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from hilrp.jobs.bench.batches import scores
from hilrp.jobs.bench.data import Inputs
from hilrp.jobs.bench.methods.perturbation import grid
from hilrp.jobs.bench.metrics.faithfulness import Subsets, subset_drops
from hilrp.jobs.bench.metrics.shapley import shapley_values
from hilrp.jobs.store import Arrays, computed_once
from hilrp.models.libraries.loaded import Loaded


@dataclass(frozen=True)
class Effort:
    """How much is spent on a figure.

    Attributes:
        images: How many images.
        few: On how many of them what needs the method again is measured (other classes, random weights, shifts).
        changed: On how many of them the score of changed pictures is looked at for each method (Faithfulness
            Correlation, pixel flipping).
        runs: Random subsets of Faithfulness Correlation.
        steps: Of pixel flipping.
        shapley_images, permutations: Of Shapley values: images and permutations.
        segments: What Shapley values are of: ``"grid"``, ``"slic"`` (superpixels) or ``"objects"`` (the true objects of
            a scene, and all the rest as one).
        cells: Cells of the grid a side; about as many superpixels as cells.
        again: Whether methods that take hundreds of passes are run again for sanity checks and shifts.
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
    again: bool = True


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
                cells = self._superpixels(i)
            else:
                cells = grid(height, width, self.effort.cells)
            # Segments that nothing is left of have no number.
            self._segments[i] = torch.unique(cells, return_inverse=True)[1].to(self.inputs.x.device)
        return self._segments[i]

    def _superpixels(self, i: int) -> Tensor:
        from skimage.segmentation import slic

        seen = self.loaded.preprocess.picture(self.inputs.x[i])
        picture = (self.inputs.x[i] if seen is None else seen).permute(1, 2, 0).cpu().numpy()
        return torch.from_numpy(slic(picture, n_segments=self.effort.cells**2, compactness=10, start_label=0)).long()

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
