"""Explaining files of pictures and recordings: into a folder, going on where an earlier run stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import file_digest, sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import hilrp
from hilrp.attribution.explainer import Explainer
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.kinds import Kind
from hilrp.attribution.photographs import restored
from hilrp.attribution.shown import Shown
from hilrp.jobs.explain_recordings import Prepared, Recordings, folder_checksum
from hilrp.jobs.store import note, read_result, write_result
from hilrp.jobs.target_text import ParsedTarget
from hilrp.models.images import Source, read
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.weights import fingerprint
from hilrp.models.window import Window
from hilrp.targets import Contrast, logits_of
from hilrp.targets.classes import no_classifier
from hilrp.util.atomic_files import sweep, write_whole
from hilrp.util.errors import HilrpError, InputError
from hilrp.util.memory import free
from hilrp.util.nested import jsonable
from hilrp.util.regular_files import open_regular, printable

#: How many of the strongest classes are noted beside the explained one.
_NOTED = 5
#: The longest side of a photograph as it is drawn.
_DRAWN = 1024


@dataclass(frozen=True)
class Outcome:
    """What became of an image.

    Attributes:
        source: The file and its name.
        facts: What was written as json, if all went well.
        error: What went wrong otherwise.
        reused: Whether an earlier run had done it.
        damaged: What of an earlier run's results was damaged, so that they were made again.
    """

    source: Source
    facts: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    reused: bool = False
    damaged: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name of the results, and that of the file where it is another."""
        name, path = self.source.name, self.source.path
        plain = path.with_suffix("").as_posix().removesuffix(".nii")
        return printable(name if plain.endswith(name) else f"{name} ({path.name})")


@dataclass(frozen=True)
class Gallery:
    """Explanations of image files with one model.

    Attributes:
        loaded: The model.
        explainer: What explains it.
        parsed: The target, read from the words of the command line.
        folder: Where the results go.
        batch: How many explanations are made at once; fewer where memory doesn't suffice.
        all_stages: Draw the maps of all stages.
        fresh: Don't use the results of earlier runs.
        reference: What relevance is relative to, in the words of whoever asked.
        passes: How many passes are spent on an explanation.
        recordings: How files are read that are no pictures; ``None`` for pictures.
        page: Makes the page of an explanation of a recording, from that, its title, what is said of it and notes.
    """

    loaded: Loaded
    explainer: Explainer
    parsed: ParsedTarget
    folder: Path
    batch: int = 8
    all_stages: bool = False
    fresh: bool = False
    reference: str | None = None
    passes: int = 1
    recordings: Recordings | None = None
    page: Callable[[Explanation, Prepared, str | None, str], str] | None = None
    _windows: dict[tuple[int, int], Window | None] = field(default_factory=dict)

    def run(self, sources: Sequence[Source]) -> Iterator[Outcome]:
        """Explains files; yields each as it is done. One that fails does not keep the others."""
        self._spare(sources)
        sweep({self.folder, *((self.folder / source.name).parent for source in sources)})
        settings = self._settings()
        waiting: list[_Read] = []
        for source in sources:
            try:
                own = settings | {"source": str(source.path), "sha256": checksum(source.path)}
                damaged: list[str] = []
                earlier = None if self.fresh else self._earlier(source, own, damaged)
                if earlier is not None:
                    yield Outcome(source, earlier, reused=True)
                    continue
                waiting.append(self._read(source, own, tuple(damaged)))
            except Exception as error:  # the preprocessing may be anybody's
                yield Outcome(source, error=_said(error).removeprefix(f"{printable(source.path)}: "))
                continue
            if len(waiting) * self.parsed.count >= self.batch or self.recordings is not None:
                yield from self._explain(waiting)
                waiting = []
        yield from self._explain(waiting)

    def _read(self, source: Source, settings: dict[str, Any], damaged: tuple[str, ...]) -> _Read:
        """A file, prepared as the model takes it, and what is known of it."""
        if self.recordings is not None:
            prepared = self.recordings.read(source.path, self.loaded)
            known = {"settings": settings, "image_notes": list(prepared.notes), "window": None}
            return _Read(source, prepared.x, None, None, known | prepared.facts(), damaged, prepared)
        image, notes = read(source.path)
        size, x = image.size, self.loaded.preprocess(image)
        window = self._window(size)
        image.thumbnail((_DRAWN, _DRAWN))  # of photographs that wait, no more is kept than is drawn
        seen = tuple(x.shape[:0:-1])
        notes = notes + self.loaded.notes(size, seen)
        facts: dict[str, Any] = {"settings": settings, "size": size, "seen": seen, "image_notes": notes}
        facts["window"] = None if window is None else asdict(window)
        return _Read(source, x, image, window, facts, damaged)

    def _window(self, size: tuple[int, int]) -> Window | None:
        """Which part of pictures of that size the model sees."""
        if size not in self._windows:
            self._windows[size] = self.loaded.window(size)
        return self._windows[size]

    def _spare(self, sources: Sequence[Source]) -> None:
        """Raises if results would be written over images that are to be explained."""
        endings = ("png", "details.png", "html", "map.nii.gz", "map.dcm", "map.tif", "map.mp4", "map.wav")
        results = {(self.folder / f"{source.name}.{ending}").resolve() for source in sources for ending in endings}
        lost = [source.path for source in sources if source.path.resolve() in results]
        if lost:
            raise InputError(f"{lost[0]}: its figure would be written over it. Choose another folder for the results.")

    def _settings(self) -> dict[str, Any]:
        """All that a result depends on, besides the image."""
        return {
            "hilrp": hilrp.__version__,
            "model": self.loaded.name,
            "weights": self.loaded.weights,
            "weights_sha256": fingerprint(self.loaded.model),
            "target": self.parsed.text,
            "rules": self.explainer.rules.described(),
            "reference": self.reference,
            "passes": self.passes,
            "classes": None
            if self.loaded.classes is None
            else sha256("\n".join(self.loaded.classes).encode()).hexdigest(),
            "all_stages": self.all_stages,
        } | ({} if self.recordings is None else {"recordings": self.recordings.settings()})

    def _earlier(self, source: Source, settings: dict[str, Any], damaged: list[str]) -> dict[str, Any] | None:
        """The facts of an earlier run, if it had the same settings and all that it wrote is whole."""
        facts = read_result(self._file(source, "json"), damaged)
        if facts is None or facts.get("settings") != jsonable(settings):
            return None
        for kind, known in facts["sha256"].items():
            file = self._file(source, kind)
            if not file.is_file():
                return None
            if not file.stat().st_size or checksum(file) != known:
                note(damaged, file, "it is cut off or altered")
        return None if damaged else facts

    def _file(self, source: Source, kind: str) -> Path:
        return self.folder / f"{source.name}.{kind}"

    def _explain(self, items: list[_Read]) -> Iterator[Outcome]:
        """Explains several at once; if that fails, in halves, so that only those fail that can't be explained."""
        if not items:
            return
        try:
            if len({item.x.shape for item in items}) > 1:
                raise InputError("pictures of several sizes can't be explained at once")
            if items[0].prepared is not None:
                self.explainer.kind = items[0].prepared.kind
            found, failed = self._found(torch.stack([item.x for item in items])), None
        except Exception as error:  # a model of the user's may raise anything
            found, failed = None, _said(error)
        # Not where the error is handled, which holds all that the failed attempt held.
        if found is None and len(items) == 1:
            yield Outcome(items[0].source, error=failed)
            return
        if found is None:
            free()
            for half in (items[: len(items) // 2], items[len(items) // 2 :]):
                yield from self._explain(half)
            return
        count = self.parsed.count
        for i, item in enumerate(items):
            try:
                facts = self._save(item, found[i * count : (i + 1) * count])
                yield Outcome(item.source, facts, damaged=item.damaged)
            except Exception as error:  # one that can't be drawn or written doesn't keep the others
                yield Outcome(item.source, error=_said(error))

    def _found(self, x: Tensor) -> Explanation:
        device = next((p.device for p in self.loaded.model.parameters()), x.device)
        parsed, x = self.parsed, x.to(device)
        if parsed.target is not None:
            return self.explainer.explain(x, parsed.target, batch="auto", passes=self.passes)
        if parsed.label is not None:
            target: Any = torch.full((len(x),), parsed.label, device=device)
        elif parsed.strongest == 1 and parsed.against is None:
            target = None
        else:
            with torch.no_grad():
                logits = logits_of(output := self.loaded.model(x))
            if logits.ndim != 2:
                raise InputError(no_classifier(tuple(logits.shape), len(x), output))
            if logits.shape[1] < parsed.strongest:
                raise InputError(
                    f"target {parsed.text}: the model's output {tuple(logits.shape)} has not so many classes."
                )
            if parsed.against is not None and parsed.strongest > 1:  # the strongest of the others
                logits = logits.index_fill(1, torch.tensor([parsed.against], device=device), float("-inf"))
            target = logits.topk(parsed.strongest, dim=1).indices.flatten()
            x = x.repeat_interleave(parsed.strongest, dim=0)
        if parsed.against is not None:
            same = (target == parsed.against).nonzero()
            if len(same):
                raise InputError(f"target {parsed.text}: the two are the same class here.")
            target = Contrast(target, parsed.against)
        return self.explainer.explain(x, target, batch="auto", passes=self.passes)

    def _save(self, item: _Read, found: Explanation) -> dict[str, Any]:
        names = [] if found.target is None else [self.loaded.named(int(c)) for c in found.target]
        titles = self.parsed.titles(self.loaded, found.output, len(found))
        facts = item.facts | {
            "names": names if titles is None else titles,
            "against_names": [] if found.against is None else [self.loaded.named(int(c)) for c in found.against],
            "strongest": [] if self.parsed.target is not None else self._strongest(found),
        }
        is_picture = found.main_of(found.relevance)[1] is Kind.PICTURE
        height, width = found.map.shape[-2:] if is_picture else (0, 0)
        outlines = self.parsed.outlines((height, width), found.output, len(found)) if is_picture else None
        photos = None if item.window is None else [item.photo] * len(found)
        shown = Shown(found, self.loaded, photos, titles, outlines)
        # Made before anything is written, so that an image has all of its files or none.
        made = {"npz": _npz(found, item.window)}
        made |= {kind: shown.encoded(kind, self.all_stages) for kind in ("png", "details.png")}
        if item.prepared is not None:
            made |= self._of_recording(item, item.prepared, found, facts["names"])
        facts |= found.facts() | {"marked": _marked(found, outlines)}
        facts["drawn"] = shown.drawn()
        facts["sentence"] = [shown.words(i).sentence for i in range(len(found))]
        facts |= {"sha256": {kind: sha256(content).hexdigest() for kind, content in made.items()}}
        for kind, content in made.items():
            write_whole(self._file(item.source, kind), content)
        # Last of all: where it is, the others are.
        write_result(self._file(item.source, "json"), facts)
        return facts

    def _of_recording(
        self, item: _Read, prepared: Prepared, found: Explanation, names: Sequence[str]
    ) -> dict[str, bytes]:
        """The page of a recording with its sliders, and its map in a file of its field: of the first explanation."""
        made: dict[str, bytes] = {}
        if self.page is not None:
            made["html"] = self.page(found[0], prepared, names[0] if names else None, item.source.name).encode()
        ending = prepared.map_file()
        place = prepared.recording
        if ending is not None and place is not None and tuple(found.map.shape[1:]) == place.grid:
            made[ending] = prepared.map_bytes(found)
        return made

    def _strongest(self, found: Explanation) -> list[dict[str, Any]]:
        logits = logits_of(found.output)[0].detach().float()
        best = logits.topk(min(_NOTED, len(logits)))
        return [
            {"class": int(i), "name": self.loaded.named(int(i)), "logit": float(v)}
            for v, i in zip(best.values, best.indices, strict=True)
        ]


def _marked(found: Explanation, outlines: Tensor | None) -> dict[str, Any] | None:
    """What the region or the box that is explained holds of the score, or of its difference, and how sure that is."""
    if outlines is None:
        return None
    region = found.region(outlines)
    errors = region.share_stderr
    return {"share": region.share.tolist(), "stderr": None if errors is None else errors.tolist()}


def _npz(found: Explanation, window: Window | None) -> bytes:
    """The arrays of an explanation, and its maps on the pixels of the photograph, where that isn't too large."""
    arrays = found.arrays()
    if window is not None:
        placed = restored(found.map, [window] * len(found))
        arrays |= {name: each.numpy() for name, each in placed.items()}
    buffer = BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


@dataclass(frozen=True)
class _Read:
    """An image that was read and preprocessed, and what is already known of it."""

    source: Source
    x: Tensor
    photo: Any
    window: Window | None
    facts: dict[str, Any]
    damaged: tuple[str, ...]
    prepared: Prepared | None = None


def _said(error: Exception) -> str:
    """An error in words: hilrp's own are sentences, others need their kind."""
    return str(error) if isinstance(error, (HilrpError, OSError)) else f"{type(error).__name__}: {error}"


def checksum(path: Path) -> str:
    """The SHA-256 of a file, or of the files of a folder."""
    if path.is_dir():
        return folder_checksum(path)
    with open_regular(path) as file:
        return file_digest(file, "sha256").hexdigest()
