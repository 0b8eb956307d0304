"""``hilrp coverage``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hilrp.cli.base import app, console, errors, fail, print_json, say_damaged
from hilrp.cli.options import Device, Json, Precision, Preset, Samples, Size, check_device, precision
from hilrp.method.rules import DEFAULT_RULES
from hilrp.models.resolve import LIBRARIES, installed
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError


@app.command()
def coverage(
    libraries: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LIBRARIES",
            help=f"Of {', '.join(LIBRARIES)}, or single models (library/model). "
            "Default: the libraries that are installed.",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="All models of a library, not only one of each kind (timm, torchvision: of each file)."
        ),
    ] = False,
    only: Annotated[str | None, typer.Option(metavar="TEXT", help="Only names that hold this text.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the rows; a later run goes on from there.")
    ] = Path("out/coverage"),
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the results as a page.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run those again that did not pass.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the folder's results first.")] = False,
    rules: Preset = DEFAULT_RULES,
    dtype: Precision = None,
    device: Device = "cpu",
    samples: Samples = 2,
    size: Size = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of weights and pictures.", rich_help_panel="Computing")] = 0,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Models at once. Default: one for each core.", rich_help_panel="Computing"
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="For one model.", rich_help_panel="Computing")
    ] = 900.0,
    json: Json = False,
) -> None:
    """Audits whole model libraries, one process per model.

    A run that was stopped goes on where it was. The exit status is 1 unless
    all pass.

    \b
    hilrp coverage                    # one model of each kind
    hilrp coverage timm --only swin   # those that have it in their name
    hilrp coverage timm --all --device cuda
    """
    from hilrp.jobs.coverage import Settings, Store, run
    from hilrp.jobs.coverage.catalogue import catalogue
    from hilrp.jobs.coverage.report import markdown_page
    from hilrp.method.rules import Rules

    try:
        dtype = dtype or "float32"
        precision(dtype)
        check_device(device)
        Rules.named(rules)
        names = [
            name
            for each in libraries or installed()
            for name in ([each] if "/" in each or ":" in each else catalogue(each, everything))
            if only is None or only in name
        ]
        if not names:
            raise InputError(
                f"--only {only}: none of the models has that in its name. (--all looks at all models of a library.)"
            )
        store = Store(output, Settings(dtype, device, samples, rules, size, seed), fresh)
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    earlier = store.rows()
    say_damaged(store.damaged)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=json) as progress:
        task = progress.add_task("auditing", total=len(names))
        passed = Counter[bool]()

        def show(row: dict[str, Any]) -> None:
            sound = row["status"] == "pass"
            passed[sound] += 1
            progress.update(task, advance=1, description=f"{passed[True]} passed, {passed[False]} not")
            # Without a terminal there is no bar: then each model has its line.
            if not json and not (sound and console.is_terminal):
                old = " (from an earlier run; --retry runs it again)" if earlier.get(row["name"]) == row else ""
                colour = "green" if sound else "red"
                reason = f"{escape(row.get('reason', ''))}{old if not sound else ''}"
                text = f"[{colour}]{row['status']}[/] {escape(row['name'])} {reason}"
                progress.console.print(text, highlight=False)

        try:
            rows = run(names, store, jobs, timeout, retry, show)
        except KeyboardInterrupt:
            done = len([name for name in names if name in store.rows()])
            message = (
                f"interrupted: {done} of {len(names)} done, rows in {store.folder}. "
                "The same command goes on from there."
            )
            errors.print(message, highlight=False)
            raise typer.Exit(130) from None
    if markdown is not None:
        try:
            write_whole(markdown, markdown_page([(store.settings, list(rows.values()))]))
        except OSError as error:
            raise fail(InputError(f"--markdown {markdown}: {error}. The rows are in {store.folder}.")) from None
        errors.print(f"Page in {markdown}", highlight=False)
    if json:
        print_json(list(rows.values()))
    else:
        console.print(_summary(rows))
        console.print(f"Rows in {store.folder / 'results.jsonl'}")
    raise typer.Exit(int(any(row["status"] != "pass" for row in rows.values())))


def _summary(rows: dict[str, dict[str, Any]]) -> Table:
    from hilrp.jobs.coverage.report import by_library, totals

    table = Table("library", "models", "passed", "with even splits", "largest residual", "largest leak")
    for library, own in by_library(rows.values()).items():
        table.add_row(library, *totals(own))
    return table
