"""``hilrp explain``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

import hilrp
from hilrp.attribution.error_bars import share_text
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.kinds import Kind
from hilrp.attribution.references import DEFAULT as DEFAULT_REFERENCE
from hilrp.attribution.references import NAMED
from hilrp.attribution.verdicts import Verdict
from hilrp.cli.base import app, console, errors, fail, make_folder, print_json, say_damaged
from hilrp.cli.options import (
    Against,
    Batch,
    Checkpoint,
    Classes,
    Device,
    Json,
    MaxMegapixels,
    Models,
    Passes,
    Preset,
    Reference,
    Target,
    batch_size,
    check_device,
    folder_name,
    one_model,
)
from hilrp.jobs.explain_files import Gallery, Outcome
from hilrp.jobs.explain_recordings import Prepared, Recordings
from hilrp.jobs.reference_text import check_passes, reference_name, reference_of
from hilrp.jobs.target_text import ParsedTarget
from hilrp.method.rules import DEFAULT_RULES
from hilrp.models.images import Source, find
from hilrp.models.loading import class_names
from hilrp.models.picture_files import MEGAPIXELS, allow
from hilrp.models.recordings.finding import are_recordings, find_recordings, is_recording
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError

#: So many sentences are printed; of more explanations they are on the page.
_SAID = 5


@app.command()
def explain(
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES",
            help="Image files, folders (with all that is in them) or globs. Or recordings: NIfTI, DICOM (the "
            "folder of a series), GeoTIFF (with --kind bands), films, sounds.",
        ),
    ],
    model: Models = None,
    checkpoint: Checkpoint = None,
    classes: Classes = None,
    target: Target = "prediction",
    against: Against = None,
    rules: Preset = DEFAULT_RULES,
    reference: Reference = None,
    passes: Passes = 1,
    stages: Annotated[
        bool, typer.Option("--stages", help="Draw the maps of all stages, and not only of four.")
    ] = False,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="What recordings are, where files don't say it: volume, video, frames, sound, bands, picture. Then "
            "GeoTIFFs are read as such, with all their bands.",
        ),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option("--frames", metavar="N", min=1, help="Of films, so many frames, evenly spread. Default: all."),
    ] = None,
    series: Annotated[
        str | None,
        typer.Option("--series", metavar="N", help="Of a folder with several DICOM series, the one with this number."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for the results. Default: out/explain/MODEL."),
    ] = None,
    batch: Batch = None,
    device: Device = "cpu",
    max_megapixels: MaxMegapixels = MEGAPIXELS,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do again what an earlier run has done.")] = False,
    json: Json = False,
) -> None:
    """Explains pictures: what makes the score higher than on a plain colour.

    Each picture gets a figure (png), the arrays behind it (npz) and the facts
    (json); the run gets one page, index.html, that can be passed on as it is.
    A run that was stopped goes on where it was.

    \b
    hilrp explain photo.jpg
    hilrp explain photos/ --target "golden retriever" --against tabby
    hilrp explain scan.png --model mine:model --reference healthy.png
    hilrp explain scan.png --model resnet50 --checkpoint mine.safetensors
    hilrp explain photo.jpg --model open_clip/ViT-B-32-quickgelu \\
        --target "text:a dog on a sofa"
    hilrp scenes 8 -o scenes
    hilrp explain scenes/images --model zoo/swin --target top3
    hilrp explain scan.nii.gz --model mine:unet   # a page with sliders, a map
    hilrp explain clip.mp4 --model mine:film --frames 16

    The exit status is 1 if some pictures failed, 2 if nothing could be begun.
    """
    try:
        check_device(device)
        allow(max_megapixels)
        name, weights = one_model(model, checkpoint)
        output = output or Path("out/explain") / folder_name(name)
        found_kind = Kind.named(kind)
        recorded = found_kind is not None or are_recordings(images)
        if recorded:
            sources, problems = find_recordings(images, output, pictures=found_kind is not None)
            _check_recorded(images, sources)
        else:
            sources, problems = find(images, output)
        if not sources:
            raise InputError(" ".join(f"{each}: {why}" for each, why in problems.items()))
        names = None if classes is None else class_names(classes)
        recordings = _recordings(found_kind, frames, series) if recorded else None
        if recorded and reference is not None and reference not in NAMED:
            raise InputError(f"--reference {reference}: recordings have one of {', '.join(NAMED)}, or none.")
        own_reference, reference = reference, reference_name(reference, rules)
        check_passes(passes, rules, reference)
        with errors.status(f"loading {escape(name)}"):
            loaded = hilrp.load(name, weights, names, device)
        parsed = ParsedTarget.parse(target, loaded, against)
        relative_to, said = reference_of(reference, loaded)
        if recorded and own_reference is None and reference is not None:
            relative_to = DEFAULT_REFERENCE  # a mean, or silence: as it fits each form
        explainer = hilrp.Explainer(parsed.model(loaded), rules, relative_to)
        about = f"{loaded.name}, {loaded.weights}; rules: {rules}; {passes} pass{'es' * (passes > 1)}"
        gallery = Gallery(
            loaded, explainer, parsed, output, batch_size(batch, device), stages, fresh, said, passes, recordings,
            None if recordings is None else partial(_page_of, about),
        )  # fmt: skip
        make_folder(output)
        for each, why in problems.items():
            errors.print(f"[red]{escape(each)}[/]: {escape(why)}", highlight=False, soft_wrap=True)
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


def _recordings(kind: Kind | None, frames: int | None, series: str | None) -> Recordings:
    """How recordings are read."""
    options = {"frames": frames, "series": series}
    return Recordings(kind, {name: value for name, value in options.items() if value is not None})


def _check_recorded(arguments: list[str], sources: list[Source]) -> None:
    """Raises if pictures are among recordings: what is prepared for a model is the one or the other."""
    others = [source.path for source in sources if source.path.is_file() and not is_recording(source.path)]
    if others:
        raise InputError(
            f"{others[0]}: it is no recording, and others are. Explain pictures by a command of their own."
        )


def _page_of(about: str, found: Explanation, prepared: Prepared, title: str | None, name: str) -> str:
    """The page of a recording, which has its sliders."""
    from hilrp.pages.explained import explanation_page
    from hilrp.pages.stacks import Space

    place = {} if prepared.recording is None else prepared.recording.geometry.facts()
    spacing = place.get("spacing")
    space = Space(None if spacing is None else tuple(spacing), place.get("orientation"), place.get("rate"))
    return explanation_page(found, title, f"{name}; {about}", prepared.notes, space=space, name=name)


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
        for sentence in _sentences(outcomes) + _notes(outcomes) + _explanations(outcomes):
            console.print(escape(sentence), highlight=False)
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
    """A row for each explanation; relative to a reference with the score there and the difference of the two."""
    known = [o.facts for o in outcomes if o.facts.get("score")]
    relative = any(facts.get("relative_to") for facts in known)
    marked = [_share(facts["marked"], i) for facts in known if facts.get("marked") for i in range(len(facts["score"]))]
    table = Table(Column("image", overflow="fold"), "target", box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    # Numbers and words stay in one piece, on a terminal of 80 columns, too.
    for name in ("score", "on the reference", "difference") if relative else ("score", "pixels' share"):
        table.add_column(name, min_width=max(7, *map(len, name.split())))
    if marked:
        table.add_column("in the outline", min_width=max(map(len, marked)))
    table.add_column("residual", min_width=8)
    table.add_column("verdict", min_width=8)
    for outcome in outcomes:
        facts = outcome.facts
        for i, score in enumerate(facts.get("score", ())):
            names = facts["names"][i] if facts["names"] else ""
            names += f" rather than {facts['against_names'][i]}" if facts["against_names"] else ""
            numbers = [f"{score:.3f}"]
            if relative:
                numbers += [f"{facts[name][i]:.3f}" for name in ("reference_score", "difference")]
            else:
                numbers.append(f"{facts['pixel_share'][i]:.3f}")
            if marked:
                numbers.append(_share(facts["marked"], i) if facts.get("marked") else "")
            word = Verdict(facts["verdict"][i])
            numbers += [f"{facts['residual'][i]:.0e}", f"[{word.colour}]{word}[/]"]
            table.add_row(escape(outcome.label), escape(names), *numbers)
    return table


def _share(marked: dict[str, Any], i: int) -> str:
    """The part of what is explained that a region holds, with its standard error where it is known."""
    share, errors = marked["share"][i], marked["stderr"]
    return "" if share is None else share_text(share, None if errors is None else errors[i])


def _sentences(outcomes: list[Outcome]) -> list[str]:
    """What is said of each picture, where they are few: of more the page has it."""
    found = [f"{o.label}: {each}" for o in outcomes for each in o.facts.get("sentence", ())]
    return found if len(found) <= _SAID else []


def _notes(outcomes: list[Outcome]) -> list[str]:
    """What was odd about the pictures and recordings; of more than a few the page has it."""
    found = [f"{o.label}: {each}" for o in outcomes for each in o.facts.get("image_notes", ())]
    return found if len(found) <= _SAID else []


def _explanations(outcomes: list[Outcome]) -> list[str]:
    """What the columns mean, for who has read nothing."""
    names = list(dict.fromkeys(o.facts["relative_to"] for o in outcomes if o.facts.get("relative_to")))
    if not names:
        return []
    return [
        f"The reference is {', '.join(names)}. The difference is how much higher the score is than there; the map says "
        "where it comes from: red raises the score, blue lowers it."
    ]
