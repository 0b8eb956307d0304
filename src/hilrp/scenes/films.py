"""Films with known truth: objects that move, and some of them change for a moment.

What a film is asked for is a change: that an object swells, shrinks, vanishes or flashes, for two frames. No single
frame tells it: some objects are as large, as small or as white all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hilrp.scenes.background import background
from hilrp.scenes.numbered import Numbered
from hilrp.scenes.objects import COLOURS, SHAPES, TEXTURES, Array, Sprite, radius, sprite
from hilrp.scenes.scene import VISIBLE, Mask, compose, visible
from hilrp.util.errors import InputError

#: What a model of films recognises.
CHANGES = ("swells", "shrinks", "vanishes", "flashes")
#: For so many frames an object is changed.
LASTS = 2
#: What its area is multiplied by, for changes of size; and how white it becomes when it flashes.
_FACTORS: dict[int | None, float] = {0: 2.4, 1: 0.35}
_WHITE = 0.75
#: The least and the largest area of an object in any frame, as a part of it; how far it moves from frame to frame at
#: most, in pixels; and how many of those that don't change are white all the time.
_AREA, _SPEED, _PALE = (0.015, 0.1), 1.6, 0.25
_ATTEMPTS = 40


@dataclass(frozen=True, eq=False)
class _Role:
    """What an object looks like in each frame, and what it would look like if it only moved."""

    shown: list[Sprite]
    plain: list[Sprite]


@dataclass(frozen=True, eq=False)
class Actor:
    """An object of a film.

    Attributes:
        name: Such as "red star", or "white star".
        change: The number of its change in `CHANGES`; ``None``, if it only moves.
        begins: The frame in which the change begins.
        mask: Where it is seen, ``[T,H,W]``: while it is changed also where it would be otherwise.
    """

    name: str
    change: int | None
    begins: int
    mask: Mask

    @property
    def moment(self) -> NDArray[np.bool_]:
        """In which frames it is changed, ``[T]``."""
        frames = np.arange(len(self.mask))
        if self.change is None:
            return np.zeros(len(frames), bool)
        return (frames >= self.begins) & (frames < self.begins + LASTS)


@dataclass(frozen=True, eq=False)
class Film:
    """A film and all that is true of it.

    Attributes:
        frames: ``[T,H,W,3]``, 8 bits.
        actors: The objects, from back to front; no two change in the same way.

    Example:
        >>> film = Films(seed=0)[0]
        >>> film.frames.shape, [(actor.name, actor.change) for actor in film.actors]
        ((8, 48, 48, 3), [('blue star', 3), ('yellow star', None)])
    """

    frames: NDArray[np.uint8]
    actors: tuple[Actor, ...]
    _ground: Array
    _roles: tuple[_Role, ...]

    @property
    def labels(self) -> NDArray[np.float32]:
        """One number for each of `CHANGES`: 1 where it happens."""
        labels = np.zeros(len(CHANGES), np.float32)
        labels[[actor.change for actor in self.actors if actor.change is not None]] = 1
        return labels

    def actor(self, change: int) -> Actor:
        """The object that changes so."""
        return self.actors[self._index(change)]

    def without(self, change: int) -> NDArray[np.uint8]:
        """The same film in which that object only moves, and all else as it was."""
        index = self._index(change)
        return _frames(self._ground, [r.plain if i == index else r.shown for i, r in enumerate(self._roles)])

    def _index(self, change: int) -> int:
        for i, actor in enumerate(self.actors):
            if actor.change is not None and actor.change == change:
                return i
        name = CHANGES[change] if 0 <= change < len(CHANGES) else "is of no known kind"
        known = ", ".join(f"{i} {each}" for i, each in enumerate(CHANGES))
        raise InputError(f"change {change}: nothing in this film {name}. Changes are {known}.")


class Films(Numbered[Film]):
    """A collection of films. Number ``i`` of a seed is always the same one.

    Args:
        seed: Which collection. Leave those from a million on alone: the zoo was trained and tested on them.
        count: How many.
        actors: The smallest and the largest number of objects; fewer, where they find no room.
        changes: The smallest and the largest number of those that change.
        frames: How many frames a film has.
        size: The side of its frames in pixels.

    Example:
        >>> [[CHANGES[i] for i in film.labels.nonzero()[0]] for film in Films(seed=0, count=3)]
        [['flashes'], ['shrinks'], ['swells']]
    """

    what = "film"

    def __init__(
        self,
        seed: int = 0,
        count: int = 1000,
        actors: tuple[int, int] = (2, 3),
        changes: tuple[int, int] = (0, 2),
        frames: int = 8,
        size: int = 48,
    ) -> None:
        super().__init__(seed, count)
        if not 1 <= actors[0] <= actors[1] <= 4:
            raise InputError(f"actors={actors}: give the least and the most, from 1 to 4.")
        if not 0 <= changes[0] <= changes[1] <= len(CHANGES):
            raise InputError(f"changes={changes}: give the least and the most, from 0 to {len(CHANGES)}.")
        if frames < LASTS + 2:
            raise InputError(f"frames={frames}: a change lasts {LASTS}, and there must be a frame before and after it.")
        if size < 32:
            raise InputError(f"size={size}: objects can't be told apart in frames of less than 32 pixels.")
        self.actors, self.changes, self.frames, self.size = actors, changes, frames, size

    def _make(self, rng: np.random.Generator) -> Film:
        ground = background(rng, self.size)
        count = int(rng.integers(self.actors[0], self.actors[1] + 1))
        kinds = rng.permutation(len(CHANGES))[: rng.integers(self.changes[0], self.changes[1] + 1)]
        roles: list[tuple[_Role, str, int | None, int]] = []
        # Those that change come first or last, in front or behind, as chance has it.
        for i in rng.permutation(count):
            change, begins = int(kinds[i]) if i < len(kinds) else None, int(rng.integers(1, self.frames - LASTS))
            name, role = self._placed(rng, change, begins, [role for role, *_ in roles])
            if role is not None:
                roles.append((role, name, change, begins))
        masks = _masks([role for role, *_ in roles], self.size)
        actors = tuple(
            Actor(name, change, begins, mask) for (_, name, change, begins), mask in zip(roles, masks, strict=True)
        )
        drawn = tuple(role for role, *_ in roles)
        return Film(_frames(ground, [role.shown for role in drawn]), actors, ground, drawn)

    def _placed(
        self, rng: np.random.Generator, change: int | None, begins: int, before: list[_Role]
    ) -> tuple[str, _Role | None]:
        """An object where enough is seen of all in every frame, and its name; no object, if there is no room."""
        shape, colour, texture = (str(rng.choice(names)) for names in (SHAPES, COLOURS, TEXTURES))
        looks = int(rng.integers(2**32))
        # Swollen ones are as large as others, and shrunk ones as small.
        factor, pale = _FACTORS.get(change, 1.0), change is None and rng.random() < _PALE
        least, most = _AREA[0] / min(factor, 1), _AREA[1] / max(factor, 1)
        area = float(np.exp(rng.uniform(np.log(least), np.log(most)))) * self.size**2
        margin = 0.8 * radius(shape, area * max(factor, 1))

        def drawn(y: float, x: float, factor: float) -> Sprite:
            # Alike in each frame: the same chance draws it.
            found = sprite(np.random.default_rng(looks), shape, colour, texture, factor * area, y, x)
            return _changed(found, "flashes") if pale else found

        for _ in range(_ATTEMPTS):
            way = rng.uniform(-_SPEED, _SPEED, 2) * (self.frames - 1)
            low, high = margin - np.minimum(way, 0), self.size - margin - np.maximum(way, 0)
            start = rng.uniform(low, np.maximum(low, high))
            path = [start + way * t / (self.frames - 1) for t in range(self.frames)]
            plain = [drawn(float(y), float(x), 1.0) for y, x in path]
            shown = list(plain)
            if change is not None:
                for t in range(begins, begins + LASTS):
                    y, x = path[t]
                    shown[t] = _changed(drawn(float(y), float(x), factor), CHANGES[change])
            role = _Role(shown, plain)
            if _room([*before, role], self.size):
                return f"{'white' if pale else colour} {shape}", role
        return "", None


def _changed(item: Sprite, change: str) -> Sprite:
    """What an object looks like in a frame in which it is changed; its size is as drawn."""
    if change == "vanishes":
        return replace(item, opacity=np.zeros_like(item.opacity))
    if change == "flashes":
        return replace(item, colours=item.colours + _WHITE * (1 - item.colours))
    return item


def _room(roles: list[_Role], size: int) -> bool:
    """Whether enough is seen of every object in every frame, were none changed and as they are."""
    for forms in ([role.plain for role in roles], [role.shown for role in roles]):
        for frame in zip(*forms, strict=True):
            for mask, item in zip(visible(list(frame), size), frame, strict=True):
                solid = (item.opacity >= 0.5).sum()
                if solid and mask.sum() < VISIBLE * solid:
                    return False
    return True


def _masks(roles: list[_Role], size: int) -> list[Mask]:
    """Where each object is seen among the others as they are, as it is or as it would be without its change."""
    found = []
    for i in range(len(roles)):
        mask = []
        for t in range(len(roles[i].plain)):
            others = [role.shown[t] for role in roles]
            plain = [*others[:i], roles[i].plain[t], *others[i + 1 :]]
            mask.append(visible(others, size)[i] | visible(plain, size)[i])
        found.append(np.stack(mask))
    return found


def _frames(ground: Array, drawn: Sequence[Sequence[Sprite]]) -> NDArray[np.uint8]:
    """Objects, each with a form for every frame, before a ground."""
    return np.stack([compose(ground, frame) for frame in zip(*drawn, strict=True)])
