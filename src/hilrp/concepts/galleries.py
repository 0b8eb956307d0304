"""Examples of concepts: the pictures of a data set in which each holds most, or is found most.

The data set is read as `hilrp run` reads it, and cut into the same pieces. What is found of a piece is one file, which
appears whole: a scan that was stopped goes on, and several may work in one folder, each on every n-th piece.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from hilrp.concepts.asking import Concepts
from hilrp.concepts.basis import Directions
from hilrp.concepts.prototypes import Clusters, cluster, directions
from hilrp.jobs.run.item import Item
from hilrp.jobs.run.items import find
from hilrp.jobs.run.preparing import Prepared, Preparer
from hilrp.jobs.run.store import Piece, Store, share_of
from hilrp.jobs.store import read_arrays
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.weights import fingerprint
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError

#: By what examples are chosen: by relevance (RelMax) or by activation (ActMax).
By = Literal["relevance", "activation"]
_NAMES = ("relevance", "activation", "target", "score", "error", "identity")
#: The part of a map's positive relevance that a crop holds along each axis.
_HELD = 0.9
#: The shortest side of a crop, as a part of the picture's.
_SHORTEST = 0.2


@dataclass(frozen=True)
class Example:
    """A picture of a data set, and what a concept is in it.

    Attributes:
        item: The picture: its ``id``, where it is, perhaps its ``label``.
        value: The concept's relevance, or its activation.
        target: The class that was explained.
        score: Its score.
    """

    item: Item
    value: float
    target: int
    score: float


@dataclass(frozen=True)
class Crop:
    """An example's picture, cropped to where the concept's map lies.

    Attributes:
        picture: What the model saw of it, cropped.
        box: Left, top, right and bottom of the crop in what the model saw; the last two just beyond.
        map: The concept's map of the whole, ``[H,W]``.
    """

    picture: Image.Image
    box: tuple[int, int, int, int]
    map: Tensor


@dataclass(frozen=True)
class Prototype:
    """A way in which a class is recognised.

    Attributes:
        centre: What each concept holds, the mean of the cluster's pictures, of which each has the length one; ``[K]``.
        concepts: The five concepts that hold most in it.
        examples: Its pictures, the most typical first; their value is the distance from the centre.
    """

    centre: np.ndarray
    concepts: list[int]
    examples: list[Example]


def box_of(relevance: Tensor) -> tuple[int, int, int, int]:
    """The box that holds most of a map's relevance, of the sign that prevails: left, top, right, bottom.

    Example:
        >>> m = torch.zeros(20, 20)
        >>> m[4:9, 10:15] = 1
        >>> box_of(m)
        (10, 4, 15, 9)
    """
    own = relevance.detach().double().cpu()
    own = (own if float(own.sum()) >= 0 else -own).clamp(min=0)
    (left, right), (top, bottom) = (_side(own.sum(axis)) for axis in (0, 1))
    return left, top, right, bottom


def _side(along: Tensor) -> tuple[int, int]:
    """Where most of some amounts lies: the first, and the one after the last."""
    length, whole = len(along), float(along.sum())
    if whole == 0:
        return 0, length
    part, edge = along.cumsum(0) / whole, (1 - _HELD) / 2
    first, last = int((part <= edge).sum()), min(length, int((part < 1 - edge).sum()) + 1)
    wanted = max(last - first, round(_SHORTEST * length))
    first = min(max(0, (first + last - wanted + 1) // 2), length - wanted)
    return first, first + wanted


@dataclass(frozen=True)
class Gallery:
    """Examples of a layer's concepts in a data set.

    Attributes:
        loaded: The model, of `hilrp.load`.
        concepts: The layer and its concepts.
        folder: Where what is found is kept.
        target: The explained class; by default each picture's predicted one.
        batch: How many pictures are explained at once.
        piece: How many pictures a file is of.

    Example:
        >>> import hilrp, tempfile
        >>> loaded = hilrp.load("zoo/resnet")
        >>> concepts = Concepts(loaded.model, at="layer4")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     gallery = Gallery(loaded, concepts, Path(folder))
        ...     done = [*gallery.scan("scenes:0:6")]
        ...     best = gallery.strongest(0, count=2)
        >>> done, len(best), best[0].value >= best[1].value
        ([6], 2, True)
    """

    loaded: Loaded
    concepts: Concepts
    folder: Path
    target: int | None = None
    batch: int = 16
    piece: int = 64
    _store: Store = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.loaded.model is not self.concepts.model:
            raise InputError("concepts: they are of another model than the one that is loaded.")
        if self.batch < 1 or self.piece < 1:
            raise InputError(f"batch={self.batch}, piece={self.piece}: give one or more.")
        object.__setattr__(self, "_store", Store(Path(self.folder)))

    @property
    def damaged(self) -> list[str]:
        """What was found damaged in the folder; it is made again."""
        return self._store.damaged

    def scan(
        self, data: str, limit: int | None = None, split: str | None = None, shard: tuple[int, int] = (1, 1)
    ) -> Iterator[int]:
        """Explains the pictures of a data set, and keeps what each concept holds of each.

        Args:
            data: A folder, shards, ``hub:NAME``, or ``scenes:SEED:COUNT``: see `hilrp run`.
            limit: Take so many pictures.
            split: Of a data set of the hub.
            shard: Which of several scans of the same data set this is, and how many there are.

        Yields:
            How many pictures of each piece are done, those that were done before included.
        """
        if not 1 <= shard[0] <= shard[1]:
            raise InputError(f"shard={shard}: give the number of this scan, from 1, and how many there are.")
        vars(self).pop("_found", None)
        self._store.begin(find(data, split, self.folder), self._settings() | {"data": data}, self.piece, limit)
        (self.folder / "concepts").mkdir(exist_ok=True)
        prepare = Preparer([self.loaded])
        for piece in share_of(self._store.pieces(), shard):
            if self._read(piece) is None:
                found = self._explained([prepare(item) for item in self._store.items(piece)])
                arrays = found | {"identity": np.array(self._store.identity(piece))}
                write_whole(self._file(piece), partial(_write, arrays))
            yield piece.count

    def strongest(self, concept: int, count: int = 9, by: By = "relevance") -> list[Example]:
        """The pictures in which a concept holds most of the score, or in which there is most of it; best first."""
        values = self._values(by)
        own = values[:, self._one_of(concept)]
        order = [i for i in np.argsort(-own, kind="stable") if np.isfinite(own[i])][:count]
        return [self._example(int(i), float(own[i])) for i in order]

    def counts(self, top: int = 5) -> np.ndarray:
        """In how many pictures each concept is among the so many that hold most for the score, ``[K]``."""
        counted: np.ndarray = self._among(top).sum(0)
        return counted

    def classes(self, concept: int, top: int = 5) -> dict[str, tuple[int, int]]:
        """Of each explained class, in how many pictures a concept is among those that hold most, and of how many."""
        concept = self._one_of(concept)
        targets = [int(t) for t in self._found["target"]]
        good = np.isfinite(self._found["score"])
        all_of = Counter(t for t, ok in zip(targets, good, strict=True) if ok)
        own = Counter(t for t, among in zip(targets, self._among(top)[:, concept], strict=True) if among)
        return {self.loaded.named(t): (own[t], count) for t, count in sorted(all_of.items()) if own[t]}

    def prototypes(self, target: int, count: int = 3) -> list[Prototype]:
        """How a class is recognised: clusters of its pictures, by what concepts hold in them; the largest first."""
        numbers, found = self._clusters(target, count)
        made = []
        for i, centre in enumerate(found.centres):
            members = np.flatnonzero(found.labels == i)
            if len(members):
                nearest = members[np.argsort(found.distances[members], kind="stable")]
                examples = [self._example(int(numbers[k]), float(found.distances[k])) for k in nearest]
                made.append(Prototype(centre, np.argsort(-np.abs(centre), kind="stable")[:5].tolist(), examples))
        return sorted(made, key=lambda each: -len(each.examples))

    def outliers(self, target: int, count: int = 9, prototypes: int = 3) -> list[Example]:
        """The pictures of a class that fit its prototypes least; their value is the distance from the nearest."""
        numbers, found = self._clusters(target, prototypes)
        order = np.argsort(-found.distances, kind="stable")[:count]
        return [self._example(int(numbers[k]), float(found.distances[k])) for k in order]

    def _clusters(self, target: int, count: int) -> tuple[np.ndarray, Clusters]:
        own = (self._found["target"] == target) & np.isfinite(self._found["score"])
        if not 1 <= count <= int(own.sum()):
            raise InputError(
                f"target={target}: {int(own.sum())} pictures were explained as that class. Give from 1 to as many "
                "prototypes, or another class."
            )
        numbers = np.flatnonzero(own)
        return numbers, cluster(directions(self._found["relevance"][numbers]), count)

    def crops(self, concept: int, examples: Sequence[Example]) -> list[Crop]:
        """The pictures of some examples, cropped to where the concept's map lies."""
        made = []
        prepare = Preparer([self.loaded])
        for example in examples:
            prepared = prepare(example.item)
            if prepared.error is not None:
                raise HilrpError(f"{example.item['id']}: {prepared.error}")
            x = prepared.inputs[0][None].to(self.loaded.device)
            found = self.concepts.maps(x, example.target, [concept])
            seen = self.loaded.picture(x)
            if seen is None:
                raise InputError(
                    f"{self.loaded.name}: what its preprocessing did to colours isn't known, and so the picture can't "
                    "be drawn. Use strongest() and the files themselves."
                )
            pixels = (seen[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
            box = box_of(found.maps[0, 0])
            made.append(Crop(Image.fromarray(pixels).crop(box), box, found.maps[0, 0].cpu()))
        return made

    def sheet(self, concepts: Sequence[int], count: int = 6, by: By = "relevance", side: int = 96) -> Image.Image:
        """A sheet with a row of crops for each of some concepts.

        Beside it: in how many pictures it is among the five that hold most, and of which classes these are.
        """
        left, gap = 120, 4
        sheet = Image.new("RGB", (left + count * (side + gap), len(concepts) * (side + gap)), "white")
        pen = ImageDraw.Draw(sheet)
        often, number = self.counts(), len(self._found["score"])
        for row, concept in enumerate(concepts):
            top = row * (side + gap)
            classes = sorted(self.classes(concept).items(), key=lambda each: -each[1][0])[:3]
            told = [f"{self.concepts.layer} {concept}", f"top 5 in {often[concept]}/{number}"]
            told += [f"{name} {own}/{whole}" for name, (own, whole) in classes]
            pen.multiline_text((4, top + 4), "\n".join(told), fill="black")
            for column, crop in enumerate(self.crops(concept, self.strongest(concept, count, by))):
                sheet.paste(crop.picture.resize((side, side)), (left + column * (side + gap), top))
        return sheet

    # What is kept ---------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        return {
            "kind": "concepts",
            "model": self.loaded.name,
            "fingerprint": fingerprint(self.loaded.model),
            "target": "prediction" if self.target is None else self.target,
        } | described(self.concepts)

    def _file(self, piece: Piece) -> Path:
        return self.folder / "concepts" / f"{piece.name}.npz"

    def _read(self, piece: Piece) -> dict[str, np.ndarray] | None:
        """What is kept of a piece, if it is there, whole and of this scan."""
        found = read_arrays(self._file(piece), _NAMES, self.damaged)
        if found is None or str(found["identity"]) != self._store.identity(piece):
            return None
        return found if all(len(found[name]) == piece.count for name in _NAMES[:-1]) else None

    @cached_property
    def _found(self) -> dict[str, np.ndarray]:
        pieces = self._store.pieces()
        read = [self._read(piece) for piece in pieces]
        missing = sum(each is None for each in read)
        if missing:
            raise InputError(
                f"{self.folder}: {missing} of {len(pieces)} pieces are not done. Let scan() come to its end first."
            )
        count = max(each["relevance"].shape[1] for each in read if each is not None)
        for each in read:
            for name in ("relevance", "activation"):
                if each is not None and not each[name].shape[1]:  # none of its pictures could be read
                    each[name] = np.full((len(each[name]), count), np.nan, np.float32)
        return {name: np.concatenate([each[name] for each in read if each is not None]) for name in _NAMES[:-1]}

    def _values(self, by: By) -> np.ndarray:
        if by not in ("relevance", "activation"):
            raise InputError(f'by={by!r}: use "relevance" or "activation".')
        return self._found[by]

    def _one_of(self, concept: int) -> int:
        count = self._found["relevance"].shape[1]
        if not 0 <= concept < count:
            raise InputError(f"concept={concept}: give a number from 0 to {count - 1}.")
        return concept

    def _among(self, top: int) -> np.ndarray:
        values = np.nan_to_num(self._found["relevance"], nan=-np.inf)
        if top < 1:
            raise InputError(f"top={top}: give one or more.")
        order = np.argsort(-values, axis=1, kind="stable")[:, :top]
        among = np.zeros(values.shape, bool)
        np.put_along_axis(among, order, True, 1)
        found: np.ndarray = among & (values > 0)
        return found

    def _example(self, number: int, value: float) -> Example:
        piece = next(p for p in self._store.pieces() if p.first <= number < p.first + p.count)
        item = self._store.items(piece)[number - piece.first]
        return Example(item, value, int(self._found["target"][number]), float(self._found["score"][number]))

    def _explained(self, prepared: Sequence[Prepared]) -> dict[str, np.ndarray]:
        """What is found of pictures; of those that can't be explained, why."""
        rows: list[tuple[Any, ...]] = [(None, None, -1, np.nan, each.error or "") for each in prepared]
        alike: dict[tuple[int, ...], list[int]] = {}
        for i, each in enumerate(prepared):
            if each.error is None:
                alike.setdefault(tuple(each.inputs[0].shape), []).append(i)
        failed: HilrpError | None = None
        for places in alike.values():
            waiting = [places[start : start + self.batch] for start in range(0, len(places), self.batch)]
            while waiting:
                part = waiting.pop(0)
                try:
                    found = self._of_batch(torch.stack([prepared[i].inputs[0] for i in part]))
                except HilrpError as error:
                    if len(part) > 1:  # whichever it is of
                        waiting = [[i] for i in part] + waiting
                    else:
                        failed = error
                        rows[part[0]] = (None, None, -1, np.nan, str(error))
                    continue
                for i, row in zip(part, found, strict=True):
                    rows[i] = (*row, "")
        if failed is not None and all(row[0] is None for row in rows):
            raise failed  # it is no picture's fault
        count = next((len(row[0]) for row in rows if row[0] is not None), 0)
        nothing = np.full(count, np.nan, np.float32)
        arrays = [np.stack([nothing if row[k] is None else row[k] for row in rows]) for k in (0, 1)]
        return {
            "relevance": arrays[0],
            "activation": arrays[1],
            "target": np.array([row[2] for row in rows]),
            "score": np.array([row[3] for row in rows], np.float32),
            "error": np.array([row[4] for row in rows]),
        }

    def _of_batch(self, x: Tensor) -> Iterator[tuple[Any, ...]]:
        found = self.concepts.relevance(x.to(self.loaded.device), self.target)
        targets = found.explanation.target
        assert targets is not None
        each = [t.float().cpu().numpy() for t in (found.relevance, found.activations)]
        return zip(*each, targets.tolist(), found.explanation.score.tolist(), strict=True)


def _write(arrays: dict[str, np.ndarray], file: IO[bytes]) -> None:
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def described(concepts: Concepts) -> dict[str, Any]:
    """What the relevance of concepts depends on, beside the model, as settings of a folder have it."""
    basis = concepts.basis
    told: Any = repr(basis)
    if isinstance(basis, Directions):
        encoder = basis.encoder
        told = {"decoder": _digest([basis.decoder]), "encoder": None}
        if isinstance(encoder, Tensor):
            told["encoder"] = _digest([encoder])
        elif isinstance(encoder, nn.Module):
            told["encoder"] = f"{_of_modules(encoder)} {_digest([*encoder.state_dict().values()])}"
        elif encoder is not None:
            raise InputError(
                "basis: the encoder is a function, and a folder can't tell it from another that was changed. Give a "
                "module (nn.Module), whose weights and settings it is known by."
            )
    return {"at": str(concepts.layer), "axis": concepts.layer.axis, "basis": told} | concepts.settings


def _of_modules(encoder: nn.Module) -> str:
    """What an encoder is made of: its classes, and their settings (how many of a top-k)."""
    plain = (bool, int, float, str, type(None))
    return "; ".join(
        f"{name} {module._get_name()} {sorted((k, v) for k, v in vars(module).items() if isinstance(v, plain))}"
        for name, module in encoder.named_modules()
    )


def _digest(several: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for t in several:
        digest.update(t.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
