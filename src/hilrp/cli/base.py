"""What the commands share."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

app = typer.Typer(no_args_is_help=True, add_completion=True, help="Explain the predictions of vision models.")
# Names of models may hold what looks like the code of an emoji.
console = Console(emoji=False)
errors = Console(stderr=True, emoji=False)


def fail(error: Exception) -> typer.Exit:
    """Prints an error; raise what this returns."""
    errors.print(f"[red]error[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
    return typer.Exit(2)


def print_json(found: Any) -> None:
    """Prints for machines: no colours, no wrapping."""
    typer.echo(json.dumps(found, indent=1))
