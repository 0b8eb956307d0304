"""Samples as arrays, tables and tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hilrp.util.errors import InputError


def column_names(given: Any) -> list[str] | None:
    """The names of a pandas DataFrame's columns; of other things ``None``."""
    return [str(column) for column in given.columns] if hasattr(given, "columns") else None


def as_tensor(name: str, given: Any, place: Tensor) -> Tensor:
    """Samples as a tensor on a device.

    Args:
        name: What they are called in errors.
        given: A tensor, an array or a pandas DataFrame.
        place: A tensor of the model's type, on its device. Arrays get that type, tensors keep theirs.

    Example:
        >>> as_tensor("X", np.ones((2, 3)), torch.empty(0)).dtype
        torch.float32
    """
    if column_names(given) is not None:
        given = given.to_numpy(dtype=float)
    if isinstance(given, np.ndarray) and given.dtype.kind not in "biuf":
        raise InputError(f"{name} holds {given.dtype}: give numbers.")
    if isinstance(given, np.ndarray):
        given = torch.from_numpy(np.ascontiguousarray(given))
        given = given.to(place.dtype) if given.is_floating_point() else given
    if not isinstance(given, Tensor):
        raise InputError(
            f"{name} is a {type(given).__name__}: give a tensor, an array or a DataFrame of samples"
            + (", or the name of a reference." if name == "data" else ".")
        )
    if not given.is_floating_point():
        raise InputError(
            f"{name} holds {given.dtype}: there is no relevance of whole numbers. Give {name}.float() if they are "
            "quantities; of words, give the model their embeddings."
        )
    return given.detach().to(place.device)


def as_array(t: Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array; of bfloat16, which numpy lacks, in float32.

    Example:
        >>> as_array(torch.zeros(2, dtype=torch.bfloat16)).dtype
        dtype('float32')
    """
    t = t.detach().cpu()
    array: np.ndarray[Any, Any] = (t.float() if t.dtype == torch.bfloat16 else t).numpy()
    return array


def repeated(count: int, t: Tensor) -> Tensor:
    """All samples, so many times one after the other."""
    return t.repeat(count, *[1] * (t.ndim - 1))


def channels_last(values: np.ndarray[Any, Any], axes: int) -> np.ndarray[Any, Any]:
    """Values of pictures ``[N,C,H,W,...]`` as ``[N,H,W,C,...]``; others as they are.

    Example:
        >>> channels_last(np.zeros((2, 3, 8, 8, 5)), axes=4).shape
        (2, 8, 8, 3, 5)
    """
    return np.moveaxis(values, 1, 3) if axes == 4 else values
