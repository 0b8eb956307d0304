"""What a figure shows of one sample: the picture, the map in its place, the marked region, and the words for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hilrp.attribution.marking import smoothed
from hilrp.attribution.sentences import number
from hilrp.targets import logits_of
from hilrp.util.errors import InputError

if TYPE_CHECKING:
    from hilrp.attribution.explanation import Explanation


class Part(Protocol):
    """The part of a photograph that a model saw: `hilrp.Window`."""

    size: tuple[int, int]
    left: float
    top: float
    right: float
    bottom: float

    def scaled(self, factor: float) -> Part:
        """The same part of the same photograph, drawn larger or smaller."""


class Describes(Protocol):
    """Who knows what a model's inputs and outputs mean: `hilrp.Loaded`."""

    classes: list[str] | None

    def picture(self, x: Tensor) -> Tensor | None:
        """What the model sees, ``[B,3,H,W]`` from 0 to 1."""

    def likelihoods(self, logits: Tensor) -> Tensor:
        """How likely the classes are."""

    def window(self, photo: Any) -> Part | None:
        """The part of a photograph that the model sees."""

    def photo(self, photo: Any) -> Any:
        """A photograph, or its file, upright and in colours."""


@dataclass(frozen=True)
class Words:
    """What is said of a sample.

    Attributes:
        title: What is explained.
        likelihood: How likely that is, by the model itself, and its score.
        sentence: How much is explained, and where it comes from.
    """

    title: str
    likelihood: str
    sentence: str


@dataclass(frozen=True)
class Label:
    """What stands at a place of a picture, by its upper left corner in pixels."""

    top: int
    left: int
    text: str


@dataclass(frozen=True)
class Panel:
    """What is drawn of a sample, all of one size.

    Attributes:
        picture: The picture, ``[H,W,3]`` from 0 to 1.
        relevance: The smoothed map in its place, ``[H,W]``.
        limit: The relevance from which on colours are the strongest, of a pixel of the model's input.
        region: What is drawn around, ``[H,W]``: how much of each pixel belongs to it.
        unseen: What the model did not see, ``[H,W]``.
        place: What the map has a value for: a pixel, a voxel.
        blank: Where there is nothing, between pictures, ``[H,W]``.
        labels: What stands there.
    """

    picture: np.ndarray
    relevance: np.ndarray
    limit: float
    region: np.ndarray | None
    unseen: np.ndarray
    place: str = "pixel"
    blank: np.ndarray | None = None
    labels: tuple[Label, ...] = ()


def names_of(loaded: Describes | Sequence[str] | None) -> list[str] | None:
    """The names of the classes: those of a loaded model, or a list of them."""
    if loaded is None or isinstance(loaded, str):
        if isinstance(loaded, str):
            raise InputError(
                f"loaded={loaded!r}: give what hilrp.load returned, or a list with the names of all classes."
            )
        return None
    return list(loaded) if isinstance(loaded, Sequence) else loaded.classes


def classes_of(explanation: Explanation, sample: int, names: Sequence[str] | None) -> tuple[str | None, str | None]:
    """The class that is explained, by name or number, and the one that it is contrasted with; ``None`` without."""
    if explanation.target is None:
        return None, None
    index = int(explanation.target[sample])
    if names is not None and index >= len(names):
        raise InputError(
            f"classes has {len(names)} names, but class {index} is explained. Pass the name of every class."
        )
    said = names[index] if names else f"class {index}"
    if explanation.against is None:
        return said, None
    other = int(explanation.against[sample])
    return said, names[other] if names else f"class {other}"


def likelihood_of(explanation: Explanation, sample: int, loaded: Describes | Sequence[str] | None) -> str:
    """The score, the likelihood of the class where it is known, and the score on the reference."""
    score = f"score {number(float(explanation.score[sample]))}"
    if explanation.relative_to is not None:
        before = float(explanation.ledger.score[sample] - explanation.ledger.explained[sample])
        score += f" ({number(before)} on {explanation.relative_to})"
    if loaded is None or isinstance(loaded, Sequence) or explanation.target is None or explanation.against is not None:
        return score
    logits = logits_of(explanation.output)
    if logits.ndim != 2 or logits.shape[0] != len(explanation):
        return score
    likely = float(loaded.likelihoods(logits[sample].detach().float())[int(explanation.target[sample])])
    return f"{100 * likely:.1f} % likely, {score}"


def panel(
    explanation: Explanation,
    sample: int,
    picture: np.ndarray,
    region: Tensor | None,
    window: Part | None,
    height: int,
) -> Panel:
    """A sample, drawn so high.

    Args:
        explanation: The explanation.
        sample: Which sample.
        picture: What to draw on, ``[H,W,3]`` from 0 to 1: what the model saw, or the photograph that it saw a part of.
        region: What to draw around, ``[H,W]`` of the model's input.
        window: Which part of the photograph the model saw; without one the picture is what it saw.
        height: How many pixels high.
    """
    relevance = smoothed(explanation.map[sample : sample + 1].detach().float().cpu())
    factor = max(1.0, height / picture.shape[0]) if window is None else height / picture.shape[0]
    rows, columns = (max(1, round(side * factor)) for side in picture.shape[:2])
    drawn = _resized(torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1)[None].float(), rows, columns)[0]
    part = None if window is None else window.scaled(factor)

    def placed(values: Tensor) -> np.ndarray:
        """A map of the model's input, ``[1,h,w]``, where it belongs in the drawing."""
        if part is None:
            return _resized(values[None], rows, columns)[0, 0].numpy()
        top, bottom, left, right = (round(edge) for edge in (part.top, part.bottom, part.left, part.right))
        inner = _resized(values[None], max(1, bottom - top), max(1, right - left))[0, 0]
        whole = torch.zeros(rows, columns)
        own = inner[max(0, -top) : rows - top, max(0, -left) : columns - left]
        whole[max(0, top) : max(0, top) + own.shape[0], max(0, left) : max(0, left) + own.shape[1]] = own
        return whole.numpy()

    limit = float(relevance.abs().flatten().quantile(0.995)) or float(relevance.abs().max()) or 1.0
    around = None if region is None else placed(region[None].detach().float().cpu())
    unseen = placed(torch.ones_like(relevance)) == 0
    return Panel(drawn.permute(1, 2, 0).clamp(0, 1).numpy(), placed(relevance), limit, around, unseen)


def _resized(values: Tensor, rows: int, columns: int) -> Tensor:
    return F.interpolate(values, (rows, columns), mode="bilinear", align_corners=False, antialias=True)
