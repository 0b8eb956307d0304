"""Walking nested arguments: the tensors in a call's arguments and in a model's output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and mappings, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors(item)
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors(item)


def map_tensors(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """The same structure with ``function`` applied to each tensor."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        items = [map_tensors(function, item) for item in tree]
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return type(tree)(items) if type(tree) in (tuple, list, torch.Size) else tuple(items)
    if isinstance(tree, Mapping):
        mapped = {key: map_tensors(function, item) for key, item in tree.items()}
        # transformers' ModelOutput is a dataclass and a mapping at once: its fields are its arguments.
        return mapped if type(tree) is dict else type(tree)(**mapped)
    return tree
