"""How long jobs keep what they have done, so that they can be stopped at any moment and go on.

Files appear whole (`hilrp.util.atomic_files`), and a result is written last of all that belongs to it. So what is there
is done, and what is not there remains. Every result carries a checksum. One that is damaged counts as not there and is
made again, and whoever runs the job is told (``damaged`` in the functions below). Damaged settings are an error, since
nobody knows what the results beside them are of.
"""

from __future__ import annotations

import hashlib
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
#: Where a result keeps its checksum.
_CHECKSUM = "checksum"
#: How many of the settings that differ are named.
_NAMED = 6


def begin(path: Path, settings: Mapping[str, Any], kind: str = "settings", remedy: str = _REMEDY) -> dict[str, Any]:
    """Writes the settings of a folder into the file ``path``, or raises an error that names each that differs there.

    Of several that begin at once the first counts. The error calls the settings by their ``kind``, and ends with a
    ``remedy``. Returns the settings as JSON has them.
    """
    now: dict[str, Any] = jsonable(settings)
    if path.exists() or not create_whole(path, json.dumps(sealed(now), indent=1) + "\n"):
        found = differing(read_settings(path, remedy), now)
        if found:
            each = [f"{name}: {_short(old)} there, {_short(new)} now" for name, (old, new) in found.items()]
            more = [f"and {len(each) - _NAMED} more"] if len(each) > _NAMED else []
            said = "; ".join(each[:_NAMED] + more)
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
        # Those that documents keep of earlier versions have no checksum.
        settings = _opened(found) if _CHECKSUM in found else found
        if settings is None:
            raise ValueError("it was altered: its checksum is another")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: can't be read ({error}), and so nobody knows what the results beside it are of. {remedy}"
        ) from error
    return settings


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


def sealed(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result as JSON has it, with its checksum."""
    plain = json.loads(json.dumps({key: value for key, value in result.items() if key != _CHECKSUM}))
    return plain | {_CHECKSUM: hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]}


def _opened(result: Any) -> dict[str, Any] | None:
    """A result without its checksum, if that is right."""
    if not isinstance(result, dict) or sealed(result)[_CHECKSUM] != result.get(_CHECKSUM):
        return None
    return {key: value for key, value in result.items() if key != _CHECKSUM}


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Writes a result with its checksum as a JSON file."""
    write_whole(path, json.dumps(sealed(result), indent=1) + "\n")


def read_result(path: Path, damaged: list[str] | None = None) -> dict[str, Any] | None:
    """Reads what `write_result` wrote; returns ``None`` if it isn't there, or is damaged, which is noted."""
    try:
        content = path.read_bytes() if path.is_file() else None
        found = None if content is None else _opened(json.loads(content))
    except (OSError, ValueError, RecursionError):
        content, found = b"", None
    if content is not None and found is None:
        note(damaged, path, "it is cut off or altered")
    return found


def note(damaged: list[str] | None, path: Path, why: str) -> None:
    """Notes that a file is damaged, once."""
    if damaged is not None and f"{path}: {why}" not in damaged:
        damaged.append(f"{path}: {why}")


def read_rows(path: Path, damaged: list[str] | None = None, lenient: bool = False) -> Iterator[dict[str, Any]]:
    """Reads the rows in a file of JSON lines; leaves out and notes those that were cut off or altered.

    ``lenient``: rows without a checksum, as documents keep them, count too.
    """
    for number, line in enumerate(path.read_bytes().split(b"\n") if path.is_file() else (), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        plain = lenient and isinstance(row, dict) and _CHECKSUM not in row
        found = row if plain else _opened(row)
        if found is None:
            note(damaged, path, f"line {number} is cut off or altered")
        else:
            yield found


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends a row to a file of JSON lines; it is on the disk when this returns."""
    with path.open("ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        # A run that was killed may have left half a line behind.
        cut = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * cut + json.dumps(sealed(row)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if not end:
        sync_folder(path.parent)


def read_arrays(path: Path, names: Iterable[str] = (), damaged: list[str] | None = None) -> Arrays | None:
    """Reads the arrays in an ``.npz`` file.

    Returns ``None`` if it isn't there; or if it is damaged or lacks one of some ``names``, which is noted.
    """
    if not path.is_file():
        return None
    try:
        with np.load(path) as stored:
            found = dict(stored)
    except Exception:  # an archive that is damaged may raise anything
        note(damaged, path, "its arrays are cut off or altered")
        return None
    missing = [name for name in names if name not in found]
    if missing:
        note(damaged, path, f"it holds no array {missing[0]!r}")
    return None if missing else found


def computed_once(
    path: Path, compute: Callable[[], Arrays], names: Iterable[str] = (), damaged: list[str] | None = None
) -> Arrays:
    """Reads the arrays in an ``.npz`` file, or computes and writes them if `read_arrays` finds none."""
    found = read_arrays(path, names, damaged)
    if found is None:
        arrays = found = compute()
        write_whole(path, lambda file: np.savez_compressed(file, **arrays))  # type: ignore[arg-type]
    return found
