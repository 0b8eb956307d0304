"""What a model says of a picture: the strongest classes, what it found where, or that it has no classes at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hilrp.attribution.sentences import number
from hilrp.models.libraries.loaded import Loaded
from hilrp.targets import logits_of

#: How many are shown.
_SHOWN = 5


@dataclass(frozen=True)
class Choice:
    """Something that can be explained.

    Attributes:
        target: In the words of `hilrp explain --target`.
        name: What it is called.
        figure: How strong it is, in words.
        part: How strong it is, from 0 to 1, for a bar.
    """

    target: str
    name: str
    figure: str
    part: float


@dataclass(frozen=True)
class Prediction:
    """What a model says of a picture.

    Attributes:
        kind: ``"classes"``, ``"regions"`` (segmentation), ``"objects"`` (detection), ``"features"``, or ``"answers"``:
            then the choices are questions.
        choices: The strongest first.
    """

    kind: str
    choices: list[Choice]


def predict(loaded: Loaded, x: Tensor) -> Prediction:
    """What the model says of a picture ``[1,3,H,W]``."""
    with torch.no_grad():
        output = loaded.model(x)
    boxes = any(_part(output, name) is not None for name in ("pred_boxes", "boxes", "corners"))
    logits = logits_of(output).float()
    if boxes and logits.ndim == 3:
        return Prediction("objects", _objects(loaded, output, logits[0]))
    if logits.ndim == 4:
        return Prediction("regions", _regions(loaded, logits[0], x))
    if logits.ndim != 2 or not loaded.classifies:
        return Prediction("features", [Choice("view", "what its mirror image has in common with it", "", 0.0)])
    return Prediction("classes", _classes(loaded, logits[0]))


def _classes(loaded: Loaded, logits: Tensor) -> list[Choice]:
    # The zoo's classes are there or not, each by itself; elsewhere one excludes the others.
    likely = logits.sigmoid() if loaded.of_zoo else logits.softmax(0)
    best = logits.topk(min(_SHOWN, len(logits)))
    found = [(int(i), float(value), float(likely[i])) for value, i in zip(best.values, best.indices, strict=True)]
    return [
        Choice(str(i), loaded.named(i), f"{100 * part:.1f} %, logit {number(value)}", part) for i, value, part in found
    ]


def _regions(loaded: Loaded, logits: Tensor, x: Tensor) -> list[Choice]:
    """The classes that cover most of the picture, each in the box around where it was found."""
    strongest = logits.argmax(0)
    there = logits > 0 if loaded.of_zoo else torch.stack([strongest == i for i in range(len(logits))])
    area = there.float().mean((1, 2))
    best = area.topk(min(_SHOWN, len(area)))
    return [
        Choice(
            f"region:{_box(there[i], x)}:{int(i)}",
            loaded.named(int(i)),
            f"{100 * float(part):.1f} % of the picture",
            float(part),
        )
        for part, i in zip(best.values, best.indices, strict=True)
        if part > 0 or i == best.indices[0]
    ]


def _box(there: Tensor, x: Tensor) -> str:
    """Left, top, right and bottom of where something is, in pixels of the input.

    The whole picture, if it is nowhere.
    """
    (rows, columns), (height, width) = there.shape, x.shape[-2:]
    down, across = there.any(1).nonzero().flatten().tolist(), there.any(0).nonzero().flatten().tolist()
    if not down:
        return f"0,0,{width},{height}"
    top, bottom = down[0] * height // rows, -(-(down[-1] + 1) * height // rows)
    left, right = across[0] * width // columns, -(-(across[-1] + 1) * width // columns)
    return f"{left},{top},{right},{bottom}"


def _objects(loaded: Loaded, output: Any, logits: Tensor) -> list[Choice]:
    """What was found, the surest first."""
    own, scores = _part(output, "labels"), _part(output, "scores")
    if own is not None and scores is not None:
        found = [(i, int(own[0, i]), float(scores[0, i])) for i in range(own.shape[1]) if int(own[0, i]) >= 0]
    else:
        # DETR has a class for "nothing"; detectors of the kind of Deformable DETR ask for each class by itself.
        named = len(loaded.classes or ())
        likely = logits.softmax(-1)[:, :-1] if named == logits.shape[-1] - 1 else logits.sigmoid()
        sure, labels = likely.max(-1)
        order = sure.argsort(descending=True).tolist()
        found = [(i, int(labels[i]), float(sure[i])) for i in order]
    return [
        Choice(f"detection:{query}:{label}", f"{loaded.named(label)} ({query})", f"{100 * sure:.1f} %", sure)
        for query, label, sure in found[:_SHOWN]
    ]


def _part(output: Any, name: str) -> Tensor | None:
    found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return found if isinstance(found, Tensor) else None
