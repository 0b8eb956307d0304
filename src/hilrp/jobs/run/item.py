"""An item of a data set: where an image is, and what is known of it."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

from hilrp.util.errors import InputError, UnavailableError
from hilrp.util.regular_files import not_a_file, printable

#: An image: its ``id``, where it is (``file``, ``tar``, ``parquet``, ``hub`` or ``scene``), perhaps its ``label``,
#: ``boxes`` and ``mask``; or the ``error`` that keeps it from being read.
Item = dict[str, Any]

#: What columns and features of an image, its class and the place of its object are called.
IMAGES, LABELS, BOXES, MASKS = (
    ("image", "img", "jpg", "png"),
    ("label", "labels", "class", "cls"),
    ("boxes", "bbox", "bboxes"),
    ("mask", "segmentation"),
)


def image_file(path: Path, name: str) -> Item:
    """An image that is a file of its own; what is no file is an item with an error, and is never opened."""
    why = not_a_file(path)
    if why is not None:
        return {"id": printable(name), "file": os.path.abspath(path), "error": f"{printable(name)}: {why}"}
    return {"id": printable(name), "file": os.path.realpath(path), "size": path.stat().st_size}


def names_of(paths: list[Path]) -> list[str]:
    """What files are called: their place in the folder that they have in common."""
    real = [Path(os.path.realpath(path)) for path in paths]
    common = Path(os.path.commonpath([path.parent for path in real]))
    return [path.relative_to(common).as_posix() for path in real]


def stamp(path: Path) -> str:
    """What tells a file from another of its name, without reading all of it: its size, and how it begins and ends."""
    digest = hashlib.sha256(str(path.stat().st_size).encode())
    with path.open("rb") as file:
        digest.update(file.read(4096))
        file.seek(max(0, path.stat().st_size - 65536))
        digest.update(file.read())
    return digest.hexdigest()[:16]


def label_of(value: Any) -> Item:
    """A label as an item has it: a number or a text; nothing, if there is none."""
    if value is None or value == "":
        return {}
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    # Longer ones are no numbers of classes, and Python doesn't read them.
    digits = isinstance(value, str) and value.strip().isdecimal() and len(value.strip()) <= 18
    whole = isinstance(value, Integral) or digits
    return {"label": int(value) if whole else printable(value).strip()}


def first_of(names: Iterable[str], wanted: tuple[str, ...]) -> str | None:
    """The first of the wanted names that is among some."""
    known = set(names)
    return next((name for name in wanted if name in known), None)


def broken(path: Path, name: str, said: str, nothing: bool = False) -> Item:
    """A file or folder of a data set that can't be read, or not whole, as a row with an error.

    Raises the error instead if the data set holds ``nothing`` else.
    """
    if nothing:
        raise InputError(f"{path}: {said}")
    return {"id": printable(name), "error": f"{printable(name)}: {said}"}


def arrow(module: str) -> Any:
    """A module of pyarrow."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnavailableError("pyarrow is not installed. Install it with: pip install 'hilrp[data]'") from error


@contextmanager
def parquet_file(path: Path, **options: Any) -> Iterator[Any]:
    """A Parquet file, opened by Python: pyarrow takes no names that are not of letters."""
    module = arrow("pyarrow.parquet")
    with path.open("rb") as file, module.ParquetFile(file, **options) as opened:
        yield opened
