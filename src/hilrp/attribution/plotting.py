"""Pictures of an explanation: input, overlay, signed map, stage maps, and a waterfall of the books."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from hilrp.util.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from hilrp.attribution.explanation import Explanation

#: Relevance is signed: blue speaks against the target, red for it, white is zero.
COLOURS = "seismic"
#: Bars of the books.
FOR, AGAINST = "#b2182b", "#2166ac"
#: At most this many stage maps are drawn; more (the blocks of a flat transformer) are thinned out evenly.
STAGES = 4
#: A title is as wide as its picture: this many letters.
_TITLE = 30
#: At most this many samples are drawn, unless they are named.
_ROWS = 10


def as_text(name: str) -> str:
    r"""A name as matplotlib shows it letter by letter: what is between dollar signs would be typeset as mathematics.

    Example:
        >>> print(as_text("a $1 note"))
        a \$1 note
    """
    return name.replace("$", r"\$")


def draw(
    explanation: Explanation,
    drawing: Figure,
    classes: list[str] | None = None,
    samples: Sequence[int] | None = None,
    pictures: Tensor | None = None,
    all_stages: bool = False,
    titles: Sequence[str] | None = None,
    outlines: Tensor | None = None,
) -> Figure:
    """One row per sample, on an empty figure: input, overlay, signed map, stage maps, books."""
    samples = list(range(min(_ROWS, len(explanation)))) if samples is None else list(samples)
    image = explanation.image_of(explanation.input).detach().float().cpu().numpy()
    maps = explanation.map.detach().float().cpu().numpy()
    names = stages_shown(explanation, samples, all_stages)
    columns = 4 + len(names)
    drawing.set_size_inches(2.5 * columns + 1.3, 2.7 * len(samples))
    drawing.set_layout_engine("constrained")
    axes = drawing.subplots(len(samples), columns, squeeze=False, width_ratios=[1] * (columns - 1) + [1.5])
    for i, row in zip(samples, axes, strict=True):
        picture = displayable(image[i]) if pictures is None else pictures[i].permute(1, 2, 0).cpu().numpy()
        row[0].imshow(picture)
        row[0].set_title(as_text(_title(explanation, i, classes, titles)), fontsize=9)
        overlay(row[1], picture, maps[i])
        if outlines is not None:
            for axis, colour in zip(row[:2], ("white", "black"), strict=True):
                axis.contour(outlines[i].cpu().numpy(), levels=[0.5], colors=colour, linewidths=1)
        row[1].set_title("relevance on the input", fontsize=9)
        shown = row[2].imshow(maps[i], cmap=COLOURS, **symmetric(maps[i]))
        row[2].set_title("relevance, signed", fontsize=9)
        drawing.colorbar(shown, ax=row[2], shrink=0.75)
        for axis, name in zip(row[3:-1], names, strict=True):
            stage = explanation.stages[name][i].detach().float().cpu().numpy()
            axis.imshow(stage, cmap=COLOURS, **symmetric(stage))
            axis.set_title(as_text(f"{name}\n{held(explanation, name, i)}"), fontsize=8)
        for axis in row[:-1]:
            axis.set_axis_off()
            axis.set(xticks=[], yticks=[])  # not shown, but placed and measured all the same
        _books(row[-1], explanation, i)
    return drawing


def displayable(image: np.ndarray) -> np.ndarray:
    """A preprocessed image ``[C,H,W]`` as a picture ``[H,W,3]``.

    Stretched to the range of its own values, all channels alike.
    """
    channels = image[:3] if image.shape[0] >= 3 else np.repeat(image[:1], 3, 0)
    low, high = float(channels.min()), float(channels.max())
    picture: np.ndarray = ((channels - low) / (high - low or 1.0)).transpose(1, 2, 0)
    return picture


def symmetric(values: np.ndarray) -> dict[str, float]:
    """Limits of a colour scale that is centred at zero; the strongest 0.5 % of the values may saturate."""
    limit = float(np.quantile(np.abs(values), 0.995)) or float(np.abs(values).max()) or 1.0
    return {"vmin": -limit, "vmax": limit}


def overlay(axis, picture: np.ndarray, relevance: np.ndarray) -> None:  # type: ignore[no-untyped-def]
    """Shows `blend` on an axis."""
    axis.imshow(blend(picture, relevance))


def blend(picture: np.ndarray, relevance: np.ndarray) -> np.ndarray:
    """The picture ``[H,W,3]`` in pale grey, with relevance laid over it: the stronger, the more opaque.

    Lightly smoothed.
    """
    smooth = max(1, min(relevance.shape) // 48)
    kernel = np.hanning(2 * smooth + 3)[1:-1]
    kernel /= kernel.sum()
    blurred = relevance
    for axis in (0, 1) if min(relevance.shape) > len(kernel) else ():
        blurred = np.apply_along_axis(lambda line: np.convolve(line, kernel, "same"), axis, blurred)
    strength = np.clip(np.abs(blurred) / symmetric(blurred)["vmax"], 0, 1)[..., None]
    ground = 0.4 + 0.6 * picture.mean(2, keepdims=True)
    blended: np.ndarray = (1 - 0.9 * strength) * ground + 0.9 * strength * coloured(blurred)
    return blended


def coloured(relevance: np.ndarray) -> np.ndarray:
    """Relevance ``[H,W]`` in colours ``[H,W,3]``, on a scale that is centred at zero."""
    limit = symmetric(relevance)["vmax"]
    colours: np.ndarray = colormaps[COLOURS]((relevance / limit + 1) / 2)[..., :3]
    return colours


def stages_shown(explanation: Explanation, samples: Sequence[int], all_stages: bool = False) -> list[str]:
    """The stages whose maps are drawn: a few, evenly chosen, unless all are wanted."""
    # The last blocks of a model with a class token hold all relevance on that token: an empty map says nothing.
    names = [name for name, stage in explanation.stages.items() if bool(stage[list(samples)].abs().max() > 0)]
    if all_stages or len(names) <= STAGES:
        return names
    return [names[round(i)] for i in np.linspace(0, len(names) - 1, STAGES)]


def _title(explanation: Explanation, i: int, classes: list[str] | None, titles: Sequence[str] | None) -> str:
    score = f"score {float(explanation.score[i]):.3f}"
    if titles is not None:
        return f"{fill(titles[i], _TITLE)}\n{score}"
    if explanation.target is None:
        return score
    index = int(explanation.target[i])
    if classes is not None and index >= len(classes):
        raise InputError(
            f"classes has {len(classes)} names, but class {index} is explained. Pass the name of every class."
        )
    names = classes or [f"class {c}" for c in range(index + 1)]
    said = names[index]
    if explanation.against is not None:
        other = int(explanation.against[i])
        said += f" rather than {classes[other] if classes else other}"
    return f"{fill(said, _TITLE)}\n{score}"


def held(explanation: Explanation, stage: str, i: int) -> str:
    """How much a stage holds: of the score, or of its difference to the reference."""
    part = float(explanation.trace[stage][i])
    if explanation.reference is None:
        return f"{part:.2f} of the score"
    explained = float(explanation.ledger.explained[i])
    return f"{part * float(explanation.ledger.score[i]) / explained:.2f} of the difference" if explained else ""


def shares(explanation: Explanation, i: int) -> list[tuple[str, float]]:
    """What the books of a sample are made of: the pixels, the largest entries, the rest, and what is missing."""
    ledger = explanation.ledger
    visible = 0.005 * abs(float(ledger.score[i]))
    entries = sorted(((n, float(v[i])) for n, v in ledger.entries.items()), key=lambda item: -abs(item[1]))
    large = [(name, value) for name, value in entries if abs(value) >= visible][:5]
    rest = sum(value for _, value in entries) - sum(value for _, value in large)
    ends = [("other", rest), ("not accounted for", float(ledger.difference[i]))]
    arrived = [(name, float(value[i])) for name, value in ledger.arrived.items()]
    return [*arrived, *large, *(end for end in ends if abs(end[1]) >= visible)]


def _books(axis, explanation: Explanation, i: int) -> None:  # type: ignore[no-untyped-def]
    """A waterfall: score = pixels + what constants kept."""
    ledger = explanation.ledger
    parts = shares(explanation, i)
    start = 0.0
    for row, (_, value) in enumerate(parts):
        axis.barh(row, value, left=start, color=FOR if value >= 0 else AGAINST, height=0.7)
        side = "left" if value >= 0 else "right"
        axis.text(start + value, row, f" {value:.2f} ", va="center", fontsize=7, ha=side)
        start += value
    axis.barh(len(parts), float(ledger.score[i]), color="#555555", height=0.7)
    axis.set_yticks(range(len(parts) + 1), [as_text(name) for name, _ in parts] + ["score"], fontsize=7)
    axis.invert_yaxis()
    axis.use_sticky_edges = False
    axis.margins(x=0.25)
    axis.tick_params(axis="x", labelsize=7)
    word = explanation.verdicts[i]
    holders = " + ".join(ledger.arrived)
    holding = (
        f"{holders} {float(ledger.share[i]):.1%}" if explanation.reference is None else f"reference + {holders} = score"
    )
    said = f"{word}: {holding}, residual {float(ledger.residual[i]):.0e}"
    axis.set_title(as_text(said), fontsize=9, color=word.colour)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
