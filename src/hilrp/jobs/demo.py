"""The demonstration: every family of the zoo explains the same scenes, and the maps are checked against the truth.

It needs no download: the models come with the package, and the scenes are drawn on the fly. Since each class has a
region of its own in a scene, one picture is explained for two classes, and the map has to move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from PIL import Image
from torch import Tensor

from hilrp.attribution.explainer import Explainer
from hilrp.attribution.explanation import Explanation
from hilrp.jobs.bench.methods.controls import bell
from hilrp.jobs.bench.metrics.localisation import energy, pointing
from hilrp.models.libraries import zoo
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import load
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
        share, residual: Of all questions: the pixels' share of the score's difference to that on the reference, and how
            far the books are from closing.
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
        rest, masks = _explain(loaded, explainer, more), masks_of(more)
        ledgers = [explained.ledger, rest.ledger]
        yield Family(
            loaded=loaded,
            title=architecture.title,
            card=zoo.card(name),
            shown=explained,
            hits=(pointing(rest.map, masks) == 1).tolist(),
            inside=energy(rest.map, masks).tolist(),
            share=[share for ledger in ledgers for share in ledger.share.tolist()],
            residual=[residual for ledger in ledgers for residual in ledger.residual.tolist()],
        )


def _explain(loaded: Loaded, explainer: Explainer, questions: list[Question]) -> Explanation:
    x = loaded.batch([Image.fromarray(question.scene.image) for question in questions])
    return explainer.explain(x, [question.label for question in questions], _BATCH)


@dataclass(frozen=True)
class Control:
    """What a map scores on the measured questions that looks at no model: a bell in the middle; and chance."""

    pointing: float
    inside: float
    area: float


def control(count: int = MEASURED) -> Control:
    """The centre Gaussian on the measured questions; chance is the part of the picture that an object covers."""
    masks = masks_of(measured(count))
    maps = bell(*masks.shape[-2:]).expand(masks.shape)
    return Control(
        pointing=float(pointing(maps, masks).mean()),
        inside=float(energy(maps, masks).mean()),
        area=float(masks.float().mean()),
    )


def masks_of(questions: list[Question]) -> Tensor:
    """Where the truth is, ``[B,H,W]``."""
    return torch.stack([torch.from_numpy(question.mask) for question in questions])
