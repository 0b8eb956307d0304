"""Arrays inside a page, for the script in it."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from hilrp.attribution.error_bars import student_quantile
from hilrp.attribution.explanation import Explanation

#: At most so many numbers of pairs are put into a page, of two bytes each: 224 x 224 pixels and 40 pairs.
MOST = 2**21
#: The probability of the intervals that a page shows.
LEVEL = 0.95


def as_bytes(values: np.ndarray) -> str:
    """The bytes of an array, in letters."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def as_floats(values: np.ndarray) -> str:
    """An array in float32."""
    return as_bytes(np.asarray(values, dtype="<f4"))


def as_halves(values: np.ndarray) -> dict[str, Any]:
    """An array in float16, and what it is to be multiplied with: relevance of one pixel can be tiny."""
    scale = float(np.abs(values).max()) or 1.0
    return {"scale": scale, "values": as_bytes((values / scale).astype("<f2"))}


def errors_of(explanation: Explanation) -> dict[str, Any] | None:
    """What the page of one sample needs to say how sure its map is; ``None`` where that isn't known.

    The error of a region can't be had from the errors of its pixels: neighbours depend on each other. So the page gets
    each pair's own map, less their mean. Where that is too much, pixels are summed over blocks, and a block that is
    cut by the border of a region counts with the part that lies in it.
    """
    pairs, stderr = explanation.pair_maps, explanation.stderr
    if pairs is None or stderr is None:
        return None
    maps = pairs[0].detach().double().cpu().numpy()
    count, height, width = maps.shape
    block = 1
    while count * math.ceil(height / block) * math.ceil(width / block) > MOST:
        block += 1
    apart = _in_blocks(maps - maps.mean(0), block)
    return {
        "pairs": count,
        "block": block,
        "rows": apart.shape[1],
        "columns": apart.shape[2],
        "apart": as_halves(apart),
        "pixels": as_halves(stderr[0].detach().double().cpu().numpy()),
        "level": LEVEL,
        "reach": student_quantile(0.5 + LEVEL / 2, count - 1),
    }


def _in_blocks(maps: np.ndarray, block: int) -> np.ndarray:
    """Sums over squares of so many pixels, ``[N,H,W]``; the last ones of a row or column may be smaller."""
    for axis in (1, 2):
        maps = np.add.reduceat(maps, np.arange(0, maps.shape[axis], block), axis)
    return maps
