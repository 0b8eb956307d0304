"""``hilrp views``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from hilrp.cli.base import app, console, errors, fail, make_folder
from hilrp.cli.options import Checkpoint, Device, Methods, Models, Size, check_device, named_models
from hilrp.models.loading import DEFAULT_MODEL
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError
from hilrp.util.markdown import paragraph
from hilrp.util.nested import jsonable

if TYPE_CHECKING:
    from hilrp.jobs.bench.views import MethodMaps, ModelInputs


@app.command()
def views(
    data: Annotated[
        str,
        typer.Option(
            metavar="WHERE", help="scenes, or a folder with masks or boxes, as for `hilrp bench`; labels are not used."
        ),
    ] = "scenes",
    images: Annotated[int, typer.Option(min=1, metavar="N", help="How many images.")] = 50,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the results.")] = Path(
        "out/views"
    ),
    model: Models = None,
    checkpoint: Checkpoint = None,
    method: Methods = None,
    device: Device = "cpu",
    size: Size = None,
) -> None:
    """Explains encoders without labels: what makes two views alike to them.

    The two views are a picture and its mirror image; a classifier is taken off.
    Run with several models of one architecture, it shows how their pretraining
    objectives differ: where each looks, how widely, and how alike their maps
    are. Without --model it does that with the zoo's four ViTs. Writes
    index.html, report.md and report.json.

    \b
    hilrp views
    hilrp views --data photos/ --model timm/vit_base_patch16_224.dino \\
        --model timm/vit_base_patch16_224.mae

    Methods are hilrp, secant, saliency, class-token and two controls. Rules are
    methods here, and what is explained is always the same: it has no --rules,
    --passes, --reference, --target and --against; nor --batch, which it chooses
    by itself.
    """
    from hilrp.jobs.bench.data import find
    from hilrp.jobs.bench.views import METHODS, OBJECTIVES, encoder, model_inputs, study

    try:
        check_device(device)
        models = named_models(model, checkpoint, tuple(OBJECTIVES) if data == "scenes" else (DEFAULT_MODEL,))
        unknown = [name for name in method or () if name not in METHODS]
        if unknown:
            raise InputError(f"--method {unknown[0]}: choose from {', '.join(METHODS)}.")
        samples = find(data, images)
        make_folder(output)
        found: list[MethodMaps] = []
        pictures, failed = {}, None
        for name in models:
            try:
                with errors.status(f"explaining {escape(name)}"):
                    shown = model_inputs(encoder(name, device, size), samples)
                    found += list(study(shown, name, tuple(method or METHODS)))
                pictures[name] = shown
            except (HilrpError, OSError) as error:  # the others are kept
                failed = error
                if len(models) > 1:
                    errors.print(f"[red]{escape(name)}[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
        if failed is not None and not found:
            raise failed
        _write(output, found, pictures, f"{len(samples)} images of {data}")
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    _summary(found)
    console.print(f"Look at {escape(str(output / 'index.html'))}", soft_wrap=True)
    if failed is not None:
        raise typer.Exit(1)


def _write(folder: Path, found: list[MethodMaps], pictures: dict[str, ModelInputs], said: str) -> None:
    from hilrp.jobs.bench.report import as_table
    from hilrp.jobs.bench.views import FIGURES, METHODS, agreements, rows_of
    from hilrp.pages.views import views_page

    title = "Two views of a picture"
    lines = [
        f"# {title}",
        "",
        paragraph(f"{said}. Means over images with 95 % bootstrap intervals."),
        "",
    ]
    for name, text in FIGURES.items():
        lines += [f"## {name.capitalize()}", "", paragraph(text), "", *as_table(*rows_of(found, name))]
    for method in ("hilrp", "secant"):
        models, shown = agreements(found, method)
        if shown:
            lines += [
                f"## Agreement of {METHODS[method][0]}",
                "",
                "How alike (Spearman) the maps of two models are.",
                "",
                *as_table(models, shown),
            ]
    values = [{"model": f.model, "method": f.method, "undefined": f.undefined, "figures": f.figures} for f in found]
    for file, content in (
        ("report.md", "\n".join(lines)),
        ("report.json", json.dumps(jsonable(values))),
        ("index.html", views_page(found, pictures, title, said)),
    ):
        write_whole(folder / file, content)


def _summary(found: list[MethodMaps]) -> None:
    from hilrp.jobs.bench.report import number, short
    from hilrp.jobs.bench.views import rows_of

    models, rows = rows_of(found, "energy excess")
    table = Table("energy excess", *map(short, models))
    for row in rows:
        table.add_row(escape(row.title), *(number(c.value.mean) if c.value else "–" for c in row.cells))
    console.print(table)
