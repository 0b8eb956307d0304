"""Walking nested structures: the tensors in a call's arguments and in a model's output, the numbers in a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

#: What a call's arguments mostly are besides tensors and sequences.
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, slice)


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    found: list[torch.Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            _collect(item, found)
    elif isinstance(tree, _PLAIN):
        return
    elif isinstance(tree, Mapping):
        for item in tree.values():
            _collect(item, found)
    elif is_dataclass(tree) and not isinstance(tree, type):
        for field in fields(tree):
            _collect(getattr(tree, field.name), found)


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """The same structure with ``function`` applied to each tensor."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, _PLAIN):
        return tree
    if isinstance(tree, (tuple, list)):
        items = [map_tensors(function, item) for item in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return type(tree)(items) if type(tree) in (tuple, list, torch.Size) else tuple(items)
    if isinstance(tree, Mapping):
        mapped = {key: map_tensors(function, item) for key, item in tree.items()}
        # transformers' ModelOutput is a dataclass and a mapping at once; other mappings become dictionaries.
        return type(tree)(**mapped) if is_dataclass(tree) else mapped
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: map_tensors(function, getattr(tree, f.name)) for f in fields(tree) if f.init})
    return tree


def jsonable(tree: Any) -> Any:
    """The same structure as JSON has it: tuples as lists, and ``None`` for numbers that aren't finite.

    Example:
        >>> jsonable({"leak": float("nan"), "shape": (1, 2)})
        {'leak': None, 'shape': [1, 2]}
    """
    if isinstance(tree, Mapping):
        return {key: jsonable(item) for key, item in tree.items()}
    if isinstance(tree, (tuple, list)):
        return [jsonable(item) for item in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
