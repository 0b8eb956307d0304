"""captum's forms: inputs, baselines, and targets as the place of an output among all of its sample in a row."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from hilrp.compat.asking import checked_size
from hilrp.util.errors import InputError, TargetError
from hilrp.util.nested import tensors


def flat_target(target: Any, shape: tuple[int, ...], batch: int) -> Tensor:
    """The index of each sample's output, ``[B]``, in its outputs laid out in a row.

    Args:
        target: As captum takes it.
        shape: The shape of the model's output.
        batch: The number of samples.

    Example:
        >>> flat_target([(0, 2), (1, 0)], (2, 3, 4), 2)
        tensor([2, 4])
    """
    if target is None:
        if math.prod(shape[1:]) != 1:
            raise TargetError(
                f"target: forward_func returns the shape {shape}. Say which output is explained: "
                "target=logits.argmax(1) for the predicted classes."
            )
        return torch.zeros(batch, dtype=torch.long)
    if hasattr(target, "tolist"):
        numbers = torch.as_tensor(target)
        target = numbers.tolist() if numbers.ndim == 1 and numbers.numel() > 1 else numbers.reshape(-1).tolist()
        if len(target) == 1:
            target = target[0]
    rows = target if isinstance(target, list) else [target] * batch
    if len(rows) != batch:
        raise TargetError(f"target has {len(rows)} entries for {batch} samples: give one, or one for each.")
    return torch.tensor([_flat_index(row if isinstance(row, tuple) else (row,), shape) for row in rows])


def _flat_index(index: tuple[Any, ...], shape: tuple[int, ...]) -> int:
    """One output's place among those of its sample; axes of length one need not be named."""
    sizes = shape[1:]
    if len(index) > len(sizes) or any(size != 1 for size in sizes[len(index) :]):
        raise TargetError(
            f"target={index if len(index) != 1 else index[0]!r} is no single number in an output of the shape {shape}: "
            f"give {('no target', 'a class')[len(sizes)] if len(sizes) < 2 else f'a tuple of {len(sizes)} indices'}."
        )
    place = 0
    for each, size in zip((*index, *[0] * (len(sizes) - len(index))), sizes, strict=True):
        if not isinstance(each, Integral) or isinstance(each, bool):
            raise TargetError(f"target={each!r} is a {type(each).__name__}: give whole numbers, one for each axis.")
        number = int(each)
        if not -size <= number < size:
            raise TargetError(f"target={each} is out of range: the axis of the output has {size} entries.")
        place = place * size + number % size
    return place


def checked_inputs(inputs: Any, at_layers: bool = False) -> tuple[Tensor, ...]:
    """The inputs as a tuple of tensors; whole numbers have relevance at layers alone."""
    parts = inputs if isinstance(inputs, tuple) else (inputs,)
    for i, part in enumerate(parts):
        if not isinstance(part, Tensor):
            raise InputError(f"inputs is or holds a {type(part).__name__}: give a tensor, or a tuple of tensors.")
        if not part.is_floating_point() and not at_layers:
            raise InputError(
                f"inputs[{i}] holds {part.dtype}: there is no relevance of whole numbers. Give it in "
                "additional_forward_args, where it is held fixed; of words, explain the layer that embeds them: "
                "LayerRelevance(model, model.embedding)."
            )
    if not parts:
        raise InputError("inputs is empty: give a tensor, or a tuple of tensors.")
    checked_size("inputs", parts)
    return parts


def checked_arguments(arguments: Any) -> tuple[Any, ...]:
    """What the function is given after the inputs; tensors can be held fixed as arguments of their own alone."""
    given = () if arguments is None else arguments if isinstance(arguments, tuple) else (arguments,)
    for i, each in enumerate(given):
        if not isinstance(each, Tensor) and tensors(each):
            raise InputError(
                f"additional_forward_args[{i}] is a {type(each).__name__} that holds tensors, whose rows can't be told "
                "apart by sample. Give tensors as arguments of their own, to a function that puts them together."
            )
    return given


def as_baseline(number: int, value: Any, t: Tensor) -> Tensor:
    """A baseline in the form of its input."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not t.is_floating_point() and value != int(value):
            raise InputError(f"baselines[{number}] is {value}, the input holds {t.dtype}: give a whole number.")
        return torch.full_like(t, value)
    if not isinstance(value, Tensor):
        raise InputError(f"baselines[{number}] is a {type(value).__name__}: give a number or a tensor like the input.")
    if value.shape not in (t.shape, (1, *t.shape[1:]), t.shape[1:]):
        raise InputError(
            f"baselines[{number}] has the shape {tuple(value.shape)}, the input {tuple(t.shape)}: give one like the "
            "input, one sample, or a number. For the mean over many use hilrp.compat.shap.DeepExplainer."
        )
    if value.is_floating_point() and not t.is_floating_point():
        raise InputError(f"baselines[{number}] holds {value.dtype}, the input {t.dtype}: give whole numbers.")
    return value.to(t).expand_as(t)
