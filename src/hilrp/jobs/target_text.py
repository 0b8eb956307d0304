"""Targets in the words of the command line: a text is read, and becomes a target."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hilrp.attribution.texts import ImageTower, caption_embeddings
from hilrp.models.images import read
from hilrp.models.libraries.loaded import Loaded
from hilrp.targets import Cosine, Detection, Region, Views
from hilrp.util.errors import InputError, TargetError

#: The class that a data set gives each image.
LABEL = "label"


@dataclass(frozen=True)
class ParsedTarget:
    """What is to be explained in each image: some of the strongest classes, or a given one; perhaps against another.

    Attributes:
        text: As the user said it.
        strongest: How many of the strongest classes.
        label: The class, where one is given.
        against: The class that it is contrasted with.
        target: What is explained instead of a class: one of `hilrp.targets`.
        tower: Whether that is asked of the picture's tower of a model of two.
    """

    text: str
    strongest: int = 1
    label: int | None = None
    against: int | None = None
    target: Any = None
    tower: bool = False

    @staticmethod
    def parse(text: str, loaded: Loaded, against: str | None = None) -> ParsedTarget:
        """The target that a text names.

        The text is "prediction", "top5", a class, "view", "text:CAPTION", "region:MASK:CLASS" and so on.
        """
        if (target := _other_target(text, loaded)) is not None:
            if against is not None:
                raise InputError(f"target {text}: only a class can be contrasted with another.")
            return ParsedTarget(text, target=target, tower=text.startswith("text:"))
        other = None if against is None else loaded.index(against)
        said = text if against is None else f"{text} against {against}"
        plain = text.strip().lower()
        if not loaded.classifies and (plain == "prediction" or re.fullmatch("top[0-9]+", plain)):
            raise InputError(
                f"target {text}: {loaded.name} has no classifier, its output is a vector of features. Ask what makes "
                "two views of the picture alike to it (--target view), give the index of a feature, or load a "
                "checkpoint with a classifier."
            )
        if plain == "prediction":
            return ParsedTarget(said, against=other)
        if re.fullmatch("top[0-9]+", plain):
            count = int(plain[3:])
            if not 1 <= count <= 10:
                raise InputError(f"target {text}: from top1 to top10.")
            return ParsedTarget(said, strongest=count, against=other)
        if plain == LABEL:
            raise InputError(
                f"target {text}: single pictures have none. Name the class, or explain a data set with labels (hilrp "
                "run)."
            )
        label = loaded.index(text)
        if label == other:
            raise InputError(f"target {said}: a class can't be contrasted with itself.")
        return ParsedTarget(said, label=label, against=other)

    @property
    def count(self) -> int:
        """How many explanations an image gets."""
        return 1 if self.label is not None or self.target is not None else self.strongest

    def titles(self, loaded: Loaded, output: Any, batch: int) -> list[str] | None:
        """What is explained of each sample, in words, where that is no class."""
        _, _, rest = self.text.partition(":")
        if isinstance(self.target, Views):
            return ["cosine of the picture and its mirror image"] * batch
        if isinstance(self.target, Cosine):
            return [f"cosine of the picture and \u201c{rest}\u201d"] * batch
        if isinstance(self.target, Region):
            name = loaded.named(int(self.target.label)) if isinstance(self.target.label, int) else "strongest class"
            return [f"{name} in the region"] * batch
        if isinstance(self.target, Detection):
            where = f", query {rest.partition(':')[0]}" if self.target.query is not None else ""
            side = f"{self.target.side} side of " if self.target.side is not None else ""
            return [f"{side}{loaded.named(label)}{where}" for label in self.target.labels(output)]
        return None

    def outlines(self, size: tuple[int, int], output: Any, batch: int) -> Tensor | None:
        """Where a region is, or the box of a detection, ``[B,H,W]``."""
        try:
            return self.target.outline(size, output, batch) if isinstance(self.target, (Region, Detection)) else None
        except TargetError:  # a model that finds classes for its queries need not have boxes
            return None

    def model(self, loaded: Loaded) -> nn.Module:
        """What is explained: the model, or its tower for pictures."""
        return ImageTower(loaded.texts.model).eval() if self.tower and loaded.texts is not None else loaded.model


def _other_target(text: str, loaded: Loaded) -> Any:
    """A target that is no class, in the words of the command line; ``None`` if it is none of these."""
    kind, _, rest = text.partition(":")
    if text.strip().lower() == "view":
        return Views()
    if kind == "text":
        if loaded.texts is None:
            raise InputError(
                f"target {text}: {loaded.name} has no text tower. Take a model of two: zoo/towers, or "
                "open_clip/ViT-B-32-quickgelu."
            )
        try:
            ids = loaded.texts.ids(rest)
        except InputError as error:
            raise InputError(f"target {text}: {error}") from error
        device = next((p.device for p in loaded.model.parameters()), torch.device("cpu"))
        return Cosine(caption_embeddings(loaded.texts.model, ids.to(device)))
    if kind == "region":
        return _region(text, rest, loaded)
    if kind == "detection":
        return _detection(text, rest, loaded)
    return None


def _region(text: str, rest: str, loaded: Loaded) -> Region:
    """``MASK.png``, or left,top,right,bottom; perhaps with a class after a colon."""
    place, _, name = rest.rpartition(":") if ":" in rest else (rest, "", "")
    label = loaded.index(name) if name else None
    numbers = place.split(",")
    if len(numbers) == 4 and all(re.fullmatch(r"\s*[0-9.]+\s*", n) for n in numbers):
        left, top, right, bottom = map(float, numbers)
        return Region(label, box=(left, top, right, bottom))
    path = Path(place)
    if not path.is_file():
        raise InputError(f"target {text}: {place} is neither a mask's file nor left,top,right,bottom in pixels.")
    mask = np.asarray(read(path)[0].convert("L")) > 127
    if not mask.any():
        raise InputError(f"target {text}: the mask {place} is black everywhere.")
    return Region(label, mask=loaded.seen_mask(mask))


def _detection(text: str, rest: str, loaded: Loaded) -> Detection:
    """A query's number, perhaps with a class or a side of the box after a colon.

    Or a class, for the query that is surest of it.
    """
    query, _, what = rest.partition(":")
    if not query.strip():
        raise InputError(
            f"target {text}: which? Write detection:3, detection:3:cat, detection:3:left or detection:cat."
        )
    if not re.fullmatch("[0-9]+", query.strip()):
        if what:
            raise InputError(
                f"target {text}: {query!r} is no number of a query. Write detection:3, detection:3:cat, "
                "detection:3:left or detection:cat."
            )
        return Detection(None, label=loaded.index(query))
    if what in ("left", "top", "right", "bottom"):
        return Detection(int(query), side=what)  # type: ignore[arg-type]
    return Detection(int(query), label=loaded.index(what) if what else None)
