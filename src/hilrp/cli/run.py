"""``hilrp run``, ``hilrp merge`` and ``hilrp summary``: whole data sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hilrp.cli.audit import check_device
from hilrp.cli.base import app, console, errors, fail, make_folder, print_json
from hilrp.errors import HilrpError, InputError
from hilrp.files import write_whole


@app.command()
def run(
    data: Annotated[
        str,
        typer.Option(
            help="A folder of images (one folder per class, or index.json with boxes or masks), webdataset .tar shards, .parquet files with the images' bytes (files, folders or globs), "
            "hub:NAME (a Hugging Face data set) or scenes:SEED:COUNT."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the results; a run that was stopped goes on there.")
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
    device: Annotated[str, typer.Option(help="cpu, cuda, mps.")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Explains a data set: one row of Parquet for each image, model and method.

    Killed at any moment, the same command goes on where it was. An image that can't be read becomes a row with an error. The exit status is 1 if there are such.

    \b
    hilrp run --data photos/ --model resnet50 -o out/photos
    hilrp run --data "shards/*.tar" --model zoo/swin --methods hilrp,grad-cam --target label -o out/shards --workers 4
    hilrp summary out/photos
    """
    from hilrp.run import engines
    from hilrp.run.store import Store, share_of

    try:
        check_device(device)
        job, settings = _job(data, model or ["zoo/swin"], methods, target, maps, batch, device, output, split)
        count = engines.workers_for(device, workers)
        engine = engines.choose(count, address)
        store = Store(output)
        make_folder(output)
        manifest = _begin(store, data, split, settings, piece, limit)
        pieces = list(share_of(store.pieces(), _shard(shard)))
        todo = [each for each in pieces if not store.done(each)]
        store.settle(todo)
        done = (
            engines.local(job, todo) if engine == "local" else engines.on_ray(_shared(job, count), todo, count, address)
        )
        found = _watch(done, pieces, todo) if todo else []
    except HilrpError as error:
        raise fail(error) from None
    except KeyboardInterrupt:
        errors.print("stopped; the same command goes on here", highlight=False)
        raise typer.Exit(130) from None
    images, failed = sum(each.count for each in pieces), sum(each.failed for each in found)
    if json:
        print_json(
            {"images": images, "before": images - sum(e.count for e in todo), "failed": failed, "manifest": manifest}
        )
    else:
        console.print(
            f"{images} images are explained, {failed} of them in this run with an error. Rows: {escape(str(output / 'rows'))}",
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
) -> tuple[Any, dict[str, Any]]:
    """What is asked, checked before anything is written; and all that results depend on."""
    from hilrp.bench.methods import find
    from hilrp.checkpoints import fingerprint
    from hilrp.loading import load
    from hilrp.run.worker import Job, split_name

    names = tuple(dict.fromkeys(name.strip() for name in methods.split(",") if name.strip()))
    if not names:
        raise InputError("--methods: give at least one.")
    for name in names:
        find(name)
    if target not in ("prediction", "label"):
        raise InputError(f"--target {target}: choose prediction or label.")
    if maps not in ("none", "column", "files"):
        raise InputError(f"--maps {maps}: choose none, column or files.")
    kind = device.partition(":")[0]
    size = batch or (64 if kind == "cuda" else 16)
    checksums = {}
    for model in dict.fromkeys(models):
        loaded = load(*split_name(model))
        checksums[model] = fingerprint(loaded.model)
        del loaded
    settings = {
        "data": data, "split": split, "models": checksums, "methods": list(names), "target": target, "maps": maps, "batch": size, "device": kind,
    }  # fmt: skip
    return Job(
        str(output.resolve()), tuple(checksums), names, target, maps, size, device, readers=_readers(1)
    ), settings


def _readers(workers: int) -> int:
    import os

    return max(1, min(16, (os.cpu_count() or 1) // workers))


def _shared(job: Any, workers: int) -> Any:
    """The same job for one of several workers on a machine: cores are shared out."""
    import os
    from dataclasses import replace

    return replace(job, threads=max(1, (os.cpu_count() or 1) // workers), readers=_readers(workers))


def _begin(
    store: Any, data: str, split: str | None, settings: dict[str, Any], piece: int, limit: int | None
) -> dict[str, Any]:
    from hilrp.run.items import find

    with errors.status("looking at the data set"):
        found: dict[str, Any] = store.begin(find(data, split), settings, piece, limit)
    return found


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"--shard {text}: write i/n, from 1/n to n/n.")
    return int(match[1]), int(match[2])


def _watch(done: Any, pieces: list[Any], todo: list[Any]) -> list[Any]:
    """Shows progress; returns what was done."""
    columns = (
        TextColumn("explaining"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[failures]}"),
    )  # fmt: skip
    found = []
    with Progress(*columns, console=errors, transient=True) as progress:
        total = sum(piece.count for piece in pieces)
        task = progress.add_task("", total=total, completed=total - sum(p.count for p in todo), rate="", failures="")
        for each in done:
            found.append(each)
            images, failed = sum(e.images for e in found), sum(e.failed for e in found)
            elapsed = progress.tasks[0].elapsed or 1.0
            progress.update(
                task,
                advance=each.images,
                rate=f"{images / elapsed:.1f} images/s",
                failures=f"{failed} failed" if failed else "",
            )
    return found


@app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Folders of `hilrp run`: one, or all shards of one run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file to write.")],
) -> None:
    """Puts the rows of a run, or of all its shards, into one Parquet file; none may be missing.

    \b
    hilrp merge out/shard1 out/shard2 -o all.parquet
    """
    from hilrp.run.results import Results

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
    """A page about a data set: verdicts, classes with little evidence in the object, suspected shortcuts, unusual explanations.

    The exit status is 1 if a class is suspected to rest on a shortcut.
    """
    from hilrp.pages.dataset import dataset_page
    from hilrp.run.results import Results
    from hilrp.run.summary import summarise

    try:
        results = Results.of(folders)
        found = summarise(results)
        path = output or folders[0] / "summary.html"
        page = dataset_page(results, found)
        write_whole(path, lambda file: file.write(page.encode()))
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    suspects = [each for group in found for each in group.suspects]
    if json:
        print_json([group.facts() for group in found])
    else:
        for each in suspects:
            console.print(f"[yellow]suspect[/]: {escape(each.said)}", highlight=False, soft_wrap=True)
        console.print(f"Look at {escape(str(path))}", soft_wrap=True, highlight=False)
    if suspects:
        raise typer.Exit(1)
