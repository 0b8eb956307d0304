"""Words' maps drawn on pictures."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from hilrp.attribution.marking import smoothed
from hilrp.attribution.panels import Panel, Words
from hilrp.attribution.pictures import composed, figure_of
from hilrp.util.errors import InputError

if TYPE_CHECKING:
    from hilrp.answers.answer import Answer, Word

#: So many maps are drawn in one figure at most.
_MOST = 24
#: How high a picture is in it, in pixels, at least.
_HEIGHT = 360


def overlay(word: Word, picture: Tensor, number: int, height: int) -> Any:
    """A map on its picture, as a PIL image.

    Args:
        word: The word.
        picture: The picture, ``[H,W,3]`` from 0 to 1.
        number: Which of the word's maps belongs on it.
        height: How many pixels high, at least.
    """
    from PIL import Image

    return Image.fromarray(composed(_panel(word, picture, number, height)))


def _panel(word: Word, picture: Tensor, number: int, height: int) -> Panel:
    """A map on its picture; colours are the strongest at the same relevance in all pictures of a word."""
    factor = max(1.0, height / picture.shape[0])
    rows, columns = (max(1, round(side * factor)) for side in picture.shape[:2])
    maps = [smoothed(each[None].float().cpu()) for each in word.maps]
    sizes = torch.cat([each.abs().flatten() for each in maps])
    limit = float(sizes.quantile(0.995)) or float(sizes.max()) or 1.0

    def resized(values: Tensor) -> np.ndarray:
        found = F.interpolate(values, (rows, columns), mode="bilinear", align_corners=False, antialias=True)[0]
        array: np.ndarray = found.permute(1, 2, 0).numpy()
        return array

    ground = np.clip(resized(picture.permute(2, 0, 1)[None].float()), 0, 1)
    relevance = resized(maps[number][None])[..., 0]
    return Panel(ground, relevance, limit, None, np.zeros_like(relevance, dtype=bool))


def figure(answer: Answer) -> Figure:
    """Each word's map, with what it says and where it comes from; of the first words, where there are many."""
    if not answer.pictures:
        raise InputError("There is no picture to draw on: this answer is of text alone. Its table() has the figures.")
    drawn = [(i, j) for i in range(len(answer.words)) for j in range(len(answer.pictures))]
    panels = [_panel(answer.words[i], answer.pictures[j], j, _HEIGHT) for i, j in drawn[:_MOST]]
    words = []
    for i, j in drawn[:_MOST]:
        word, which = answer.words[i], f", picture {j + 1}" if len(answer.pictures) > 1 else ""
        share = word.prior_share
        alone = "" if share is None else f"{share:.0%} of its score without the picture"
        words.append(Words(f"{word.text}{which}", alone, answer.sentence(i)))
    said = f"The answer: \u201c{answer.text}\u201d."
    left = len(drawn) - len(panels)
    return figure_of(panels, words, f"{said} {left} more maps are in the arrays." if left else said)


def encoded(answer: Answer, kind: str) -> bytes:
    """The figure as ``png``, ``svg`` or ``pdf``."""
    buffer = BytesIO()
    # Letters stay letters, so that the figure can be edited and its text be found.
    with rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}):
        figure(answer).savefig(buffer, format=kind)
    return buffer.getvalue()
