"""From the labels of a data set to the classes of a model."""

from __future__ import annotations

from collections import Counter
from functools import cache, lru_cache
from typing import Any

from hilrp.models.libraries.loaded import Loaded
from hilrp.util.errors import HilrpError


def label_index(loaded: Loaded, label: Any) -> int | None:
    """The class of a label, by number, name, or name of a folder of ImageNet.

    ``None`` if the model knows none of it.
    """
    if label is None:
        return None
    names = [str(label)]
    if isinstance(label, str) and label in synsets():
        if _in_their_order(tuple(loaded.classes or ())):
            return synsets()[label]
        names = _described(label)  # a model of some of ImageNet's classes knows their names
    for name in names:
        try:
            return loaded.index(name)
        except HilrpError:
            continue
    return None


@cache
def synsets() -> dict[str, int]:
    """ImageNet's names of folders, with the numbers of their classes."""
    return {name: i for i, name in enumerate(_info().label_names())}


@lru_cache
def _in_their_order(classes: tuple[str, ...]) -> bool:
    """Whether classes are ImageNet's, in its order, as they are called by most: there are other thousands."""
    if len(classes) != len(synsets()):
        return False
    known = zip(classes, synsets(), strict=True)
    alike = sum(name == synset or not _words(name).isdisjoint(_words(_description(synset))) for name, synset in known)
    return alike > 0.9 * len(classes)


def _described(synset: str) -> list[str]:
    """What a synset is called, but for what others are called, too (a crane, a cardigan)."""
    whole = _description(synset)
    names = (name.strip() for name in (whole, *whole.split(",")))
    return [name for name in dict.fromkeys(names) if _known_as()[name.lower()] == 1]


@cache
def _known_as() -> Counter[str]:
    """How many of ImageNet's classes have a name."""
    wholes = [_description(synset) for synset in synsets()]
    return Counter(name for whole in wholes for name in _words(whole) | {whole.lower()})


def _words(names: str) -> set[str]:
    """Names that are written behind each other."""
    return {name.strip().lower() for name in names.replace("_", " ").split(",")}


def _description(synset: str) -> str:
    described: str = _info().label_name_to_description(synset)
    return described


@cache
def _info() -> Any:
    from timm.data import ImageNetInfo

    return ImageNetInfo("imagenet-1k")
