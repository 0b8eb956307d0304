"""``hilrp serve``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from hilrp.cli.base import app, console, errors, fail
from hilrp.cli.options import (
    Checkpoint,
    Classes,
    Device,
    MaxMegapixels,
    Models,
    Passes,
    Preset,
    Reference,
    check_device,
    one_model,
)
from hilrp.jobs.reference_text import check_passes, reference_name
from hilrp.method.rules import DEFAULT_RULES
from hilrp.models.picture_files import MEGAPIXELS, allow
from hilrp.util.errors import HilrpError


@app.command()
def serve(
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen. Default: this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0 takes any that is free.")] = 7860,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")] = False,
    token: Annotated[
        bool | None,
        typer.Option(
            "--token/--no-token",
            help="Whether the page needs a token, which is in the address that is printed. Default: beyond this "
            "machine it does.",
        ),
    ] = None,
    model: Models = None,
    checkpoint: Checkpoint = None,
    classes: Classes = None,
    rules: Preset = DEFAULT_RULES,
    reference: Reference = None,
    passes: Passes = 1,
    device: Device = "cpu",
    max_megapixels: MaxMegapixels = MEGAPIXELS,
) -> None:
    """A page to look at explanations: drop a picture, click a class.

    It runs on this machine and asks no other for anything, but for weights of
    published models. Pictures are read into memory and forgotten when the tab
    is closed. The page begins with a scene and a model of the zoo; the first
    photograph that is dropped gets the usual model for photographs.

    \b
    hilrp serve
    hilrp serve --model resnet50 --checkpoint mine.safetensors --device cuda
    hilrp serve --rules hilrp
    hilrp serve --host 0.0.0.0   # others may use it, with the printed address

    --rules, --reference (by name) and --passes are what a new tab begins with.
    It has no --target and --against, which are clicked; nor --batch, since it
    explains one picture at a time.
    """
    try:
        check_device(device)
        allow(max_megapixels)
        relative_to = reference_name(reference, rules)
        check_passes(passes, rules, relative_to)
        asked = None
        if model or checkpoint is not None or classes is not None:
            asked = one_model(model, checkpoint)
        from hilrp.app import LOOPBACK
        from hilrp.app.models import Models as Known
        from hilrp.app.relative import Start
        from hilrp.app.server import serve as run
        from hilrp.models.loading import class_names, load

        start = Start(rules, relative_to, passes)
        names = None if classes is None else class_names(classes)
        own = None if asked is None else load(*asked, names, device)
        if host not in LOOPBACK:
            whoever = (
                "whoever can reach it can use this page" if token is False else "the address is the key to this page"
            )
            errors.print(
                f"[yellow]note[/]: it listens on {escape(host)}, and {whoever}; what is sent is not encrypted.",
                highlight=False,
            )
        files = (None if asked is None else asked[1], None if classes is None else str(classes))
        known = Known(device, own, checkpoint=files[0], classes=files[1])
        run(known, host, port, lambda address: _ready(address, browser), token, start)
    except HilrpError as error:
        raise fail(error) from None


def _ready(address: str, browser: bool) -> None:
    console.print(f"Look at {address} (Ctrl+C stops it)", soft_wrap=True)
    if browser:
        import webbrowser

        webbrowser.open(address)
