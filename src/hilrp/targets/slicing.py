"""A target for some of the samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hilrp.targets.classes import Contrast, Target
from hilrp.targets.dense import Detection, Keypoint, Mask, Missed, Region
from hilrp.targets.embeddings import Cosine, Direction
from hilrp.util.errors import TargetError


def part_of(target: Target, part: slice, batch: int, places: int = 2) -> Target:
    """The same question to some of ``batch`` samples: of what it holds for each of them, theirs.

    Functions of the output stay as they are, and so do targets of the user's own that need the input: they are given
    that of the part. Pictures have two axes of ``places``, volumes three.

    Example:
        >>> part_of([4, 5, 6], slice(1, 3), 3), part_of(Contrast([4, 5, 6], 2), slice(0, 1), 3)
        (tensor([5, 6]), Contrast(wanted=tensor([4]), other=2))
    """

    def classes(value: Any, name: str) -> Any:
        return _cut(value, part, batch, name, alone=False)

    if isinstance(target, Contrast):
        return replace(target, wanted=classes(target.wanted, "wanted"), other=classes(target.other, "other"))
    if isinstance(target, (Cosine, Direction)):
        return replace(target, vector=_cut(target.vector, part, batch, "vector", axes=2))
    if isinstance(target, Region):
        mask = _cut(target.mask, part, batch, "mask", axes=places + 1)
        return replace(target, label=classes(target.label, "label"), mask=mask)
    if isinstance(target, Detection):
        query = _cut(target.query, part, batch, "query")
        return replace(target, label=classes(target.label, "label"), query=query)
    if isinstance(target, Missed):
        other = target.against if isinstance(target.against, str) else classes(target.against, "against")
        return replace(target, label=classes(target.label, "label"), against=other)
    if isinstance(target, (Mask, Keypoint)):
        return replace(target, query=_cut(target.query, part, batch, "query"))
    if callable(target) or hasattr(target, "prepare"):
        return target
    return classes(target, "target")


def _cut(value: Any, part: slice, batch: int, name: str, axes: int = 1, alone: bool = True) -> Any:
    """What is meant for all samples as it is; of one for each, those of the part.

    Args:
        value: What may be one for each sample.
        part: Which samples.
        batch: How many there are in all.
        name: What it is called in errors.
        axes: How many axes one for each sample has; with one, more are flattened.
        alone: Whether a row of one is meant for all samples.
    """
    if value is None:
        return None
    try:
        rows = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return value  # what is wrong with it the target itself says best
    if axes == 1 and rows.ndim:
        rows = rows.reshape(-1)
    if rows.ndim < axes or (alone and len(rows) == 1):
        return value
    # A part may have the length that the whole should have: it has to be said here.
    if len(rows) != batch:
        raise TargetError(f"{name} has {len(rows)} values for a batch of {batch}: give one, or one per sample.")
    return rows[part]
