"""The figure of details of an explanation: input, signed map, stage maps, and a waterfall of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure

from hilrp.attribution.marking import smoothed
from hilrp.method.ledger import REFERENCE

if TYPE_CHECKING:
    from hilrp.attribution.explanation import Explanation

#: Relevance is signed: blue speaks against the target, red for it, white is zero. Who sees no red or no green tells
#: them apart as well, and both ends are equally dark.
COLOURS = "RdBu_r"
#: Bars of the ledger; that of the reference's score, from which they start.
FOR, AGAINST, BEFORE = "#b2182b", "#2166ac", "#999999"
#: At most this many stage maps are drawn; more (the blocks of a flat transformer) are thinned out evenly.
STAGES = 4
#: A title is as wide as its picture: this many letters.
_TITLE = 30
#: A name of a bar: this many letters a line.
_LABEL = 18


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
    samples: Sequence[int],
    pictures: np.ndarray,
    titles: Sequence[str],
    outlines: Sequence[np.ndarray] | None = None,
    all_stages: bool = False,
    note: str = "",
) -> Figure:
    """One row per sample, on an empty figure: input, signed map, stage maps, ledger.

    Args:
        explanation: The explanation.
        drawing: The figure.
        samples: Which samples.
        pictures: What the model saw of each sample, ``[B,H,W,3]``.
        titles: What is explained of each.
        outlines: What is drawn around on each picture.
        all_stages: Draw the maps of all stages, and not only of four.
        note: What is said above all of them.
    """
    maps = explanation.map.detach().float().cpu().numpy()
    names = stages_shown(explanation, samples, all_stages)
    errors = explanation.stderr
    # Input, map, perhaps its standard error, stages, ledger.
    columns = 3 + len(names) + (errors is not None)
    drawing.set_size_inches(2.9 * columns + 1.5, 3.2 * len(samples))
    drawing.set_layout_engine("constrained")
    axes = drawing.subplots(len(samples), columns, squeeze=False, width_ratios=[1] * (columns - 1) + [1.5])
    if note:
        drawing.suptitle(as_text(note), fontsize=10)
    for i, row in zip(samples, axes, strict=True):
        row[0].imshow(np.clip(pictures[i], 0, 1))
        row[0].set_title(as_text(_title(explanation, i, titles[i])), fontsize=10)
        if outlines is not None:
            row[0].contour(outlines[i], levels=[0.5], colors="white", linewidths=1)
        shown = row[1].imshow(maps[i], cmap=COLOURS, **symmetric(maps[i]))
        row[1].set_title(f"relevance, signed{_passes(explanation)}", fontsize=10)
        drawing.colorbar(shown, ax=row[1], shrink=0.75)
        if errors is not None:
            _draw_errors(row[2], errors[i].detach().float().cpu().numpy(), maps[i])
            drawing.colorbar(row[2].images[0], ax=row[2], shrink=0.75)
        for axis, name in zip(row[-1 - len(names) : -1], names, strict=True):
            stage = explanation.stages[name][i].detach().float().cpu().numpy()
            axis.imshow(stage, cmap=COLOURS, **symmetric(stage))
            axis.set_title(as_text(f"{name}\n{held(explanation, name, i)}"), fontsize=9)
        for axis in row[:-1]:
            axis.set_axis_off()
            axis.set(xticks=[], yticks=[])  # not shown, but placed and measured all the same
        draw_ledger(row[-1], explanation, i)
    return drawing


def _passes(explanation: Explanation) -> str:
    return f", {explanation.passes} passes" if explanation.passes > 1 else ""


def _draw_errors(axis, error: np.ndarray, relevance: np.ndarray) -> None:  # type: ignore[no-untyped-def]
    """The standard error of a map, on the scale of the map: what is as dark there is as large."""
    axis.imshow(error, cmap="Greys", vmin=0, vmax=symmetric(relevance)["vmax"])
    axis.set_title("its standard error", fontsize=10)


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


def blend(picture: np.ndarray, relevance: np.ndarray) -> np.ndarray:
    """The picture ``[H,W,3]`` in pale grey, with relevance laid over it: the stronger, the more opaque.

    Lightly smoothed.
    """
    blurred = smoothed(torch.from_numpy(np.ascontiguousarray(relevance))[None].float())[0].numpy()
    strength = np.clip(np.abs(blurred) / symmetric(blurred)["vmax"], 0, 1)[..., None]
    ground = 0.4 + 0.6 * picture.mean(2, keepdims=True)
    blended: np.ndarray = (1 - 0.9 * strength) * ground + 0.9 * strength * coloured(blurred)
    return blended


def coloured(relevance: np.ndarray) -> np.ndarray:
    """Relevance ``[H,W]`` in colours ``[H,W,3]``, on a scale that is centred at zero."""
    return coloured_by(relevance, symmetric(relevance)["vmax"])


def coloured_by(relevance: np.ndarray, limit: float) -> np.ndarray:
    """The same, on a scale that ends at the limit."""
    colours: np.ndarray = colormaps[COLOURS]((relevance / limit + 1) / 2)[..., :3]
    return colours


def stages_shown(explanation: Explanation, samples: Sequence[int], all_stages: bool = False) -> list[str]:
    """The stages whose maps are drawn: a few, evenly chosen, unless all are wanted."""
    # The last blocks of a model with a class token hold all relevance on that token: an empty map says nothing.
    names = [name for name, stage in explanation.stages.items() if bool(stage[list(samples)].abs().max() > 0)]
    if all_stages or len(names) <= STAGES:
        return names
    return [names[round(i)] for i in np.linspace(0, len(names) - 1, STAGES)]


def _title(explanation: Explanation, i: int, title: str) -> str:
    score = f"score {float(explanation.score[i]):.3f}"
    if explanation.relative_to is not None:
        score += "\n" + fill(explanation.comparison(i), _TITLE)
    return f"{fill(title, _TITLE)}\n{score}"


def held(explanation: Explanation, stage: str, i: int) -> str:
    """How much a stage holds: of the score, or of its difference to the reference."""
    part = float(explanation.trace[stage][i])
    return f"{part:.2f} of the {'score' if explanation.reference is None else 'difference'}"


def shares(explanation: Explanation, i: int) -> list[tuple[str, float]]:
    """What the ledger of a sample is made of.

    The reference's score, where there is one, the pixels, the largest entries, the rest, and what is missing.
    """
    ledger = explanation.ledger
    visible = 0.005 * abs(float(ledger.score[i]))
    kept = ledger.entries
    entries = [(name, float(value[i])) for name, value in kept.items() if name != REFERENCE]
    entries.sort(key=lambda item: -abs(item[1]))
    large = [(name, value) for name, value in entries if abs(value) >= visible][:5]
    rest = sum(value for _, value in entries) - sum(value for _, value in large)
    ends = [("other", rest), ("not accounted for", float(ledger.difference[i]))]
    arrived = [(name, float(value[i])) for name, value in ledger.arrived.items()]
    before = [(f"on {explanation.relative_to}", float(ledger.entries[REFERENCE][i]))] if REFERENCE in kept else []
    return [*before, *arrived, *large, *(end for end in ends if abs(end[1]) >= visible)]


def draw_ledger(axis, explanation: Explanation, i: int) -> None:  # type: ignore[no-untyped-def]
    """A waterfall: score = pixels + what constants kept; or, from the reference's score, + the pixels."""
    ledger = explanation.ledger
    parts = shares(explanation, i)
    start = 0.0
    for row, (_, value) in enumerate(parts):
        colour = BEFORE if row == 0 and explanation.relative_to is not None else FOR if value >= 0 else AGAINST
        axis.barh(row, value, left=start, color=colour, height=0.7)
        side = "left" if value >= 0 else "right"
        axis.text(start + value, row, f" {value:.2f} ", va="center", fontsize=8, ha=side)
        start += value
    axis.barh(len(parts), float(ledger.score[i]), color="#555555", height=0.7)
    labels = [as_text(fill(name, _LABEL)) for name, _ in parts]
    axis.set_yticks(range(len(parts) + 1), [*labels, "score"], fontsize=8)
    axis.invert_yaxis()
    axis.use_sticky_edges = False
    axis.margins(x=0.25)
    axis.tick_params(axis="x", labelsize=7)
    word = explanation.verdicts[i]
    of_what = "" if explanation.relative_to is None else " of the difference"
    holding = f"{' + '.join(ledger.arrived)} {float(ledger.share[i]):.1%}{of_what}"
    said = f"{word}: {holding},\nresidual {float(ledger.residual[i]):.0e}"
    axis.set_title(as_text(said), fontsize=9, color=word.colour)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
