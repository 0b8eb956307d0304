"""Bars of features and tokens, and curves over time: what is drawn of a sample that is no picture."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from hilrp.attribution.error_bars import standard_error
from hilrp.attribution.kinds import Kind
from hilrp.attribution.panels import Words
from hilrp.attribution.plotting import AGAINST, FOR, as_text, draw_ledger
from hilrp.util.errors import InputError

if TYPE_CHECKING:
    from hilrp.attribution.explanation import Explanation

#: At most so many bars; the others are one.
BARS = 20
#: What is drawn as bars.
_BARRED = (Kind.TABLE, Kind.TOKENS)
#: What curves go along; those of sounds, along time.
_ALONG = {Kind.VOLUME: "slice along axis 1", Kind.VIDEO: "frame", Kind.FRAMES: "frame"}
#: Letters a line of a sentence.
_LETTERS = 84
#: Letters of a name that figures have room for without being wider, the most that are drawn, and inches a letter.
_SHORT, _LONG, _LETTER = 14, 60, 0.085


def is_chart(kind: Kind, axes: tuple[int, ...]) -> bool:
    """Whether a map is drawn as bars or as a curve: it lies along one axis."""
    return kind in _BARRED or len(axes) == 1


def figure_of(
    explanation: Explanation,
    samples: Sequence[int],
    words: Sequence[Words],
    features: Sequence[str] | None = None,
    regions: Sequence[Tensor | None] | None = None,
    note: str = "",
    drawing: Figure | None = None,
) -> Figure:
    """Bars or a curve for each sample, with its words.

    Args:
        explanation: The explanation.
        samples: Which samples.
        words: What is said of each of them.
        features: The names of a table's features, or of tokens.
        regions: What is marked of each, in the form of its map.
        note: What is said of all of them, below.
        drawing: An empty figure to draw on, if not a new one.
    """
    figure = Figure() if drawing is None else drawing
    count = explanation.map.shape[1]
    tall = 0.26 * min(count, BARS + 1) + 2.2 if explanation.main_of(explanation.relevance)[1] in _BARRED else 3.6
    figure.set_size_inches(8 + _room(features), tall * len(samples) + (0.4 if note else 0))
    figure.set_layout_engine("constrained")
    rows = figure.subplots(len(samples), 1, squeeze=False)[:, 0]
    for axis, sample, said, region in zip(rows, samples, words, regions or [None] * len(samples), strict=True):
        draw_chart(axis, explanation, sample, features, region)
        title = f"{said.title}\n{said.likelihood}"
        axis.set_title(as_text(title), fontsize=11, loc="left")
        axis.set_xlabel(as_text(fill(said.sentence, _LETTERS)), fontsize=10, loc="left")
    if note:
        figure.supxlabel(as_text(note), fontsize=9, color="#555555")
    return figure


def draw_chart(  # type: ignore[no-untyped-def]
    axis, explanation: Explanation, sample: int, features: Sequence[str] | None = None, region: Tensor | None = None
) -> None:
    """A sample's map as a chart: bars of features, tokens and bands, a curve over slices, frames or time.

    Names of features that are marked are bold, and a part of a wave that is marked is grey.
    """
    relevance, kind = explanation.main_of(explanation.relevance)
    maps = explanation.map[sample].detach().float().cpu()
    pairs = explanation.pair_maps
    own = None if pairs is None else pairs[sample].detach().float().cpu()
    if kind in _BARRED:
        errors = None if own is None else standard_error(own[None])[0].numpy()
        _bars(axis, maps.numpy(), errors, names_of(kind, maps.shape[0], features), region)
        return
    if kind is Kind.BANDS:
        each = relevance[sample].detach().float().cpu().flatten(1).sum(1)
        _bars(axis, each.numpy(), None, [f"band {i + 1}" for i in range(len(each))])
        return
    along = 1 if kind is Kind.SOUND and maps.ndim == 2 and maps.shape[1] >= maps.shape[0] else 0
    others = [i for i in range(maps.ndim) if i != along]
    curve = maps.sum(others) if others else maps
    error = None
    if own is not None:
        sums = own.sum([i + 1 for i in others]) if others else own
        error = standard_error(sums[None])[0].numpy()
    if region is not None and maps.ndim == 1:
        marked = (np.asarray(region.detach().cpu(), np.float32) > 0.5).astype(float)
        axis.fill_between(
            *_steps(marked), color="#dddddd", transform=axis.get_xaxis_transform(), linewidth=0, step="post"
        )
    time = "time" if maps.ndim == 1 else f"time (axis {along + 1})"
    _curve(axis, curve.numpy(), error, _ALONG.get(kind, time))


def names_of(kind: Kind, count: int, features: Sequence[str] | None) -> list[str]:
    """What bars are called."""
    if features is None:
        return [f"{kind.place} {i}" for i in range(count)]
    if isinstance(features, str) or len(features) != count:
        raise InputError(
            f"features: give a list with the name of each of {count} {kind.places}"
            + ("." if isinstance(features, str) else f", not of {len(features)}.")
        )
    return [shorten(name) for name in map(str, features)]


def shorten(name: str) -> str:
    """A name as it is drawn: the middle of a long one is left out.

    Example:
        >>> len(shorten("a name of a column " * 9)), shorten("age")
        (60, 'age')
    """
    half = (_LONG - 1) // 2
    return name if len(name) <= _LONG else f"{name[: _LONG - 1 - half]}\u2026{name[-half:]}"


def _room(features: Sequence[str] | None) -> float:
    """How much wider a figure is, in inches, so that long names leave room for bars and the sentence below them."""
    longest = max((len(shorten(str(name))) for name in features), default=0) if features is not None else 0
    return _LETTER * max(0, longest - _SHORT)


def _bars(  # type: ignore[no-untyped-def]
    axis, values: np.ndarray, errors: np.ndarray | None, names: Sequence[str], region: Tensor | None = None
) -> None:
    """The largest values as bars, the largest on top, and the sum of the others."""
    order = np.argsort(-np.abs(values), kind="stable")
    shown, rest = order[:BARS], order[BARS:]
    labels, lengths = [names[i] for i in shown], [float(values[i]) for i in shown]
    spread = None if errors is None else [float(errors[i]) for i in shown]
    if len(rest):
        labels.append(f"{len(rest)} others")
        lengths.append(float(values[rest].sum()))
        spread = None if spread is None else [*spread, 0.0]
    colours = [FOR if length >= 0 else AGAINST for length in lengths]
    axis.barh(range(len(lengths)), lengths, xerr=spread, color=colours, height=0.75, ecolor="#555555")
    axis.set_yticks(range(len(lengths)), [as_text(label) for label in labels], fontsize=9)
    for label, i in zip(axis.get_yticklabels(), shown, strict=False):
        if region is not None and float(region[i]) > 0.5:
            label.set_fontweight("bold")
    axis.margins(y=0.01)
    axis.invert_yaxis()
    axis.axvline(0, color="#555555", linewidth=0.8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _steps(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values from edge to edge: each place, also one alone, the first and the last, has its full width."""
    return np.arange(len(values) + 1) + 0.5, np.append(values, values[-1])


def _curve(axis, values: np.ndarray, error: np.ndarray | None, along: str) -> None:  # type: ignore[no-untyped-def]
    """Relevance along an axis, above and below zero."""
    edges, values = _steps(values)
    axis.fill_between(edges, values.clip(0), color=FOR, alpha=0.8, linewidth=0, step="post")
    axis.fill_between(edges, values.clip(None, 0), color=AGAINST, alpha=0.8, linewidth=0, step="post")
    if error is not None:
        _, error = _steps(error)
        axis.fill_between(edges, values - error, values + error, color="#555555", alpha=0.4, linewidth=0, step="post")
    axis.axhline(0, color="#555555", linewidth=0.8)
    axis.set_xlim(edges[0], edges[-1])
    axis.set_title(f"relevance by {along}", fontsize=9, loc="right")
    axis.tick_params(labelsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def details(
    explanation: Explanation,
    drawing: Figure,
    samples: Sequence[int],
    titles: Sequence[str],
    features: Sequence[str] | None = None,
    note: str = "",
) -> Figure:
    """A row for each sample, on an empty figure: its map as a chart, and the ledger.

    Stage maps are drawn of pictures alone.
    """
    drawing.set_size_inches(11 + _room(features), 3.6 * len(samples))
    drawing.set_layout_engine("constrained")
    axes = drawing.subplots(len(samples), 2, squeeze=False, width_ratios=[1.6, 1])
    if note:
        drawing.suptitle(as_text(note), fontsize=10)
    for i, row in zip(samples, axes, strict=True):
        draw_chart(row[0], explanation, i, features)
        row[0].set_title(as_text(titles[i]), fontsize=10, loc="left")
        draw_ledger(row[1], explanation, i)
    return drawing
