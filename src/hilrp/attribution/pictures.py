"""Large pictures of an explanation: relevance on the picture in colour, what is marked, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from hilrp.attribution.panels import Panel, Words
from hilrp.attribution.plotting import COLOURS, as_text, coloured_by

#: Pixels for an inch of a figure.
_DOTS = 100
#: Pixels of a figure's margins, and of the lines above and below a picture.
_MARGIN, _LINE = 24, 21
#: Pixels of a legend: what is between it and the picture, its colours, and a line of it.
_GAP, _BAR, _SMALL = 12, 13, 17
#: Letters are about so many pixels wide, and those of a legend.
_LETTER, _SMALL_LETTER = 8.3, 7.2
#: At most so many pictures are beside each other.
_COLUMNS = 4
#: What the pictures in a figure are known by.
_PICTURE = "picture"
#: What is said of a picture that is paler where the model did not see it.
_PALE = "pale: not seen by the model"
#: A line around a region is drawn so many times as large, and then made smaller: its edge is smooth.
_FINER = 3


def composed(panel: Panel) -> np.ndarray:
    """A panel as a picture, ``[H,W,3]`` in bytes.

    The picture is dimmed; the stronger the relevance, the more of its colour covers it. What is marked has a white line
    around it, between dark ones, and what the model did not see is paler.
    """
    grey = panel.picture.mean(2, keepdims=True)
    ground = 0.28 + 0.6 * (0.45 * panel.picture + 0.55 * grey)
    strength = np.clip(np.abs(panel.relevance) / panel.limit, 0, 1)[..., None] ** 0.8
    shown = (1 - 0.85 * strength) * ground + 0.85 * strength * coloured_by(panel.relevance, panel.limit)
    shown = np.where(panel.unseen[..., None], 0.75 + 0.25 * grey, shown)
    if panel.region is not None:
        inner, outer = _line_around(panel.region)
        shown = shown + outer * (0.1 - shown)
        shown = shown + inner * (1 - shown)
    if panel.blank is not None:
        shown = np.where(panel.blank[..., None], 1.0, shown)
    made: np.ndarray = (255 * np.clip(shown, 0, 1)).round().astype(np.uint8)
    return made


def _line_around(region: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How much of each pixel is under the line around a region, and under the wider one below it, ``[H,W,1]``.

    Where the region ends with the picture there is none.
    """
    width = _FINER * max(1, round(min(region.shape) / 400))
    held = torch.from_numpy(np.ascontiguousarray(region, np.float32))[None, None]
    inside = (F.interpolate(held, scale_factor=_FINER, mode="bilinear") > 0.5).float()
    inner = torch.minimum(_widened(inside, width), _widened(1 - inside, width))
    both = (inner, _widened(inner, width))
    covered, below = (F.avg_pool2d(each, _FINER)[0, 0, :, :, None].numpy() for each in both)
    return covered, below


def _widened(mask: Tensor, by: int) -> Tensor:
    """A mask ``[1,1,H,W]``, and all that is at most so many pixels away along rows and columns."""
    rows = F.max_pool2d(mask, (2 * by + 1, 1), 1, (by, 0))
    return F.max_pool2d(rows, (1, 2 * by + 1), 1, (0, by))


def figure_of(panels: Sequence[Panel], words: Sequence[Words], note: str = "", drawing: Figure | None = None) -> Figure:
    """Panels beside and below each other, each with its words and a legend.

    Args:
        panels: What is drawn.
        words: What is said of each.
        note: What is said of all of them, below.
        drawing: An empty figure to draw on, if not a new one.
    """
    pictures = [composed(panel) for panel in panels]
    width = max(max(picture.shape[1] for picture in pictures), 420)
    letters = int(width / _LETTER)
    lines = [
        (
            wrap(each.title, int(letters / 1.35)) or [""],
            wrap(_unbroken(each.likelihood), letters),
            wrap(_unbroken(each.sentence), letters),
        )
        for each in words
    ]
    above = [int(1.35 * _LINE * len(title)) + _LINE * len(likely) + 10 for title, likely, _ in lines]
    below = [_legend_height(panel) + _LINE * len(said) + 14 for panel, (*_, said) in zip(panels, lines, strict=True)]
    columns = min(len(panels), _COLUMNS)
    rows = [range(first, min(first + columns, len(panels))) for first in range(0, len(panels), columns)]
    heights = [
        max(above[i] for i in row) + max(pictures[i].shape[0] for i in row) + max(below[i] for i in row) for row in rows
    ]
    footer = _LINE * len(wrap(note, letters * columns))
    total = (columns * (width + _MARGIN) + _MARGIN, sum(heights) + _MARGIN * (len(rows) + 1) + footer)
    figure = Figure() if drawing is None else drawing
    figure.set_dpi(_DOTS)
    figure.set_size_inches(total[0] / _DOTS, total[1] / _DOTS)
    top = _MARGIN
    for row, height in zip(rows, heights, strict=True):
        head = max(above[i] for i in row)
        for place, i in enumerate(row):
            left = _MARGIN + place * (width + _MARGIN)
            _draw(figure, total, (left, top + head - above[i]), pictures[i], panels[i], lines[i])
        top += height + _MARGIN
    if note:
        _write(figure, total, (_MARGIN, top), "\n".join(wrap(note, letters * columns)), 10, "#555555")
    return figure


def places(figure: Figure) -> list[tuple[int, int, int, int]]:
    """Where the pictures are in a figure of `figure_of`: left, top, right and bottom, in its pixels."""
    width, height = (round(side * _DOTS) for side in figure.get_size_inches())
    found = []
    for axis in figure.axes:
        if axis.get_gid() == _PICTURE:
            box = axis.get_position()
            edges = (width * box.x0, height * (1 - box.y1), width * box.x1, height * (1 - box.y0))
            left, top, right, bottom = map(round, edges)
            found.append((left, top, right, bottom))
    return found


def _unbroken(text: str) -> str:
    """A text in which a number and its sign stay on one line."""
    return text.replace(" %", "\u00a0%").replace(" \u00b1 ", "\u00a0\u00b1\u00a0")


def _draw(
    figure: Figure,
    total: tuple[int, int],
    corner: tuple[int, int],
    picture: np.ndarray,
    panel: Panel,
    lines: tuple[list[str], list[str], list[str]],
) -> None:
    """One panel, from its upper left corner down: title, likelihood, picture, legend, sentence."""
    title, likely, said = lines
    left, top = corner
    _write(figure, total, (left, top), "\n".join(title), 14, "black", "bold")
    top += int(1.35 * _LINE * len(title))
    _write(figure, total, (left, top), "\n".join(likely), 10.5, "#444444")
    top += _LINE * len(likely) + 10
    _place(figure, total, (left, top), picture, _PICTURE)
    top += picture.shape[0] + _GAP
    for label in panel.labels:
        _write(figure, total, (left + label.left, top - _GAP - picture.shape[0] + label.top), label.text, 9, "#444444")
    low, high = ends(panel.limit, panel.place)
    # As wide as the picture, unless that is too narrow for what stands below.
    across = max(picture.shape[1], round(_SMALL_LETTER * (len(low) + len(high) + 2)))
    ramp = colormaps[COLOURS](np.linspace(0, 1, across))[None, :, :3].repeat(_BAR - 3, 0)
    _place(figure, total, (left, top), (255 * ramp).astype(np.uint8))
    _write(figure, total, (left, top + _BAR), low, 9, "#444444")
    _write(figure, total, (left + across, top + _BAR), high, 9, "#444444", side="right")
    if panel.unseen.any():
        _write(figure, total, (left, top + _BAR + _SMALL), _PALE, 9, "#444444")
    _write(figure, total, (left, top - _GAP + _legend_height(panel)), "\n".join(said), 10.5, "black")


def _legend_height(panel: Panel) -> int:
    """From the lower edge of a picture to the sentence below it."""
    lines = 2 if panel.unseen.any() else 1
    return _GAP + _BAR + _SMALL * lines + 9


def ends(limit: float, place: str = "pixel") -> tuple[str, str]:
    """What the ends of a scale of colours mean.

    Example:
        >>> ends(0.00213)
        ('against it, −0.0021', '0.0021 per pixel, for it')
    """
    return f"against it, −{limit:.2g}", f"{limit:.2g} per {place}, for it"


def _place(
    figure: Figure, total: tuple[int, int], corner: tuple[int, int], picture: np.ndarray, name: str | None = None
) -> None:
    """A picture with its upper left corner there, a pixel of it on a pixel of the figure."""
    (width, height), (left, top) = total, corner
    rows, columns = picture.shape[:2]
    axis = figure.add_axes((left / width, 1 - (top + rows) / height, columns / width, rows / height))
    axis.imshow(picture, aspect="auto", interpolation="none")
    axis.set_axis_off()
    axis.set_gid(name)


def _write(
    figure: Figure,
    total: tuple[int, int],
    corner: tuple[float, float],
    text: str,
    size: float,
    colour: str,
    weight: str = "normal",
    side: str = "left",
) -> None:
    figure.text(
        corner[0] / total[0], 1 - corner[1] / total[1], as_text(text), fontsize=size, color=colour, weight=weight,
        ha=side, va="top", linespacing=1.35,
    )  # fmt: skip
