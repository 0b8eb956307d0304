"""Which models a coverage run audits."""

from __future__ import annotations

import json
from importlib import resources

from hilrp.models.resolve import LIBRARIES, library
from hilrp.util.errors import InputError


def catalogue(name: str, everything: bool = False) -> list[str]:
    """Full names of a library's models: one of each kind, or all of them.

    Example:
        >>> "timm/swin_tiny_patch4_window7_224" in catalogue("timm"), len(catalogue("timm", everything=True)) > 1000
        (True, True)
    """
    if name not in LIBRARIES:
        raise InputError(f"{name}: not a library that hilrp knows. Choose from {', '.join(LIBRARIES)}.")
    known = library(name)
    if everything or name == "transformers":
        chosen = known.names()
    elif name == "timm":
        chosen = list(representatives().values())
    else:
        chosen = known.kinds()
    return [f"{name}/{each}" for each in chosen]


def representatives() -> dict[str, str]:
    """For each module of timm its smallest model."""
    listed = json.loads((resources.files("hilrp.jobs.coverage") / "representatives.json").read_text())
    timm = library("timm")
    # A version of timm may have modules that the list doesn't know, and lack others.
    return {
        module: listed[module] if listed.get(module) in names else smallest(names)
        for module, names in timm.modules().items()
    }


def smallest(names: list[str]) -> str:
    """The model of timm with the fewest parameters."""
    parameters = library("timm").parameters
    return min(names, key=lambda name: (parameters(name), name))
