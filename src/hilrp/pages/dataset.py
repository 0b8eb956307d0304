"""The page of `hilrp summary`: a data set at a glance, and the images that somebody should look at."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from hilrp.attribution.plotting import blend, coloured
from hilrp.attribution.verdicts import Verdict
from hilrp.jobs.run.item import parquet_file
from hilrp.jobs.run.items import Reader
from hilrp.jobs.run.results import Results
from hilrp.jobs.run.rows import whole_map
from hilrp.jobs.run.summary import ENOUGH, Class, Group, Shown, percent
from hilrp.models.images import read
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import load, split_name
from hilrp.pages.parts import badge, card, folded, image, legend, page, stack, table
from hilrp.pages.words import meanings
from hilrp.util.errors import HilrpError

_SIDE = 132
_STYLE = """
.suspect .row { margin-top: 8px; }
.verdicts { max-width: 760px; }
"""
#: At most this many classes are listed.
_CLASSES = 60


def dataset_page(results: Results, groups: Sequence[Group]) -> str:
    """The whole page."""
    manifest = results.manifest
    title = f"{manifest['data']}: {manifest['images']} images"
    missing = sum(piece.count for piece in results.missing)
    thumbnails = _Thumbnails(results)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">hilrp {escape(manifest["hilrp"])}, torch {escape(str(manifest["packages"]["torch"]))}; '
        f"explained: the {escape(manifest['target'])}; "
        f"data {manifest['items_sha256'][:12]}.</p>",
    ]
    if missing:
        said = f"<b>Not complete</b><p>{missing} images are not explained yet. Run the same `hilrp run` again.</p>"
        parts.append(card(said, "alert"))
    if groups:
        parts += [_methods(groups), _models(groups)]
    parts += [_suspicion(groups, thumbnails)]
    for group in groups:
        parts += _group(group, thumbnails)
    return page(title, "\n".join(parts), _STYLE)


def _methods(groups: Sequence[Group]) -> str:
    """Models and methods beside each other: what a reader wants to know of each first."""
    known = any(group.known for group in groups)
    beyond = [_beyond(group) for group in groups]
    best = max((value for value in beyond if value is not None), default=None)
    rows = []
    for group, value in zip(groups, beyond, strict=True):
        total = sum(group.verdicts.values())
        cells = [
            str(group.count),
            _percent(group.verdicts[Verdict.VALID] / total) if total else "–",
            *([_percent(group.on_object), _percent(group.covered)] if known else ()),
        ]  # fmt: skip
        beside = f"<td{' class=best' if value is not None and value == best else ''}>{_percent(value)}</td>"
        suspects = len({suspect.index for suspect in group.suspects})
        last = f'<td class="bad">{suspects}</td>' if suspects else f"<td>{0 if group.judged else '–'}</td>"
        names = f'<td>{escape(group.model)}</td><td class="text">{escape(group.method)}</td>'
        rows.append(f"<tr>{names}{''.join(f'<td>{cell}</td>' for cell in cells)}{beside if known else ''}{last}</tr>")
    head = ["model", '<th class="text">method</th>', "images", "verdict valid"]
    head += ["evidence on the object", "object\u2019s area", "evidence beyond that area"] if known else []
    more = (
        " The object\u2019s area is the part of the picture that it covers: a map that says nothing has as much of its "
        "evidence there."
        if known
        else " Where objects are isn\u2019t known here: nothing is said of how well maps lie on them."
    )
    return (
        f'<h2>Methods compared</h2><p class="soft">Means over all images.{more} A dash: it isn\u2019t known.</p>'
        f"{card(table([*head, 'suspected classes'], rows))}"
    )


def _beyond(group: Group) -> float | None:
    """The evidence on the object beyond the object's area, over all images."""
    return None if group.on_object is None or group.covered is None else group.on_object - group.covered


def _percent(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _models(groups: Sequence[Group]) -> str:
    """How often each model is right, and how sure it is of itself."""
    first = {group.model: group for group in reversed(groups)}  # what it predicts doesn't depend on the method
    rows = [
        f"<tr><td>{escape(group.model)}</td><td>{sum(c.labelled for c in group.classes.values())}</td>"
        f"<td>{_percent(group.accuracy)}</td><td>{_percent(group.confidence)}</td></tr>"
        for group in reversed(first.values())
    ]
    return (
        '<h2>Accuracy and confidence</h2><p class="soft">Accuracy: how often the prediction is the label. Confidence: '
        "the largest probability of the model\u2019s softmax, in the mean.</p>"
        f"{card(table(['model', 'images with a label', 'accuracy', 'confidence'], rows))}"
    )


def _suspicion(groups: Sequence[Group], thumbnails: _Thumbnails) -> str:
    cards = []
    for group in groups:
        for index in dict.fromkeys(suspect.index for suspect in group.suspects):
            own = group.classes[index]
            shown = "".join(thumbnails.card(group, each) for each in own.examples)
            why = "".join(f"<p>{escape(_sentence(s.why))}</p>" for s in group.suspects if s.index == index)
            said = (
                f'<b>{escape(own.name)}</b> <span class="soft">{escape(group.model)}, {escape(group.method)}</span>'
                f'{why}<div class="row"><div class="shown">{_heat(own)}<b>mean map</b></div>{shown}</div>'
            )
            cards.append(card(said, "alert suspect"))
    judged = "".join(
        f"<p class=soft>{escape(group.model)}, {escape(group.method)}: {group.judged} of {len(group.classes)} classes "
        f"have {ENOUGH} images or more, and are judged by where their evidence lies; {group.placed} of them by their "
        "objects, too, whose places are known.</p>"
        for group in groups
    )
    if not any(group.judged for group in groups):
        said = f"<b>Not judged:</b> no class has {ENOUGH} images that could be explained."
    elif not cards:
        said = (
            "None: of the classes that are judged, none has its evidence in the same place of most images, or mostly "
            "outside its objects."
        )
    else:
        said = (
            "Classes that seem to rest on something else than their object. Look at the images before you believe it, "
            "or before you trust the model."
        )
    judged = folded("Which classes are judged", judged)
    return f"<h2>Suspected shortcuts</h2><p>{said}</p>{judged}{legend()}{''.join(cards)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _group(group: Group, thumbnails: _Thumbnails) -> list[str]:
    parts = [f"<h2>{escape(group.model)}, {escape(group.method)}</h2>"]
    parts.append(f"<p>{group.count} images explained{f', {group.failed} not' if group.failed else ''}.</p>")
    if group.verdicts:
        parts.append(_verdicts(group))
    if group.least:
        shown = "".join(thumbnails.card(group, each) for _, each in group.least)
        parts.append(
            f'<h3>Least evidence beyond the object\u2019s area</h3><p class="soft">The part of the '
            "evidence that lies on the object, less the part of the picture that the object covers, is the smallest in "
            f'these.</p><div class="row">{shown}</div>'
        )
    if group.unusual:
        shown = "".join(thumbnails.card(group, each) for each in group.unusual)
        parts.append(f'<h3>Most unusual explanations</h3><div class="row">{shown}</div>')
    parts.append(_classes(group))
    if group.errors:
        lines = "".join(f"<p><b>{escape(name)}</b>: {escape(why)}</p>" for name, why in group.errors)
        parts.append(folded(f"{group.failed} images could not be explained", lines))
    return parts


def _verdicts(group: Group) -> str:
    total = sum(group.verdicts.values())
    known = [v for v in Verdict if group.verdicts[v]]
    bar = stack((group.verdicts[v] / total, v.colour, str(v)) for v in known)
    words = " ".join(f"{badge(v)} {group.verdicts[v]} ({_percent(group.verdicts[v] / total)})" for v in known)
    return f'<div class="verdicts">{bar}</div><p>{words}</p>{meanings(known, False)}'


def _classes(group: Group) -> str:
    """The table of classes: the least evidence in their objects first; without truth, the most frequent first."""

    def order(each: Class) -> tuple[float, int]:
        return (np.inf if each.excess is None else each.excess, -each.count)

    rows = []
    for each in sorted(group.classes.values(), key=order)[:_CLASSES]:
        right = each.right / each.labelled if each.labelled else None
        covered = each.area / each.known if each.known else None
        rows.append(
            f'<tr><td>{_heat(each, 56)}</td><td class="wrap">{escape(each.name)}</td><td>{each.count}</td>'
            f"<td>{_percent(right)}</td><td>{_percent(each.on_object)}</td><td>{_percent(covered)}</td>"
            f"<td>{_percent(each.excess)}</td></tr>"
        )
    more = f"<p>{len(group.classes) - _CLASSES} more.</p>" if len(group.classes) > _CLASSES else ""
    head = ["mean map", '<th class="wrap">explained class</th>', "images", "accuracy"]
    head += ["evidence on the object", "object\u2019s area", "evidence beyond that area"]
    return (
        '<h3>Classes</h3><p class="soft">Those with the least evidence beyond the object\u2019s area first. Mean map: '
        "where the evidence for the class lies, over all its images.</p>"
        f"{card(table(head, rows))}{more}"
    )


def _heat(each: Class, side: int = _SIDE) -> str:
    colours = (255 * coloured(each.mean)).astype(np.uint8)
    return image(
        Image.fromarray(colours).resize((side, side), Image.Resampling.NEAREST),
        f"mean map of {each.name}",
        lossless=True,
    )


class _Thumbnails:
    """Images of the data set, if it is still there, with the evidence laid over them."""

    def __init__(self, results: Results) -> None:
        self._results, self._reader = results, Reader()
        self._maps: dict[Any, Any] = {}
        self._loaded: dict[str, Loaded | None] = {}

    def card(self, group: Group, each: Shown) -> str:
        """An image, what it is explained as, and why it is shown."""
        said = f"<br>{escape(each.said)}" if each.said else ""
        return (
            f'<div class="shown">{self._picture(group, each)}<b>{escape(each.target)}</b><br>'
            f'<span class="soft">{escape(each.id)}</span>{said}</div>'
        )

    def _picture(self, group: Group, each: Shown) -> str:
        try:
            picture = read(self._reader.image(self._results.item(each.number)))[0]
        except Exception as error:  # the data set may have gone elsewhere since
            return f'<p class="soft">not readable now ({escape(type(error).__name__)})</p>'
        side = 2 * _SIDE
        seen = np.asarray(self._seen(group.model, picture).resize((side, side))) / 255
        relevance = Image.fromarray(self._map(group, each).astype(np.float32)).resize(
            (side, side), Image.Resampling.BICUBIC
        )
        blended = (255 * np.clip(blend(seen, np.array(relevance)), 0, 1)).astype(np.uint8)
        return image(Image.fromarray(blended).resize((_SIDE, _SIDE)), each.id, quality=85)

    def _seen(self, model: str, picture: Image.Image) -> Image.Image:
        """What the model saw of a picture, which it may have cropped; the whole, where that can't be told."""
        if model not in self._loaded:
            try:
                self._loaded[model] = load(*split_name(model))
            except HilrpError:  # its weights may have gone elsewhere, too
                self._loaded[model] = None
        loaded = self._loaded[model]
        seen = None if loaded is None else loaded.preprocess.picture(loaded.preprocess(picture))
        if seen is None:
            return picture
        return Image.fromarray((255 * seen.permute(1, 2, 0).numpy()).round().astype(np.uint8))

    def _map(self, group: Group, each: Shown) -> np.ndarray:
        """The whole map, where the run has kept it; else the coarse one."""
        piece = self._results.pieces[each.number // self._results.manifest["piece"]]
        path = {"files": self._results.map_file(piece), "column": self._results.file(piece)}.get(
            self._results.manifest["maps"]
        )
        if path is None:
            return each.grid
        if path not in self._maps:
            columns = ["number", "model", "method", "map_height", "map_width", "map_scale", "map"]
            with parquet_file(path) as file:
                self._maps = {path: file.read(columns=columns).to_pylist()}
        row = next(
            r
            for r in self._maps[path]
            if (r["number"], r["model"], r["method"]) == (each.number, group.model, group.method)
        )
        return whole_map(row)
