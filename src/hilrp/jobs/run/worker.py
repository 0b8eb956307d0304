"""Explains pieces of a data set.

Images are read and prepared ahead, on threads of their own, while others are explained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hilrp.attribution.explainer import Explainer
from hilrp.attribution.explanation import Explanation
from hilrp.jobs.bench.methods import Method
from hilrp.jobs.bench.methods import find as find_method
from hilrp.jobs.bench.methods.relevance import rules_and_chains
from hilrp.jobs.labels import label_index
from hilrp.jobs.reference_text import reference_of
from hilrp.jobs.run import rows
from hilrp.jobs.run.preparing import Prepared, Preparer
from hilrp.jobs.run.rows import Row
from hilrp.jobs.run.store import Piece, Store
from hilrp.jobs.run.targets import asked, note_contrast
from hilrp.jobs.target_text import LABEL
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import load, split_name
from hilrp.models.picture_files import MEGAPIXELS, allow
from hilrp.targets import Contrast, logits_of
from hilrp.targets.classes import no_classifier
from hilrp.util.errors import HilrpError

#: A piece that has ended its worker this often is given up: its images get a row with an error.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Job:
    """What is asked of every image.

    Attributes:
        folder: Where the results go.
        models: Names, with a checkpoint after an @.
        methods: Names of the benchmark's methods.
        target: What is explained, as `hilrp.jobs.run.targets` reads it.
        maps: ``"none"``, ``"column"`` or ``"files"``.
        boxes: ``"xyxy"``, corners, or ``"xywh"``, a corner with width and height.
        batch: Images at once.
        device: The device that models run on.
        threads: How many threads torch uses; zero leaves them as they are.
        readers: Threads that read and prepare images.
        max_megapixels: The most that is decoded of an image; larger ones are rows with an error.
        against: The class that the target is contrasted with.
        reference: What methods of rules are relative to, by name or as a file, if not what they begin with.
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
    boxes: str = "xyxy"
    max_megapixels: int = MEGAPIXELS
    against: str | None = None
    reference: str | None = None


@dataclass(frozen=True)
class Done:
    """A piece that is written."""

    number: int
    images: int
    failed: int


@dataclass
class _Batch:
    """Images that are explained together, as each model takes them, where they are alike."""

    piece: Piece
    images: list[tuple[int, Prepared]] = field(default_factory=list)
    inputs: list[Tensor | None] = field(default_factory=list)
    last: bool = False


class _Read(NamedTuple):
    """An image of a piece, and its number."""

    piece: Piece
    number: int
    prepared: Prepared


class Worker:
    """Explains pieces with the models and methods of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        allow(job.max_megapixels)
        if job.threads:
            torch.set_num_threads(job.threads)
        self.store = Store(Path(job.folder))
        self.models = [(name, load(*split_name(name), device=job.device)) for name in job.models]
        self._preparer = Preparer([loaded for _, loaded in self.models], job.boxes)
        self.methods = [find_method(name) for name in job.methods]
        self._asked = {name: asked(job.target, job.against, loaded) for name, loaded in self.models}
        self._explainers: dict[tuple[str, str], Explainer] = {}
        self._labelled: dict[tuple[str, Any], int | None] = {}
        self._stream = torch.cuda.Stream(job.device) if job.device.startswith("cuda") else None

    def run(self, pieces: Iterable[Piece]) -> Iterator[Done]:
        """Explains pieces; yields each once it is written."""
        todo = (piece for piece in pieces if not self.store.done(piece))
        with ThreadPoolExecutor(self.job.readers) as pool, ThreadPoolExecutor(1) as assembler:
            made: list[Row] = []
            waiting: Future[_Batch] | None = None
            for batch in self._batches(self._ahead(pool, todo)):
                # While one batch is explained, the next is put together and brought to the device.
                ready, waiting = waiting, None if batch is None else assembler.submit(self._assembled, batch)
                if ready is not None:
                    yield from self._finished(ready.result(), made)
            if waiting is not None:
                yield from self._finished(waiting.result(), made)

    def _batches(self, found: Iterator[_Read | None]) -> Iterator[_Batch | None]:
        """Batches of images of one piece each: what is explained together doesn't depend on what was done before."""
        batch: _Batch | None = None
        for each in found:
            if each is None:
                yield None
                continue
            batch = batch or _Batch(each.piece)
            batch.images.append((each.number, each.prepared))
            batch.last = each.number == each.piece.first + each.piece.count - 1
            if batch.last or len(batch.images) == self.job.batch:
                yield batch
                batch = None

    def _assembled(self, batch: _Batch) -> _Batch:
        good = [prepared for _, prepared in batch.images if prepared.error is None]
        for place in range(len(self.models)):
            parts = [prepared.inputs[place] for prepared in good]
            alike = len({part.shape for part in parts}) == 1
            batch.inputs.append(self._brought(torch.stack(parts)) if alike else None)
        return batch

    def _brought(self, x: Tensor) -> Tensor:
        """The inputs on the device; on a GPU beside what it computes, not after it."""
        if self._stream is None:
            return x.to(self.job.device)
        with torch.cuda.stream(self._stream):
            moved = x.pin_memory().to(self.job.device, non_blocking=True)
        self._stream.synchronize()
        return moved

    def _finished(self, batch: _Batch, made: list[Row]) -> Iterator[Done]:
        """Explains a batch; the last of a piece ends it."""
        made += self._explain(batch)
        if batch.last:
            yield self._write(batch.piece, made)
            made.clear()

    def _ahead(self, pool: ThreadPoolExecutor, pieces: Iterable[Piece]) -> Iterator[_Read | None]:
        """The images of pieces, in order, some batches of them prepared ahead.

        ``None`` where all before has to be finished first.
        """
        waiting: deque[tuple[Piece, int, Future[Prepared]]] = deque()

        def taken(left: int) -> Iterator[_Read]:
            while len(waiting) > left:
                piece, number, future = waiting.popleft()
                yield _Read(piece, number, future.result())

        for piece in pieces:
            # It was begun when a worker ended. Whether that was its fault is seen when it is done alone.
            before = self.store.attempts(piece)
            if before:
                yield from taken(0)
                yield None
            self.store.attempt(piece)
            for number, item in enumerate(self.store.items(piece), piece.first):
                if before >= _ATTEMPTS:
                    said = (
                        f"its piece ({piece.name}) ended the worker {_ATTEMPTS} times; "
                        "look for what kills it, memory for instance"
                    )
                    item = item | {"error": said}
                waiting.append((piece, number, pool.submit(self._preparer, item)))
                yield from taken(3 * self.job.batch)
            if before:
                yield from taken(0)
                yield None
        yield from taken(0)

    def _write(self, piece: Piece, made: list[Row]) -> Done:
        made.sort(key=lambda row: row["number"])
        failed = len({row["number"] for row in made if row.get("error")})
        if self.job.maps == "files":
            maps = [row for row in made if "map" in row]
            rows.write(self.store.maps(piece), maps, rows.map_schema(), self.store.identity(piece))
        columns = rows.schema(self.job.maps == "column")
        rows.write(self.store.rows(piece), made, columns, self.store.identity(piece))
        self.store.settle([piece])
        return Done(piece.number, piece.count, failed)

    def _explain(self, batch: _Batch) -> list[Row]:
        made: list[Row] = []
        good = [(number, prepared) for number, prepared in batch.images if prepared.error is None]
        for number, prepared in batch.images:
            if prepared.error is not None:
                rest = {"error": prepared.error}
                made += [
                    self._known(number, prepared, name, loaded) | rest | {"method": method}
                    for name, loaded in self.models
                    for method in self.job.methods
                ]
        for place, x in enumerate(batch.inputs):
            made += self._explained(place, good, x)
        return made

    def _explained(self, place: int, images: list[tuple[int, Prepared]], x: Tensor | None) -> list[Row]:
        """The rows of one model.

        Images whose form differs are explained by themselves, and so are those of a batch that fails.
        """
        if not images:
            return []
        name, loaded = self.models[place]
        if x is None and len(images) == 1:
            x = images[0][1].inputs[place][None].to(self.job.device)
        if x is not None:
            common = [self._known(number, prepared, name, loaded) for number, prepared in images]
            try:
                masks = self._stacked([prepared.masks[place] for _, prepared in images])
                return self._rows(name, loaded, x, masks, common)
            except Exception as error:  # models are anybody's, too
                if "CUDA error" in str(error):
                    raise  # the device is lost to this process: every later image would fail
                if len(images) == 1:
                    said = str(error) if isinstance(error, HilrpError) else f"{type(error).__name__}: {error}"
                    return [common[0] | {"method": method, "error": said} for method in self.job.methods]
        return [row for single in images for row in self._explained(place, [single], None)]

    @staticmethod
    def _stacked(masks: list[Tensor | None]) -> Tensor | None:
        known = next((mask for mask in masks if mask is not None), None)
        if known is None:
            return None
        return torch.stack([torch.zeros_like(known) if mask is None else mask for mask in masks])

    def _known(self, number: int, prepared: Prepared, name: str, loaded: Loaded) -> Row:
        label, width, height = prepared.item.get("label"), *prepared.size
        if (name, label) not in self._labelled:
            self._labelled[name, label] = label_index(loaded, label)
        index = self._labelled[name, label]
        return {
            "number": number,
            "id": prepared.item["id"],
            "model": name,
            "width": width,
            "height": height,
            "notes": list(prepared.notes),
            "label": index,
            "label_name": None if label is None else loaded.named(index) if index is not None else str(label),
        }

    def _rows(self, name: str, loaded: Loaded, x: Tensor, masks: Tensor | None, common: list[Row]) -> list[Row]:
        wanted = self._asked[name]
        target = self._labels(name, common, x) if wanted.text == LABEL else None
        if wanted.label is not None:
            target = torch.full((len(x),), wanted.label, device=x.device)
        explained: dict[str, Explanation] = {}
        leading = next((method for method in self.methods if _explains(method)), None)
        if leading is not None and (target is not None or wanted.against is None):
            # It runs the model anyway, and says what that predicts.
            explained[leading.name] = found = self._by_rules(name, loaded, leading, x, target)
            output = found.output
        else:
            with torch.no_grad():
                output = loaded.model(x)
        logits = logits_of(output).detach().float()
        if logits.ndim != 2 or len(logits) != len(x) or isinstance(output, list):
            raise HilrpError(no_classifier(tuple(logits.shape), len(x), output))
        predicted, sure = logits.argmax(1), logits.softmax(1).amax(1)
        target = predicted if target is None else target
        if int(target.max()) >= logits.shape[1]:
            raise HilrpError(f"the label {int(target.max())} is beyond the {logits.shape[1]} classes of {name}.")
        if wanted.against is not None:
            note_contrast(loaded, wanted.against, target, common)
        for row, p, s, t in zip(common, predicted.tolist(), sure.tolist(), target.tolist(), strict=True):
            row |= {"prediction": p, "prediction_name": loaded.named(p), "confidence": s}
            row |= {"target": t, "target_name": loaded.named(t)}
        made: list[Row] = []
        for method in self.methods:
            if _explains(method) and method.name not in explained:
                explained[method.name] = self._by_rules(name, loaded, method, x, target)
            if method.name in explained:
                maps, own = explained[method.name].map, rows.books(explained[method.name])
            else:
                maps = method(loaded.model, x, target)
                own = _sums(method, maps, logits.gather(1, target[:, None])[:, 0])
            said = rows.figures(maps, masks)
            unchecked = explained[method.name].unchecked if method.name in explained else ()
            for i, row in enumerate(common):
                one = row | {"method": method.name} | own[i] | said[i]
                one["notes"] = [*row["notes"], *(f"not checked: {reason}" for reason in unchecked)]
                if "energy" in one and row["label"] not in (None, row["target"]):
                    one = {key: value for key, value in one.items() if key not in ("energy", "area", "pointing")}
                    one["notes"] = [*one["notes"], "the place that is given is of another class than the explained one"]
                made.append(one | (rows.map_of(maps[i]) if self.job.maps != "none" else {}))
        return made

    def _labels(self, name: str, common: list[Row], x: Tensor) -> Tensor:
        missing = [row["id"] for row in common if row["label"] is None]
        if missing:
            raise HilrpError(f"{missing[0]}: no label that {name} knows as a class. Use --target prediction.")
        return torch.tensor([row["label"] for row in common], device=x.device)

    def _by_rules(self, name: str, loaded: Loaded, method: Method, x: Tensor, target: Tensor | None) -> Explanation:
        assert method.rules is not None
        rules, chains = rules_and_chains(method.rules, dict(method.options))
        key = name, method.name
        if key not in self._explainers:
            graph = x.device.type == "cuda"
            reference, _ = reference_of(self.job.reference, loaded)
            self._explainers[key] = Explainer(loaded.model, rules, reference, stages=None, compile=graph)
        against = self._asked[name].against
        question = target if against is None or target is None else Contrast(target, against)
        return self._explainers[key].explain(x, question, batch="auto", passes=chains)


def _explains(method: Method) -> bool:
    """Whether it is a method of rules, whose books can be kept."""
    return method.rules is not None


def _sums(method: Method, maps: Tensor, scores: Tensor) -> list[Row]:
    """What maps without books add up to."""
    sums = maps.flatten(1).sum(1).tolist()
    return [
        {"score": score, "pixels": total, "pixel_share": total / score if method.signed and score else None}
        for score, total in zip(scores.tolist(), sums, strict=True)
    ]
