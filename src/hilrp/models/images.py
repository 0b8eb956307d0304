"""Image files: which ones are meant, and what is in them, whatever their format."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hilrp.models.picture_files import MEGAPIXELS, allowed, is_animated, is_reduced, opened
from hilrp.util.errors import InputError
from hilrp.util.folders import Unreadable, walk
from hilrp.util.regular_files import not_a_file

if TYPE_CHECKING:
    from PIL import Image

#: What is taken from a folder; a file that is named itself may end as it likes.
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".jp2", ".avif")
#: About so many pixels are turned into RGB at once.
_STRIP = 2**22
#: The longest short side that is expected of a model's input.
_SHORT = 1024
_WHITE = "transparent places were filled with white"


@dataclass(frozen=True)
class Source:
    """An image file, and the name that its results get, without an ending."""

    path: Path
    name: str


def find(
    arguments: Iterable[str | Path], output: Path | None = None, endings: tuple[str, ...] = ENDINGS
) -> tuple[list[Source], dict[str, str]]:
    """The image files that are meant by files, folders (with their folders) and globs.

    And why some arguments mean none. With other ``endings`` these are what is taken from folders.

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
                inside, unread = _inside(place, output, endings)
                found |= {p: p.relative_to(place).with_suffix("").as_posix() for p in inside}
                problems |= unread
            elif place.is_file():
                found[place] = place.stem
        for each, name in found.items():
            named.setdefault(each, name)
        others = [place for place in places if not place.is_dir() and not place.is_file()]
        if not places:
            problems[argument] = "no such file or folder, and no file fits it as a pattern."
        elif others and not found:
            problems[argument] = "it is a pipe, a device or a socket, and no file. Give image files or folders."
        elif not found:
            problems[argument] = f"there are no images in it (files that end in {', '.join(endings)})."
    return sources_of(named), problems


def _inside(folder: Path, output: Path | None, endings: tuple[str, ...]) -> tuple[list[Path], dict[str, str]]:
    """The images in a folder and in the folders in it, but for hidden ones and those in the folder of the results.

    And why some of what is in it can't be read.
    """
    # Where the results go into the folder itself, what is an image and what a result can't be told: see `Gallery.run`.
    results = None if output is None or _real(output) == _real(folder) else output
    images, problems = [], {}
    for each in walk(folder, endings, results):
        why = each.why if isinstance(each, Unreadable) else not_a_file(each)
        if isinstance(each, Path) and why is None:
            images.append(each)
        else:
            problems[str(each.path if isinstance(each, Unreadable) else each)] = str(why)
    return sorted(images), problems


def _real(path: Path) -> Path:
    """Where a path leads to; `Path.resolve` raises where links lead in a circle."""
    return Path(os.path.realpath(path))


def sources_of(named: dict[Path, str]) -> list[Source]:
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


def read(source: Path | IO[bytes], reduce: bool = True) -> tuple[Image.Image, list[str]]:
    """A file, by its path or open, as an RGB picture, upright, and what had to be done to it that could matter.

    Transparent places become white; more than 8 bits become 8; of an animation the first picture is taken.

    Args:
        source: The file. What it may hold, and how much, is decided in `hilrp.models.picture_files`.
        reduce: Decode JPEGs that are larger than any model looks at (more than 70 megapixels) at half their width and
            height. Not where something else is known in pixels of the picture: boxes, for instance.
    """
    with opened(source, reduce) as image:
        _check_proportions(image)
        notes = ["it was decoded at half its width and height, since it is very large"] if is_reduced(image) else []
        image.load()
        picture = _flattened(_upright(image, notes, in_place=True), notes)
        return picture, (["the first of several pictures was taken"] if is_animated(image) else []) + notes


def as_rgb(image: Any) -> tuple[Image.Image, list[str]]:
    """A picture of any mode as an RGB picture, upright, and what had to be done to it that could matter."""
    notes: list[str] = []
    image.load()
    return _flattened(_upright(image, notes), notes), notes


def _check_proportions(image: Image.Image) -> None:
    """Raises if a picture is so narrow that it would be too large once its short side is as long as models take it."""
    most = max(allowed(), MEGAPIXELS * 10**6)  # whoever allows less means large pictures
    if max(image.size) * _SHORT**2 > most * min(image.size):
        raise InputError(
            f"it is {image.width} x {image.height}, too narrow: with a short side of {_SHORT} pixels it would be too "
            "large. Crop it first, or allow more with --max-megapixels."
        )


def _upright(image: Any, notes: list[str], in_place: bool = False) -> Any:
    """A picture turned as its metadata say, where they can be read."""
    from PIL import ImageOps

    try:
        turned: Any = ImageOps.exif_transpose(image, in_place=True) if in_place else ImageOps.exif_transpose(image)
    except Exception:  # metadata are anybody's
        notes.append("its metadata can't be read: if it is not upright, it stays so")
        turned = None
    return image if turned is None else turned


def _flattened(image: Any, notes: list[str]) -> Image.Image:
    """A picture of any mode in RGB, without metadata.

    It is made strip by strip: on the way a picture may take many times the memory that it has in the end.
    """
    import numpy as np
    from PIL import Image

    scale = _Scale.of(image, notes) if image.mode.startswith("I") or image.mode == "F" else None
    rgb = Image.new("RGB", image.size)
    for box in _strips(image):
        part = image.crop(box)
        if scale is not None:
            part = Image.fromarray(scale(np.asarray(part)))
        if part.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in part.info:
            layered = part.convert("RGBA")
            if layered.getextrema()[3][0] < 255 and _WHITE not in notes:
                notes.append(_WHITE)
            part = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
        try:
            rgb.paste(part.convert("RGB"), box)
        except ValueError as error:
            raise InputError(f"pictures of mode {image.mode} can't be read. Convert it to RGB first.") from error
    return rgb


def _strips(image: Any) -> Iterator[tuple[int, int, int, int]]:
    """The whole width of a picture, some rows at a time: left, top, right, bottom."""
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        yield 0, top, image.width, min(top + rows, image.height)


@dataclass(frozen=True)
class _Scale:
    """Grey values of more than 8 bits, scaled down from the range that they use."""

    bottom: float
    top: float

    @staticmethod
    def of(image: Any, notes: list[str]) -> _Scale:
        import numpy as np

        low = high = 0.0
        for box in _strips(image):
            values = np.asarray(image.crop(box))
            if not np.isfinite(values).all():
                raise InputError("its pixels hold values that are not finite (NaN or infinite). Replace them first.")
            low, high = min(low, float(values.min())), max(high, float(values.max()))
        if low >= 0 and high <= 1 and image.mode == "F":
            top = 1.0
        else:
            # Scanners store 10, 12 or 14 bits in 16.
            top = next((float(2**bits - 1) for bits in (8, 10, 12, 14, 16) if high < 2**bits), high)
        bottom = min(low, 0.0)
        whole = "" if (low, high) == (bottom, top) else f" as if from {bottom:g} to {top:g}"
        notes.append(f"its pixels, from {low:g} to {high:g}, were scaled to 8 bits{whole}")
        return _Scale(bottom, top)

    def __call__(self, values: Any) -> Any:
        import numpy as np

        scaled = (values.astype(np.float64) - self.bottom) * 255 / (self.top - self.bottom)
        return np.clip(scaled, 0, 255).round().astype(np.uint8)
