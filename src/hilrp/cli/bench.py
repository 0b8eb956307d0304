"""``hilrp bench``."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hilrp.cli.base import app, console, errors, fail, make_folder, say_damaged
from hilrp.cli.options import Checkpoint, Device, Methods, Models, check_device, named_models
from hilrp.models.loading import DEFAULT_MODEL
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError, UnavailableError

if TYPE_CHECKING:
    from hilrp.jobs.bench.grid import Cell, Grid


@app.command()
def bench(
    suite: Annotated[
        str, typer.Option(metavar="NAME", help="quick, zoo, photos, real, real-masks, paper or paper-voc.")
    ] = "quick",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="scenes, or a folder: with index.json (file, label, boxes or mask), a folder for each class, "
            "ImageNet-S, or a VOC devkit.",
        ),
    ] = None,
    images: Annotated[int | None, typer.Option(min=1, metavar="N", help="How many images.")] = None,
    measure: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Measures instead of all. May be repeated.")
    ] = None,
    segments: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="What Shapley values are of: grid, slic (superpixels) or objects (of scenes)."
        ),
    ] = "grid",
    permutations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Permutations per image for Shapley values.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for the results; a later run goes on from there."),
    ] = None,
    model: Models = None,
    checkpoint: Checkpoint = None,
    method: Methods = None,
    device: Device = "cpu",
) -> None:
    """Compares attribution methods, beside controls that see no model.

    Where their maps lie, what they conserve, and whether the score depends on
    what they mark. Each cell is kept: a run that was stopped goes on, and a new
    method costs only its own. Writes index.html, report.md, report.json and
    manifest.json.

    \b
    hilrp bench                               # four families, few images
    hilrp bench --suite zoo --device cuda     # the whole grid
    hilrp bench --model resnet50 --data photos/ --method rules:zplus \\
        --method secant --method secant:passes=8 --method grad-cam

    Rules and passes are methods here, each with the reference of its protocol;
    the class is that of the data. So it has no --rules, --passes, --reference,
    --target and --against; nor --batch, since times are measured at one size.
    """
    try:
        check_device(device)
        try:
            from hilrp.jobs.bench import methods
            from hilrp.jobs.bench.grid import Grid
            from hilrp.jobs.bench.measures import MEASURES
            from hilrp.jobs.bench.methods.relevance import check_chains
            from hilrp.jobs.bench.suites import OF_SCENES
            from hilrp.jobs.bench.suites import suite as by_name
        except ModuleNotFoundError as error:
            raise UnavailableError(
                f"{error.name} is not installed. Install it with: pip install 'hilrp[bench]'"
            ) from error
        chosen = by_name(suite, data)
        if segments not in ("grid", "slic", "objects"):
            raise InputError(f"--segments {segments}: choose from grid, slic, objects.")
        for name in method or ():
            check_chains(methods.find(name))
        for name in measure or ():
            if name not in MEASURES:
                raise InputError(f"--measure {name}: choose from {', '.join(MEASURES)}.")
        usual = (DEFAULT_MODEL,) if suite in OF_SCENES and chosen.data != "scenes" else chosen.models
        chosen = replace(
            chosen,
            models=named_models(model, checkpoint, usual),
            methods=tuple(method or chosen.methods),
            measures=tuple(measure or chosen.measures),
            effort=replace(
                chosen.effort,
                images=images or chosen.effort.images,
                permutations=permutations or chosen.effort.permutations,
                removal_permutations=permutations or chosen.effort.removal_permutations,
                segments=segments,
            ),
        )
        folder = output or Path("out/bench") / suite
        make_folder(folder)
        grid = Grid(chosen, folder, device)
        cells = _run(grid)
        say_damaged(grid.damaged)
        _write(grid, cells, f"Attribution methods: {suite}")
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    _summary(cells)
    console.print(f"Look at {escape(str(folder / 'index.html'))}", soft_wrap=True)
    if any(cell.error is not None for cell in cells):
        raise typer.Exit(1)


def _run(grid: Grid) -> list[Cell]:
    """All cells; what goes wrong is said once of each method, and not in every cell that it costs."""
    cells: list[Cell] = []
    wrong: Counter[tuple[str, str]] = Counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("", total=grid.total)
        for cell in grid.run():
            cells.append(cell)
            progress.update(task, advance=1, description=escape(f"{cell.model.partition('@')[0]} {cell.method}"))
            if cell.error is None:
                continue
            wrong[cell.method, cell.error] += 1
            if wrong[cell.method, cell.error] == 1:
                said = f"{cell.model}, {cell.method}, {cell.measure}"
                progress.console.print(f"[red]{escape(said)}[/]: {escape(cell.error)}", highlight=False, soft_wrap=True)
    if wrong.total() > len(wrong):
        errors.print(f"{wrong.total()} cells have an error; the page says which, and above is each reason once.")
    return cells


def _write(grid: Grid, cells: list[Cell], title: str) -> None:

    from hilrp.jobs.bench.report import as_json, markdown
    from hilrp.pages.bench import bench_page

    facts = json.loads((grid.folder / "manifest.json").read_text())
    for name, text in (
        ("report.md", markdown(cells, title, facts)),
        ("report.json", as_json(cells, facts)),
        ("index.html", bench_page(grid, cells, facts, title)),
    ):
        write_whole(grid.folder / name, text)


def _summary(cells: list[Cell]) -> None:
    """Pointing, or the first figure that there is."""
    from hilrp.jobs.bench.report import number, rows, short, split
    from hilrp.jobs.bench.sections import SECTIONS
    from hilrp.jobs.bench.summary import tables

    found = tables(split(cells)[0])
    for section in SECTIONS:
        for name, better in section.figures.items():
            if name in found:
                table = Table(name, *(short(model) for model in found[name].models))
                for row in rows(found[name], better):
                    shown = [
                        f"[bold]{number(c.value.mean)}[/]"
                        if c.value and c.mark == "best"
                        else number(c.value.mean)
                        if c.value
                        else "–"
                        for c in row.cells
                    ]
                    table.add_row(escape(row.title), *shown)
                # A table of many models is wider than most terminals, and of no use when it is squeezed.
                wide = Console(width=max(console.width, 36 + 9 * len(found[name].models)))
                wide.print(table)
                return
