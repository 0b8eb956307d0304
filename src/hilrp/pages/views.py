"""The page of a run of `hilrp views`: tables, and the maps of each model side by side."""

from __future__ import annotations

from html import escape

import numpy as np
from PIL import Image

from hilrp.attribution.plotting import blend
from hilrp.jobs.bench.report import short
from hilrp.jobs.bench.views import FIGURES, METHODS, OBJECTIVES, MethodMaps, ModelInputs, agreements, rows_of
from hilrp.pages.bench import STYLE, table
from hilrp.pages.parts import card, cards, image, legend, page
from hilrp.pages.parts import table as grid_table

#: How many pictures are shown.
_SHOWN = 4


def views_page(found: list[MethodMaps], pictures: dict[str, ModelInputs], title: str, said: str) -> str:
    """The whole page."""
    trained = "; ".join(f"{short(name)}: {OBJECTIVES[name]}" for name in pictures if name in OBJECTIVES)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(said)}</p>',
        "<p>Explained is the cosine of what a model makes of a picture and of its mirror image: red pixels make the "
        "two alike, blue ones different.</p>",
        f"<p>What the models were trained for: {escape(trained)}.</p>" if trained else "",
        *_maps(found, pictures),
        '<p class="soft">Below each mean: its 95 % bootstrap interval.</p>',
    ]
    for name, text in FIGURES.items():
        parts.append(f"<h2>{escape(name.capitalize())}</h2><p>{escape(text)}</p>{table(name, *rows_of(found, name))}")
    for method in ("hilrp", "secant"):
        models, shown = agreements(found, method)
        if shown:
            parts.append(
                f"<h2>Agreement of {escape(METHODS[method][0])}</h2><p>How alike (Spearman) the maps of two models "
                f"are.</p>{table('', models, shown)}"
            )
    return page(title, "\n".join(parts), STYLE)


def _maps(found: list[MethodMaps], pictures: dict[str, ModelInputs]) -> list[str]:
    known = {(f.model, f.method): f for f in found}
    names = [name for name in METHODS if any(f.method == name and name != "uniform" for f in found)]
    shown_cards = []
    for i in range(min(_SHOWN, *(len(seen.x) for seen in pictures.values()))):
        lines = []
        for model, seen in pictures.items():
            picture = seen.loaded.preprocess.picture(seen.x[i])
            assert picture is not None  # or its masks would not be known
            shown = picture.permute(1, 2, 0).cpu().numpy()
            cells = [_small(shown, short(model))]
            for name in names:
                maps = known[model, name].maps
                cells.append(
                    "–"
                    if maps is None
                    else _small(blend(shown, maps[i].cpu().numpy()), f"{METHODS[name][0]} on {short(model)}")
                )
            lines.append(f"<tr><td>{escape(short(model))}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
        heads = [escape(METHODS[name][0]) for name in names]
        shown_cards.append(card(grid_table(["", "", *heads], lines, "maps")))
    return [legend("makes them different", "makes them alike"), cards(shown_cards)]


def _small(picture: np.ndarray, text: str) -> str:
    drawn = Image.fromarray((255 * np.clip(picture, 0, 1)).astype(np.uint8))
    return image(drawn.resize((126, 126)), text, quality=85)
