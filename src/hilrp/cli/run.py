"""``hilrp run``: whole data sets."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hilrp.attribution.references import NAMED
from hilrp.cli.base import app, console, errors, fail, make_folder, print_json, say_damaged
from hilrp.cli.options import (
    Against,
    Batch,
    Checkpoint,
    Device,
    Json,
    MaxMegapixels,
    Methods,
    Models,
    Passes,
    Preset,
    Reference,
    Target,
    batch_size,
    check_device,
    named_models,
)
from hilrp.jobs.reference_text import check_passes, file_name, reference_name
from hilrp.method.rules import DEFAULT_RULES, Rules
from hilrp.models.loading import DEFAULT_MODEL, SCENES_MODEL, split_name
from hilrp.models.picture_files import MEGAPIXELS
from hilrp.util.errors import HilrpError, InputError


@app.command()
def run(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            help="A folder of images (one folder per class, or index.json with boxes or masks), webdataset .tar "
            "shards, .parquet files with the images' bytes (files, folders or globs), "
            "hub:NAME (a Hugging Face data set), scenes:SEED:COUNT, or tagged:SEED:COUNT (with a planted shortcut).",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder for the results; a run that was stopped goes on there."
        ),
    ],
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a data set of the hub. Default: validation.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="The first images only.")] = None,
    boxes: Annotated[
        str,
        typer.Option(
            metavar="FORM",
            help="How boxes are given: xyxy (left, top, right, bottom) or xywh (left, top, width, height).",
        ),
    ] = "xyxy",
    maps: Annotated[
        str,
        typer.Option(metavar="WHERE", help="none; column (in the rows), or files (beside them): every map in float16."),
    ] = "none",
    piece: Annotated[
        int, typer.Option(min=1, metavar="N", help="Images that are written together, as one file.")
    ] = 256,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Do pieces again that have rows with an error.")
    ] = False,
    model: Models = None,
    checkpoint: Checkpoint = None,
    target: Target = "prediction",
    against: Against = None,
    rules: Preset = DEFAULT_RULES,
    reference: Reference = None,
    passes: Passes = 1,
    method: Methods = None,
    device: Device = "cpu",
    batch: Batch = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Processes (Ray). Default: one, or one for each GPU.",
            rich_help_panel="Computing",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST", help="Of a Ray cluster; auto for the one that is running here.", rich_help_panel="Computing"
        ),
    ] = None,
    shard: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="Every n-th piece, for schedulers that start n of these beside each other.",
            rich_help_panel="Computing",
        ),
    ] = "1/1",
    max_megapixels: MaxMegapixels = MEGAPIXELS,
    json: Json = False,
) -> None:
    """Explains a data set: a row of Parquet for each image, model, method.

    Killed at any moment, the same command goes on where it was. An image that
    can't be read becomes a row with an error. Columns: docs/run.md.

    \b
    hilrp run --data photos/ --model resnet50 -o out/photos
    hilrp run --data photos/ --target label --passes 16 -o out/photos
    hilrp run --data "shards/*.tar" --method secant --method grad-cam \\
        --target label --workers 4 -o out/shards
    hilrp summary out/photos

    The exit status is 1 if there are rows with an error, 2 if the run can't
    begin, 130 if you stop it.
    """
    from hilrp.jobs.run import executors
    from hilrp.jobs.run.items import find
    from hilrp.jobs.run.store import Store, share_of

    try:
        part = _shard(shard)
        if address is None:
            check_device(device)
        if data.partition(":")[0] != "hub":
            next(iter(find(data, split, output)), None)  # what is wrong with data is said before a model is fetched
        usual = SCENES_MODEL if data.partition(":")[0] in ("scenes", "tagged") else DEFAULT_MODEL
        job, settings = _job(
            data,
            split,
            output,
            named_models(model, checkpoint, (usual,)),
            _methods(context, method, rules, passes),
            reference_name(reference, rules) if reference else None,
            target=target,
            against=against,
            maps=maps,
            boxes=boxes,
            batch=batch_size(batch, device),
            device=device,
        )
        # It is none of the settings that results depend on: a run that was begun may go on with more.
        job = replace(job, max_megapixels=max_megapixels)
        count = executors.workers_for(device, workers)
        engine = executors.choose(count, address, device)
        store = Store(output)
        make_folder(output)
        manifest = _begin(store, data, split, settings, piece, limit)
        pieces = list(share_of(store.pieces(), part))
        if retry_failed:
            for each in store.failures(pieces):
                store.rows(each).unlink()
        todo = [each for each in pieces if not store.done(each)]
        say_damaged(store.damaged)
        store.settle(todo)
        done = (
            executors.local(job, todo)
            if engine == "local"
            else executors.on_ray(_shared(job, count), todo, count, address)
        )
        if todo:
            _watch(done, pieces, todo)
        left = sum(each.count for each in pieces if not store.done(each))
        if left:
            raise InputError(f"{output}: {left} images are not done, or were damaged meanwhile. Run it again.")
        failures = Counter(error for each in store.failures(pieces).values() for error in each)
        failed = sum(failures.values())
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    except KeyboardInterrupt:
        errors.print("stopped; the same command goes on here", highlight=False)
        raise typer.Exit(130) from None
    images = sum(each.count for each in pieces)
    if json:
        print_json(
            {"images": images, "before": images - sum(e.count for e in todo), "failed": failed, "manifest": manifest}
        )
    else:
        said = f", {failed} of them with an error (--retry-failed does them again)" if failed else ""
        for why, often in failures.most_common(3):
            errors.print(f"{often} x {escape(why)}", highlight=False, soft_wrap=True)
        console.print(
            f"{images} images are done{said}. Rows: {escape(str(output / 'rows'))}",
            soft_wrap=True,
            highlight=False,
        )
        console.print(f"hilrp summary {escape(str(output))} makes a page of it.", soft_wrap=True, highlight=False)
    if failed:
        raise typer.Exit(1)


def _methods(context: typer.Context, methods: list[str] | None, rules: str, passes: int) -> tuple[str, ...]:
    """The methods that are asked for, or the one that rules and passes name."""
    from hilrp.jobs.bench.methods import find, of_rules
    from hilrp.jobs.bench.methods.relevance import check_chains

    if not methods:
        check_passes(passes, rules, reference_name(context.params["reference"], rules))
        return (of_rules(rules, passes),)
    for option in ("rules", "passes", "reference"):
        # By its name: which class it is of depends on typer's version.
        if getattr(context.get_parameter_source(option), "name", "") == "COMMANDLINE":
            raise InputError(
                f"--{option} with --method: a method brings its own. Write --method secant:passes=8 or --method "
                f"rules:zplus, or leave --method out."
            )
    for name in methods:
        check_chains(find(name))
    return tuple(dict.fromkeys(methods))


def _job(
    data: str,
    split: str | None,
    output: Path,
    models: Sequence[str],
    methods: tuple[str, ...],
    reference: str | None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """What is asked, checked before anything is written; and all that results depend on."""
    from hilrp.jobs.bench.methods import find
    from hilrp.jobs.run.targets import check_target
    from hilrp.jobs.run.worker import Job
    from hilrp.models.loading import load
    from hilrp.models.weights import fingerprint

    for name, allowed in (("maps", ("none", "column", "files")), ("boxes", ("xyxy", "xywh"))):
        if options[name] not in allowed:
            raise InputError(f"--{name} {options[name]}: choose from {', '.join(allowed)}.")
    checksums = {}
    for model in models:
        loaded = load(*split_name(model))
        check_target(options["target"], options["against"], loaded, methods)
        checksums[model] = fingerprint(loaded.model)
        del loaded
    rules = {name: Rules.named(found.rules).described() for name in methods if (found := find(name)).rules is not None}
    device = options["device"]
    settings = options | {
        "data": data,
        "split": split,
        "models": checksums,
        "methods": list(methods),
        "rules": rules,
        "reference": file_name(reference),
        "device": device.partition(":")[0],
    }
    # Workers may run in another folder.
    place = reference if reference is None or reference in NAMED else str(Path(reference).resolve())
    job = Job(str(output.resolve()), tuple(checksums), methods, reference=place, readers=_readers(1), **options)
    return job, settings


def _readers(workers: int) -> int:
    return max(1, min(16, (os.cpu_count() or 1) // workers))


def _shared(job: Any, workers: int) -> Any:
    """The same job for one of several workers on a machine: cores are shared out."""
    return replace(job, threads=max(1, (os.cpu_count() or 1) // workers), readers=_readers(workers))


def _begin(
    store: Any, data: str, split: str | None, settings: dict[str, Any], piece: int, limit: int | None
) -> dict[str, Any]:
    from hilrp.jobs.run.items import find

    with errors.status("looking at the data set"):
        found: dict[str, Any] = store.begin(find(data, split, store.folder), settings, piece, limit)
    return found


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"--shard {text}: write i/n, from 1/n to n/n.")
    return int(match[1]), int(match[2])


def _watch(done: Any, pieces: list[Any], todo: list[Any]) -> None:
    """Runs it, and shows progress."""
    columns = (
        TextColumn("explaining"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failures]}"),
    )
    images = failed = 0
    # Pieces may take minutes: the estimate must not forget the last one before the next is there.
    with Progress(*columns, console=errors, transient=True, speed_estimate_period=3600) as progress:
        total = sum(piece.count for piece in pieces)
        task = progress.add_task("", total=total, completed=total - sum(p.count for p in todo), rate="", failures="")
        for each in done:
            images, failed = images + each.images, failed + each.failed
            rate = images / (progress.tasks[0].elapsed or 1.0)
            said = f"{failed} failed" if failed else ""
            progress.update(task, advance=each.images, rate=f"{rate:.1f} images/s", failures=said)
            if not errors.is_terminal:  # a log, where no bar is drawn
                before = total - sum(p.count for p in todo)
                left = (total - before - images) / rate if rate else 0.0
                errors.print(
                    f"{before + images} of {total} images, {rate:.1f} per second, "
                    f"{left / 60:.0f} minutes left {said}".rstrip(),
                    highlight=False,
                )
