"""``hilrp serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from hilrp.cli.audit import check_device
from hilrp.cli.base import MaxMegapixels, app, console, errors, fail
from hilrp.models.picture_files import MEGAPIXELS, allow
from hilrp.util.errors import HilrpError


@app.command()
def serve(
    model: Annotated[
        str | None,
        typer.Option(help="The model that the page begins with; also a folder, or module:factory. Default: zoo/swin."),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Weights for it: safetensors, or a file of torch.save.")
    ] = None,
    classes: Annotated[
        Path | None, typer.Option(help="A text file with the names of its classes, one per line.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps.")] = "cpu",
    host: Annotated[str, typer.Option(help="Where to listen. Default: this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 7860,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = False,
    token: Annotated[
        bool | None,
        typer.Option(
            "--token/--no-token",
            help="Whether the page needs a token, which is in the address that is printed. Default: beyond this "
            "machine it does.",
        ),
    ] = None,
    max_megapixels: MaxMegapixels = MEGAPIXELS,
) -> None:
    """A page to look at explanations: drop a picture, click a class, look into the map.

    It runs on this machine and asks no other for anything, but for weights of published models that you choose.
    Pictures are read into memory and forgotten when the tab is closed.

    \b
    hilrp serve
    hilrp serve --model resnet50 --checkpoint mine.safetensors --classes names.txt --device cuda
    hilrp serve --host 0.0.0.0   # others may use it, with the address that is printed
    """
    try:
        check_device(device)
        allow(max_megapixels)
        from hilrp.app import LOOPBACK
        from hilrp.app.models import Models
        from hilrp.app.server import serve as run
        from hilrp.models.loading import class_names, load

        if model is None and (checkpoint is not None or classes is not None):
            raise HilrpError("--checkpoint and --classes are for the model of --model. Give it, too.")
        names = None if classes is None else class_names(classes)
        own = None if model is None else load(model, checkpoint, names, device)
        if host not in LOOPBACK:
            whoever = (
                "whoever can reach it can use this page" if token is False else "the address is the key to this page"
            )
            errors.print(
                f"[yellow]note[/]: it listens on {escape(host)}, and {whoever}; what is sent is not encrypted.",
                highlight=False,
            )
        files = [None if path is None else str(path) for path in (checkpoint, classes)]
        run(
            Models(device, own, checkpoint=files[0], classes=files[1]),
            host,
            port,
            lambda address: _ready(address, browser),
            token,
        )
    except HilrpError as error:
        raise fail(error) from None


def _ready(address: str, browser: bool) -> None:
    console.print(f"Look at {address} (Ctrl+C stops it)", soft_wrap=True)
    if browser:
        import webbrowser

        webbrowser.open(address)
