"""Scenes: pictures of several objects whose place, and whose effect on a score, are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hilrp.scenes.background import background
from hilrp.scenes.numbered import Numbered
from hilrp.scenes.objects import CLASSES, COLOURS, SHAPES, TEXTURES, Array, Sprite, radius, sprite
from hilrp.util.errors import InputError

#: A picture, ``[H,W,3]``.
Image = NDArray[np.uint8]
#: Which pixels belong to an object, ``[H,W]``.
Mask = NDArray[np.bool_]

#: At least this part of an object is seen: the rest may lie behind others or beyond the border.
VISIBLE = 0.6
_ATTEMPTS = 40


@dataclass(frozen=True, eq=False)
class Thing:
    """One object of a scene.

    Attributes:
        label: Index of its class.
        shape, colour, texture: What it looks like.
        mask: The pixels where it is seen, ``[H,W]``.
        visible: The part of it that is seen: the rest lies behind others or beyond the border.
    """

    label: int
    shape: str
    colour: str
    texture: str
    mask: Mask
    visible: float

    @property
    def name(self) -> str:
        """Such as "red star"."""
        return CLASSES[self.label]

    @property
    def caption(self) -> str:
        """Such as "a striped red star"."""
        return f"a {self.name}" if self.texture == "plain" else f"a {self.texture} {self.name}"

    @property
    def centre(self) -> tuple[float, float]:
        """Row and column of the middle of what is seen."""
        rows, columns = np.nonzero(self.mask)
        return float(rows.mean()), float(columns.mean())


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture and all that is true of it.

    Attributes:
        image: ``[H,W,3]``, 8 bits.
        things: The objects, from back to front; no two of one class.

    Example:
        >>> scene = Scenes(seed=0)[3]
        >>> scene.image.shape, scene.labels.sum() == len(scene.things)
        ((128, 128, 3), np.True_)
    """

    image: Image
    things: tuple[Thing, ...]
    _ground: Array
    _sprites: tuple[Sprite, ...]

    @property
    def labels(self) -> NDArray[np.float32]:
        """One number per class: 1 where it is in the picture."""
        labels = np.zeros(len(CLASSES), np.float32)
        labels[[thing.label for thing in self.things]] = 1
        return labels

    @property
    def caption(self) -> str:
        """Such as "a striped red star above a blue ring, with a dotted yellow cross"."""
        return " ".join(text for text, _ in self.phrases).replace(" ,", ",")

    @property
    def phrases(self) -> list[tuple[str, tuple[Thing, ...]]]:
        """The caption in parts, from the largest object on, and the objects that each part speaks of."""
        first, *others = sorted(self.things, key=lambda thing: -int(thing.mask.sum()))
        found: list[tuple[str, tuple[Thing, ...]]] = [(first.caption, (first,))]
        for i, thing in enumerate(others):
            joined = (relation(first, thing), (first, thing)) if i == 0 else (", with" if i == 1 else "and", ())
            found += [joined, (thing.caption, (thing,))]
        return found

    def mask(self, label: int) -> Mask:
        """Where a class is seen: nowhere, if it is not in the picture."""
        found = [thing.mask for thing in self.things if thing.label == label]
        return found[0] if found else np.zeros(self.image.shape[:2], bool)

    def without(self, label: int) -> Image:
        """The same picture with the object of that class taken away, and all else as it was."""
        kept = [s for s, thing in zip(self._sprites, self.things, strict=True) if thing.label != label]
        if len(kept) == len(self._sprites):
            raise InputError(
                f"without({label}): {CLASSES[label] if 0 <= label < len(CLASSES) else 'no class'} is not in this "
                f"scene; it holds {self.caption}."
            )
        return compose(self._ground, kept)


class Scenes(Numbered[Scene]):
    """A collection of scenes.

    Number ``i`` of a seed is always the same one, however many there are and whatever came before.

    Args:
        seed: Which collection. Leave those from a million on alone: the zoo was trained and tested on them.
        count: How many.
        objects: The smallest and the largest number of objects; fewer, where they find no room.
        area: The smallest and the largest area of an object, as a part of the picture.
        size: The side of the pictures in pixels.

    Example:
        >>> scenes = Scenes(seed=0, count=2)
        >>> [scene.caption for scene in scenes]
        ['a checked red cross', 'a checked yellow ring left of a striped yellow triangle']
    """

    what = "scene"

    def __init__(
        self,
        seed: int = 0,
        count: int = 1000,
        objects: tuple[int, int] = (1, 4),
        area: tuple[float, float] = (0.02, 0.12),
        size: int = 128,
    ) -> None:
        if not 1 <= objects[0] <= objects[1] <= len(CLASSES):
            raise InputError(f"objects={objects}: give the least and the most, from 1 to {len(CLASSES)}.")
        if not 0 < area[0] <= area[1] <= 0.25:
            raise InputError(f"area={area}: give the least and the most, as parts of the picture, up to 0.25.")
        if size < 32:
            raise InputError(f"size={size}: objects can't be told apart in pictures of less than 32 pixels.")
        super().__init__(seed, count)
        self.objects, self.area, self.size = objects, area, size

    def _make(self, rng: np.random.Generator) -> Scene:
        ground = background(rng, self.size)
        labels = rng.choice(len(CLASSES), rng.integers(self.objects[0], self.objects[1] + 1), replace=False)
        sprites: list[Sprite] = []
        kinds: list[tuple[int, str]] = []
        for label in labels:
            placed = self._place(rng, int(label), sprites)
            if placed is not None:
                sprites.append(placed[0])
                kinds.append((int(label), placed[1]))
        masks = visible(sprites, self.size)
        things = tuple(
            Thing(label, SHAPES[label // len(COLOURS)], COLOURS[label % len(COLOURS)], texture, mask, _part(mask, s))
            for (label, texture), mask, s in zip(kinds, masks, sprites, strict=True)
        )
        return Scene(compose(ground, sprites), things, ground, tuple(sprites))

    def _place(self, rng: np.random.Generator, label: int, before: list[Sprite]) -> tuple[Sprite, str] | None:
        """An object in front of those before, where enough is seen of all; none if the picture is too full."""
        texture = TEXTURES[rng.integers(len(TEXTURES))]
        area = float(np.exp(rng.uniform(*np.log(self.area)))) * self.size**2
        shape, colour = SHAPES[label // len(COLOURS)], COLOURS[label % len(COLOURS)]
        # Every place is equally likely, and what would be cut too much is moved inwards, rather than drawn again: so
        # the middle of the picture is covered no more often than the rest of it, and pointing there is worth nothing.
        margin = 0.6 * radius(shape, area)
        for _ in range(_ATTEMPTS):
            y, x = np.clip(self.size * rng.uniform(-0.04, 1.04, 2), margin, self.size - margin)
            new = sprite(rng, shape, colour, texture, area, float(y), float(x))
            sprites = [*before, new]
            if all(_part(m, s) >= VISIBLE for m, s in zip(visible(sprites, self.size), sprites, strict=True)):
                return new, texture
        return None


def visible(sprites: list[Sprite], size: int) -> list[Mask]:
    """Where each of several sprites is seen, when the later lie in front."""
    masks: list[Mask] = []
    for item in sprites:
        outer, inner = item.window(size)
        solid = item.opacity[inner] >= 0.5
        for mask in masks:
            mask[outer] &= ~solid
        own = np.zeros((size, size), bool)
        own[outer] = solid
        masks.append(own)
    return masks


def _part(mask: Mask, item: Sprite) -> float:
    return float(mask.sum() / (item.opacity >= 0.5).sum())


def compose(ground: Array, sprites: Sequence[Sprite]) -> Image:
    """A picture of several sprites on a ground, the later in front."""
    picture = ground.copy()
    for item in sprites:
        outer, inner = item.window(len(ground))
        opacity = item.opacity[inner][..., None]
        picture[outer] += opacity * (item.colours[inner] - picture[outer])
    return np.round(255 * np.clip(picture, 0, 1)).astype(np.uint8)


def relation(first: Thing, second: Thing) -> str:
    """How an object lies to another, along the axis on which they are further apart."""
    (y, x), (other_y, other_x) = first.centre, second.centre
    if abs(y - other_y) >= abs(x - other_x):
        return "above" if y < other_y else "below"
    return "left of" if x < other_x else "right of"
