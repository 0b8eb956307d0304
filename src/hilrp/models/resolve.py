"""Names of models.

``zoo/...``, ``timm/...``, ``monai/...`` and so on, for each of `LIBRARIES`; or ``module:factory``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from hilrp.util.errors import InputError, UnavailableError

#: Library -> the extra that installs it.
LIBRARIES = {
    "timm": None, "torchvision": None, "transformers": "hf", "open_clip": "clip", "monai": None,
    "segmentation_models_pytorch": None, "ultralytics": None, "torchxrayvision": None,
}  # fmt: skip
#: What has to be known of a library before it is installed.
_LICENCES = {"ultralytics": " (its licence is the AGPL-3.0, or one of its maker's)"}
#: What comes with hilrp. Its models are always named with it: a bare "swin" could be many.
ZOO = "zoo"
#: What timm's names of models on a hub begin with.
_HUB = ("hf-hub:", "hf_hub:")


def library(name: str) -> ModuleType:
    """The part of hilrp that knows a model library; an error that says what to install if that isn't there."""
    try:
        return importlib.import_module(f"hilrp.models.libraries.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("hilrp"):
            raise
        extra = LIBRARIES.get(name)
        remedy = f"pip install 'hilrp[{extra}]'" if extra else f"pip install {name}{_LICENCES.get(name, '')}"
        raise UnavailableError(f"{name} is not installed. Install it with: {remedy}") from error


def installed() -> list[str]:
    """The libraries that can be imported, all of them imported."""
    return list(_each_installed())


def _each_installed() -> Iterator[str]:
    """The same, each imported when it is come to: some take seconds."""
    for name in LIBRARIES:
        try:
            library(name)
        except UnavailableError:
            continue
        yield name


def resolve(name: str) -> tuple[str, str]:
    """The library and the model of a name; a bare name is looked for in each library in turn.

    Example:
        >>> resolve("zoo/swin"), resolve("swin_tiny_patch4_window7_224")
        (('zoo', 'swin'), ('timm', 'swin_tiny_patch4_window7_224'))
    """
    known = [*LIBRARIES, ZOO]
    if name.startswith(_HUB):
        return "timm", name
    if os.path.isfile(file := name.partition("@")[2] or name):
        raise InputError(
            f"{name}: that is a file of weights. Say of which model: hilrp.load(MODEL, checkpoint={file!r}), or "
            f"MODEL@{file} on the command line."
        )
    prefix, _, rest = name.partition("/")
    places: Iterable[str]
    places, rest = ([prefix], rest) if prefix in known else (_each_installed(), name)
    if "/" in rest and prefix not in known and not os.path.isdir(rest):
        raise UnavailableError(
            f"{name}: {prefix} is none of the libraries {', '.join(known)}. For a model of the hub, write "
            f"transformers/{name}."
        )
    wanted = []
    for each in places:
        found = library(each).find(rest)
        if found is not None:
            return each, found
        wanted.append(each)
    close = get_close_matches(rest, [one for each in wanted for one in library(each).names()], 4, 0.5)
    if prefix not in known and rest in library(ZOO).trained():
        close = [f"{ZOO}/{rest}", *close]
    if wanted == [ZOO]:
        close = [f"{ZOO}/{each}" for each in close or library(ZOO).trained()]
    hint = f" Did you mean {', '.join(close)}?" if close else " `hilrp models PATTERN` looks for names."
    raise UnavailableError(f"{name}: no model of that name in {', '.join(wanted)}.{hint}")


def is_factory(name: str) -> bool:
    """Whether it names a function of the user's."""
    return ":" in name and not name.startswith(_HUB)


def call_factory(name: str) -> Any:
    """What the function ``module:factory`` returns."""
    module_name, _, factory_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"{name}: {error}. Give the name of an importable module (from the current folder, too), a colon, and the "
            "name of a function in it."
        ) from error
    return factory()
