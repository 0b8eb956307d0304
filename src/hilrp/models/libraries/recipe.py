"""What a library returns for a name: a model, something to feed it, and the score to explain."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hilrp.models.libraries import connection
from hilrp.targets import logits_of
from hilrp.util.errors import InputError


def strongest(output: Any) -> Tensor:
    """The largest class score of each sample; where there is one per place or token, these are averaged first.

    Example:
        >>> strongest(torch.tensor([[1.0, 4.0]])), strongest(torch.ones(2, 5, 8, 8)).shape
        (tensor([4.]), torch.Size([2]))
    """
    scores = logits_of(output)
    if scores.ndim == 3:
        scores = scores.mean(1)
    elif scores.ndim > 3:
        scores = scores.flatten(2).mean(2)
    return scores.gather(1, scores.detach().argmax(1, keepdim=True)).squeeze(1)


def images(size: int | tuple[int, ...]) -> Callable[[int], Tensor]:
    """Random images ``[batch, 3, size, size]``, or of the given shape."""
    shape = (3, size, size) if isinstance(size, int) else size
    return lambda batch: torch.randn(batch, *shape)


@dataclass(frozen=True)
class Recipe:
    """A model as its library builds it.

    Attributes:
        model: The model.
        inputs: From a batch size to random inputs of the right form.
        target: What of the output is explained.
        max_batch: The largest batch that the target can tell apart.
    """

    model: nn.Module
    inputs: Callable[[int], Any]
    target: Callable[[Any], Tensor] = strongest
    max_batch: int | None = None


_Made = TypeVar("_Made")


def download(name: str, make: Callable[[], _Made], url: str | None = None) -> _Made:
    """Runs ``make``, which may need the network, and says so if that fails; without a connection, at once.

    Args:
        name: The model, or a folder with one.
        make: Makes it, from what its library's cache has or from the network.
        url: Where its weights are, if that isn't the hub.
    """
    # The hub's client tells of each attempt; the message below says it once.
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.CRITICAL)
    away: str | None = None
    try:
        if url is not None:
            away = None if connection.in_cache(url) else connection.unreachable(url)
            if away:
                raise ConnectionError("they are not in the cache")
            with connection.weights_only():
                return make()
        endpoint = None if os.path.isdir(name) else connection.hub()
        away = connection.unreachable(endpoint) if endpoint else None
        with connection.cache_only() if away else nullcontext(), connection.weights_only():
            return make()
    except Exception as error:  # the hubs' clients raise errors of many libraries
        reason = " ".join(str(error).split()) or "no reason given"
        said = f"({f'{away}; ' if away else ''}{type(error).__name__}: {reason[:300]})"
        if os.path.isdir(name):
            raise InputError(
                f"{name}: that folder can't be loaded {said}. It must be one that transformers saved."
            ) from error
        raise InputError(
            f"{name}: its published weights could not be loaded {said}. Check the connection. Without one: give a "
            "file with its weights (checkpoint=, --checkpoint), use a model that comes with hilrp (zoo/swin, ...), "
            "or, for an audit, random weights."
        ) from error
    finally:
        log.setLevel(level)


def keyword(name: str, make: Callable[[int], Tensor], **constants: Tensor) -> Callable[[int], Mapping[str, Any]]:
    """Inputs by keyword: one that is explained, and constants that are repeated for each sample."""
    return lambda batch: {name: make(batch)} | {k: v.expand(batch, *v.shape) for k, v in constants.items()}
