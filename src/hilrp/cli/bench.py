"""``hilrp bench``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hilrp.cli.audit import check_device
from hilrp.cli.base import app, console, errors, fail, make_folder, say_damaged
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError, UnavailableError

if TYPE_CHECKING:
    from hilrp.jobs.bench.grid import Cell, Grid


@app.command()
def bench(
    suite: Annotated[str, typer.Option(help="quick, paper, real or real-masks.")] = "quick",
    model: Annotated[
        list[str] | None,
        typer.Option(help="Models instead of the suite's; a checkpoint may follow an @. May be repeated."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Methods instead of the suite's: hilrp, grad-cam, rise:masks=200, hilrp:gamma=0.1, ... "
            "May be repeated."
        ),
    ] = None,
    measure: Annotated[list[str] | None, typer.Option(help="Measures instead of all. May be repeated.")] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="scenes, or a folder: with index.json (file, label, boxes or mask), ImageNet-S, or a VOC devkit."
        ),
    ] = None,
    images: Annotated[int | None, typer.Option(min=1, help="How many images.")] = None,
    segments: Annotated[
        str, typer.Option(help="What Shapley values are of: grid, slic (superpixels) or objects (of scenes).")
    ] = "grid",
    permutations: Annotated[int | None, typer.Option(min=1, help="Permutations per image for Shapley values.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the results; a later run goes on from there.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Compares attribution methods.

    Where their maps lie, what they conserve, and whether the score depends on what they mark.

    Every figure stands beside controls that look at no model. Each cell is kept, so that a run that was stopped goes
    on, and a new method costs only its own cells. Writes index.html, report.md, report.json and manifest.json.

    \b
    hilrp bench                                         # four families, all methods, few images
    hilrp bench --suite paper --device cuda             # the whole grid
    hilrp bench --model resnet50 --data photos/ --method hilrp --method grad-cam
    """
    try:
        check_device(device)
        try:
            from hilrp.jobs.bench import methods
            from hilrp.jobs.bench.grid import Grid
            from hilrp.jobs.bench.measures import MEASURES
            from hilrp.jobs.bench.suites import suite as by_name
        except ModuleNotFoundError as error:
            raise UnavailableError(
                f"{error.name} is not installed. Install it with: pip install 'hilrp[bench]'"
            ) from error
        chosen = by_name(suite, data)
        if segments not in ("grid", "slic", "objects"):
            raise InputError(f"--segments {segments}: choose from grid, slic, objects.")
        for name in method or ():
            methods.find(name)
        for name in measure or ():
            if name not in MEASURES:
                raise InputError(f"--measure {name}: choose from {', '.join(MEASURES)}.")
        chosen = replace(
            chosen,
            models=tuple(model or chosen.models),
            methods=tuple(method or chosen.methods),
            measures=tuple(measure or chosen.measures),
            effort=replace(
                chosen.effort,
                images=images or chosen.effort.images,
                permutations=permutations or chosen.effort.permutations,
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
    cells = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("", total=grid.total)
        for cell in grid.run():
            cells.append(cell)
            progress.update(task, advance=1, description=escape(f"{cell.model.partition('@')[0]} {cell.method}"))
            if cell.error is not None:
                said = f"{cell.model}, {cell.method}, {cell.measure}"
                progress.console.print(f"[red]{escape(said)}[/]: {escape(cell.error)}", highlight=False, soft_wrap=True)
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
    from hilrp.jobs.bench.report import SECTIONS, number, rows, short, split
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
