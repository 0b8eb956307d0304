"""Weights from checkpoints in models: what fits, and what doesn't."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hilrp.models.checkpoint_files import State, shortened
from hilrp.util.errors import InputError
from hilrp.util.regular_files import printable


def fitted(
    make: Callable[[int | None], nn.Module],
    state: State,
    name: str,
    checkpoint: str | Path,
    translate: Callable[[State, nn.Module], State] | None = None,
    own_classes: int | None = None,
) -> nn.Module:
    """A model with the weights of a checkpoint, and with as many classes as that has.

    Args:
        make: Makes the model with its own number of classes, or with that many.
        state: The weights.
        name: The model's name, for the message if they don't fit.
        checkpoint: The file, likewise.
        translate: From another format of the weights to the model's own, tried if they don't fit as they are.
        own_classes: The model's own number of classes, where its layers may hold several values for each (a box,
            several anchors).
    """
    model, problem = _fill(make, state, own_classes)
    if problem and translate is not None:
        try:
            model, still = _fill(make, translate(dict(state), make(None)), own_classes)
        except (
            Exception
        ):  # written for the published files, it may stumble over any other: those are reported as they are
            still = problem
        problem = problem if still else ""
    if problem:
        raise InputError(
            f"checkpoint {printable(Path(checkpoint))} does not fit {name}: {problem}. Give the name of the model that "
            "it was saved from."
        )
    return model


def _fill(
    make: Callable[[int | None], nn.Module], state: State, own_classes: int | None = None
) -> tuple[nn.Module, str]:
    """A model with these weights, or with what doesn't fit.

    A model is made only if it is no larger than its architecture, or if the weights have the shapes that it would have.
    """
    model = make(None)
    own = _kinds(model)
    classes = _classes(own, state, own_classes)
    if classes is not None and classes.stored > classes.own:
        grown = _grown(own, _kinds(make(classes.own + 1)), classes)
        if _difference(grown, state):
            return model, _difference(own, state)
    if classes is not None:
        model = make(classes.stored)
    problem = _difference(_kinds(model), state)
    if not problem:
        try:
            model.load_state_dict(state, strict=False)
        except RuntimeError as error:  # numbers that torch stores, but can't copy
            problem = f"its weights can't be taken over ({shortened(str(error))})"
    elif classes is not None:  # then it wasn't the number of classes
        problem = _difference(own, state)
    return model, problem


class _Kind(NamedTuple):
    """The shape of a tensor, and what numbers it holds."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class _Classes(NamedTuple):
    """How many classes an architecture has by itself, and how many a checkpoint has."""

    own: int
    stored: int


def _kinds(model: nn.Module) -> dict[str, _Kind]:
    return {n: _Kind(tuple(v.shape), v.dtype) for n, v in model.state_dict().items() if isinstance(v, Tensor)}


def _grown(own: Mapping[str, _Kind], one_more: Mapping[str, _Kind], classes: _Classes) -> dict[str, _Kind]:
    """What a model of so many classes holds, told from its own and one with one more: each class adds the same."""
    more = classes.stored - classes.own

    def sizes(name: str) -> tuple[int, ...]:
        pairs = zip(own[name].shape, one_more[name].shape, strict=True)
        return tuple(a + (b - a) * more for a, b in pairs)

    return {name: _Kind(sizes(name), own[name].dtype) for name in own if name in one_more}


def _classes(own: Mapping[str, Any], state: State, own_classes: int | None = None) -> _Classes | None:
    """The architecture's and the checkpoint's number of classes, where it alone is different.

    Example:
        >>> own, state = ({"scores": torch.ones(n), "boxes": torch.ones(4 * n)} for n in (10, 3))
        >>> _classes(own, state), _classes(own, state, 10)
        (None, _Classes(own=10, stored=3))
    """
    pairs = [(own[n].shape, state[n].shape) for n in own if n in state and own[n].shape != state[n].shape]
    sizes = {(a[0], b[0]) for a, b in pairs if len(a) == len(b) > 0 and a[1:] == b[1:] and a[0] and b[0]}
    # As many for each class in both: 4 x 10 and 4 x 3 are 10 and 3 classes.
    counts = {Fraction(b * (own_classes or a), a) for a, b in sizes}
    count = next(iter(counts)) if len(counts) == 1 and (own_classes or len(sizes) == 1) else None
    if count is None or count.denominator > 1:
        return None
    return _Classes(own_classes or next(iter(sizes))[0], int(count))


def _difference(own: Mapping[str, _Kind], state: State) -> str:
    """Which names, shapes or kinds of numbers don't agree; empty if all do."""
    # Counters of batch normalisation, which old checkpoints lack; evaluation doesn't use them.
    missing = [n for n in own if n not in state and not n.endswith("num_batches_tracked")]
    unknown = [shortened(n) for n in state if n not in own]
    both = [(n, own[n], state[n]) for n in own if n in state]
    shapes = [
        f"{n} {tuple(value.shape)} instead of {kind.shape}" for n, kind, value in both if kind.shape != value.shape
    ]
    numbers = [f"{n} {value.dtype} instead of {kind.dtype}" for n, kind, value in both if not _castable(value, kind)]
    kinds = (
        ("it lacks", missing),
        ("the model has no", unknown),
        ("other shapes:", shapes),
        ("other numbers:", numbers),
    )
    return "; ".join(f"{what} {_few(names)}" for what, names in kinds if names)


def _castable(value: Tensor, kind: _Kind) -> bool:
    """Whether a tensor holds such numbers, perhaps more or less exact ones: whole ones are no weights."""
    if kind.dtype.is_floating_point or kind.dtype.is_complex:
        return (value.is_floating_point(), value.is_complex()) == (kind.dtype.is_floating_point, kind.dtype.is_complex)
    return not value.is_complex()


def _few(names: list[str]) -> str:
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def fingerprint(model: nn.Module) -> str:
    """A checksum of all weights: the same name may have others tomorrow."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
