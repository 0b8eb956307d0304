"""Image files: which ones are meant, and what is in them, whatever their format."""

from __future__ import annotations

import glob
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hilrp.util.errors import InputError
from hilrp.util.folders import Unreadable, not_a_file, walk

if TYPE_CHECKING:
    from PIL import Image

#: What is taken from a folder; a file that is named itself may end as it likes.
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jp2", ".avif")


@dataclass(frozen=True)
class Source:
    """An image file, and the name that its results get, without an ending."""

    path: Path
    name: str


def find(arguments: Iterable[str | Path], output: Path | None = None) -> tuple[list[Source], dict[str, str]]:
    """The image files that are meant by files, folders (with their folders) and globs.

    And why some arguments mean none.

    Results of a folder's files are named by their place in it. Files whose results would have the same name get
    numbers. Folders are searched without ``output``, where earlier results may be.
    """
    named: dict[Path, str] = {}
    problems: dict[str, str] = {}
    for argument in map(str, arguments):
        path = Path(argument)
        places = [path] if path.exists() else [Path(p) for p in sorted(glob.glob(argument, recursive=True))]
        found: dict[Path, str] = {}
        for place in places:
            if place.is_dir():
                inside, unread = _inside(place, output)
                found |= {p: p.relative_to(place).with_suffix("").as_posix() for p in inside}
                problems |= unread
            elif place.is_file():
                found[place] = place.stem
        for each, name in found.items():
            named.setdefault(each, name)
        if not places:
            problems[argument] = "no such file or folder, and no file fits it as a pattern."
        elif not found:
            problems[argument] = f"there are no images in it (files that end in {', '.join(ENDINGS)})."
    return _sources(named), problems


def _inside(folder: Path, output: Path | None) -> tuple[list[Path], dict[str, str]]:
    """The images in a folder and in the folders in it, but for hidden ones and those in the folder of the results.

    And why some of what is in it can't be read.
    """
    # Where the results go into the folder itself, what is an image and what a result can't be told: see `Gallery.run`.
    results = None if output is None or output.resolve() == folder.resolve() else output
    images, problems = [], {}
    for each in walk(folder, ENDINGS, results):
        why = each.why if isinstance(each, Unreadable) else not_a_file(each)
        if isinstance(each, Path) and why is None:
            images.append(each)
        else:
            problems[str(each.path if isinstance(each, Unreadable) else each)] = str(why)
    return sorted(images), problems


def _sources(named: dict[Path, str]) -> list[Source]:
    """Gives each file a name that no other has."""
    # "scan.png.jpg" must not get the results of "scan".
    plain = {path: re.sub(r"\.(png|json|npz)$", r"_\1", name) for path, name in named.items()}
    often = Counter(plain.values())
    used = {name for name, count in often.items() if count == 1}
    sources = []
    for path, name in plain.items():
        unique, number = name, 0
        while often[name] > 1 and (number == 0 or unique in used):
            number += 1
            unique = f"{name}-{number}"
        used.add(unique)
        sources.append(Source(path, unique))
    return sources


def read(path: Path | IO[bytes]) -> tuple[Image.Image, list[str]]:
    """A file, by its path or open, as an RGB picture, upright, and what had to be done to it that could matter.

    Transparent places become white; more than 8 bits become 8; of an animation the first picture is taken.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")  # of odd metadata, and of sizes that are still accepted
            frames = getattr(image, "n_frames", 1)
            image.load()
            picture, notes = as_rgb(image)
    except InputError:
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"{error} Scale the image down first.") from error
    except Exception as error:  # decoders raise errors of many kinds on files that are cut short or aren't images
        raise InputError(
            f"not a readable image ({error}). Is the file complete? Formats such as DICOM have to be converted first."
        ) from error
    return picture, ([f"the first of {frames} pictures was taken"] if frames > 1 else []) + notes


def as_rgb(image: Any) -> tuple[Image.Image, list[str]]:
    """A picture of any mode as an RGB picture, upright, and what had to be done to it that could matter."""
    from PIL import Image, ImageOps

    notes: list[str] = []
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image, notes)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layered = image.convert("RGBA")
        if layered.getextrema()[3][0] < 255:
            notes.append("transparent places were filled with white")
        image = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
    try:
        rgb: Image.Image = image.convert("RGB")
    except ValueError as error:
        raise InputError(f"pictures of mode {image.mode} can't be read. Convert it to RGB first.") from error
    return rgb, notes


def _eight_bits(image: Any, notes: list[str]) -> Any:
    """Grey values of more than 8 bits, scaled down from the range that they use."""
    import numpy as np
    from PIL import Image

    values = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise InputError("its pixels hold values that are not finite (NaN or infinite). Replace them first.")
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    if low >= 0 and high <= 1 and image.mode == "F":
        top = 1.0
    else:
        # Scanners store 10, 12 or 14 bits in 16.
        top = next((float(2**bits - 1) for bits in (8, 10, 12, 14, 16) if high < 2**bits), high)
    bottom = min(low, 0.0)
    whole = "" if (low, high) == (bottom, top) else f" as if from {bottom:g} to {top:g}"
    notes.append(f"its pixels, from {low:g} to {high:g}, were scaled to 8 bits{whole}")
    return Image.fromarray(np.clip((values - bottom) * 255 / (top - bottom), 0, 255).round().astype(np.uint8))
