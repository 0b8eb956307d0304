"""Options that several commands share, declared once.

They have one name, one default, one help and one meaning. Which command has which, and why one lacks some, is in
docs/command_line.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from hilrp.attribution.references import NAMED
from hilrp.method.rules import PRESETS
from hilrp.models.loading import DEFAULT_MODEL, split_name
from hilrp.models.picture_files import MEGAPIXELS
from hilrp.models.resolve import ZOO
from hilrp.util.errors import InputError
from hilrp.zoo.architectures import ARCHITECTURES, OTHERS

#: Under which heading of --help options stand.
_MODEL, _QUESTION, _COMPUTING = "Model", "Explanation", "Computing"
_TYPES = ("float64", "float32", "bfloat16", "float16")
#: What completion offers for --target.
_TARGETS = ("prediction", "label", "top3", "top5", "view", "text:", "region:", "detection:")

Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="zoo/swin and its like come with hilrp; others are of timm, torchvision, transformers or open_clip (see "
        "`hilrp models`), or module:factory, a function of yours. Its weights may follow: NAME@FILE. Commands that "
        f"compare take it several times. Default: {DEFAULT_MODEL}; for scenes, models of the zoo.",
        autocompletion=lambda: [f"{ZOO}/{name}" for name in (*ARCHITECTURES, *OTHERS)],
        rich_help_panel=_MODEL,
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="FILE",
        help="Weights of the model: a safetensors file, or one of torch.save. Default: the published ones.",
        rich_help_panel=_MODEL,
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        "--classes",
        metavar="FILE",
        help="A text file with the names of the classes, one per line, for a model of your own.",
        rich_help_panel=_MODEL,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="TEXT",
        help="'prediction', or a class by name or index. For data sets also 'label', their own class. For single "
        "pictures also 'top5', the five strongest classes (top1 to top10); 'view', what makes the picture and its "
        "mirror image alike; 'text:CAPTION'; 'region:MASK.png:CLASS' or 'region:LEFT,TOP,RIGHT,BOTTOM:CLASS'; "
        "'detection:CLASS' or 'detection:QUERY[:CLASS or side]'.",
        autocompletion=lambda: list(_TARGETS),
        rich_help_panel=_QUESTION,
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="CLASS",
        help="Why the target rather than this class, or the word of an answer rather than this word: explains the "
        "difference of the two.",
        rich_help_panel=_QUESTION,
    ),
]
Preset = Annotated[
    str,
    typer.Option(
        "--rules",
        metavar="NAME",
        help=f"One of {', '.join(PRESETS)}. secant explains a difference to a reference; hilrp is the paper's "
        "preset, without one.",
        autocompletion=lambda: list(PRESETS),
        rich_help_panel=_QUESTION,
    ),
]
Reference = Annotated[
    str | None,
    typer.Option(
        "--reference",
        metavar="NAME|FILE",
        help=f"What the score is compared with: {', '.join(NAMED)}, or an image file. The pixels hold the whole "
        "difference to the score there. Default: each picture's mean colour; with rules but secant, none.",
        autocompletion=lambda: list(NAMED),
        rich_help_panel=_QUESTION,
    ),
]
Passes = Annotated[
    int,
    typer.Option(
        "--passes",
        metavar="N",
        min=1,
        help="More passes (4, 8, 16, ...) give a truer map that sums to the same difference: from 8 on with errors of "
        "pixels and regions, from 16 on with that of the marked region.",
        rich_help_panel=_QUESTION,
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="A method instead of those that are usual here; options may follow: grad-cam, rise:masks=200, "
        "secant:passes=8, rules:zplus, ... May be repeated.",
        rich_help_panel=_QUESTION,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="NAME", help="Where models run: cpu, cuda, cuda:1, mps.", rich_help_panel=_COMPUTING
    ),
]
Batch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        metavar="N",
        min=1,
        help="Explanations at once; fewer where memory doesn't suffice. Default: 16, on a GPU 64.",
        rich_help_panel=_COMPUTING,
    ),
]
#: How large pictures may be, of every command that reads files of anybody's.
MaxMegapixels = Annotated[
    int,
    typer.Option(
        "--max-megapixels",
        metavar="N",
        min=1,
        max=100_000,
        help="Larger pictures are refused before they are decoded, and files of more than 4 bytes for each of these "
        f"pixels; JPEGs of more than {MEGAPIXELS} are decoded at half their width and height.",
        rich_help_panel=_COMPUTING,
    ),
]
Samples = Annotated[
    int,
    typer.Option("--samples", metavar="N", min=1, help="How many random pictures.", rich_help_panel=_COMPUTING),
]
Size = Annotated[
    int | None,
    typer.Option(
        "--size",
        metavar="N",
        min=1,
        help="Side of the pictures in pixels, for models that can take another than their own.",
        rich_help_panel=_COMPUTING,
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="TYPE",
        help=f"{', '.join(_TYPES)}. Default: float32; of a function of yours, what it returns.",
        rich_help_panel=_COMPUTING,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


def named_models(
    names: Sequence[str] | None, checkpoint: Path | None, default: Sequence[str] = (DEFAULT_MODEL,)
) -> tuple[str, ...]:
    """The models that are asked for, or the usual ones, each with its checkpoint after an @.

    Example:
        >>> named_models(["zoo/vit", "zoo/swin@a.safetensors", "zoo/vit"], None)
        ('zoo/vit', 'zoo/swin@a.safetensors')
        >>> named_models(["zoo/vit"], Path("b.safetensors"))
        ('zoo/vit@b.safetensors',)
    """
    found = tuple(dict.fromkeys(names or default))
    if checkpoint is None:
        return found
    if len(found) > 1:
        raise InputError(
            f"--checkpoint {checkpoint}: of which of the {len(found)} models is it? Write --model NAME@FILE for each."
        )
    model, own = split_name(found[0])
    if own is not None:
        raise InputError(
            f"--checkpoint {checkpoint}: --model {found[0]} has a checkpoint already. Leave one of them out."
        )
    return (f"{model}@{checkpoint}",)


def one_model(
    names: Sequence[str] | None, checkpoint: Path | None, default: str = DEFAULT_MODEL
) -> tuple[str, str | None]:
    """The model that is asked for and its checkpoint, where a command takes a single one."""
    found = named_models(names, checkpoint, (default,))
    if len(found) > 1:
        raise InputError(f"--model {', '.join(found)}: one model is explained here. Run it once for each of them.")
    return split_name(found[0])


def batch_size(batch: int | None, device: str) -> int:
    """How many explanations are made at once."""
    return batch or (64 if device.partition(":")[0] == "cuda" else 16)


def precision(name: str) -> torch.dtype:
    """A floating-point type by its name."""
    if name not in _TYPES:
        raise InputError(f"--dtype {name}: use one of {', '.join(_TYPES)}.")
    found: torch.dtype = getattr(torch, name)
    return found


def check_device(name: str) -> None:
    """Raises if nothing can be put there."""
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"--device {name} can't be used: {str(error).splitlines()[0]} Use cpu, or a device that torch sees."
        ) from error


def folder_name(text: str) -> str:
    """A text as the name of a folder.

    Example:
        >>> folder_name("timm/vit@a b.pt")
        'timm-vit-a-b.pt'
    """
    return re.sub(r"[^\w.-]+", "-", text)
