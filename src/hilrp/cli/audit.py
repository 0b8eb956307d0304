"""``hilrp audit``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import hilrp
from hilrp.attribution.audit import AuditReport
from hilrp.cli.base import app, console, fail, print_json
from hilrp.cli.options import (
    Checkpoint,
    Device,
    Json,
    Models,
    Precision,
    Preset,
    Samples,
    Size,
    check_device,
    named_models,
    precision,
)
from hilrp.jobs.coverage.splits import judge
from hilrp.method.rules import DEFAULT_RULES
from hilrp.models.loading import split_name
from hilrp.models.random_models import Built, build
from hilrp.models.resolve import ZOO, is_factory
from hilrp.util.errors import HilrpError, InputError
from hilrp.util.nested import tensors


@app.command()
def audit(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAMES", help="Models: short for --model NAME, for each.")
    ] = None,
    model: Models = None,
    checkpoint: Checkpoint = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Published weights instead of random ones.", rich_help_panel="Model")
    ] = False,
    rules: Preset = DEFAULT_RULES,
    dtype: Precision = None,
    device: Device = "cpu",
    samples: Samples = 2,
    size: Size = None,
    json: Json = False,
) -> None:
    """Audits models: is the value untouched, and do the books close?

    What a model is made of, operation by operation; whether its output stays
    equal bit for bit; and whether every unit of relevance is accounted for.
    Pictures and, without --pretrained or --checkpoint, weights are random:
    nothing is downloaded. A function of yours (module:factory) may also return
    a model alone, or (model, inputs) or (model, inputs, target).

    \b
    hilrp audit swin_tiny_patch4_window7_224 torchvision/resnet50
    hilrp audit --model mine:model --rules hilrp --dtype float64
    hilrp audit --model resnet50 --checkpoint mine.safetensors

    It has no --target, --against, --reference and --passes: every one of them
    runs the same operations, which are what is audited. Nor has it --batch:
    how many random pictures there are is --samples.

    The exit status is 1 if a model fails, 2 if one can't be built.
    """
    found: list[dict[str, Any]] = []
    status = 0
    try:
        kind = precision(dtype) if dtype is not None else None
        check_device(device)
        hilrp.Rules.named(rules)
        asked = named_models([*(names or ()), *(model or ())], checkpoint)
    except HilrpError as error:
        raise fail(error) from None
    for name in asked:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plain, weights = split_name(name)
                built = build(
                    plain,
                    pretrained=pretrained,
                    dtype=kind,
                    device=device,
                    batch=samples,
                    size=size,
                    checkpoint=weights,
                )
                report = hilrp.audit(built.model, built.inputs, built.target, rules)
        except Exception as error:  # a factory or a model may raise anything; the others are audited all the same
            status = 2
            if json:
                found.append({"name": name, "passed": False, "error": str(error)})
            else:
                fail(error if isinstance(error, HilrpError) else InputError(f"{name}: {type(error).__name__}: {error}"))
            continue
        status = max(status, int(not report.passed))
        found.append(_facts(built, weights) | report.as_dict())
        if not json:
            _page(built, report, weights)
    if json:
        print_json(found)
    raise typer.Exit(status)


def _facts(built: Built, checkpoint: str | None) -> dict[str, Any]:
    shapes = [list(t.shape) for t in tensors(built.inputs)]
    place = built.name.partition("/")[0]
    weights = "random" if not built.pretrained else "the zoo's own" if place == ZOO else "published"
    weights = "the factory's" if is_factory(built.name) else weights
    weights = weights if checkpoint is None else f"{Path(checkpoint).name}'s"
    dtype = str(next((t.dtype for t in tensors(built.inputs) if t.is_floating_point()), "")).removeprefix("torch.")
    return {"name": built.name, "parameters": built.parameters, "inputs": shapes, "weights": weights, "dtype": dtype}


def _page(built: Built, report: AuditReport, checkpoint: str | None) -> None:
    facts = _facts(built, checkpoint)
    weights = facts["weights"] + (" weights, biases and scales" if facts["weights"] == "random" else " weights")
    inputs = ", ".join(" x ".join(map(str, shape)) for shape in facts["inputs"])
    console.rule(f"[bold]{escape(built.name)}[/]", align="left")
    console.print(
        f"{built.parameters / 1e6:.1f} M parameters, {escape(weights)}, {facts['dtype']}, input {inputs}",
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
    table = Table("who has it", *(f"sample {i}" for i in range(len(report.share))), title_justify="left")
    whole = report.of_what
    table.title = f"Where {whole} {'went' if report.relative_to is None else 'comes from'} (shares of it)"
    table.add_row("pixels", *(f"{share:.3g}" for share in report.share))
    for kind, shares in report.kept.items():
        table.add_row(kind, *(f"{share:.3g}" for share in shares))
    return table


def _verdict(report: AuditReport) -> str:
    return (
        f"forward difference {report.forward_difference:.2g}, residual {report.residual:.1e}, leak {report.leak:.1e} "
        f"(tolerance {report.tolerance:.0e})"
    )
