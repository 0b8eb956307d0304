"""A word's map drawn on a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from hilrp.attribution.marking import smoothed
from hilrp.attribution.panels import Panel
from hilrp.attribution.pictures import composed

if TYPE_CHECKING:
    from hilrp.answers.answer import Word


def overlay(word: Word, picture: Tensor, number: int, height: int) -> Any:
    """A map on its picture, as a PIL image; colours are the strongest at the same relevance in all pictures of a word.

    Args:
        word: The word.
        picture: The picture, ``[H,W,3]`` from 0 to 1.
        number: Which of the word's maps belongs on it.
        height: How many pixels high, at least.
    """
    from PIL import Image

    factor = max(1.0, height / picture.shape[0])
    rows, columns = (max(1, round(side * factor)) for side in picture.shape[:2])
    maps = [smoothed(each[None].float().cpu()) for each in word.maps]
    limit = max(float(each.abs().max()) for each in maps) or 1.0

    def resized(values: Tensor) -> np.ndarray:
        found = F.interpolate(values, (rows, columns), mode="bilinear", align_corners=False, antialias=True)[0]
        array: np.ndarray = found.permute(1, 2, 0).numpy()
        return array

    ground = np.clip(resized(picture.permute(2, 0, 1)[None].float()), 0, 1)
    relevance = resized(maps[number][None])[..., 0]
    panel = Panel(ground, relevance, limit, None, np.zeros_like(relevance, dtype=bool))
    return Image.fromarray(composed(panel))
