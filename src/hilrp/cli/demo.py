"""``hilrp demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress
from rich.table import Table

from hilrp.cli.base import app, console


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the results.")] = Path("out/demo"),
    steps: Annotated[int, typer.Option(help="Training steps.")] = 600,
) -> None:
    """Trains a small hierarchical model on shapes, explains it, and checks the maps against the shapes' places."""
    from hilrp.demo import run

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("training a small TinyViT on shapes", total=steps)
        done = run(output, steps, progress=lambda: progress.advance(task))
    ledger = done.explanation.ledger
    table = Table("figure", "value")
    table.add_row("accuracy on new pictures", f"{done.accuracy:.3f}")
    table.add_row("strongest pixel on the shape", f"{done.pointing:.2f} (by chance {done.area:.2f})")
    table.add_row("books: largest residual of 100", f"{float(ledger.residual.max()):.1e}")
    table.add_row("audit", "passed" if done.report.passed else "FAILED")
    console.print(table)
    console.print("The books of the first picture:")
    console.print(ledger.table(0), highlight=False)
    console.print(f"Look at {output / 'demo.png'}")
    if not done.report.passed:
        raise typer.Exit(1)
