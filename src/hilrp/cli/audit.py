"""``hilrp audit``."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import torch
import typer
from rich.markup import escape
from rich.table import Table

import hilrp
from hilrp.attribution.audit import AuditReport
from hilrp.cli.base import app, console, fail, print_json
from hilrp.jobs.coverage.splits import judge
from hilrp.models.random_models import Built, build
from hilrp.models.resolve import ZOO, is_factory
from hilrp.util.errors import HilrpError, InputError
from hilrp.util.nested import tensors

_TYPES = ("float64", "float32", "bfloat16", "float16")
Precision = Annotated[str, typer.Option("--dtype", help=f"{', '.join(_TYPES)}.")]


def precision(name: str) -> torch.dtype:
    """A floating-point type by its name."""
    if name not in _TYPES:
        raise InputError(f"--dtype {name}: use one of {', '.join(_TYPES)}.")
    found: torch.dtype = getattr(torch, name)
    return found


def check_device(name: str) -> None:
    """Raises if nothing can be put there."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"--device {name} can't be used: {str(error).splitlines()[0]} Use cpu, or a device that torch sees."
        ) from error


@app.command()
def audit(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Models of the zoo (zoo/swin), timm, torchvision, transformers (a model type, a name on the hub, or a "
            "folder) or open_clip, with or without 'library/' before the name; or module:factory, a function of "
            "yours that returns a model, or (model, inputs[, target]); its inputs are taken as they are."
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a page.")] = False,
    pretrained: Annotated[bool, typer.Option(help="Published weights instead of random ones.")] = False,
    rules: Annotated[str, typer.Option(help=f"One of {', '.join(hilrp.PRESETS)}.")] = "hilrp",
    dtype: Annotated[
        str | None, typer.Option(help=f"{', '.join(_TYPES)}. Default: float32, or what a factory returns.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    batch: Annotated[int, typer.Option(min=1, help="Number of random images.")] = 2,
    size: Annotated[int | None, typer.Option(min=1, help="Side of the images, if not the model's default.")] = None,
) -> None:
    """Audits models: what they are made of, whether their value is untouched, and whether their books close.

    The exit status is 1 if a model fails, 2 if one can't be built.
    """
    found: list[dict[str, Any]] = []
    status = 0
    try:
        kind = precision(dtype) if dtype is not None else None
        check_device(device)
        hilrp.Rules.named(rules)
    except HilrpError as error:
        raise fail(error) from None
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                built = build(name, pretrained=pretrained, dtype=kind, device=device, batch=batch, size=size)
                report = hilrp.audit(built.model, built.inputs, built.target, rules)
        except Exception as error:  # a factory or a model may raise anything; the others are audited all the same
            status = 2
            if json:
                found.append({"name": name, "passed": False, "error": str(error)})
            else:
                fail(error if isinstance(error, HilrpError) else InputError(f"{name}: {type(error).__name__}: {error}"))
            continue
        status = max(status, int(not report.passed))
        found.append(_facts(built) | report.as_dict())
        if not json:
            _page(built, report)
    if json:
        print_json(found)
    raise typer.Exit(status)


def _facts(built: Built) -> dict[str, Any]:
    shapes = [list(t.shape) for t in tensors(built.inputs)]
    place = built.name.partition("/")[0]
    weights = "random" if not built.pretrained else "the zoo's own" if place == ZOO else "published"
    weights = "the factory's" if is_factory(built.name) else weights
    dtype = str(next((t.dtype for t in tensors(built.inputs) if t.is_floating_point()), "")).removeprefix("torch.")
    return {"name": built.name, "parameters": built.parameters, "inputs": shapes, "weights": weights, "dtype": dtype}


def _page(built: Built, report: AuditReport) -> None:
    facts = _facts(built)
    weights = facts["weights"] + (" weights, biases and scales" if facts["weights"] == "random" else " weights")
    inputs = ", ".join(" x ".join(map(str, shape)) for shape in facts["inputs"])
    console.rule(f"[bold]{escape(built.name)}[/]", align="left")
    console.print(
        f"{built.parameters / 1e6:.1f} M parameters, {weights}, {facts['dtype']}, input {inputs}",
        highlight=False,
    )
    explained = (getattr(built.target, "__doc__", None) or "").strip().splitlines()
    if explained:
        console.print(f"explained: {escape(explained[0])}", highlight=False)
    if report.error is None:
        console.print(_operations(report))
        if report.gates or report.splits:
            console.print(_gates(built.name, report))
        console.print(_books(report))
    for problem in [*report.problems, *([report.error] if report.error else [])]:
        console.print(f"[red]problem[/]: {escape(problem)}", highlight=False)
    for note, count in report.notes.items():
        if not note.startswith("even split"):
            console.print(f"note: {escape(note)} ({count} x)", highlight=False)
    if report.passed and not report.visible:
        console.print("note: so little arrives at the pixels that an error there would not show; use --dtype float64")
    verdict = "[bold green]PASS[/]" if report.passed else "[bold red]FAIL[/]"
    console.print(verdict, "" if report.error else _verdict(report), "\n")


def _operations(report: AuditReport) -> Table:
    table = Table("primitive", "operations", title="What it is made of", title_justify="left")
    for primitive, counts in report.operations.items():
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        table.add_row(primitive, ", ".join(f"{name} {count}" for name, count in ordered))
    return table


def _gates(name: str, report: AuditReport) -> Table:
    table = Table("where two factors depend on the input", "times", title="Gates and splits", title_justify="left")
    for gate, count in report.gates.items():
        table.add_row(gate, str(count))
    for split, count in report.splits.items():
        known = judge(name, split)
        what = f" ({known.what})" if known else ""
        table.add_row(f"[yellow]split evenly[/]: {escape(split + what)}", str(count))
    return table


def _books(report: AuditReport) -> Table:
    table = Table("who kept it", *(f"sample {i}" for i in range(len(report.share))), title_justify="left")
    table.title = "Where the score went (shares of it)"
    table.add_row("pixels", *(f"{share:.3g}" for share in report.share))
    for kind, shares in report.kept.items():
        table.add_row(kind, *(f"{share:.3g}" for share in shares))
    return table


def _verdict(report: AuditReport) -> str:
    return (
        f"forward difference {report.forward_difference:.2g}, residual {report.residual:.1e}, leak {report.leak:.1e} "
        f"(tolerance {report.tolerance:.0e})"
    )
