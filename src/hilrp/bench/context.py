"""What the metrics of one model share: its inputs, and what doesn't depend on the method, computed once and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hilrp.bench.data import Inputs
from hilrp.bench.methods.perturbation import grid
from hilrp.bench.metrics.faithfulness import Subsets, scores, subsets
from hilrp.bench.metrics.shapley import shapley_values
from hilrp.files import write_whole
from hilrp.libraries.loaded import Loaded


@dataclass(frozen=True)
class Effort:
    """How much is spent on a figure.

    Attributes:
        images: How many images.
        few: On how many of them what needs the method again is measured (other classes, random weights, shifts).
        runs: Random subsets of Faithfulness Correlation.
        steps: Of pixel flipping.
        shapley_images, permutations: Of Shapley values: images and permutations.
        segments: What Shapley values are of: ``"grid"``, ``"slic"`` (superpixels) or ``"objects"`` (the true objects of a scene, and the
            ground in a grid).
        cells: Cells of the grid a side; about as many superpixels as cells.
        again: Whether methods that take hundreds of passes are run again for sanity checks and shifts.
    """

    images: int
    few: int
    runs: int
    steps: int
    shapley_images: int
    permutations: int
    cells: int
    segments: str = "grid"
    again: bool = True


@dataclass(eq=False)
class Context:
    """A model with the inputs of the benchmark."""

    loaded: Loaded
    inputs: Inputs
    effort: Effort
    folder: Path
    _kept: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    @cached_property
    def baseline(self) -> Tensor:
        """Each image's mean colour: what is put where a pixel is taken away."""
        return self.inputs.x.mean((2, 3), keepdim=True).expand_as(self.inputs.x)

    @cached_property
    def score(self) -> Tensor:
        """The logits of the explained classes."""
        return scores(self.loaded.model, self.inputs.x, self.inputs.labels)

    def segments(self, i: int) -> Tensor:
        """The number of each pixel's segment in image ``i``, ``[H,W]``."""
        height, width = self.inputs.x.shape[-2:]
        cells = grid(height, width, self.effort.cells)
        scene = self.inputs.samples[i].scene
        if self.effort.segments == "slic":
            cells = self._superpixels(i)
        elif self.effort.segments == "objects" and scene is not None:
            for number, thing in enumerate(scene.things):
                cells[torch.from_numpy(thing.mask)] = self.effort.cells**2 + number
        # Segments that nothing is left of have no number.
        return torch.unique(cells, return_inverse=True)[1].to(self.inputs.x.device)

    def _superpixels(self, i: int) -> Tensor:
        from skimage.segmentation import slic

        seen = self.loaded.preprocess.picture(self.inputs.x[i])
        picture = (self.inputs.x[i] if seen is None else seen).permute(1, 2, 0).cpu().numpy()
        return torch.from_numpy(slic(picture, n_segments=self.effort.cells**2, compactness=10, start_label=0)).long()

    def random_subsets(self, cell: int) -> Subsets:
        """Random subsets for Faithfulness Correlation: as many pixels as Quantus takes (224), as single ones or as squares."""
        x, labels = self.inputs.x, self.inputs.labels
        size = max(1, round(224 / cell**2)) if cell > 1 else 224

        def make() -> dict[str, np.ndarray]:
            found = subsets(self.loaded.model, x, labels, self.baseline, self.effort.runs, size, cell)
            return {"chosen": np.packbits(found.chosen.cpu().numpy(), axis=-1), "drops": found.drops.cpu().numpy()}

        kept = self._keep(f"subsets-{cell}", make)
        chosen = np.unpackbits(kept["chosen"], axis=-1, count=x.shape[-1]).astype(bool)
        return Subsets(torch.from_numpy(chosen).to(x.device), torch.from_numpy(kept["drops"]).to(x.device))

    def shapley(self) -> list[Tensor]:
        """Shapley values of the segments of the first images."""
        x, labels = self.inputs.x, self.inputs.labels

        def make() -> dict[str, np.ndarray]:
            count = min(self.effort.shapley_images, len(x))
            values = [
                shapley_values(
                    self.loaded.model, x[i], labels[i], self.segments(i), self.baseline[i], self.effort.permutations, i
                )
                for i in range(count)
            ]
            return {str(i): v.cpu().numpy() for i, v in enumerate(values)}

        kept = self._keep("shapley", make)
        return [torch.from_numpy(kept[str(i)]).to(x.device) for i in range(len(kept))]

    def effects(self) -> list[tuple[int, Tensor, Tensor]]:
        """Of scenes: the number of the sample, the masks of its objects, and what the score of its class loses without each."""
        found = []
        for i, sample in enumerate(self.inputs.samples):
            scene = sample.scene
            if scene is None or len(scene.things) < 2:
                continue
            from PIL import Image

            without = self.loaded.batch([Image.fromarray(scene.without(thing.label)) for thing in scene.things])
            label = self.inputs.labels[i].expand(len(without))
            masks = torch.stack([torch.from_numpy(thing.mask) for thing in scene.things]).to(without.device)
            found.append((i, masks, self.score[i] - scores(self.loaded.model, without, label)))
        return found

    def _keep(self, name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Arrays that are computed once, whatever becomes of the process."""
        if name not in self._kept:
            path = self.folder / f"{name}.npz"
            if not path.is_file():
                arrays = make()
                self.folder.mkdir(parents=True, exist_ok=True)
                write_whole(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
            with np.load(path) as stored:
                self._kept[name] = dict(stored)
        return self._kept[name]
