"""What the rows of a run say about a data set.

Verdicts, where evidence lies, and which classes seem to rest on a shortcut.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hilrp.jobs.run.results import Results
from hilrp.jobs.run.rows import GRID, grid_of

#: A class is judged from this many images on.
ENOUGH = 10
#: How many images are shown of each kind.
SHOWN = 8
#: A place is a window of so many cells a side, and it matters in an image if it holds this part of the evidence for the
#: class.
_WINDOW, _HELD = 3, 0.5
#: A place that is given tells something if it covers no more than this part of the picture.
_TELLING = 0.9
#: It is suspect if it matters in this part of a class's images, and so many times as often as in those of others.
_OFTEN, _TIMES = 0.5, 3.0

_COLUMNS = ("number", "id", "model", "method", "error", "label", "target", "target_name", "prediction", "verdict",
            "energy", "area", "score", "reference_score", "pixel_share", "entropy", "confidence", "grid")  # fmt: skip
#: What may be unusual about an explanation, and how it is called.
_UNUSUAL = {
    "entropy": "spread of the map (entropy)",
    "pixel_share": "the pixels' share of the score",
    "difference": "the score's difference to the reference's",
    "peak": "evidence in one place",
}

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Shown:
    """An image, and why it is shown."""

    number: int
    id: str
    target: str
    said: str
    grid: Array


@dataclass(frozen=True)
class Suspect:
    """A class that seems to rest on something else than its object."""

    model: str
    method: str
    index: int
    name: str
    kind: str
    why: str

    @property
    def said(self) -> str:
        """All of it."""
        return f"{self.model}, {self.method}, {self.name}: {self.why}"


@dataclass
class Class:
    """What is known of the images that are explained for one class.

    Attributes:
        name: Of the class.
        count: How many images.
        right: How many of those with a label have this one.
        labelled: How many have a label.
        known: How many have an object whose place is known.
        energy: The sum of the parts of the evidence that lie on the object.
        area: The sum of the parts of the pictures that the objects cover.
        grid: The sum of the coarse maps.
        often: In how many images each place matters.
        examples: The first images.
    """

    name: str
    count: int = 0
    right: int = 0
    labelled: int = 0
    known: int = 0
    energy: float = 0.0
    area: float = 0.0
    grid: Array = field(default_factory=lambda: np.zeros((GRID, GRID)))
    often: Array = field(default_factory=lambda: np.zeros((GRID - _WINDOW + 1,) * 2))
    examples: list[Shown] = field(default_factory=list)

    @property
    def on_object(self) -> float | None:
        """The mean part of the evidence that lies on the object, where that is known."""
        return self.energy / self.known if self.known else None

    @property
    def excess(self) -> float | None:
        """The same, less the mean part of the picture that the object covers."""
        return (self.energy - self.area) / self.known if self.known else None

    @property
    def mean(self) -> Array:
        """The mean of its maps: where evidence for it lies over all images."""
        return self.grid / max(1, self.count)


@dataclass
class Group:
    """All images of one model under one method.

    Attributes:
        model, method: Their names.
        count: How many images are explained.
        verdicts: How many of each there are.
        errors, failed: Some of those that could not be explained, and how many there are.
        classes: By their numbers.
        sure: The confidence of each image's prediction: the largest of the model's softmax.
        least: The images with the least evidence beyond the object's area: how much that is, and the image.
        values, seen: What may be unusual, of each image, and the images' numbers.
        unusual: The most unusual images.
        judged, placed: How many classes are judged, and how many of them by their objects.
        suspects: Those that seem to rest on something else.
    """

    model: str
    method: str
    count: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    errors: list[tuple[str, str]] = field(default_factory=list)
    failed: int = 0
    classes: dict[int, Class] = field(default_factory=dict)
    sure: array[float] = field(default_factory=lambda: array("f"))
    least: list[tuple[float, Shown]] = field(default_factory=list)
    values: dict[str, array[float]] = field(default_factory=lambda: {name: array("f") for name in _UNUSUAL})
    seen: array[int] = field(default_factory=lambda: array("q"))
    unusual: list[Shown] = field(default_factory=list)
    judged: int = 0
    placed: int = 0
    suspects: list[Suspect] = field(default_factory=list)

    @property
    def accuracy(self) -> float | None:
        """The part of the images with a label whose prediction it is."""
        labelled = sum(c.labelled for c in self.classes.values())
        return sum(c.right for c in self.classes.values()) / labelled if labelled else None

    @property
    def confidence(self) -> float | None:
        """The mean confidence of the predictions."""
        return float(np.mean(self.sure)) if self.sure else None

    @property
    def known(self) -> int:
        """How many images have an object whose place is known."""
        return sum(c.known for c in self.classes.values())

    @property
    def on_object(self) -> float | None:
        """The mean part of the evidence that lies on the object."""
        return sum(c.energy for c in self.classes.values()) / self.known if self.known else None

    @property
    def covered(self) -> float | None:
        """The mean part of the picture that the object covers."""
        return sum(c.area for c in self.classes.values()) / self.known if self.known else None

    def facts(self) -> dict[str, Any]:
        """The figures as plain numbers."""
        return {
            "model": self.model,
            "method": self.method,
            "images": self.count,
            "failed": self.failed,
            "accuracy": self.accuracy,
            "confidence": self.confidence,
            "energy": self.on_object,
            "area": self.covered,
            "verdicts": dict(self.verdicts),
            "classes_judged": self.judged,
            "classes_judged_by_their_objects": self.placed,
            "classes": [
                {
                    "name": c.name,
                    "images": c.count,
                    "right": c.right / c.labelled if c.labelled else None,
                    "energy": c.on_object,
                }
                for c in self.classes.values()
            ],
            "suspects": [vars(suspect) for suspect in self.suspects],
        }


def summarise(results: Results) -> list[Group]:
    """One group for each model and method, in the order of the run."""
    groups: dict[tuple[str, str], Group] = {}
    for table in results.tables(_COLUMNS):
        for row in table.to_pylist():
            key = row["model"], row["method"]
            _add(groups.setdefault(key, Group(*key)), row)
    for group in groups.values():
        group.suspects = _suspects(group)
        _find_unusual(group, results)
    return list(groups.values())


def percent(part: float) -> str:
    """A part of a whole, in words.

    Example:
        >>> percent(0.294)
        '29 %'
    """
    return f"{100 * part:.0f} %"


def places(grid: Array) -> Array:
    """What each window of a coarse map holds."""
    sums = np.pad(grid.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    w = _WINDOW
    found: Array = sums[w:, w:] - sums[:-w, w:] - sums[w:, :-w] + sums[:-w, :-w]
    return found


def _add(group: Group, row: dict[str, Any]) -> None:
    if row["error"] is not None:
        group.failed += 1
        if len(group.errors) < 50:
            group.errors.append((row["id"], row["error"]))
        return
    group.count += 1
    if row["verdict"] is not None:
        group.verdicts[row["verdict"]] += 1
    found = group.classes.setdefault(row["target"], Class(row["target_name"]))
    grid = grid_of(row)
    held = places(grid)
    found.count += 1
    found.grid += grid
    found.often += held >= _HELD
    if row["label"] is not None:
        found.labelled += 1
        found.right += row["label"] == row["prediction"]
    if row["confidence"] is not None:
        group.sure.append(row["confidence"])
    if len(found.examples) < 3:
        found.examples.append(Shown(row["number"], row["id"], row["target_name"], "", grid))
    # A box around everything holds all evidence, wherever that is.
    if row["energy"] is not None and row["area"] <= _TELLING:
        found.known += 1
        found.energy += row["energy"]
        found.area += row["area"]
        inside, area = percent(row["energy"]), percent(row["area"])
        said = f"{inside} of the evidence on the object, which covers {area} of the picture"
        shown = Shown(row["number"], row["id"], row["target_name"], said, grid)
        group.least.append((row["energy"] - row["area"], shown))
        if len(group.least) > 20 * SHOWN:
            group.least = sorted(group.least, key=lambda pair: pair[0])[:SHOWN]
    group.seen.append(row["number"])
    # Relative to a reference the pixels hold all of the difference: how large that is may be unusual.
    before = row["reference_score"]
    values = {"entropy": row["entropy"], "peak": float(held.max())}
    values |= {"pixel_share": row["pixel_share"]} if before is None else {"difference": row["score"] - before}
    for name in _UNUSUAL:
        value = values.get(name)
        group.values[name].append(np.nan if value is None else value)


def _suspects(group: Group) -> list[Suspect]:
    found = []
    group.least = sorted(group.least, key=lambda pair: pair[0])[:SHOWN]
    judged = [c for c in group.classes.values() if c.count >= ENOUGH]
    group.judged, group.placed = len(judged), sum(c.known >= ENOUGH for c in judged)
    often = sum((c.often for c in group.classes.values()), np.zeros_like(places(np.zeros((GRID, GRID)))))
    known = [c.on_object for c in judged if c.on_object is not None]
    typical = float(np.median(known)) if known else None
    for index, each in group.classes.items():
        if each.count < ENOUGH:
            continue
        others = group.count - each.count
        rest = (often - each.often) / max(1, others)
        part = each.often / each.count
        suspicious = np.where((part >= _OFTEN) & (part >= _TIMES * rest), part - rest, 0.0)
        if others and suspicious.max() > 0:
            row, column = np.unravel_index(int(suspicious.argmax()), suspicious.shape)
            why = (
                f"in {percent(part[row, column])} of {each.count} images {_where(int(row), int(column))} holds half of "
                f"the evidence for it or more, in those of other classes in {percent(rest[row, column])}"
            )
            found.append(Suspect(group.model, group.method, index, each.name, "a constant place", why))
        if typical is not None and each.on_object is not None and each.on_object < 0.5 * typical:
            why = (
                f"{percent(each.on_object)} of the evidence lies on the object, over {each.known} images; "
                f"in the median class it is {percent(typical)}"
            )
            found.append(Suspect(group.model, group.method, index, each.name, "outside the object", why))
    return found


def _where(row: int, column: int) -> str:
    """The place of a window in words."""
    third = (GRID - _WINDOW + 1) / 3
    down, across = (("upper", "middle", "lower")[int(row // third)], ("left", "middle", "right")[int(column // third)])
    if down == across == "middle":
        return "the middle"
    if "middle" in (down, across):
        return f"the {down} border" if across == "middle" else f"the {across} border"
    return f"the {down} {across} corner"


def _find_unusual(group: Group, results: Results) -> None:
    """The images that are farthest from the others in one of the figures, in units of their usual spread."""
    best = np.zeros(group.count)
    reason = np.full(group.count, "", dtype=object)
    for name, words in _UNUSUAL.items():
        values = np.array(group.values[name])
        if not np.isfinite(values).any():
            continue
        middle = np.nanmedian(values)
        spread = 1.4826 * np.nanmedian(np.abs(values - middle))
        distance = np.nan_to_num(np.abs(values - middle) / spread) if spread > 0 else np.zeros(group.count)
        for i in np.flatnonzero(distance > best):
            best[i], reason[i] = distance[i], f"{words}: {values[i]:.2g}, usually {middle:.2g}"
    chosen = [int(i) for i in np.argsort(-best, kind="stable")[:SHOWN] if best[i] > 3]
    wanted = {group.seen[i]: str(reason[i]) for i in chosen}
    if not wanted:
        return
    found = {}
    for table in results.tables(("number", "id", "model", "method", "target_name", "grid")):
        numbers = table.column("number").to_pylist()
        if not any(number in wanted for number in numbers):
            continue
        for row in table.to_pylist():
            if row["number"] in wanted and (row["model"], row["method"]) == (group.model, group.method):
                grid = grid_of(row)
                found[row["number"]] = Shown(row["number"], row["id"], row["target_name"], wanted[row["number"]], grid)
    group.unusual = [found[group.seen[i]] for i in chosen]
