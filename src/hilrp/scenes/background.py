"""Backgrounds that look like ground, foliage, rock, water or sky: fractal relief under slanting light."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hilrp.scenes.objects import Array

#: Three colours each, from the low to the high places of the relief.
_PALETTES = np.array(
    [
        [(38, 46, 24), (84, 96, 44), (148, 148, 88)],  # grass
        [(30, 44, 34), (62, 84, 56), (120, 134, 92)],  # leaves
        [(96, 78, 58), (158, 134, 100), (206, 188, 152)],  # sand
        [(52, 48, 46), (104, 100, 96), (168, 164, 158)],  # rock
        [(44, 32, 26), (86, 66, 52), (134, 110, 90)],  # bark
        [(60, 76, 84), (106, 126, 132), (176, 188, 190)],  # water
        [(128, 142, 156), (176, 186, 194), (222, 224, 226)],  # cloud
        [(58, 42, 40), (112, 84, 70), (150, 128, 104)],  # earth
    ],
    dtype=np.float32,
)


@lru_cache(maxsize=4)
def _frequencies(size: int) -> Array:
    f = np.fft.fftfreq(size).astype(np.float32)
    distance = np.hypot(f[:, None], f[None, :])
    distance[0, 0] = np.inf
    return distance.astype(np.float32)


def _clouds(rng: np.random.Generator, size: int, slope: float) -> tuple[Array, Array]:
    """Two random fields whose amplitude falls as frequency ** -slope, with mean zero and unit variance."""
    noise = rng.standard_normal((2, size, size), dtype=np.float32)
    fields = np.fft.ifft2((noise[0] + 1j * noise[1]) * _frequencies(size) ** -slope)
    first, second = fields.real, fields.imag
    return (first / first.std()).astype(np.float32), (second / second.std()).astype(np.float32)


def background(rng: np.random.Generator, size: int) -> Array:
    """A picture ``[size,size,3]`` of values from 0 to 1."""
    height, tint = _clouds(rng, size, rng.uniform(1.1, 1.7))
    palette = _PALETTES[rng.integers(len(_PALETTES))] / 255 * rng.uniform(0.85, 1.15)
    palette = (palette + rng.uniform(-0.03, 0.03, 3)).astype(np.float32)
    place = np.clip(1 + 0.6 * height, 0, 1.999)[..., None]
    low = place < 1
    part = np.where(low, place, place - 1)
    picture = np.where(low, palette[0], palette[1]) * (1 - part) + np.where(low, palette[1], palette[2]) * part
    # Light from one side: the slope of the relief in that direction.
    angle = rng.uniform(0, 2 * np.pi)
    down, across = np.diff(height, axis=0, append=height[:1]), np.diff(height, axis=1, append=height[:, :1])
    light = 1 + rng.uniform(0.1, 0.35) * np.clip(np.cos(angle) * across + np.sin(angle) * down, -1.5, 1.5)
    light = light + rng.uniform(0.02, 0.1) * tint
    return np.clip(picture * light[..., None], 0, 1).astype(np.float32)
