"""``hilrp demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.progress import Progress
from rich.table import Column, Table

from hilrp.cli.base import app, console, errors, fail, make_folder, print_json
from hilrp.cli.options import Json
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the page.")] = Path(
        "out/demo"
    ),
    objects: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many objects the figures are measured on.")
    ] = 64,
    json: Json = False,
) -> None:
    """Explains scenes with every family of the zoo, and writes a page.

    The maps are checked against the truth, which is known of scenes. It needs
    no connection: models and scenes come with hilrp. The exit status is 1 if
    any books don't close.

    \b
    hilrp demo                            # out/demo/index.html
    hilrp demo --objects 8 -o somewhere   # fewer objects, sooner
    """
    from hilrp.jobs.demo import control, families, shown
    from hilrp.pages.demo import demo_page
    from hilrp.zoo.architectures import ARCHITECTURES

    found = []
    try:
        make_folder(output)
        with Progress(console=errors, transient=True) as progress:
            task = progress.add_task("explaining", total=len(ARCHITECTURES))
            for family in families(objects):
                found.append(family)
                progress.advance(task)
        bell = control(objects)
        page = demo_page(found, shown(), bell)
        write_whole(output / "index.html", page)
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    rows = [
        {
            "family": family.title,
            "class": family.loaded.named(int(family.shown.target[0])),  # type: ignore[index]
            "score": float(family.shown.score[0]),
            "difference": float(family.shown.ledger.explained[0]),
            "pixel_share": float(np.median(family.share)),
            "residual": max(family.residual),
            "pointing": float(np.mean(family.hits)),
            "inside": float(np.mean(family.inside)),
        }
        for family in found
    ]
    closed = all(max(family.residual) <= family.shown.tolerance for family in found)
    if json:
        print_json({"families": rows, "centre_gaussian": vars(bell), "objects": objects})
    else:
        first, second = (Column(name, no_wrap=True) for name in ("family", "class"))
        table = Table(
            first,
            second,
            "score",
            "difference",
            "residual",
            "pointing",
            "on object",
            box=SIMPLE,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for row, family in zip(rows, found, strict=True):
            hits = f"{sum(family.hits)} of {len(family.hits)}"
            values = [f"{row[name]:.2f}" for name in ("score", "difference")]
            table.add_row(
                str(row["family"]), str(row["class"]), *values, f"{row['residual']:.0e}", hits, f"{row['inside']:.0%}"
            )
        table.add_section()
        table.add_row(
            "centre Gaussian", "", "", "", "", f"{bell.pointing * objects:.0f} of {objects}", f"{bell.inside:.0%}"
        )
        console.print(table)
        console.print(
            "Score: of the first class shown; difference: how much higher it is than on "
            f"{found[0].shown.relative_to}. The pixels hold all of that; residual: what is missing, largest; on "
            f"object: the positive relevance there, mean. An object covers {bell.area:.0%} of a picture."
        )
        console.print(f"Look at {escape(str(output / 'index.html'))}", soft_wrap=True)
    if not closed:
        raise typer.Exit(1)
