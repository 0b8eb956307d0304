"""Explains pieces of a data set: images are read and prepared ahead, on threads of their own, while others are explained."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hilrp.bench.data import box_mask
from hilrp.bench.methods import Method
from hilrp.bench.methods import find as find_method
from hilrp.errors import HilrpError
from hilrp.explainer import Explainer
from hilrp.images import read
from hilrp.libraries.loaded import Loaded
from hilrp.loading import load
from hilrp.run import rows
from hilrp.run.items import Item, Reader
from hilrp.run.rows import Row
from hilrp.run.store import Piece, Store, write
from hilrp.targets import logits_of

#: A piece that has ended its worker this often is given up: its images get a row with an error.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Job:
    """What is asked of every image.

    Attributes:
        folder: Where the results go.
        models: Names, with a checkpoint after an @.
        methods: Names of the benchmark's methods.
        target: ``"prediction"`` or ``"label"``.
        maps: ``"none"``, ``"column"`` or ``"files"``.
        batch: Images at once.
        device: Where.
        threads: Of torch; zero leaves them as they are.
        readers: Threads that read and prepare images.
    """

    folder: str
    models: tuple[str, ...]
    methods: tuple[str, ...]
    target: str = "prediction"
    maps: str = "none"
    batch: int = 16
    device: str = "cpu"
    threads: int = 0
    readers: int = 2


@dataclass(frozen=True)
class Done:
    """A piece that is written."""

    number: int
    images: int
    failed: int


@dataclass
class _Prepared:
    """An image as each model takes it; or why there is none."""

    item: Item
    size: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    masks: list[Tensor | None] = field(default_factory=list)
    error: str | None = None


def split_name(name: str) -> tuple[str, str | None]:
    """A model and its checkpoint."""
    model, _, checkpoint = name.partition("@")
    return model, checkpoint or None


class Worker:
    """Explains pieces with the models and methods of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        if job.threads:
            torch.set_num_threads(job.threads)
        self.store, self.reader = Store(Path(job.folder)), Reader()
        self.models = [(name, load(*split_name(name), device=job.device)) for name in job.models]
        self.methods = [find_method(name) for name in job.methods]
        self._explainers: dict[tuple[str, str], Explainer] = {}

    def run(self, pieces: Iterable[Piece]) -> Iterator[Done]:
        """Explains pieces; yields each once it is written."""
        todo = (piece for piece in pieces if not self.store.done(piece))
        with ThreadPoolExecutor(self.job.readers) as pool:
            for piece, found in groupby(self._ahead(pool, todo), key=lambda pair: pair[0]):
                yield self._piece(piece, (prepared for _, prepared in found))

    def _ahead(self, pool: ThreadPoolExecutor, pieces: Iterable[Piece]) -> Iterator[tuple[Piece, _Prepared]]:
        """The images of pieces, in order, some batches of them prepared ahead."""
        waiting: deque[tuple[Piece, Future[_Prepared]]] = deque()

        def taken(left: int) -> Iterator[tuple[Piece, _Prepared]]:
            while len(waiting) > left:
                piece, future = waiting.popleft()
                yield piece, future.result()

        for piece in pieces:
            before = self.store.attempt(piece)
            # It was begun when a worker ended. Whether it was its fault is seen when it is done alone.
            alone = before > 0
            if alone:
                yield from taken(0)
            for item in self.store.items(piece):
                if before >= _ATTEMPTS:
                    said = f"its piece ({piece.name}) ended the worker {_ATTEMPTS} times; look for what kills it, memory for instance"
                    waiting.append((piece, pool.submit(_Prepared, item, error=said)))
                else:
                    waiting.append((piece, pool.submit(self._prepare, item)))
                yield from taken(3 * self.job.batch)
            if alone:
                yield from taken(0)
        yield from taken(0)

    def _prepare(self, item: Item) -> _Prepared:
        try:
            image, notes = read(self.reader.image(item))
            made = _Prepared(item, image.size, notes)
            mask = self._mask(item, image)
            for _, loaded in self.models:
                made.inputs.append(loaded.preprocess(image))
                made.masks.append(self._seen(loaded, mask, notes))
        except Exception as error:  # files are anybody's, and so is the preprocessing
            said = str(error) if isinstance(error, (HilrpError, OSError)) else f"{type(error).__name__}: {error}"
            return _Prepared(item, error=said)
        return made

    @staticmethod
    def _seen(loaded: Loaded, mask: np.ndarray | None, notes: list[str]) -> Tensor | None:
        if mask is None:
            return None
        if loaded.preprocess.mean is None:
            notes.append(f"where the object is can't be told after the preprocessing of {loaded.name}")
            return None
        return loaded.seen_mask(mask)

    def _mask(self, item: Item, image: Image.Image) -> np.ndarray | None:
        mask = self.reader.mask(item)
        if mask is not None:
            return np.asarray(read(mask)[0].convert("L")) > 200
        return box_mask(image.size, item["boxes"]) if item.get("boxes") else None

    def _piece(self, piece: Piece, found: Iterable[_Prepared]) -> Done:
        made: list[Row] = []
        batch: list[tuple[int, _Prepared]] = []
        for number, prepared in enumerate(found, piece.first):
            batch.append((number, prepared))
            if len(batch) == self.job.batch:
                made += self._batch(batch)
                batch = []
        made += self._batch(batch)
        made.sort(key=lambda row: row["number"])
        failed = len({row["number"] for row in made if row.get("error")})
        if self.job.maps == "files":
            write(self.store.maps(piece), rows.encoded([row for row in made if "map" in row], rows.map_schema()))
        write(self.store.rows(piece), rows.encoded(made, rows.schema(self.job.maps == "column")))
        self.store.settle([piece])
        return Done(piece.number, piece.count, failed)

    def _batch(self, batch: list[tuple[int, _Prepared]]) -> list[Row]:
        made: list[Row] = []
        good = [(number, prepared) for number, prepared in batch if prepared.error is None]
        for number, prepared in batch:
            if prepared.error is not None:
                rest = {"number": number, "id": prepared.item["id"], "error": prepared.error}
                made += [rest | {"model": m, "method": x} for m in self.job.models for x in self.job.methods]
        for place in range(len(self.models)):
            made += self._explained(place, good)
        return made

    def _explained(self, place: int, batch: list[tuple[int, _Prepared]]) -> list[Row]:
        """The rows of one model; images whose form differs are explained by themselves, and so are those of a batch that fails."""
        if not batch:
            return []
        name, loaded = self.models[place]
        common = [self._known(number, prepared, name, loaded) for number, prepared in batch]
        try:
            x = torch.stack([prepared.inputs[place] for _, prepared in batch]).to(self.job.device)
            masks = self._stacked([prepared.masks[place] for _, prepared in batch])
            return self._rows(name, loaded, x, masks, common)
        except Exception as error:  # models are anybody's, too
            if len(batch) == 1:
                said = str(error) if isinstance(error, HilrpError) else f"{type(error).__name__}: {error}"
                return [common[0] | {"method": method, "error": said} for method in self.job.methods]
        return [row for single in batch for row in self._explained(place, [single])]

    @staticmethod
    def _stacked(masks: list[Tensor | None]) -> Tensor | None:
        known = next((mask for mask in masks if mask is not None), None)
        if known is None:
            return None
        return torch.stack([torch.zeros_like(known) if mask is None else mask for mask in masks])

    @staticmethod
    def _known(number: int, prepared: _Prepared, name: str, loaded: Loaded) -> Row:
        label, width, height = prepared.item.get("label"), *prepared.size
        index = label_index(loaded, label)
        return {
            "number": number, "id": prepared.item["id"], "model": name, "width": width, "height": height, "notes": prepared.notes,
            "label": index, "label_name": None if label is None else loaded.named(index) if index is not None else str(label),
        }  # fmt: skip

    def _rows(self, name: str, loaded: Loaded, x: Tensor, masks: Tensor | None, common: list[Row]) -> list[Row]:
        with torch.no_grad():
            logits = logits_of(loaded.model(x)).float()
        predicted, sure = logits.argmax(1), logits.softmax(1).amax(1)
        target = predicted
        if self.job.target == "label":
            missing = [row["id"] for row in common if row["label"] is None]
            if missing:
                raise HilrpError(f"{missing[0]}: no label that {name} knows as a class. Use --target prediction.")
            target = torch.tensor([row["label"] for row in common], device=x.device)
        for row, p, s, t in zip(common, predicted.tolist(), sure.tolist(), target.tolist(), strict=True):
            row |= {"prediction": p, "prediction_name": loaded.named(p), "confidence": s}
            row |= {"target": t, "target_name": loaded.named(t)}
        made: list[Row] = []
        for method in self.methods:
            maps, own = self._attributed(name, loaded, method, x, target, logits)
            said = rows.figures(maps, masks)
            for i, row in enumerate(common):
                one = row | {"method": method.name} | own[i] | said[i]
                made.append(one | (rows.map_of(maps[i]) if self.job.maps != "none" else {}))
        return made

    def _attributed(
        self, name: str, loaded: Loaded, method: Method, x: Tensor, target: Tensor, logits: Tensor
    ) -> tuple[Tensor, list[Row]]:
        """Maps, and what is known of their sums."""
        if method.rules is not None and not method.options:
            key = name, method.name
            if key not in self._explainers:
                graph = x.device.type == "cuda"
                self._explainers[key] = Explainer(loaded.model, method.rules, stages=None, compile=graph)
            found = self._explainers[key].explain(x, target, batch="auto")
            return found.map, rows.books(found)
        maps = method(loaded.model, x, target)
        score = logits.gather(1, target[:, None])[:, 0].tolist()
        sums = maps.flatten(1).sum(1).tolist()
        return maps, [
            {"score": s, "pixels": total, "pixel_share": total / s if method.signed and s else None}
            for s, total in zip(score, sums, strict=True)
        ]


def label_index(loaded: Loaded, label: Any) -> int | None:
    """The class of a label, by number, name, or name of a folder of ImageNet; ``None`` if the model knows none of it."""
    if label is None:
        return None
    if isinstance(label, str) and label in (synsets := _synsets()) and len(loaded.classes or ()) == len(synsets):
        return synsets[label]
    try:
        return loaded.index(str(label))
    except HilrpError:
        return None


@cache
def _synsets() -> dict[str, int]:
    """ImageNet's names of folders."""
    from timm.data import ImageNetInfo

    return {name: i for i, name in enumerate(ImageNetInfo("imagenet-1k").label_names())}
