"""Image files: which ones are meant, and what is in them, whatever their format."""

from __future__ import annotations

import glob
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hilrp.errors import InputError

if TYPE_CHECKING:
    from PIL import Image

#: What is taken from a folder; a file that is named itself may end as it likes.
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jp2", ".avif")


@dataclass(frozen=True)
class Source:
    """An image file, and the name that its results get, without an ending."""

    path: Path
    name: str


def find(arguments: Iterable[str | Path]) -> tuple[list[Source], dict[str, str]]:
    """The image files that are meant by files, folders (with their folders) and globs; and why some arguments mean none.

    Results of a folder's files are named by their place in it. Files whose results would have the same name get numbers.
    """
    named: dict[Path, str] = {}
    problems: dict[str, str] = {}
    for argument in map(str, arguments):
        path = Path(argument)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in ENDINGS and not _hidden(p, path))
            for each in inside:
                named.setdefault(each, each.relative_to(path).with_suffix("").as_posix())
            if not inside:
                problems[argument] = f"no images in this folder (files that end in {', '.join(ENDINGS)})."
            continue
        files = [path] if path.exists() else [Path(p) for p in sorted(glob.glob(argument, recursive=True))]
        for each in files:
            if each.is_file():
                named.setdefault(each, each.stem)
        if not files:
            problems[argument] = "no such file or folder, and no file fits it as a pattern."
    counts: dict[str, int] = {}
    for name in named.values():
        counts[name] = counts.get(name, 0) + 1
    seen: dict[str, int] = {}
    sources = []
    for path, name in named.items():
        seen[name] = seen.get(name, 0) + 1
        unique = name if counts[name] == 1 else f"{name}-{seen[name]}"
        # "scan.png.jpg" must not get the results of "scan".
        sources.append(Source(path, re.sub(r"\.(png|json|npz)$", r"_\1", unique)))
    return sources, problems


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def read(path: Path) -> tuple[Image.Image, list[str]]:
    """A file as an RGB picture, upright, and what had to be done to it that could matter.

    Transparent places become white; 16 bits become 8; of an animation the first picture is taken.
    """
    from PIL import Image, ImageOps

    notes: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata, and of sizes that are still accepted
            image: Any = Image.open(path)
            if getattr(image, "n_frames", 1) > 1:
                notes.append(f"the first of {image.n_frames} pictures was taken")
            image.load()
            upright = ImageOps.exif_transpose(image)
    except Image.DecompressionBombError as error:
        raise InputError(f"{error} Scale the image down first.") from error
    except Exception as error:  # decoders raise errors of many kinds on files that are cut short or aren't images
        raise InputError(
            f"not a readable image ({error}). Is the file complete? Formats such as DICOM have to be converted first."
        ) from error
    return _rgb(upright, notes), notes


def _rgb(image: Any, notes: list[str]) -> Image.Image:
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        high = float(values.max(initial=0.0))
        if image.mode == "F" and high <= 1:
            scale, range_ = 255.0, "values up to 1"
        elif high <= 255:
            scale, range_ = 1.0, "values up to 255"
        else:
            scale, range_ = 255 / 65535, "16 bits"
        notes.append(f"its pixels ({range_}) were scaled to 8 bits")
        image = Image.fromarray(np.clip(values * scale, 0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layered = image.convert("RGBA")
        if layered.getextrema()[3][0] < 255:
            notes.append("transparent places were filled with white")
        white = Image.new("RGBA", layered.size, "white")
        image = Image.alpha_composite(white, layered)
    rgb: Image.Image = image.convert("RGB")
    return rgb
