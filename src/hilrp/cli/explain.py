"""``hilrp explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import hilrp
from hilrp.cli.base import app, console, fail
from hilrp.errors import HilrpError, InputError


@app.command()
def explain(
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    model: Annotated[str, typer.Option(help="A timm model name.")] = "tiny_vit_5m_224.dist_in22k_ft_in1k",
    checkpoint: Annotated[
        Path | None, typer.Option(help="A safetensors file. Without it timm downloads the published weights.")
    ] = None,
    target: Annotated[int | None, typer.Option(help="Class index. Default: the predicted class.")] = None,
    rules: Annotated[str, typer.Option(help=f"One of {', '.join(hilrp.PRESETS)}.")] = "hilrp",
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the results.")] = Path("out/explain"),
) -> None:
    """Explains images: per image a figure, the arrays (npz) and the figures behind them (json)."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        network, transform = _load(model, checkpoint)
        explainer = hilrp.Explainer(network, rules)
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    table = Table("image", "class", "score", "pixels' share", "residual")
    failed = 0
    for path in images:
        try:
            found = explainer.explain(transform(_read(path)).unsqueeze(0), target)
            found.save(output / _name(path, images))
        except (HilrpError, OSError) as error:
            failed += 1
            console.print(f"[red]{escape(str(path))}[/]: {escape(str(error))}", highlight=False)
            continue
        assert found.target is not None
        ledger = found.ledger
        figures = (f"{float(found.score[0]):.3f}", f"{float(ledger.share[0]):.3f}", f"{float(ledger.residual[0]):.0e}")
        table.add_row(path.name, str(int(found.target[0])), *figures)
    console.print(table)
    console.print(f"{len(images) - failed} of {len(images)} written to {output}")
    if failed:
        raise typer.Exit(1)


def _load(name: str, checkpoint: Path | None) -> tuple[Any, Any]:
    """A timm model in evaluation mode and its own preprocessing."""
    import timm
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not timm.is_model(name):
        close = ", ".join(timm.list_models(f"*{name.split('_')[0]}*")[:5])
        raise InputError(f"--model {name}: timm has no such model. {f'Did you mean one of {close}?' if close else ''}")
    try:
        model = timm.create_model(name, pretrained=checkpoint is None).eval()
    except Exception as error:  # the hub's client raises errors of many libraries
        raise InputError(
            f"--model {name}: its published weights could not be loaded ({type(error).__name__}). Without a connection, "
            "pass a local safetensors file with --checkpoint."
        ) from error
    if checkpoint is not None:
        try:
            weights = load_file(checkpoint)
        except (OSError, SafetensorError) as error:
            raise InputError(f"--checkpoint {checkpoint}: not a readable safetensors file ({error}).") from error
        head = getattr(model, "default_cfg", {}).get("classifier")
        if isinstance(head, str) and f"{head}.weight" in weights and hasattr(model, "reset_classifier"):
            model.reset_classifier(weights[f"{head}.weight"].shape[0])
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            lines = str(error).splitlines()[1:]
            raise InputError(
                f"--checkpoint {checkpoint} does not fit --model {name}: {' '.join(lines)[:300]} ..."
            ) from error
    config = timm.data.resolve_data_config({}, model=model)
    return model.eval(), timm.data.create_transform(**config)


def _read(path: Path) -> Any:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        return ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise InputError(f"not a readable image ({error}).") from error


def _name(path: Path, images: list[Path]) -> str:
    """The image's name without its ending; its place in the list goes with it where another has the same."""
    alike = [other for other in images if other.stem == path.stem]
    return path.stem if len(alike) == 1 else f"{path.stem}-{images.index(path) + 1}"
