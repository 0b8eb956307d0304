"""Large pictures of an explanation: relevance on the picture in colour, what is marked, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from hilrp.attribution.panels import Panel, Words
from hilrp.attribution.plotting import COLOURS, as_text, coloured_by

#: Pixels for an inch of a figure.
_DOTS = 100
#: Pixels of a figure's margins, of the lines above and below a picture, and of the legend between.
_MARGIN, _LINE, _LEGEND = 24, 21, 46
#: Letters are about so many pixels wide.
_LETTER = 8.3
#: At most so many pictures are beside each other.
_COLUMNS = 4
#: What the pictures in a figure are known by.
_PICTURE = "picture"
#: What is said of a picture that is paler where the model did not see it.
_PALE = "pale: not seen by the model"


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
        width = max(1, round(min(panel.region.shape) / 400))
        inner = _edge(panel.region, width)
        outer = _widened(inner, width) & ~inner
        shown = np.where(outer[..., None], 0.1, np.where(inner[..., None], 1.0, shown))
    made: np.ndarray = (255 * np.clip(shown, 0, 1)).round().astype(np.uint8)
    return made


def _edge(region: np.ndarray, width: int) -> np.ndarray:
    """The border of a region, so many pixels wide; where it ends with the picture there is none."""
    return _widened(region, width) & _widened(~region, width)


def _widened(mask: np.ndarray, by: int) -> np.ndarray:
    """A mask, and all that is at most so many pixels away along rows and columns."""
    found = mask
    for axis in (0, 1):
        padded = np.pad(found, [(by, by) if a == axis else (0, 0) for a in (0, 1)])
        parts = [np.take(padded, range(shift, shift + found.shape[axis]), axis) for shift in range(2 * by + 1)]
        found = np.any(parts, axis=0)
    return found


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
    below = [_LEGEND + _LINE * len(said) + 14 for *_, said in lines]
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
    top += picture.shape[0] + 12
    ramp = colormaps[COLOURS](np.linspace(0, 1, picture.shape[1]))[None, :, :3].repeat(10, 0)
    _place(figure, total, (left, top), (255 * ramp).astype(np.uint8))
    top += 13
    low, high = ends(panel.limit)
    _write(figure, total, (left, top), low, 9, "#444444")
    _write(figure, total, (left + picture.shape[1], top), high, 9, "#444444", side="right")
    if panel.unseen.any():
        _write(figure, total, (left + picture.shape[1] / 2, top), _PALE, 9, "#444444", side="center")
    _write(figure, total, (left, top + _LEGEND - 25), "\n".join(said), 10.5, "black")


def ends(limit: float) -> tuple[str, str]:
    """What the ends of a scale of colours mean.

    Example:
        >>> ends(0.00213)
        ('against it, −0.0021', '0.0021 per pixel, for it')
    """
    return f"against it, −{limit:.2g}", f"{limit:.2g} per pixel, for it"


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
