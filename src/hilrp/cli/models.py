"""``hilrp models`` and ``hilrp scenes``: what there is to explain, and with what."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from hilrp.cli.base import app, console, errors, fail, print_json
from hilrp.cli.options import Json
from hilrp.models.resolve import LIBRARIES, ZOO, installed, library
from hilrp.util.errors import HilrpError, InputError


@app.command()
def models(
    pattern: Annotated[
        str | None, typer.Argument(metavar="PATTERN", help="A part of the name, or a glob: 'swin', '*vit*small*'.")
    ] = None,
    place: Annotated[
        str | None, typer.Option("--library", metavar="NAME", help=f"Only of {ZOO}, {', '.join(LIBRARIES)}.")
    ] = None,
    json: Json = False,
) -> None:
    """Lists trained models by name: the zoo's, and those of libraries.

    \b
    hilrp models                      # the zoo, and how many the libraries have
    hilrp models swin                 # all whose name has it
    hilrp models "*vit*384*" --library timm

    The exit status is 1 if there are none.
    """
    try:
        if place is not None and place not in (ZOO, *LIBRARIES):
            raise InputError(f"--library {place}: choose from {ZOO}, {', '.join(LIBRARIES)}.")
        places = [ZOO, *installed()] if place is None else [place]
        glob = f"*{pattern or ''}*".lower()
        found = {each: [n for n in library(each).trained() if fnmatch(f"{each}/{n}".lower(), glob)] for each in places}
    except HilrpError as error:
        raise fail(error) from None
    if json:
        print_json([f"{each}/{name}" for each, names in found.items() for name in names])
    else:
        _show(found, whole=pattern is not None or place is not None)
    if not any(found.values()):
        errors.print(f"no trained model has {escape(repr(pattern))} in its name", highlight=False)
        raise typer.Exit(1)


def _show(found: dict[str, list[str]], whole: bool) -> None:
    if found.get(ZOO):
        table = Table(
            "model",
            "architecture",
            "parameters",
            "measured on scenes",
            title="Comes with hilrp",
            title_justify="left",
        )
        for name in found[ZOO]:
            card = library(ZOO).card(name)
            words, value = library(ZOO).figure(name)
            table.add_row(
                f"{ZOO}/{name}", card["architecture"], f"{card['parameters'] / 1e6:.2f} M", f"{words} {value:.4f}"
            )
        console.print(table)
        console.print("They recognise the objects of `hilrp scenes`, not photographs.\n")
    for each, names in found.items():
        if each == ZOO:
            continue
        if whole:
            for name in names:
                console.print(f"{each}/{name}", highlight=False, markup=False, soft_wrap=True)
        elif each == "transformers":
            console.print(
                "transformers: classifiers, segmentation models, detectors and two towers of the hub, "
                "transformers/owner/name, or in a folder"
            )
        else:
            console.print(f"{each}: {len(names)} models; `hilrp models PATTERN` lists some of them", highlight=False)


@app.command()
def scenes(
    count: Annotated[int, typer.Argument(min=1, metavar="COUNT", help="How many.")] = 8,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the pictures.")] = Path(
        "out/scenes"
    ),
    seed: Annotated[int, typer.Option(metavar="N", help="Which collection.")] = 0,
    side: Annotated[
        int,
        typer.Option("--side", min=32, metavar="N", help="Side of the pictures in pixels; the zoo takes 128."),
    ] = 128,
) -> None:
    """Draws scenes whose truth is known: pictures, masks and an index.

    The models of the zoo were trained on scenes like these. index.json lists
    the objects: the picture, the class, the box (x0, y0, x1, y1), the file of
    the mask, and the picture without that object.

    \b
    hilrp scenes 8 -o scenes
    hilrp explain scenes/images --model zoo/swin --target top3
    """
    from hilrp.scenes import Scenes
    from hilrp.scenes.folder import write

    try:
        write(Scenes(seed, count, size=side), output)
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    console.print(
        f"{count} scenes in {output}: images, masks, pictures without one object, and index.json", soft_wrap=True
    )
