"""``hilrp verify``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from hilrp.cli.base import app, console, fail, print_json
from hilrp.cli.options import Json
from hilrp.util.errors import InputError

if TYPE_CHECKING:
    from hilrp.verify import Row, Section, VerifyReport

_COLOURS = {"passed": "green", "failed": "bold red", "measured": "blue", "not run": "yellow"}


def _folder(variable: str, what: str) -> Any:
    return typer.Option(envvar=variable, exists=True, file_okay=False, metavar="DIR", help=what)


@app.command()
def verify(
    sections: Annotated[
        list[str] | None,
        typer.Argument(metavar="SECTIONS", help="Of taxonomy, reduction, closure, equivariance. Default: all."),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        _folder(
            "HILRP_CHECKPOINTS",
            "Folder with weights: deit_tiny_patch16_224.safetensors, tiny_vit_5m_224.safetensors and "
            "swin_tiny_patch4_window7_224.safetensors, or some of them. Without it timm downloads them.",
        ),
    ] = None,
    images: Annotated[
        Path | None,
        _folder("HILRP_IMAGES", "Folder of photographs with an index.json, for the measurements on real weights."),
    ] = None,
    json: Json = False,
) -> None:
    """Checks the theory to machine precision, in float64.

    Thirteen kinds of attention, resolution reduction, random compositions, and
    equivariance.

    \b
    hilrp verify
    hilrp verify taxonomy closure

    The exit status is 1 if a check fails, or if nothing could be measured with
    the folders that were given.
    """
    from hilrp.verify import verify as run_checks  # imports timm: seconds that the other commands don't need

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True, disable=json) as progress:
            task = progress.add_task("checking")
            report = run_checks(
                sections, checkpoints, images, lambda name: progress.update(task, description=f"checked {name}")
            )
    except InputError as error:
        raise fail(error) from None
    if json:
        print_json(report.as_dict())
    else:
        _show(report)
    given = checkpoints is not None or images is not None
    verdicts = {row.verdict for section in report.sections for row in section.rows}
    nothing = given and "not run" in verdicts and "measured" not in verdicts
    raise typer.Exit(int(not report.passed or nothing))


def _show(report: VerifyReport) -> None:
    for section in report.sections:
        make = {"taxonomy": _taxonomy, "equivariance": _equivariance}.get(section.name, _numbers)
        for table in make(section):
            console.print(table)
        for row in section.rows:
            if row.missing:
                console.print(f"[yellow]{escape(row.name)}[/]: {escape(row.missing)}", highlight=False)
    for failure in report.failures:
        console.print(f"[red]failed[/]: {escape(failure)}", highlight=False)
    seconds = sum(section.seconds for section in report.sections)
    rows = [row.verdict for section in report.sections for row in section.rows]
    counts = ", ".join(f"{rows.count(verdict)} {verdict}" for verdict in _COLOURS if verdict in rows)
    console.print("[bold green]PASS[/]" if report.passed else "[bold red]FAIL[/]", f"{counts}, in {seconds:.0f} s")


def _taxonomy(section: Section) -> list[Table]:
    """The paper's table: primitives, errors, and real architectures that use the mechanism."""
    wide = console.width >= 120
    shown = ("residual", "leak", "relevance") if wide else ("residual", "relevance")
    table = _table(section)
    table.add_column("attention", no_wrap=True)
    for name in ("primitives", "conservation", *shown[1:], "verdict"):
        table.add_column(name)
    real = (
        table
        if wide
        else Table("attention", title="On real architectures", title_justify="left", caption_justify="left")
    )
    real.add_column("on a real architecture")
    for row in section.rows:
        errors = (f"{row.errors[name]:.0e}" if name in row.errors else "" for name in shown)
        cells = (row.name, " ".join(row.primitives), *errors, _verdict(row))
        table.add_row(*cells, *([_realised(row)] if wide else []))
        if not wide:
            real.add_row(row.name, _realised(row))
    remarks = [f"{row.name}: {row.remark}." for row in section.rows if row.remark]
    real.caption = "\n".join(
        [
            "Errors are relative, in float64; bounds 1e-11 (conservation, leak) and 1e-10 (relevance, against a "
            "textbook on explicit matrices).",
            *remarks,
        ]
    )
    return [table] if wide else [table, real]


def _realised(row: Row) -> str:
    if row.realised is None:
        return ""
    found = row.realised
    name = found.model.replace("timm/", "").replace("transformers/", "")
    if found.verdict == "not run":
        return f"{name}: [yellow]not run[/]"
    return f"{name}: [{_COLOURS[found.verdict]}]{max(found.residual, found.leak):.0e}[/]"


def _equivariance(section: Section) -> list[Table]:
    """Checks, and measurements on real weights (rows with a spread)."""
    from hilrp.verify.transfer import PAPER

    measured = [row for row in section.rows if row.verdict == "measured"]
    tables = _numbers(replace(section, rows=[row for row in section.rows if row not in measured]))
    if measured:
        names = [name for name in measured[0].errors if not name.endswith("±")]
        table = Table(
            "measured on real weights, mean ± deviation", *names, title_justify="left", caption_justify="left"
        )
        for row in measured:
            table.add_row(
                row.name.removeprefix("transfer, "),
                *(f"{row.errors[n]:.2f} ± {row.errors[f'{n} ±']:.2f}" for n in names),
            )
        remarks = "; ".join(dict.fromkeys(row.remark for row in measured))
        table.caption = (
            f"Drift of the logit; Spearman of the shifted image's map with the shifted map. {remarks}. {PAPER}"
        )
        tables.append(table)
    return tables


def _numbers(section: Section) -> list[Table]:
    table = _table(section, "what", "measured", "verdict")
    for row in section.rows:
        if row.missing:
            continue
        numbers = []
        for name, value in row.errors.items():
            bound = f" ≤ {row.bounds[name]:g}" if name in row.bounds else ""
            bound = f" ≥ {row.at_least[name]:g}" if name in row.at_least else bound
            numbers.append(f"{name} {value:.2g}{bound}")
        table.add_row(row.name, "\n".join(numbers), _verdict(row))
    return [table]


def _table(section: Section, *columns: str) -> Table:
    return Table(*columns, title=section.title, title_justify="left", caption_justify="left")


def _verdict(row: Row) -> str:
    return f"[{_COLOURS[row.verdict]}]{row.verdict}[/]"
