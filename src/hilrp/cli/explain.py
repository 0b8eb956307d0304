"""``hilrp explain``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

import hilrp
from hilrp.attribution.references import NAMED, Given, Reference, named
from hilrp.attribution.verdicts import Verdict
from hilrp.cli.audit import check_device
from hilrp.cli.base import MaxMegapixels, app, console, errors, fail, make_folder, print_json, say_damaged
from hilrp.jobs.explain_files import Gallery, Outcome, checksum
from hilrp.jobs.target_text import ParsedTarget
from hilrp.models.images import Source, find, read
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import class_names
from hilrp.models.picture_files import MEGAPIXELS, allow
from hilrp.models.resolve import ZOO
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError
from hilrp.zoo.architectures import ARCHITECTURES, OTHERS


@app.command()
def explain(
    images: Annotated[list[str], typer.Argument(help="Image files, folders (with all that is in them) or globs.")],
    model: Annotated[
        str,
        typer.Option(
            help="zoo/swin and its like come with hilrp; or a model of timm, torchvision, transformers or open_clip. "
            "See `hilrp models`.",
            autocompletion=lambda: [f"{ZOO}/{name}" for name in (*ARCHITECTURES, *OTHERS)],
        ),
    ] = "timm/tiny_vit_5m_224.dist_in22k_ft_in1k",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Weights: a safetensors file, or one of torch.save. Default: the published weights."),
    ] = None,
    classes: Annotated[
        Path | None,
        typer.Option(help="A text file with the names of the classes, one per line, for a model of your own."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="'prediction', a class by name or index, or 'top5' for the five strongest (top1 to top10). "
            "Also: 'view' (what makes the picture and its mirror image alike), 'text:CAPTION' (models of two "
            "towers), 'region:MASK.png:CLASS' or 'region:LEFT,TOP,RIGHT,BOTTOM:CLASS' (segmentation), "
            "'detection:QUERY[:CLASS or side]' or 'detection:CLASS'.",
            autocompletion=lambda: ["prediction", "top3", "top5", "view", "text:", "region:", "detection:"],
        ),
    ] = "prediction",
    against: Annotated[
        str | None, typer.Option(help="Why the target rather than this class: explains the difference of the two.")
    ] = None,
    rules: Annotated[
        str, typer.Option(help=f"One of {', '.join(hilrp.PRESETS)}.", autocompletion=lambda: list(hilrp.PRESETS))
    ] = "hilrp",
    reference: Annotated[
        str | None,
        typer.Option(
            help=f"What relevance is relative to: {', '.join(NAMED)}, or an image file. "
            "The pixels then hold the whole difference of the scores.",
            autocompletion=lambda: list(NAMED),
        ),
    ] = None,
    passes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Relative to a reference: more passes give a truer map with error bars (2, 4, 8, 16, ...). "
            "It sums to the same difference.",
        ),
    ] = 1,
    stages: Annotated[
        bool, typer.Option("--stages", help="Draw the maps of all stages, and not only of four.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the results. Default: out/explain/MODEL.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Explanations at once; fewer where memory doesn't suffice.")] = 8,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    max_megapixels: MaxMegapixels = MEGAPIXELS,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do again what an earlier run has done.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON instead of a table.")] = False,
) -> None:
    """Explains images: why the model says what it says, and how much of that is on the pixels.

    Each image gets a figure (png), the arrays behind it (npz) and the facts (json); the run gets one page, index.html,
    that can be passed on as it is. A run that was stopped goes on where it was. The default model is TinyViT-5M, of
    ImageNet's 1000 classes (tiny_vit_5m_224.dist_in22k_ft_in1k).

    \b
    hilrp explain photo.jpg
    hilrp explain photos/ --target "golden retriever" --against "tabby"
    hilrp explain photo.jpg --model open_clip/ViT-B-32-quickgelu --target "text:a dog on a sofa"
    hilrp explain street.jpg --model transformers/facebook/detr-resnet-50 --target detection:car
    hilrp explain scan.png --model mine:model --rules secant --reference healthy.png --passes 16
    hilrp explain "scans/**/*.png" --model resnet50 --checkpoint mine.safetensors --classes names.txt
    hilrp scenes 8 -o scenes; hilrp explain scenes/images --model zoo/swin --target top3

    The exit status is 1 if some images failed, 2 if nothing could be begun.
    """
    try:
        check_device(device)
        allow(max_megapixels)
        output = output or Path("out/explain") / re.sub(r"[^\w.-]+", "-", model)
        sources, problems = find(images, output)
        if not sources:
            raise InputError(" ".join(f"{name}: {why}" for name, why in problems.items()))
        names = None if classes is None else class_names(classes)
        with errors.status(f"loading {escape(model)}"):
            loaded = hilrp.load(model, checkpoint, names, device)
        parsed = ParsedTarget.parse(target, loaded, against)
        if reference is None and hilrp.Rules.named(rules).constants == "reference":
            reference = "mean"
        relative_to, said = _reference(reference, loaded)
        if hilrp.Chains.of(passes).passes > 1 and relative_to is None:
            raise InputError(f"--passes {passes}: use --rules secant, or give a --reference, from which they begin.")
        explainer = hilrp.Explainer(parsed.model(loaded), rules, relative_to)
        gallery = Gallery(loaded, explainer, parsed, output, batch, stages, fresh, said, passes)
        make_folder(output)
        for name, why in problems.items():
            errors.print(f"[red]{escape(name)}[/]: {escape(why)}", highlight=False, soft_wrap=True)
        outcomes, stopped = _run(gallery, sources)
        _write_page(output, outcomes, problems, f"Explanations by {loaded.name}")
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    failed = sum(o.error is not None for o in outcomes) + len(problems)
    if json:
        print_json([_entry(o) for o in outcomes] + [{"source": n, "error": w} for n, w in problems.items()])
    else:
        _summary(outcomes, len(sources) + len(problems))
        if len(outcomes) > sum(o.error is not None for o in outcomes):
            console.print(f"Look at {escape(str(output / 'index.html'))}", soft_wrap=True)
    if stopped:
        errors.print("stopped; the same command goes on from here")
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


def _reference(text: str | None, loaded: Loaded) -> tuple[Reference | None, str | None]:
    """A reference by name, or an image that is prepared as the others are; and what it is called."""
    if text is None:
        return None, None
    if text in NAMED:
        return named(text, loaded.preprocess.mean, loaded.preprocess.std), text
    path = Path(text)
    if not path.is_file():
        raise InputError(f"--reference {text}: neither an image file nor one of {', '.join(NAMED)}.")
    return Given(loaded.batch([read(path)[0]])), f"{path.name} ({checksum(path)[:12]})"


def _run(gallery: Gallery, sources: list[Source]) -> tuple[list[Outcome], bool]:
    """What became of the images, and whether the user stopped before all were done."""
    outcomes = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("explaining", total=len(sources))
        try:
            for outcome in gallery.run(sources):
                outcomes.append(outcome)
                progress.advance(task)
                say_damaged(outcome.damaged)
                if outcome.error is not None:
                    path, why = escape(str(outcome.source.path)), escape(outcome.error)
                    progress.console.print(f"[red]{path}[/]: {why}", highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            return outcomes, True
    return outcomes, False


def _summary(outcomes: list[Outcome], asked: int) -> None:
    done = sum(o.error is None for o in outcomes)
    if done:
        console.print(_table(outcomes))
    reused = sum(o.reused for o in outcomes)
    again = f" ({reused} of them by an earlier run)" if reused else ""
    console.print(f"{done} of {asked} explained{again}.")


def _write_page(folder: Path, outcomes: list[Outcome], problems: dict[str, str], title: str) -> None:
    from hilrp.pages.gallery import gallery_page

    write_whole(folder / "index.html", gallery_page(folder, outcomes, problems, title))


def _entry(outcome: Outcome) -> dict[str, Any]:
    known = {"source": str(outcome.source.path), "name": outcome.source.name}
    return known | ({"error": outcome.error} if outcome.error is not None else outcome.facts)


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(Column("image", overflow="fold"), "target", "score", "pixels' share", "residual", "verdict")
    for outcome in outcomes:
        facts = outcome.facts
        for i, score in enumerate(facts.get("score", ())):
            names = facts["names"][i] if facts["names"] else ""
            names += f" rather than {facts['against_names'][i]}" if facts["against_names"] else ""
            numbers = (f"{score:.3f}", f"{facts['pixel_share'][i]:.3f}", f"{facts['residual'][i]:.0e}")
            word = Verdict(facts["verdict"][i])
            table.add_row(escape(outcome.label), escape(names), *numbers, f"[{word.colour}]{word}[/]")
    return table
