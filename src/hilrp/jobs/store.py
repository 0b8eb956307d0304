"""How long jobs keep what they have done, so that they can be stopped at any moment and go on.

Files appear whole (`hilrp.util.atomic_files`), and a result is written last of all that belongs to it. So what is there
is done, and what is not there remains. A damaged result counts as not there, and is made again. Damaged settings are an
error, since nobody knows what the results beside them are of.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import hilrp
from hilrp.util.atomic_files import create_whole, sync_folder, write_whole
from hilrp.util.errors import InputError
from hilrp.util.nested import jsonable

Arrays = dict[str, np.ndarray]

_REMEDY = "Choose another folder, or discard what is in this one."


def begin(path: Path, settings: Mapping[str, Any], kind: str = "settings", remedy: str = _REMEDY) -> dict[str, Any]:
    """Writes the settings of a folder into the file ``path``, or raises an error that names each that differs there.

    Of several that begin at once the first counts. The error calls the settings by their ``kind``, and ends with a
    ``remedy``. Returns the settings as JSON has them.
    """
    now: dict[str, Any] = jsonable(settings)
    if path.exists() or not create_whole(path, json.dumps(now, indent=1) + "\n"):
        found = differing(read_settings(path, remedy), now)
        if found:
            said = "; ".join(f"{name}: {_short(old)} there, {_short(new)} now" for name, (old, new) in found.items())
            raise InputError(
                f"{path.parent}: a run with other {kind} is in it ({said}). Its results and new ones can't be mixed. "
                f"{remedy}"
            )
    return now


def read_settings(path: Path, remedy: str = _REMEDY) -> dict[str, Any]:
    """Reads the settings in a file; raises an `InputError` if it isn't there or is damaged."""
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it holds no settings")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: can't be read ({error}), and so nobody knows what the results beside it are of. {remedy}"
        ) from error
    return found


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the settings that differ, by name with both values; of nested settings, what differs in them.

    Example:
        >>> differing({"seed": 0, "effort": {"images": 3, "runs": 5}}, {"seed": 0, "effort": {"images": 4, "runs": 5}})
        {'effort: images': (3, 4)}
    """
    found: dict[str, tuple[Any, Any]] = {}
    for name in {**first, **second}:
        old, new = first.get(name), second.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found |= {f"{name}: {inner}": values for inner, values in differing(old, new).items()}
        elif old != new:
            found[name] = old, new
    return found


def _short(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) < 90 else f"{text[:80]}..."


def versions(packages: Iterable[str]) -> dict[str, Any]:
    """Returns the versions of hilrp, Python and packages; ``None`` for one that isn't installed."""
    found = {name: next((each.version for each in metadata.distributions(name=name)), None) for name in packages}
    return {"hilrp": hilrp.__version__, "python": platform.python_version(), "packages": found}


def read_result(path: Path) -> Any:
    """Reads a JSON file; returns ``None`` if it isn't there or is damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Reads the rows in a file of JSON lines, and skips lines that were cut off."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends a row to a file of JSON lines; it is on the disk when this returns."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        # A run that was killed may have left half a line behind.
        cut = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut + json.dumps(row).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if not end:
        sync_folder(path.parent)


def read_arrays(path: Path) -> Arrays | None:
    """Reads the arrays in an ``.npz`` file; returns ``None`` if it isn't there or is damaged."""
    try:
        with np.load(path) as stored:
            return dict(stored)
    except Exception:  # an archive that is damaged may raise anything
        return None


def computed_once(path: Path, compute: Callable[[], Arrays]) -> Arrays:
    """Reads the arrays in an ``.npz`` file, or computes and writes them if it isn't there or is damaged."""
    found = read_arrays(path)
    if found is None:
        arrays = found = compute()
        write_whole(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    return found
