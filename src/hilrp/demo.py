"""The demonstration: every family of the zoo explains the same scenes, and the maps are checked against the truth.

It needs no download: the models come with the package, and the scenes are drawn on the fly. Since each class has a region
of its own in a scene, one picture is explained for two classes, and the map has to move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hilrp.explainer import Explainer
from hilrp.explanation import Explanation
from hilrp.libraries import zoo
from hilrp.libraries.loaded import Loaded
from hilrp.loading import load
from hilrp.scenes import Mask, Scene, Scenes
from hilrp.zoo.architectures import ARCHITECTURES

#: How many scenes are shown, and on how many objects of others the figures are measured.
_SHOWN = 3
MEASURED = 64
_BATCH = 16


@dataclass(frozen=True)
class Question:
    """One class in one scene."""

    scene: Scene
    label: int

    @property
    def mask(self) -> Mask:
        """Where the truth is."""
        return self.scene.mask(self.label)


@dataclass(frozen=True)
class Family:
    """What the demonstration found for one model.

    Attributes:
        loaded: The model.
        title: Its family.
        card: What is known of its training.
        shown: The explanations of the questions that are shown.
        hits: Of the measured questions, where the most relevant pixel lies on the object.
        inside: Of the measured questions, the part of the positive relevance that lies on the object.
        share, residual: Of all questions: the pixels' share of the score, and how far the books are from closing.
    """

    loaded: Loaded
    title: str
    card: dict[str, object]
    shown: Explanation
    hits: list[bool]
    inside: list[float]
    share: list[float]
    residual: list[float]


def shown() -> list[Question]:
    """The questions that are shown: the two largest objects of the first scenes that are fit for it."""
    pairs = (_pair(scene) for scene in Scenes(seed=0))
    return [question for pair in islice(filter(None, pairs), _SHOWN) for question in pair]


def _pair(scene: Scene) -> list[Question]:
    """The two largest of three or more objects, if none is cut and the two have neither colour nor shape in common."""
    if len(scene.things) < 3 or min(thing.visible for thing in scene.things) < 1:
        return []
    first, second, *_ = sorted(scene.things, key=lambda thing: -int(thing.mask.sum()))
    alike = first.colour == second.colour or first.shape == second.shape
    return [] if alike else [Question(scene, first.label), Question(scene, second.label)]


def measured(count: int = MEASURED) -> list[Question]:
    """The first objects of another collection: all of each scene."""
    found = (Question(scene, thing.label) for scene in Scenes(seed=1, count=count) for thing in scene.things)
    return list(islice(found, count))


def families(count: int = MEASURED) -> Iterator[Family]:
    """Explains the questions with each model of the zoo; yields each as it is done."""
    first, more = shown(), measured(count)
    for name, architecture in ARCHITECTURES.items():
        loaded = load(f"zoo/{name}")
        explainer = Explainer(loaded.model)
        explained = _explain(loaded, explainer, first)
        parts = [_explain(loaded, explainer, more[i : i + _BATCH]) for i in range(0, len(more), _BATCH)]
        maps = [m for part in parts for m in part.map]
        ledgers = [explained.ledger, *(part.ledger for part in parts)]
        yield Family(
            loaded=loaded,
            title=architecture.title,
            card=zoo.card(name),
            shown=explained,
            hits=[hit(m, question.mask) for m, question in zip(maps, more, strict=True)],
            inside=[inside(m, question.mask) for m, question in zip(maps, more, strict=True)],
            share=[share for ledger in ledgers for share in ledger.share.tolist()],
            residual=[residual for ledger in ledgers for residual in ledger.residual.tolist()],
        )


def _explain(loaded: Loaded, explainer: Explainer, questions: list[Question]) -> Explanation:
    x = loaded.batch([Image.fromarray(question.scene.image) for question in questions])
    return explainer.explain(x, [question.label for question in questions])


def hit(relevance: Tensor, mask: Mask) -> bool:
    """Whether the most relevant pixel lies on the object."""
    return bool(mask.flat[int(relevance.argmax())])


def inside(relevance: Tensor, mask: Mask) -> float:
    """The part of the positive relevance that lies on the object."""
    positive = relevance.clamp(min=0)
    return float(positive[torch.from_numpy(mask)].sum() / positive.sum())


def centre_gaussian(size: int = 128, width: float = 0.25) -> Tensor:
    """A map that looks at no model and no image: a bell over the middle, as wide as a part of the picture."""
    offset = (torch.arange(size) + 0.5) / size - 0.5
    bell = torch.exp(-0.5 * (offset / width) ** 2)
    return bell[:, None] * bell[None, :]


@dataclass(frozen=True)
class Control:
    """What a map scores on the measured questions that looks at no model: a bell in the middle; and chance."""

    pointing: float
    inside: float
    area: float


def control(count: int = MEASURED) -> Control:
    """The centre Gaussian on the measured questions; chance is the part of the picture that an object covers."""
    masks = [question.mask for question in measured(count)]
    bell = centre_gaussian(masks[0].shape[0])
    return Control(
        pointing=float(np.mean([hit(bell, mask) for mask in masks])),
        inside=float(np.mean([inside(bell, mask) for mask in masks])),
        area=float(np.mean([mask.mean() for mask in masks])),
    )
