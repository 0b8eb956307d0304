"""``hilrp views``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from hilrp.cli.audit import check_device
from hilrp.cli.base import app, console, errors, fail, make_folder
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError
from hilrp.util.markdown import paragraph
from hilrp.util.nested import jsonable

if TYPE_CHECKING:
    from hilrp.jobs.bench.views import MethodMaps, ModelInputs


@app.command()
def views(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Encoders or classifiers, whose classifier is taken off; a checkpoint may follow an @. "
            "May be repeated. Default: the zoo's four ViTs, which were trained for different things."
        ),
    ] = None,
    data: Annotated[
        str, typer.Option(help="scenes, or a folder with masks or boxes, as for `hilrp bench`; labels are not used.")
    ] = "scenes",
    images: Annotated[int, typer.Option(min=1, help="How many images.")] = 50,
    size: Annotated[
        int | None, typer.Option(min=16, help="Side of the images, of timm's models that can be set to another.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Methods instead of all. May be repeated.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the results.")] = Path("out/views"),
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Explains encoders without labels: which pixels make a picture and its mirror image alike.

    Run with several models of one architecture, it shows how their pretraining objectives differ: where each looks, how
    widely, and how alike their maps are. Writes index.html, report.md and report.json.

    \b
    hilrp views
    hilrp views --model timm/vit_base_patch16_224.dino --model timm/vit_base_patch16_224.mae --data photos/
    """
    from hilrp.jobs.bench.data import find
    from hilrp.jobs.bench.views import METHODS, OBJECTIVES, encoder, model_inputs, study

    try:
        check_device(device)
        model = model or list(OBJECTIVES)
        unknown = [name for name in method or () if name not in METHODS]
        if unknown:
            raise InputError(f"--method {unknown[0]}: choose from {', '.join(METHODS)}.")
        repeated = [name for name in set(model) if model.count(name) > 1]
        if repeated:
            raise InputError(f"--model {repeated[0]} is given twice.")
        samples = find(data, images)
        make_folder(output)
        found: list[MethodMaps] = []
        pictures, failed = {}, None
        for name in model:
            try:
                with errors.status(f"explaining {escape(name)}"):
                    shown = model_inputs(encoder(name, device, size), samples)
                    found += list(study(shown, name, tuple(method or METHODS)))
                pictures[name] = shown
            except (HilrpError, OSError) as error:  # the others are kept
                failed = error
                if len(model) > 1:
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
