"""The objects of a scene: a shape, a colour and a texture, drawn with smooth edges.

A class is a colour *and* a shape: each shape comes in every colour and each colour in every shape, so that neither
tells the class. The texture is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

COLOURS = ("red", "yellow", "blue")
TEXTURES = ("plain", "striped", "dotted", "checked")


def _star(u: Array, v: Array) -> Array:
    """Five points of radius 1, notches of radius 0.5."""
    fifth = 2 * np.pi / 5
    angle = np.abs((np.arctan2(v, u) + fifth / 2) % fifth - fifth / 2)
    radius = np.hypot(u, v)
    # One edge runs from the point (1, 0) to the notch; the plane is folded onto it.
    notch = 0.5 * np.array([np.cos(fifth / 2), np.sin(fifth / 2)])
    normal = np.array([notch[1], 1 - notch[0]]) / np.hypot(notch[1], 1 - notch[0])
    distance: Array = (radius * np.cos(angle) - 1) * normal[0] + radius * np.sin(angle) * normal[1]
    return distance


def _ring(u: Array, v: Array) -> Array:
    """Between radius 0.5 and 1."""
    distance: Array = np.abs(np.hypot(u, v) - 0.75) - 0.25
    return distance


def _cross(u: Array, v: Array) -> Array:
    """Two bars of length 2 and width 0.72."""
    across, along = np.minimum(np.abs(u), np.abs(v)), np.maximum(np.abs(u), np.abs(v))
    distance: Array = np.maximum(along - 1, across - 0.36)
    return distance


def _triangle(u: Array, v: Array) -> Array:
    """Equal sides, corners of radius 1."""
    slope = np.sqrt(0.75)
    distance: Array = np.maximum(-v, np.maximum(slope * u + v / 2, v / 2 - slope * u)) - 0.5
    return distance


#: Name -> signed distance from the outline (negative inside), and the area, in units of the radius.
_SHAPES: dict[str, tuple[Callable[[Array, Array], Array], float]] = {
    "star": (_star, 2.5 * float(np.sin(np.pi / 5))),
    "ring": (_ring, 0.75 * np.pi),
    "cross": (_cross, 4 * 0.72 - 0.72**2),
    "triangle": (_triangle, 0.75 * 3**0.5),
}
SHAPES = tuple(_SHAPES)
#: What a model of scenes recognises.
CLASSES = tuple(f"{colour} {shape}" for shape in SHAPES for colour in COLOURS)

_HUES = {"red": 0.0, "yellow": 0.14, "blue": 0.61}


@dataclass(frozen=True)
class Sprite:
    """A drawn object: colours ``[h,w,3]`` and opacity ``[h,w]`` of a square whose corner is at ``top``, ``left``."""

    top: int
    left: int
    colours: Array
    opacity: Array

    def window(self, size: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
        """The part of a picture that it covers, and the part of itself that lies in the picture."""
        outer, inner = [], []
        for start, length in zip((self.top, self.left), self.opacity.shape, strict=True):
            low, high = max(start, 0), min(start + length, size)
            outer.append(slice(low, max(low, high)))
            inner.append(slice(low - start, max(low, high) - start))
        return (outer[0], outer[1]), (inner[0], inner[1])


def radius(shape: str, area: float) -> float:
    """The radius of a shape of that area, in pixels."""
    return float(np.sqrt(area / _SHAPES[shape][1]))


def sprite(rng: np.random.Generator, shape: str, colour: str, texture: str, area: float, y: float, x: float) -> Sprite:
    """Draws an object of ``area`` pixels around the point ``y``, ``x``, at a random angle."""
    scale = radius(shape, area)
    reach = int(np.ceil(1.1 * scale)) + 1
    top, left = int(np.floor(y)) - reach, int(np.floor(x)) - reach
    side = np.arange(2 * reach + 1, dtype=np.float32)
    dy, dx = (top + side - y)[:, None] / scale, (left + side - x)[None, :] / scale
    angle = rng.uniform(0, 2 * np.pi)
    u, v = np.cos(angle) * dx + np.sin(angle) * dy, np.cos(angle) * dy - np.sin(angle) * dx
    opacity = np.clip(0.5 - scale * _SHAPES[shape][0](u, v), 0, 1)
    first = _colour(rng, colour)
    # The second tone is a darker or a paler one of the same hue.
    second = first * rng.uniform(0.4, 0.55) if rng.random() < 0.5 else 1 - (1 - first) * rng.uniform(0.35, 0.5)
    pattern = _texture(rng, texture, u, v)[..., None]
    light = 1 + rng.uniform(-0.12, 0.12) * dx + rng.uniform(-0.12, 0.12) * dy
    grain = 0.025 * rng.standard_normal(opacity.shape, dtype=np.float32)
    colours = (first + (second - first) * pattern) * light[..., None] + grain[..., None]
    return Sprite(top, left, colours.astype(np.float32), opacity.astype(np.float32))


def _texture(rng: np.random.Generator, name: str, u: Array, v: Array) -> Array:
    """Which of the two tones, 0 or 1, on the object's own coordinates."""
    period, phase = rng.uniform(0.4, 0.6), rng.uniform(0, 1, 2)
    first, second = (u / period + phase[0]) % 1, (v / period + phase[1]) % 1
    if name == "plain":
        return np.zeros_like(u)
    if name == "striped":
        return (first < 0.5).astype(np.float32)
    if name == "dotted":
        return (np.hypot(first - 0.5, second - 0.5) < 0.33).astype(np.float32)
    return ((first < 0.5) ^ (second < 0.5)).astype(np.float32)


def _colour(rng: np.random.Generator, name: str) -> Array:
    """A shade of the colour."""
    hue = _HUES[name] + rng.uniform(-0.025, 0.025)
    saturation, value = rng.uniform(0.7, 0.95), rng.uniform(0.65, 0.95)
    shade = np.clip(np.abs((hue + np.array([0, 2 / 3, 1 / 3])) % 1 * 6 - 3) - 1, 0, 1)
    return (value * (1 - saturation * (1 - shade))).astype(np.float32)
