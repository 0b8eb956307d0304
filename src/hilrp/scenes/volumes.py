"""Volumes with known truth, as scans have none: blobs in a haze, and lesions planted into them.

A lesion is a bright spot inside of a blob. Spots as bright and as large lie outside, too, and are none: brightness
alone doesn't tell it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hilrp.scenes.numbered import Numbered
from hilrp.scenes.objects import Array
from hilrp.scenes.scene import Mask
from hilrp.util.errors import InputError

#: What a model of volumes finds at every place.
TISSUES = ("blob", "lesion")
#: Grey values from 0 to 1: of the haze, of blobs, of spots; and how much the haze and the grain vary.
_HAZE, _BLOB, _SPOT, _VARIES, _GRAIN = 0.25, (0.42, 0.55), (0.72, 0.9), 0.05, 0.03
#: Radii in voxels of a volume with sides of 32: of blobs along each axis, and of spots.
_BLOBS, _SPOTS = (5.5, 8.0), (1.6, 2.6)
_ATTEMPTS = 60
#: The opacity of a body, ``[D,H,W]``, and its grey value.
_Drawn = tuple[Array, float]


@dataclass(frozen=True, eq=False)
class _Body:
    """An ellipsoid: its middle, the matrix that takes it to the unit ball, its radius and its grey value."""

    middle: Array
    matrix: Array
    radius: float
    grey: float

    def opacity(self, size: int) -> Array:
        """How much of each voxel it fills, ``[D,H,W]``, with edges as wide as a voxel."""
        offset = _grid(size) - self.middle
        found: Array = np.clip(0.5 - self.radius * (np.linalg.norm(offset @ self.matrix, axis=-1) - 1), 0, 1)
        return found.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Volume:
    """A volume and all that is true of it.

    Attributes:
        image: ``[D,H,W]``, 8 bits.
        blobs: Where each blob is, its lesion included: ``[D,H,W]`` each.
        lesions: Where each lesion is.
        spots: Where each bright spot is that is no lesion.

    Example:
        >>> volume = Volumes(seed=0)[1]
        >>> volume.image.shape, len(volume.blobs), len(volume.lesions), len(volume.spots)
        ((32, 32, 32), 2, 1, 0)
    """

    image: NDArray[np.uint8]
    blobs: tuple[Mask, ...]
    lesions: tuple[Mask, ...]
    spots: tuple[Mask, ...]
    _haze: Array
    _grain: Array
    _drawn: tuple[tuple[_Drawn, ...], tuple[_Drawn, ...], tuple[_Drawn, ...]]

    @property
    def places(self) -> NDArray[np.bool_]:
        """Where each of `TISSUES` is, ``[2,D,H,W]``; a lesion is part of its blob."""
        return np.stack([_union(self.blobs, self.image.shape), _union(self.lesions, self.image.shape)])

    def without(self, lesion: int) -> NDArray[np.uint8]:
        """The same volume without that lesion, and all else as it was."""
        blobs, lesions, spots = self._drawn
        if not 0 <= lesion < len(lesions):
            raise InputError(f"without({lesion}): this volume has {len(lesions)} lesions, counted from 0.")
        kept = (*lesions[:lesion], *lesions[lesion + 1 :])
        return _compose(self._haze, self._grain, (*blobs, *kept, *spots))


class Volumes(Numbered[Volume]):
    """A collection of volumes. Number ``i`` of a seed is always the same one.

    Args:
        seed: Which collection. Leave those from a million on alone: the zoo was trained and tested on them.
        count: How many.
        blobs: The smallest and the largest number of blobs; fewer, where they find no room.
        lesions: The smallest and the largest number of lesions, each in a blob of its own.
        spots: The smallest and the largest number of spots outside of blobs.
        size: The side of the volumes in voxels.

    Example:
        >>> [len(volume.lesions) for volume in Volumes(seed=0, count=4)]
        [0, 1, 2, 1]
    """

    what = "volume"

    def __init__(
        self,
        seed: int = 0,
        count: int = 1000,
        blobs: tuple[int, int] = (1, 3),
        lesions: tuple[int, int] = (0, 2),
        spots: tuple[int, int] = (0, 2),
        size: int = 32,
    ) -> None:
        super().__init__(seed, count)
        for name, (low, high), least in (("blobs", blobs, 1), ("lesions", lesions, 0), ("spots", spots, 0)):
            if not least <= low <= high <= 6:
                raise InputError(f"{name}=({low}, {high}): give the least and the most, from {least} to 6.")
        if size < 24:
            raise InputError(f"size={size}: a lesion is hardly a voxel large in volumes with sides of less than 24.")
        self.blobs, self.lesions, self.spots, self.size = blobs, lesions, spots, size

    def _make(self, rng: np.random.Generator) -> Volume:
        size, scale = self.size, self.size / 32
        haze = _HAZE + _VARIES * _cloud(rng, size)
        grain = _GRAIN * rng.standard_normal((size,) * 3, dtype=np.float32)
        blobs: list[_Body] = []
        for _ in range(rng.integers(self.blobs[0], self.blobs[1] + 1)):
            blobs += _placed(rng, blobs, scale * np.array(_BLOBS), _BLOB, size)
        chosen = rng.permutation(len(blobs))[: rng.integers(self.lesions[0], self.lesions[1] + 1)]
        lesions = [_inside(rng, blobs[i], scale * np.array(_SPOTS), size) for i in chosen]
        spots: list[_Body] = []
        for _ in range(rng.integers(self.spots[0], self.spots[1] + 1)):
            spots += _placed(rng, [*blobs, *spots], scale * np.array(_SPOTS), _SPOT, size, round=True)
        drawn = tuple(tuple((body.opacity(size), body.grey) for body in part) for part in (blobs, lesions, spots))
        masks = [tuple(opacity >= 0.5 for opacity, _ in part) for part in drawn]
        image = _compose(haze, grain, [each for part in drawn for each in part])
        return Volume(image, masks[0], masks[1], masks[2], haze, grain, (drawn[0], drawn[1], drawn[2]))


def _placed(
    rng: np.random.Generator, before: Sequence[_Body], radii: Array, greys: tuple[float, float], size: int,
    round: bool = False,
) -> list[_Body]:  # fmt: skip
    """A body that touches none of those before; none, if the volume is too full."""
    for _ in range(_ATTEMPTS):
        axes = np.full(3, rng.uniform(*radii)) if round else rng.uniform(radii[0], radii[1], 3)
        turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
        # Every place is equally likely, but for a border: the middle of a volume is worth nothing.
        margin = 0.7 * axes.max()
        middle = np.clip(rng.uniform(-1, size, 3), margin - 0.5, size - 0.5 - margin)
        new = _Body(middle, turn / axes, float(axes.mean()), rng.uniform(*greys))
        # The largest axes of both: they may be closer than they are taken for, and never touch.
        if all(np.linalg.norm(middle - b.middle) > axes.max() + _reach(b) + 1.5 for b in before):
            return [new]
    return []


def _reach(body: _Body) -> float:
    """The longest axis of a body."""
    return float(1 / np.linalg.norm(body.matrix, axis=0).min())


def _inside(rng: np.random.Generator, blob: _Body, radii: Array, size: int) -> _Body:
    """A round lesion that lies in a blob, and in the volume, as a whole."""
    radius = rng.uniform(*radii)
    axes = 1 / np.linalg.norm(blob.matrix, axis=0)
    while True:
        # In the blob's own coordinates, in which it is a ball: no nearer to its border than the lesion is large.
        direction = rng.standard_normal(3)
        place = direction / np.linalg.norm(direction) * (1 - (radius + 0.7) / axes.min()) * rng.uniform() ** (1 / 3)
        middle = blob.middle + place @ np.linalg.inv(blob.matrix)
        # The blob's own middle is further from the border than any lesion is large: so this ends.
        if (np.abs(middle - (size - 1) / 2) <= size / 2 - radius).all():
            return _Body(middle, np.eye(3) / radius, radius, rng.uniform(*_SPOT))


def _compose(haze: Array, grain: Array, drawn: Sequence[_Drawn]) -> NDArray[np.uint8]:
    image = haze.copy()
    for opacity, grey in drawn:
        image += opacity * (grey - image)
    return np.round(255 * np.clip(image + grain, 0, 1)).astype(np.uint8)


def _union(masks: Sequence[Mask], shape: tuple[int, ...]) -> Mask:
    found: Mask = np.any(masks, axis=0) if masks else np.zeros(shape, bool)
    return found


@cache
def _grid(size: int) -> Array:
    """The place of each voxel, ``[D,H,W,3]``."""
    return np.stack(np.meshgrid(*[np.arange(size, dtype=np.float32)] * 3, indexing="ij"), -1)


@cache
def _frequencies(size: int) -> Array:
    f = np.fft.fftfreq(size)
    distance = np.sqrt(f[:, None, None] ** 2 + f[None, :, None] ** 2 + f[None, None, :] ** 2)
    distance[0, 0, 0] = np.inf
    return distance


def _cloud(rng: np.random.Generator, size: int) -> Array:
    """A random field whose amplitude falls with the frequency, with mean zero and unit variance."""
    noise: Any = np.fft.fftn(rng.standard_normal((size,) * 3, dtype=np.float32))
    field = np.fft.ifftn(noise * _frequencies(size) ** -1.5).real
    return (field / field.std()).astype(np.float32)
