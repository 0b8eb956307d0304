"""``hilrp run``, ``hilrp merge`` and ``hilrp summary``: whole data sets."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hilrp.cli.audit import check_device
from hilrp.cli.base import MaxMegapixels, app, console, errors, fail, make_folder, print_json, say_damaged
from hilrp.models.picture_files import MEGAPIXELS
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError


@app.command()
def run(
    data: Annotated[
        str,
        typer.Option(
            help="A folder of images (one folder per class, or index.json with boxes or masks), webdataset .tar "
            "shards, .parquet files with the images' bytes (files, folders or globs), "
            "hub:NAME (a Hugging Face data set), scenes:SEED:COUNT, or tagged:SEED:COUNT (with a planted shortcut)."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--out", "--output", "-o", help="Folder for the results; a run that was stopped goes on there."),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model; a checkpoint may follow an @. May be repeated. Default: zoo/swin."),
    ] = None,
    methods: Annotated[str, typer.Option(help="Methods of the benchmark, separated by commas.")] = "hilrp",
    target: Annotated[str, typer.Option(help="prediction, or label: the data set's own class.")] = "prediction",
    maps: Annotated[
        str, typer.Option(help="none; column (in the rows), or files (beside them): every map in float16.")
    ] = "none",
    split: Annotated[str | None, typer.Option(help="Of a data set of the hub. Default: validation.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first images only.")] = None,
    shard: Annotated[
        str, typer.Option(help="i/n: every n-th piece, for schedulers that start n of these beside each other.")
    ] = "1/1",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (Ray). Default: one, or one for each GPU.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; auto for the one that is running here.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images at once. Default: 16, on a GPU 64.")] = None,
    piece: Annotated[int, typer.Option(min=1, help="Images that are written together, as one file.")] = 256,
    boxes: Annotated[
        str,
        typer.Option(help="How boxes are given: xyxy (left, top, right, bottom) or xywh (left, top, width, height)."),
    ] = "xyxy",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Do pieces again that have rows with an error.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps.")] = "cpu",
    max_megapixels: MaxMegapixels = MEGAPIXELS,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Explains a data set: one row of Parquet for each image, model and method.

    Killed at any moment, the same command goes on where it was. An image that can't be read becomes a row with an
    error; the exit status is 1 if there are such, 2 if the run can't begin, 130 if you stop it. Columns: docs/run.md.

    \b
    hilrp run --data photos/ --model resnet50 -o out/photos
    hilrp run --data "shards/*.tar" --model zoo/swin --methods hilrp,grad-cam --target label -o out/shards --workers 4
    hilrp summary out/photos
    """
    from hilrp.jobs.run import executors
    from hilrp.jobs.run.store import Store, share_of

    try:
        part = _shard(shard)
        if address is None:
            check_device(device)
        job, settings = _job(data, model or ["zoo/swin"], methods, target, maps, batch, device, output, split, boxes)
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


def _job(
    data: str,
    models: list[str],
    methods: str,
    target: str,
    maps: str,
    batch: int | None,
    device: str,
    output: Path,
    split: str | None,
    boxes: str,
) -> tuple[Any, dict[str, Any]]:
    """What is asked, checked before anything is written; and all that results depend on."""
    from hilrp.jobs.bench.methods import find
    from hilrp.jobs.run.worker import Job
    from hilrp.method.rules import Rules
    from hilrp.models.loading import load, split_name
    from hilrp.models.weights import fingerprint

    names = tuple(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    if not names:
        raise InputError("--methods: give at least one.")
    for name in names:
        find(name)
    if target not in ("prediction", "label"):
        raise InputError(f"--target {target}: choose prediction or label.")
    if maps not in ("none", "column", "files"):
        raise InputError(f"--maps {maps}: choose none, column or files.")
    if boxes not in ("xyxy", "xywh"):
        raise InputError(f"--boxes {boxes}: choose xyxy or xywh.")
    kind = device.partition(":")[0]
    size = batch or (64 if kind == "cuda" else 16)
    checksums = {}
    for model in dict.fromkeys(models):
        loaded = load(*split_name(model))
        checksums[model] = fingerprint(loaded.model)
        del loaded
    rules = {name: vars(Rules.named(found.rules)) for name in names if (found := find(name)).rules is not None}
    settings = {
        "data": data,
        "split": split,
        "models": checksums,
        "methods": list(names),
        "rules": rules,
        "boxes": boxes,
        "target": target,
        "maps": maps,
        "batch": size,
        "device": kind,
    }
    return Job(
        str(output.resolve()), tuple(checksums), names, target, maps, size, device, readers=_readers(1), boxes=boxes
    ), settings


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


@app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders of `hilrp run`: one, or all shards of one run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file to write.")],
) -> None:
    """Puts the rows of a run, or of all its shards, into one Parquet file; none may be missing.

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
    folders: Annotated[list[Path], typer.Argument(help="Folders of `hilrp run`: one, or all shards of one run.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page. Default: summary.html in the first folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """A page about a data set.

    Verdicts, classes with little evidence in the object, suspected shortcuts, unusual explanations.

    Classes are judged from ten images on. The exit status is 1 if one is suspected to rest on a shortcut, and 2 if
    there is nothing to read.
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
