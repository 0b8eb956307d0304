"""Weights from files that nobody vouches for: nothing in them is ever run."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.util.errors import InputError

State = dict[str, Tensor]

#: Where training scripts put the weights in a checkpoint; averaged ones first.
_PLACES = ("state_dict_ema", "model_ema", "ema_state_dict", "state_dict", "model_state_dict", "model", "module", "net")
#: What wrappers put before every name.
_PREFIXES = ("module.", "_orig_mod.", "model.")


def read(path: str | Path) -> State:
    """The weights in a safetensors file, or in a file of `torch.save`, which is read without running any code in it."""
    path = Path(path)
    if not path.is_file():
        reason = "it is a folder, not a file" if path.is_dir() else "there is no such file"
        raise InputError(f"checkpoint {path}: {reason}. Give a .safetensors file, or one that torch.save wrote.")
    found = _safetensors(path) if path.suffix == ".safetensors" else _torch(path)
    state = _weights(found)
    if not state:
        raise InputError(
            f"checkpoint {path} holds no weights. Save them with safetensors.torch.save_file(model.state_dict(), FILE)."
        )
    while prefix := next((p for p in _PREFIXES if all(name.startswith(p) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"checkpoint {path} is not a readable safetensors file ({error}). Is it complete? Save or download it "
            "again."
        ) from error


def _torch(path: Path) -> Any:
    with path.open("rb") as file:
        pickled = file.read(1) == b"\x80"
    if not pickled and not zipfile.is_zipfile(path):
        raise InputError(
            f"checkpoint {path} is no checkpoint: neither torch.save nor pickle wrote it. (Safetensors files have to "
            "end in .safetensors.)"
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"checkpoint {path} holds more than weights, and reading that would run code that is in the file; hilrp "
            "doesn't. Where you trust it, load it yourself and save the weights alone: "
            "safetensors.torch.save_file(model.state_dict(), FILE)."
        ) from error
    except Exception as error:  # torch's reader raises many kinds of error for files that aren't its own
        raise InputError(
            f"checkpoint {path} can't be read as a file of torch.save ({type(error).__name__}). Name safetensors "
            "files .safetensors."
        ) from error


def _weights(found: Any, depth: int = 2) -> State:
    """The tensors by name; where there are none, those in one of the usual places."""
    if not isinstance(found, Mapping):
        return {}
    inner = (_weights(found.get(place), depth - 1) for place in _PLACES) if depth else iter(())
    if state := next(filter(None, inner), None):
        return state
    return {name: value for name, value in found.items() if isinstance(name, str) and isinstance(value, Tensor)}


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
            f"checkpoint {checkpoint} does not fit {name}: {problem}. Give the name of the model that it was saved "
            "from."
        )
    return model


def _fill(
    make: Callable[[int | None], nn.Module], state: State, own_classes: int | None = None
) -> tuple[nn.Module, str]:
    """A model with these weights, or with what doesn't fit."""
    model = make(None)
    classes = _classes(model.state_dict(), state, own_classes)
    if classes is not None:
        model = make(classes)
    problem = _difference(model.state_dict(), state)
    if not problem:
        model.load_state_dict(state, strict=False)
    elif classes is not None:  # then it wasn't the number of classes
        problem = _difference(make(None).state_dict(), state)
    return model, problem


def _classes(own: Mapping[str, Tensor], state: State, own_classes: int | None = None) -> int | None:
    """The checkpoint's number of classes, where it alone is different.

    Example:
        >>> own, state = ({"scores": torch.ones(n), "boxes": torch.ones(4 * n)} for n in (10, 3))
        >>> _classes(own, state), _classes(own, state, 10)
        (None, 3)
    """
    pairs = [(own[n].shape, state[n].shape) for n in own if n in state and own[n].shape != state[n].shape]
    sizes = {(a[0], b[0]) for a, b in pairs if len(a) == len(b) > 0 and a[1:] == b[1:]}
    # As many for each class in both: 4 x 10 and 4 x 3 are 10 and 3 classes.
    counts = {Fraction(b * (own_classes or a), a) for a, b in sizes}
    count = next(iter(counts)) if len(counts) == 1 and (own_classes or len(sizes) == 1) else None
    return None if count is None or count.denominator > 1 else int(count)


def _difference(own: Mapping[str, Tensor], state: State) -> str:
    """Which names or shapes don't agree; empty if all do."""
    # Counters of batch normalisation, which old checkpoints lack; evaluation doesn't use them.
    missing = [n for n in own if n not in state and not n.endswith("num_batches_tracked")]
    unknown = [n for n in state if n not in own]
    shapes = [
        f"{n} {tuple(state[n].shape)} instead of {tuple(own[n].shape)}"
        for n in own
        if n in state and own[n].shape != state[n].shape
    ]
    kinds = (("it lacks", missing), ("the model has no", unknown), ("other shapes:", shapes))
    return "; ".join(f"{what} {_few(names)}" for what, names in kinds if names)


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
