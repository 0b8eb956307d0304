"""Running the grid of models, methods and measures: one file per cell, so that a run goes on where it stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hilrp.jobs.bench import methods
from hilrp.jobs.bench.context import Context
from hilrp.jobs.bench.data import contents, find, inputs_for
from hilrp.jobs.bench.manifest import manifest
from hilrp.jobs.bench.measures import MEASURES
from hilrp.jobs.bench.methods import Method, Undefined
from hilrp.jobs.bench.methods.relevance import as_in_the_paper
from hilrp.jobs.bench.suites import Suite
from hilrp.jobs.store import Arrays, begin, computed_once, read_arrays, read_result, write_result
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import load, split_name
from hilrp.models.weights import fingerprint
from hilrp.targets import logits_of
from hilrp.util import sources
from hilrp.util.atomic_files import sweep, write_whole
from hilrp.util.nested import jsonable

#: How many images' maps the report shows.
SHOWN = 2
#: What is kept of them.
_SHOWN_ARRAYS = ("pictures", "names")


class Logits(nn.Module):
    """A model that returns its class scores alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """``[B, classes]``."""
        return logits_of(self.model(x))


@dataclass(frozen=True)
class Cell:
    """One figure group of one method on one model.

    Attributes:
        model, method, measure: Their names.
        figures: Name -> one value per image.
        undefined: Why there are none, where the method has no meaning on the model.
        error: What went wrong.
    """

    model: str
    method: str
    measure: str
    figures: dict[str, list[float]]
    undefined: str | None = None
    error: str | None = None


class Grid:
    """A run of a suite in a folder.

    Args:
        suite: What is run.
        folder: Where cells, maps and what they share are kept. A run with other settings into the same folder is
            refused.
        device: Where the models are put. All that is drawn by chance is the same everywhere; only times are of one
            device.

    Attributes:
        damaged: What was found damaged in the folder, and is made again.
    """

    def __init__(self, suite: Suite, folder: Path, device: str = "cpu") -> None:
        self.suite, self.folder, self.device = suite, folder, device
        self.damaged: list[str] = []
        self.samples = find(suite.data, suite.effort.images)
        # Cells of one folder must be comparable: the same pictures, effort and code.
        settings = {
            "data": suite.data,
            "pictures": contents(self.samples),
            "effort": asdict(suite.effort),
            "code": sources.fingerprint(__name__),
        }
        begin(folder / "settings.json", settings, "settings or another version of hilrp")

    @property
    def total(self) -> int:
        """How many cells there are."""
        return len(self.suite.models) * len(self.suite.methods) * len(self.suite.measures)

    def run(self) -> Iterator[Cell]:
        """Yields every cell, from disk or computed. An error stays in its cell, and is tried again by the next run."""
        sweep([self.folder, *self.folder.glob("cells/*"), *self.folder.glob("cells/*/*")])
        write_whole(self.folder / "manifest.json", json.dumps(manifest(self), indent=1))
        for name in self.suite.models:
            yield from self._model(name)

    def _model(self, name: str) -> Iterator[Cell]:
        wanted = [(method, measure) for method in self.suite.methods for measure in self.suite.measures]
        try:
            loaded = self.load(name)
            begin(self._place(name) / "weights.json", {"sha256": fingerprint(loaded.model)}, "weights")
            stored = [cell for cell in (self._read(name, *each) for each in wanted) if cell is not None]
            if len(stored) == len(wanted) and self._drawable(name, stored):
                yield from stored
                return
            inputs = inputs_for(loaded, self.samples)
            context = Context(loaded, inputs, self.suite.effort, self._place(name) / "shared", self.damaged)
            self._show(name, context)
        except Exception as error:  # the other models are run all the same
            yield from (Cell(name, *cell, {}, error=f"{type(error).__name__}: {error}") for cell in wanted)
            return
        for method in self.suite.methods:
            of_model = as_in_the_paper(methods.find(method), loaded.model)
            yield from self._method(name, context, of_model.with_background(context.background))

    def _method(self, name: str, context: Context, method: Method) -> Iterator[Cell]:
        stored = {measure: self._read(name, method.name, measure) for measure in self.suite.measures}
        maps, undefined, failed = None, None, None
        known = [cell for cell in stored.values() if cell is not None]
        if len(known) < len(stored) or not self._drawable(name, known):
            try:
                maps = self._maps(name, context, method)
            except Undefined as reason:
                undefined = str(reason)
            except Exception as error:  # said in each of its cells
                failed = f"{type(error).__name__}: {error}"
        for measure, cell in stored.items():
            if cell is not None:
                yield cell
                continue
            cell = Cell(name, method.name, measure, {}, undefined, failed)
            if maps is not None:
                try:
                    cell = replace(cell, figures=self._figures(context, method, maps, measure))
                except Exception as error:  # a cell that fails doesn't keep the others
                    cell = replace(cell, error=f"{type(error).__name__}: {error}")
            if cell.error is None:
                self._write(cell)
            yield cell

    def _drawable(self, name: str, cells: list[Cell]) -> bool:
        """Whether all that the page shows beside stored cells is there: they may be whole, and the maps not."""
        methods = dict.fromkeys(cell.method for cell in cells if cell.undefined is None)
        return bool(self.shown(name)[0]) and all(self.maps(name, method) is not None for method in methods)

    def _show(self, name: str, context: Context) -> None:
        """Keeps what the model sees of the first images, to draw maps on."""
        x = context.inputs.x[:SHOWN]
        seen = context.loaded.preprocess.picture(x)
        pictures = (255 * (x.float() if seen is None else seen).clamp(0, 1)).byte().permute(0, 2, 3, 1).cpu().numpy()
        names = np.array([sample.name for sample in context.inputs.samples[:SHOWN]])
        computed_once(
            context.folder / "shown.npz", lambda: {"pictures": pictures, "names": names}, _SHOWN_ARRAYS, self.damaged
        )

    def shown(self, model: str) -> tuple[list[str], np.ndarray]:
        """The names of the first images, and what a model sees of them, ``[images,H,W,3]``."""
        stored = read_arrays(self._place(model) / "shared" / "shown.npz", _SHOWN_ARRAYS)
        if stored is None:
            return [], np.zeros((0, 1, 1, 3), np.uint8)
        return [str(name) for name in stored["names"]], stored["pictures"]

    def load(self, name: str) -> Loaded:
        """A model of the suite: its name, and perhaps a checkpoint after an @."""
        loaded = load(*split_name(name), device=self.device)
        # What the methods of other libraries take returns a tensor of logits.
        plain = loaded.name.startswith("transformers/")
        return replace(loaded, model=Logits(loaded.model).eval()) if plain else loaded

    def maps(self, model: str, method: str) -> np.ndarray | None:
        """The maps behind a cell's figures, ``[images,H,W]``."""
        stored = read_arrays(self._place(model, method) / "maps.npz", ["maps"])
        return None if stored is None else stored["maps"]

    def _maps(self, model: str, context: Context, method: Method) -> Tensor:
        def compute() -> Arrays:
            found = method(context.loaded.model, context.inputs.x, context.inputs.labels)
            if not bool(found.isfinite().all()):
                raise ValueError("the maps hold values that aren't finite")
            return {"maps": found.float().cpu().numpy()}

        maps = computed_once(self._place(model, method.name) / "maps.npz", compute, ["maps"], self.damaged)["maps"]
        return torch.from_numpy(maps).to(context.inputs.x.device)

    @staticmethod
    def _figures(context: Context, method: Method, maps: Tensor, name: str) -> dict[str, list[float]]:
        measure = MEASURES[name]
        if measure.scenes and any(sample.scene is None for sample in context.inputs.samples):
            return {}
        return {key: value.double().cpu().tolist() for key, value in measure.function(context, method, maps).items()}

    def _place(self, *names: str) -> Path:
        return self.folder.joinpath("cells", *(re.sub(r"[^\w.+=-]+", "_", name) for name in names))

    def _path(self, model: str, method: str, measure: str) -> Path:
        name = f"{measure}-{torch.device(self.device).type}" if MEASURES[measure].timed else measure
        return self._place(model, method) / f"{name}.json"

    def _read(self, model: str, method: str, measure: str) -> Cell | None:
        facts = read_result(self._path(model, method, measure), self.damaged)
        return None if facts is None else Cell(model, method, measure, facts["figures"], facts["undefined"])

    def _write(self, cell: Cell) -> None:
        facts = jsonable({"figures": cell.figures, "undefined": cell.undefined})
        write_result(self._path(cell.model, cell.method, cell.measure), facts)
