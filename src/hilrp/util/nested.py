"""Walking nested structures: the tensors in a call's arguments and in a model's output, the numbers in a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

#: What a call's arguments mostly are besides tensors and sequences.
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)


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
    elif isinstance(tree, slice):
        _collect((tree.start, tree.stop, tree.step), found)
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
    if isinstance(tree, slice):
        return slice(*(map_tensors(function, each) for each in (tree.start, tree.stop, tree.step)))
    if isinstance(tree, (tuple, list)):
        items = [map_tensors(function, item) for item in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        if hasattr(tree, "n_sequence_fields"):  # what torch.max and its like return
            return type(tree)(items)
        return type(tree)(items) if type(tree) in (tuple, list, torch.Size) else tuple(items)
    if isinstance(tree, Mapping):
        mapped = {key: map_tensors(function, item) for key, item in tree.items()}
        # transformers' ModelOutput is a dataclass and a mapping at once; other mappings become dictionaries.
        return type(tree)(**mapped) if is_dataclass(tree) else mapped
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{f.name: map_tensors(function, getattr(tree, f.name)) for f in fields(tree) if f.init})
    return tree


def map_objects(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """As `map_tensors`, also for the attributes of other objects, which are copied.

    What a model returns may be anything.

    Example:
        >>> from types import SimpleNamespace
        >>> map_objects(lambda t: t + 1, SimpleNamespace(logits=torch.zeros(1))).logits
        tensor([1.])
    """
    if isinstance(tree, (torch.Tensor, torch.nn.Module, type, *_PLAIN)) or is_dataclass(tree):
        return map_tensors(function, tree)
    if isinstance(tree, (tuple, list, Mapping)) or not hasattr(tree, "__dict__"):
        return map_tensors(function, tree)
    mapped = copy(tree)
    vars(mapped).update({name: map_tensors(function, value) for name, value in vars(tree).items()})
    return mapped


def concatenated(trees: Sequence[Any], sizes: Sequence[int]) -> Any:
    """A model's outputs for batches of these sizes as its output for all of them.

    Tensors whose first axis is that of the samples are put together; where other axes differ (as many objects as were
    found), the shorter are filled up with zeros, and whole numbers with -1. So are lists with one item for each sample.
    What is the same for all samples is taken from the first.

    Example:
        >>> parts = [{"logits": torch.ones(2, 3), "scale": 2}, {"logits": torch.zeros(1, 3), "scale": 2}]
        >>> concatenated(parts, [2, 1])["logits"].shape
        torch.Size([3, 3])
    """
    first = trees[0]
    pairs = list(zip(trees, sizes, strict=True))
    if isinstance(first, torch.Tensor):
        of_samples = first.ndim and all(t.ndim == first.ndim and len(t) == size for t, size in pairs)
        return _cat(trees) if of_samples else first
    if isinstance(first, (tuple, list)):
        if all(len(t) == n for t, n in pairs) and any(part.shape[:1] != (n,) for t, n in pairs for part in tensors(t)):
            return type(first)(item for tree in trees for item in tree)
        items = [concatenated(column, sizes) for column in zip(*trees, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if isinstance(first, Mapping):
        mapped = {key: concatenated([tree[key] for tree in trees], sizes) for key in first}
        return type(first)(**mapped) if is_dataclass(first) else mapped
    if is_dataclass(first) and not isinstance(first, type):
        names = [f.name for f in fields(first) if f.init]
        return replace(first, **{n: concatenated([getattr(tree, n) for tree in trees], sizes) for n in names})
    return first


def _cat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    widest = [max(lengths) for lengths in zip(*(part.shape[1:] for part in parts), strict=True)]
    filled = []
    for part in parts:
        if list(part.shape[1:]) != widest:
            whole = not (part.is_floating_point() or part.is_complex() or part.dtype == torch.bool)
            room = part.new_full((len(part), *widest), -1 if whole else 0)
            room[tuple(slice(n) for n in part.shape)] = part
            part = room
        filled.append(part)
    return torch.cat(filled)


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
