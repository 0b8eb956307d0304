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
from hilrp.jobs.run.summary import ENOUGH, Class, Group, Shown
from hilrp.models.images import read
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import load, split_name
from hilrp.pages.parts import badge, image, meanings, page
from hilrp.util.errors import HilrpError

_SIDE = 132
_STYLE = """
.row { display: flex; flex-wrap: wrap; gap: 14px; }
.shown { width: 150px; font-size: 12.5px; line-height: 1.35; overflow-wrap: anywhere; }
.shown img { border-radius: 7px; border: 1px solid var(--line); margin-bottom: 3px; }
.suspect { border-left: 4px solid #c00020; } .suspect .row { margin-top: 8px; }
.stack { display: flex; height: 20px; border-radius: 6px; overflow: hidden; max-width: 760px; background: #eef0f3; }
.stack span { display: block; }
table.classes td, table.classes th { padding: 4px 14px 4px 0; font-variant-numeric: tabular-nums; }
table.classes img { border-radius: 5px; }
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
        parts.append(
            f'<div class="card suspect"><b>Not complete</b><p>{missing} images are not explained yet. Run the same '
            "`hilrp run` again.</p></div>"
        )
    parts.append(_suspicion(groups, thumbnails))
    for group in groups:
        parts += _group(group, thumbnails)
    return page(title, "\n".join(parts), _STYLE)


def _suspicion(groups: Sequence[Group], thumbnails: _Thumbnails) -> str:
    cards = []
    for group in groups:
        for index in dict.fromkeys(suspect.index for suspect in group.suspects):
            own = group.classes[index]
            shown = "".join(thumbnails.card(group, each) for each in own.examples)
            why = "".join(f"<p>{escape(_sentence(s.why))}</p>" for s in group.suspects if s.index == index)
            cards.append(
                f'<div class="card suspect"><b>{escape(own.name)}</b> <span class="soft">{escape(group.model)}, '
                f'{escape(group.method)}</span>{why}<div class="row"><div class="shown">{_heat(own)}<b>mean '
                f"map</b></div>{shown}</div></div>"
            )
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
    return f"<h2>Suspected shortcuts</h2><p>{said}</p>{judged}{''.join(cards)}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _group(group: Group, thumbnails: _Thumbnails) -> list[str]:
    parts = [f"<h2>{escape(group.model)}, {escape(group.method)}</h2>"]
    parts.append(f"<p>{group.count} images explained{f', {group.failed} not' if group.failed else ''}.</p>")
    if group.verdicts:
        parts.append(_verdicts(group))
    if group.least:
        shown = "".join(thumbnails.card(group, each) for _, each in group.least)
        parts.append(f'<h3>Least evidence in the object</h3><div class="row">{shown}</div>')
    if group.unusual:
        shown = "".join(thumbnails.card(group, each) for each in group.unusual)
        parts.append(f'<h3>Most unusual explanations</h3><div class="row">{shown}</div>')
    parts.append(_classes(group))
    if group.errors:
        lines = "".join(f"<p><b>{escape(name)}</b>: {escape(why)}</p>" for name, why in group.errors)
        parts.append(f"<details><summary>{group.failed} images could not be explained</summary>{lines}</details>")
    return parts


def _verdicts(group: Group) -> str:
    total = sum(group.verdicts.values())
    known = [v for v in Verdict if group.verdicts[v]]
    bars = "".join(
        f'<span style="width:{100 * group.verdicts[v] / total:.2f}%;background:{v.colour};'
        f'opacity:{0.6 if v is Verdict.INFLATED else 1}" title="{v}"></span>'
        for v in known
    )
    words = " ".join(f"{badge(v)} {group.verdicts[v]} ({group.verdicts[v] / total:.1%})" for v in known)
    return f'<div class="stack">{bars}</div><p>{words}</p>{meanings(known)}'


def _classes(group: Group) -> str:
    """The table of classes: the least evidence in their objects first; without truth, the most frequent first."""

    def order(each: Class) -> tuple[float, int]:
        return (np.inf if each.excess is None else each.excess, -each.count)

    rows = []
    for each in sorted(group.classes.values(), key=order)[:_CLASSES]:
        on_object = "–" if each.on_object is None else f"{each.on_object:.0%}"
        right = f"{each.right / each.labelled:.0%}" if each.labelled else "–"
        covered = f"{each.area / each.known:.0%}" if each.known else "–"
        rows.append(
            f"<tr><td>{_heat(each, 56)}</td><td>{escape(each.name)}</td><td>{each.count}</td>"
            f"<td>{right}</td><td>{on_object}</td><td>{covered}</td></tr>"
        )
    more = f"<p>{len(group.classes) - _CLASSES} more.</p>" if len(group.classes) > _CLASSES else ""
    head = (
        "<tr><th>mean map</th><th>explained class</th><th>images</th><th>prediction right</th>"
        "<th>evidence on the object</th><th>picture covered by it</th></tr>"
    )
    return (
        '<h3>Classes</h3><p class="soft">Those whose objects hold the least evidence, relative to the part of the '
        "picture that they cover, first. Mean map: where the evidence for the class lies, over all its images.</p>"
        f'<table class="classes">{head}{"".join(rows)}</table>{more}'
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
        blended = (255 * np.clip(blend(seen, np.asarray(relevance)), 0, 1)).astype(np.uint8)
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
