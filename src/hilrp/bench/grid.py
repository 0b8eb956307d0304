"""Running the grid of models, methods and measures: one file per cell, so that a run goes on where it stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hilrp.bench import methods
from hilrp.bench.context import Context
from hilrp.bench.data import find, inputs_for
from hilrp.bench.manifest import manifest
from hilrp.bench.measures import MEASURES
from hilrp.bench.methods import Method, Undefined
from hilrp.bench.suites import Suite
from hilrp.errors import InputError
from hilrp.files import write_whole
from hilrp.libraries.loaded import Loaded
from hilrp.loading import load
from hilrp.tree import jsonable

#: Images that go through a method at once.
_BATCH = 16


@dataclass(frozen=True)
class Cell:
    """One figure group of one method on one model.

    Attributes:
        model, method, measure: Which.
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
        folder: Where cells, maps and what they share are kept. A run with other settings into the same folder is refused.
        device: Where the models are put.
    """

    def __init__(self, suite: Suite, folder: Path, device: str = "cpu") -> None:
        self.suite, self.folder, self.device = suite, folder, device
        self._check_settings()

    def _check_settings(self) -> None:
        """Cells of one folder must be comparable: the same data, the same effort."""
        settings = json.loads(json.dumps({"data": self.suite.data, "effort": asdict(self.suite.effort)}))
        path = self.folder / "settings.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        if path.is_file() and json.loads(path.read_text()) != settings:
            raise InputError(
                f"{self.folder} holds a run with other settings ({path.name}): figures of the two can't be compared. Choose another folder."
            )
        write_whole(path, lambda file: file.write(json.dumps(settings, indent=1).encode()))

    @property
    def total(self) -> int:
        """How many cells there are."""
        return len(self.suite.models) * len(self.suite.methods) * len(self.suite.measures)

    def run(self) -> Iterator[Cell]:
        """Yields every cell, from disk or computed. An error stays in its cell, and is tried again by the next run."""
        for name in self.suite.models:
            if all(
                self._stored(name, method, measure) for method in self.suite.methods for measure in self.suite.measures
            ):
                yield from (self._read(name, m, s) for m in self.suite.methods for s in self.suite.measures)
                continue
            yield from self._model(name)
        write_whole(
            self.folder / "manifest.json", lambda file: file.write(json.dumps(manifest(self), indent=1).encode())
        )

    def _model(self, name: str) -> Iterator[Cell]:
        try:
            loaded = self.load(name)
            samples = find(self.suite.data, self.suite.effort.images)
            inputs = inputs_for(loaded, samples)
            context = Context(loaded, inputs, self.suite.effort, self._place(name) / "shared")
        except Exception as error:  # the other models are run all the same
            for method in self.suite.methods:
                for measure in self.suite.measures:
                    yield Cell(name, method, measure, {}, error=f"{type(error).__name__}: {error}")
            return
        yield from self._methods(name, context)

    def _methods(self, name: str, context: Context) -> Iterator[Cell]:
        for method_name in self.suite.methods:
            method = methods.find(method_name)
            maps: Tensor | None = None
            for measure in self.suite.measures:
                if self._stored(name, method_name, measure):
                    yield self._read(name, method_name, measure)
                    continue
                try:
                    maps = self._maps(name, context, method) if maps is None else maps
                    cell = Cell(name, method_name, measure, self._figures(context, method, maps, measure))
                except Undefined as reason:
                    cell = Cell(name, method_name, measure, {}, undefined=str(reason))
                except Exception as error:  # a cell that fails doesn't keep the others
                    yield Cell(name, method_name, measure, {}, error=f"{type(error).__name__}: {error}")
                    continue
                self._write(cell)
                yield cell

    def load(self, name: str) -> Loaded:
        """A model of the suite: its name, and perhaps a checkpoint after an @."""
        base, _, checkpoint = name.partition("@")
        return load(base, checkpoint or None, device=self.device)

    def maps(self, model: str, method: str) -> np.ndarray | None:
        """The maps behind a cell's figures, ``[images,H,W]``."""
        path = self._place(model, method) / "maps.npz"
        if not path.is_file():
            return None
        with np.load(path) as stored:
            maps: np.ndarray = stored["maps"]
        return maps

    def _maps(self, model: str, context: Context, method: Method) -> Tensor:
        stored = self.maps(model, method.name)
        if stored is None:
            inputs = context.inputs
            parts = zip(inputs.x.split(_BATCH), inputs.labels.split(_BATCH), strict=True)
            found = torch.cat([method(context.loaded.model, x, labels) for x, labels in parts])
            if not bool(found.isfinite().all()):
                raise ValueError("the maps hold values that aren't finite")
            arrays = {"maps": found.float().cpu().numpy()}
            path = self._place(model, method.name) / "maps.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
            stored = arrays["maps"]
        return torch.from_numpy(stored).to(context.inputs.x.device)

    @staticmethod
    def _figures(context: Context, method: Method, maps: Tensor, name: str) -> dict[str, list[float]]:
        measure = MEASURES[name]
        if measure.kinds and method.kind not in measure.kinds:
            return {}
        if measure.scenes and any(sample.scene is None for sample in context.inputs.samples):
            return {}
        return {key: value.double().cpu().tolist() for key, value in measure.function(context, method, maps).items()}

    def _place(self, *names: str) -> Path:
        return self.folder.joinpath("cells", *(re.sub(r"[^\w.+=-]+", "_", name.partition("@")[0]) for name in names))

    def _path(self, model: str, method: str, measure: str) -> Path:
        return self._place(model, method) / f"{measure}.json"

    def _stored(self, model: str, method: str, measure: str) -> bool:
        return self._path(model, method, measure).is_file()

    def _read(self, model: str, method: str, measure: str) -> Cell:
        facts: dict[str, Any] = json.loads(self._path(model, method, measure).read_text())
        return Cell(model, method, measure, facts["figures"], facts["undefined"])

    def _write(self, cell: Cell) -> None:
        path = self._path(cell.model, cell.method, cell.measure)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(jsonable({"figures": cell.figures, "undefined": cell.undefined}))
        write_whole(path, lambda file: file.write(text.encode()))
