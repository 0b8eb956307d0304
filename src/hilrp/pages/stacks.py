"""The page of one explanation of a volume, a video, bands or a sound: slices with sliders, and curves along them.

It needs nothing else, not even a connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from torch import Tensor

from hilrp.attribution.error_bars import standard_error
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.kinds import Kind
from hilrp.attribution.marking import MARKED, smoothed
from hilrp.attribution.plotting import COLOURS
from hilrp.attribution.sentences import sentence, titled
from hilrp.pages.arrays import as_bytes, as_floats
from hilrp.pages.parts import folded, legend, page, safe, sheet
from hilrp.pages.viewer import SATURATES, STYLE, ledger_of
from hilrp.pages.words import has_shares, surety, verdict

#: At most so many values are put into a page, of four bytes each; of more, blocks are summed.
MOST = 2**21
#: At most so many bands are shown.
_BANDS = 12
_OWN_STYLE = """
.stacks { display: flex; flex-wrap: wrap; gap: 18px; align-items: flex-start; margin: 10px 0; }
.stacks > div { flex: 1 1 260px; min-width: 0; max-width: 560px; }
.stacks.small > div { flex: 1 1 180px; max-width: 260px; }
.stacks.wide { display: block; } .stacks.wide > div { max-width: none; }
.stacks canvas { width: 100%; display: block; }
.stacks .slice { cursor: crosshair; touch-action: pinch-zoom; image-rendering: auto; }
.stacks input[type=range] { width: 100%; accent-color: var(--accent); margin: 6px 0 0; }
.curve { height: 72px; cursor: pointer; margin-top: 4px; }
.told { font-size: 13.5px; font-variant-numeric: tabular-nums; min-height: 1.5em; }
.below { display: flex; flex-wrap: wrap; gap: 22px; } .below > div { flex: 1 1 320px; max-width: 560px; min-width: 0; }
"""


@dataclass(frozen=True)
class Space:
    """How a volume lies in the body, for its page.

    Attributes:
        spacing: How far places are from each other, along each axis of the map.
        orientation: Towards what its axes go, "RAS" for right, front and top; slices are shown upright then.
        rate: Of films and sounds, how many frames or moments there are in a second.
    """

    spacing: tuple[float, ...] | None = None
    orientation: str | None = None
    rate: float | None = None


@dataclass
class _Stack:
    """What is shown: arrays of one form ``[D,H,W]``, and how to look at them."""

    relevance: np.ndarray
    picture: np.ndarray
    region: np.ndarray
    views: list[dict[str, Any]]
    names: list[str]
    spacing: list[float]
    pairs: np.ndarray | None = None
    curves: list[dict[str, Any]] = field(default_factory=list)
    crossed: bool = False
    coloured: bool = False
    note: str = ""


def stack_page(
    explanation: Explanation,
    title: str | None,
    about: str,
    notes: Sequence[str] = (),
    space: Space | None = None,
    code: str = "",
    name: str = "hilrp",
    against: str | None = None,
) -> str:
    """The whole page of an explanation of one sample that is no flat picture.

    Args:
        explanation: Of one sample: a volume, a video, bands, or a sound.
        title: What is explained, in words.
        about: Of what, with which model and rules, in words.
        notes: What should be known of it.
        space: How it lies in space and time.
        code: The lines of Python that make the same explanation.
        name: What the page is of, in short.
        against: What the title is contrasted with.
    """
    kind, space = explanation.main_of(explanation.relevance)[1], space or Space()
    marked = explanation.marked()
    said = sentence(explanation, 0, title, marked.held, MARKED, against)
    title = titled(title, against) or "the score"
    stack = _stack_of(explanation, kind, marked.mask[0].float(), space)
    shown = smoothed(torch.from_numpy(np.ascontiguousarray(stack.relevance))).abs()
    strongest = np.unravel_index(int(shown.argmax()), shown.shape)
    data = {
        "name": name,
        "shape": list(stack.relevance.shape),
        "map": as_floats(stack.relevance),
        "picture": as_bytes((255 * np.clip(stack.picture, 0, 1)).round().astype(np.uint8)),
        "coloured": stack.coloured,
        "region": as_bytes((stack.region > 0.5).astype(np.uint8)),
        "colours": as_bytes((255 * colormaps[COLOURS](np.arange(256))[:, :3]).round().astype(np.uint8)),
        "views": stack.views,
        "names": stack.names,
        "spacing": stack.spacing,
        "crossed": stack.crossed,
        "start": [int(each) for each in strongest],
        "curves": stack.curves,
        "rate": space.rate or 8,
        "explained": float(explanation.ledger.explained[0]),
        "whole": "the difference" if explanation.relative_to is not None else "the score",
        "shares": has_shares(explanation),
    }
    noted = "".join(
        f'<p class="note">Note: {escape(note)}.</p>' for note in [*notes, *([stack.note] if stack.note else [])]
    )
    script = f"{sheet('maps.js')}{sheet('stacks.js')}"
    unseen = "" if stack.views else ' style="display: none"'  # a wave has curves alone
    low, high = 'against it, <span id="low"></span>', f'<span id="high"></span> per {kind.place}, for it'
    body = f"""<h1>{escape(title)}</h1>
<p id="headline">{escape(said.start)}<span id="held">{escape(said.held)}</span>{escape(said.end)}</p>
<p class="soft">{escape(about)}</p>{noted}
{_canvases(stack, kind, title)}
<div id="pixel">&nbsp;</div>
<div class="below"><div><div{unseen}>{legend(low, high, SATURATES)}</div>{verdict(explanation)}</div>
<div><div class="controls"{unseen}>
<label for="opacity">Opacity</label>
<input type="range" id="opacity" min="0" max="100" value="90"><span class="unit"></span>
<label for="smoothing">Smoothing</label>
<input type="range" id="smoothing" min="0" max="{max(4, stack.relevance.shape[2] // 12)}"
 value="{min(4, max(1, stack.relevance.shape[2] // 48))}"><span class="unit" id="radius"></span>
<span class="all soft">Smoothing changes what you see and nothing else: all numbers are those of the map itself.</span>
<div class="all checks">
<label><input type="checkbox" id="positive" checked> evidence for</label>
<label><input type="checkbox" id="negative" checked> evidence against</label>
<label><input type="checkbox" id="around" checked> white line: {MARKED}</label></div></div>
<p class="soft">{escape(surety(explanation))}</p></div></div>
{folded("The ledger", ledger_of(explanation))}
{folded("The same in Python", f"<pre>{escape(code)}</pre>") if code else ""}
<script type="application/json" id="data">{safe(data)}</script><script>{script}</script>"""
    return page(title, body, STYLE + _OWN_STYLE)


def _canvases(stack: _Stack, kind: Kind, title: str) -> str:
    """Slices with their sliders and curves; curves that belong to no slice below."""
    boxes, used = [], set()
    for i, view in enumerate(stack.views):
        label = escape(f"{title}: relevance, {view['title']}", quote=True)
        parts = [f'<b class="small">{escape(view["title"])}</b>'] if view["title"] else []
        parts.append(f'<canvas class="slice" id="view{i}" role="img" aria-label="{label}"></canvas>')
        if view["slider"]:
            most = stack.relevance.shape[view["axis"]] - 1
            named = escape(stack.names[view["axis"]], quote=True)
            parts.append(f'<input type="range" id="slider{i}" min="0" max="{most}" aria-label="{named}">')
            parts.append(f'<div class="told" id="said{i}"></div>')
        for j, curve in enumerate(stack.curves):
            if view["slider"] and curve["axis"] == view["axis"]:
                parts.append(_curve(j, curve))
                used.add(j)
        if kind in (Kind.VIDEO, Kind.FRAMES):
            parts.append('<p><button id="play" type="button">Play</button></p>')
        boxes.append(f"<div>{''.join(parts)}</div>")
    rest = "".join(f"<div>{_curve(j, curve)}</div>" for j, curve in enumerate(stack.curves) if j not in used)
    small = " small" if kind is Kind.BANDS else ""
    below = f'<div class="stacks wide">{rest}</div>' if rest else ""
    return f'<div class="stacks{small}">{"".join(boxes)}</div>{below}'


def _curve(i: int, curve: dict[str, Any]) -> str:
    label = escape(curve["label"], quote=True)
    return (
        f'<canvas class="curve" id="curve{i}" width="1000" height="144" role="img" aria-label="{label}"></canvas>'
        f'<div class="small">{escape(curve["label"])}</div>'
    )


def _stack_of(explanation: Explanation, kind: Kind, region: Tensor, space: Space) -> _Stack:
    """What is shown of an explanation's only sample."""
    relevance = explanation.main_of(explanation.relevance)[0]
    x = explanation.main_of(explanation.input)[0][0].detach().float().cpu()
    held = explanation.map[0].detach().float().cpu()
    pairs = explanation.pair_maps
    own = None if pairs is None else pairs[0].detach().float().cpu()
    axes = [axis - 1 for axis in kind.axes(tuple(relevance.shape))]
    x = x.permute(*axes, *(axis for axis in range(x.ndim) if axis not in axes)).reshape(*held.shape, -1)
    region = region.cpu()
    if kind is Kind.BANDS:
        return _bands(x, relevance[0].detach().float().cpu(), held, region)
    if kind is Kind.SOUND:
        return _sound(x, held, region, own, space)
    films = kind is not Kind.VOLUME
    turned = (held, _seen(x, films), region, own)
    names = ["frame", "row", "column"] if films else [f"slice along axis {i}" for i in (1, 2, 3)]
    titles = [""] * 3 if films else names
    spacing = [1.0, 1.0, 1.0] if space.spacing is None or films else list(space.spacing)
    anatomical = not films and space.orientation is not None
    if not films and space.orientation is not None:
        turned, spacing = _upright(turned, space.orientation, spacing)
        names = ["slice from the feet up", "slice from front to back", "slice from right to left"]
        titles = ["axial", "coronal", "sagittal"]
    held, seen, region, own = turned
    held, seen, region, own, block = _coarser(held, seen, region, own)
    if films:
        views = [_view(0, "", slider=True)]
    else:
        views = [_view(axis, titles[axis], slider=True, upside=anatomical and axis > 0) for axis in range(3)]
    stack = _Stack(held.numpy(), seen.numpy(), region.numpy(), views, names, spacing, crossed=not films)
    stack.coloured = seen.ndim == 4
    whole = [0] if films else [0, 1, 2]
    stack.curves = [_curve_along(held, own, axis, names[axis], films) for axis in whole]
    if block > 1:
        stack.note = f"the page shows blocks of {block} values along each axis, which are summed: there are too many"
    return stack


def _view(axis: int, title: str, slider: bool, index: int = 0, upside: bool = False) -> dict[str, Any]:
    return {"axis": axis, "title": title, "slider": slider, "index": index, "upside": upside}


def _curve_along(held: Tensor, own: Tensor | None, axis: int, name: str, films: bool) -> dict[str, Any]:
    """The sum of each slice, and its standard error where pairs say it."""
    rest = [i for i in range(3) if i != axis]
    errors = None if own is None else standard_error(own.sum([i + 1 for i in rest])[None])[0].numpy()
    label = "relevance by frame" if films else f"relevance by {name}"
    return {
        "axis": axis, "name": name, "label": label, "values": as_floats(held.sum(rest).numpy()),
        "errors": None if errors is None else as_floats(errors), "plain": False, "rate": None, "from": 0,
    }  # fmt: skip


def _seen(x: Tensor, films: bool) -> Tensor:
    """Values as greys ``[D,H,W]``, or as colours ``[D,H,W,3]``, stretched to their range."""
    shown = x if films and x.shape[-1] == 3 else x.mean(-1)
    low, high = shown.flatten().sort().values[[0, -1]] if shown.numel() < 1000 else _range(shown)
    return ((shown - low) / (high - low if high > low else 1.0)).clamp(0, 1)


def _range(shown: Tensor) -> tuple[Tensor, Tensor]:
    """From where to where greys go: the outermost half per cent saturates."""
    values = shown.flatten()
    some = values[:: max(1, len(values) // 100_000)]
    return some.quantile(0.005), some.quantile(0.995)


def _upright(arrays: Any, orientation: str, spacing: list[float]) -> Any:
    """Volumes with axes from the feet up, from front to back and from right to left, as radiologists look at them."""
    pairs = {"S": 0, "I": 0, "A": 1, "P": 1, "L": 2, "R": 2}
    order = [next(i for i, letter in enumerate(orientation) if pairs[letter] == axis) for axis in range(3)]
    flips = [axis for axis in range(3) if orientation[order[axis]] != "SPL"[axis]]
    held, seen, region, own = arrays

    def turn(t: Tensor) -> Tensor:
        return t.permute(*order, *range(3, t.ndim)).flip(flips)

    turned = None if own is None else own.permute(0, *(each + 1 for each in order)).flip([axis + 1 for axis in flips])
    return (turn(held), turn(seen), turn(region), turned), [spacing[each] for each in order]


def _coarser(
    held: Tensor, seen: Tensor, region: Tensor, own: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, int]:
    """The same in blocks, where there are too many values for a page: relevance is summed, what was seen averaged."""
    block = 1
    while np.prod([-(-side // block) for side in held.shape]) > MOST:
        block += 1
    if block == 1:
        return held, seen, region, own, 1

    def summed(t: Tensor, first: int = 0) -> Tensor:
        values = t.double().numpy()
        for axis in range(first, first + 3):
            values = np.add.reduceat(values, np.arange(0, values.shape[axis], block), axis)
        return torch.from_numpy(values).float()

    count = summed(torch.ones_like(held))
    average = summed(seen) / (count[..., None] if seen.ndim == 4 else count)
    return summed(held), average, summed(region) / count, None if own is None else summed(own, 1), block


def _bands(x: Tensor, each: Tensor, held: Tensor, region: Tensor) -> _Stack:
    """All bands together, and those that hold most, beside each other."""
    strongest = sorted(each.abs().flatten(1).sum(1).topk(min(len(each), _BANDS)).indices.tolist())
    shown = [_seen(x.mean(-1)[..., None], False), *(_seen(x[..., i : i + 1], False) for i in strongest)]
    maps = torch.stack([held, *(each[i] for i in strongest)])
    titles = ["all bands", *(f"band {i + 1}" for i in strongest)]
    views = [_view(0, title, slider=False, index=i) for i, title in enumerate(titles)]
    stack = _Stack(
        maps.numpy(),
        torch.stack(shown).numpy(),
        region.expand_as(maps).numpy(),
        views,
        ["", "row", "column"],
        [1.0] * 3,
    )
    curve: dict[str, Any] = {
        "axis": None,
        "name": "band",
        "label": f"relevance of each of {len(each)} bands",
        "errors": None,
    }
    curve |= {"values": as_floats(each.flatten(1).sum(1).numpy()), "plain": False, "rate": None, "from": 0}
    stack.curves = [curve]
    if len(strongest) < len(each):
        stack.note = f"{len(strongest)} of {len(each)} bands are shown, those that hold most"
    return stack


def _sound(x: Tensor, held: Tensor, region: Tensor, own: Tensor | None, space: Space) -> _Stack:
    """A spectrogram, or several channels, with its curve; a wave has curves alone."""
    wave = held.ndim == 1
    if not wave and held.shape[0] > held.shape[1]:  # its longer axis is time
        held, region, x = held.mT, region.mT, x.transpose(0, 1)
        own = None if own is None else own.mT
    curve_errors = None
    if own is not None:
        curve_errors = as_floats(standard_error((own if wave else own.sum(1))[None])[0].numpy())
    about = {"axis": None, "name": "moment", "rate": space.rate, "from": 0}
    label = "relevance by time"
    sums = held if wave else held.sum(0)
    curves = [about | {"label": label, "values": as_floats(sums.numpy()), "errors": curve_errors, "plain": False}]
    if wave:
        curves.append(
            about | {"label": "the sound", "values": as_floats(x.mean(-1).numpy()), "errors": None, "plain": True}
        )
        held, region, seen = held[None, None], region[None, None], torch.zeros(1, 1, len(held))
        return _Stack(held.numpy(), seen.numpy(), region.numpy(), [], ["", "", "moment"], [1.0] * 3, curves=curves)
    title = "time from left to right, frequency (or channel) from bottom to top"
    height, width = held.shape
    # As wide as three times its height, whatever the numbers of frequencies and moments.
    spacing = [1.0, width / (3 * height), 1.0]
    return _Stack(
        held[None].numpy(), _seen(x, False)[None].numpy(), region[None].numpy(),
        [_view(0, title, slider=False, upside=True)], ["", "frequency", "moment"], spacing, curves=curves,
    )  # fmt: skip
