"""Files of weights that nobody vouches for: nothing in them is ever run, and no size in them is believed."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hilrp.util.errors import InputError
from hilrp.util.regular_files import open_regular, printable

State = dict[str, Tensor]

#: Where training scripts put the weights in a checkpoint; averaged ones first.
_PLACES = ("state_dict_ema", "model_ema", "ema_state_dict", "state_dict", "model_state_dict", "model", "module", "net")
#: What wrappers put before every name.
_PREFIXES = ("module.", "_orig_mod.", "model.")
#: At most so many of them.
_WRAPPERS = 8
#: So many bytes may be claimed beyond what a file has.
_SPARE = 2**24
_AGAIN = "Save the weights again: safetensors.torch.save_file(model.state_dict(), FILE)."


def read(path: str | Path) -> State:
    """The weights in a safetensors file, or in a file of `torch.save`, which is read without running any code in it.

    Nothing is copied into memory: the tensors are views of the file, except of files that torch wrote before 2020.
    """
    path = Path(path)
    try:
        with open_regular(path) as file:
            size, first = os.fstat(file.fileno()).st_size, file.read(1)
        found = _safetensors(path) if path.suffix == ".safetensors" else _torch(path, first == b"\x80", size)
        state = _weights(found)
        if not state:
            raise InputError(
                "it holds no weights. Save them with safetensors.torch.save_file(model.state_dict(), FILE)."
            )
        return _unwrapped(_checked(state, size))
    except InputError as error:
        raise InputError(f"checkpoint {printable(path)}: {error}") from error
    except (OSError, ValueError) as error:
        gone = isinstance(error, FileNotFoundError)
        reason = (
            "there is no such file" if gone else f"it can't be opened ({getattr(error, 'strerror', None) or error})"
        )
        raise InputError(
            f"checkpoint {printable(path)}: {reason}. Give a .safetensors file, or one that torch.save wrote."
        ) from error


def _safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except Exception as error:  # of the format, of kinds of numbers that torch doesn't have
        reason = shortened(str(error) or type(error).__name__)
        raise InputError(
            f"not a readable safetensors file ({reason}). Is it complete? Save or download it again."
        ) from error


def _torch(path: Path, pickled: bool, size: int) -> Any:
    archive = zipfile.is_zipfile(path)
    if not pickled and not archive:
        raise InputError(
            "it is no checkpoint: neither torch.save nor pickle wrote it. (Safetensors files have to end in "
            ".safetensors.)"
        )
    try:
        if archive:
            _check_archive(path, size)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise InputError(
            "it holds more than weights, and reading that would run code that is in the file; hilrp doesn't. Where you "
            "trust it, load it yourself and save the weights alone: "
            "safetensors.torch.save_file(model.state_dict(), FILE)."
        ) from error
    except Exception as error:  # torch's reader raises many kinds of error for files that aren't its own
        raise InputError(
            f"it can't be read as a file of torch.save ({type(error).__name__}). Is it complete? Save or download it "
            "again; name safetensors files .safetensors."
        ) from error


def _check_archive(path: Path, size: int) -> None:
    """Raises if there is more in an archive than the file has bytes: torch doesn't compress, others may without end."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise InputError(
            f"it is a compressed archive, or a program of TorchScript, and no file of torch.save. {_AGAIN}"
        )
    claimed = sum(member.file_size for member in members)
    if claimed > size:
        raise InputError(f"its parts are to have {_megabytes(claimed)}, but it has {_megabytes(size)}. {_AGAIN}")


def _checked(state: State, size: int) -> State:
    """The same tensors without anything else that hangs on them; raises if they aren't what the file holds.

    A tensor may repeat one stored number any number of times (its strides are zero): a small file then claims any
    size.
    """
    plain = {name: Tensor.detach(value) for name, value in state.items()}
    for name, value in plain.items():
        if value.layout is not torch.strided or value.is_quantized or value.device.type != "cpu" or value.is_nested:
            raise InputError(f"{shortened(name)} is no plain tensor of numbers. {_AGAIN}")
    claimed = sum(value.numel() * value.element_size() for value in plain.values())
    # Weights that layers share are stored once, and small constants may be repeated.
    if claimed > 2 * size + _SPARE:
        raise InputError(f"its tensors are to have {_megabytes(claimed)}, but it has {_megabytes(size)}. {_AGAIN}")
    return plain


def _unwrapped(state: State) -> State:
    """The weights without what wrappers put before every name."""
    for _ in range(_WRAPPERS):
        prefix = next((p for p in _PREFIXES if all(name.startswith(p) for name in state)), None)
        if prefix is None:
            break
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def shortened(text: str) -> str:
    """A text from a file as messages have it: no file may fill a screen."""
    return text if len(text) <= 200 else f"{text[:200]}..."


def _weights(found: Any, depth: int = 2) -> State:
    """The tensors by name; where there are none, those in one of the usual places."""
    if not isinstance(found, Mapping):
        return {}
    inner = (_weights(found.get(place), depth - 1) for place in _PLACES) if depth else iter(())
    if state := next(filter(None, inner), None):
        return state
    return {name: value for name, value in found.items() if isinstance(name, str) and isinstance(value, Tensor)}
