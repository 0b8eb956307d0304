"""What the commands share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import hilrp
from hilrp.util.errors import InputError
from hilrp.util.telemetry import switches

app = typer.Typer(add_completion=True)
#: The commands in the order in which they are listed: one picture, many, comparisons, proofs.
ORDER = "explain ask serve demo models scenes run summary merge bench views audit verify coverage".split()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hilrp {hilrp.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Explains the predictions of vision models.

    \b
    hilrp explain photo.jpg   # what speaks for the prediction: a picture, a page
    hilrp serve               # the same on a page of its own: drop a picture
    hilrp demo                # twelve architectures, without a connection

    `hilrp COMMAND --help` has the options of a command, and more examples.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    os.environ.update(switches())
    # A file's name may hold bytes that are no letters: they are printed as what they are, and end nothing.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


# Names of models may hold what looks like the code of an emoji.
console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)


def make_folder(path: Path) -> None:
    """Makes the folder of --output."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {path}: no folder can be made there ({error.strerror}). Choose another.") from error


def say_damaged(found: Iterable[str]) -> None:
    """Says which results of an earlier run were damaged."""
    for said in found:
        errors.print(f"[yellow]damaged[/], and made again: {escape(said)}", highlight=False, soft_wrap=True)


def fail(error: Exception) -> typer.Exit:
    """Prints an error; raise what this returns."""
    errors.print(f"[red]error[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
    return typer.Exit(2)


def print_json(found: Any) -> None:
    """Prints for machines: no colours, no wrapping."""
    typer.echo(json.dumps(found, indent=1))
