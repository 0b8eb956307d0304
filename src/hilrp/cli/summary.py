"""``hilrp summary`` and ``hilrp merge``: what `hilrp run` has written, as a page and as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from hilrp.cli.base import app, console, errors, fail, print_json
from hilrp.cli.options import Json
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError

Folders = Annotated[
    list[Path],
    typer.Argument(metavar="FOLDERS", help="Folders of `hilrp run`: one, or all shards of one run."),
]


@app.command()
def merge(
    folders: Folders,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The Parquet file to write.")],
) -> None:
    """Puts the rows of a run, or of all its shards, into one Parquet file.

    None may be missing.

    \b
    hilrp merge out/shard1 out/shard2 -o all.parquet
    """
    from hilrp.jobs.run.results import Results

    try:
        count = Results.of(folders).merge(output)
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    console.print(f"{count} rows in {escape(str(output))}", soft_wrap=True, highlight=False)


@app.command()
def summary(
    folders: Folders,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The page. Default: summary.html in the first folder."),
    ] = None,
    json: Json = False,
) -> None:
    """A page about a data set that `hilrp run` has explained.

    Verdicts, classes with little evidence in the object, suspected shortcuts,
    unusual explanations. Classes are judged from ten images on.

    \b
    hilrp summary out/photos
    hilrp summary out/shard1 out/shard2 -o page.html

    The exit status is 1 if a class is suspected to rest on a shortcut, and 2
    if there is nothing to read.
    """
    from hilrp.jobs.run.results import Results
    from hilrp.jobs.run.summary import summarise
    from hilrp.pages.dataset import dataset_page

    try:
        results = Results.of(folders)
        found = summarise(results)
        path = output or folders[0] / "summary.html"
        write_whole(path, dataset_page(results, found))
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    suspects = [each for group in found for each in group.suspects]
    missing = sum(piece.count for piece in results.missing)
    if json:
        print_json([group.facts() for group in found])
    else:
        for each in suspects:
            console.print(f"[yellow]suspect[/]: {escape(each.said)}", highlight=False, soft_wrap=True)
        for said in results.damaged:
            errors.print(f"damaged: {escape(said)}", highlight=False, soft_wrap=True)
        if missing:
            console.print(f"{missing} images are not explained yet, or in folders of other shards: name these, too.")
        if not any(group.judged for group in found):
            console.print("No class has enough images to be judged.")
        console.print(f"Look at {escape(str(path))}", soft_wrap=True, highlight=False)
    if suspects:
        raise typer.Exit(1)
