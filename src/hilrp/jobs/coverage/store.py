"""The results of a coverage run: a folder with its settings and one line per model, which a later run goes on from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import hilrp
from hilrp.util import sources
from hilrp.util.errors import InputError

_DISTRIBUTIONS = ("torch", "timm", "torchvision", "transformers", "open_clip_torch")


def versions() -> dict[str, str]:
    """The versions of hilrp, torch and the model libraries that are installed."""
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    # A copy of torch without package data knows its version all the same.
    return {"hilrp": hilrp.__version__, "torch": torch.__version__} | found


@cache
def source() -> str:
    """A fingerprint of the code that makes explanations: rows of different code aren't mixed either."""
    return sources.fingerprint("hilrp.attribution.audit", "hilrp.models.random_models")


@dataclass(frozen=True)
class Settings:
    """How models are audited. Rows of different settings aren't mixed."""

    dtype: str = "float32"
    device: str = "cpu"
    batch: int = 2
    rules: str = "hilrp"
    size: int | None = None
    seed: int = 0
    versions: dict[str, str] = field(default_factory=versions)
    source: str = field(default_factory=source)

    @staticmethod
    def read(path: Path) -> Settings:
        """Settings as they were stored; a run that didn't know its source has an empty one."""
        return Settings(**{"source": ""} | json.loads(path.read_text()))


class Store:
    """A folder of results.

    Args:
        folder: Where ``settings.json`` and ``results.jsonl`` are, or will be.
        settings: Those of this run; they must be those of the folder.
        fresh: Discard what is there.
    """

    def __init__(self, folder: Path, settings: Settings, fresh: bool = False) -> None:
        self.folder, self.settings = folder, settings
        self._rows = folder / "results.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "settings.json"
        if fresh:
            for file in (self._rows, kept, folder / "requested.json"):
                file.unlink(missing_ok=True)
        if kept.exists():
            before, now = asdict(Settings.read(kept)), asdict(settings)
            changed = [
                f"{name} was {before.get(name)}, is {now[name]}" for name in now if before.get(name) != now[name]
            ]
            if changed:
                raise InputError(
                    f"{folder} holds results of other settings ({'; '.join(changed)}). Use another folder (--output), "
                    "or discard them with --fresh."
                )
        else:
            _write(kept, asdict(settings))

    def request(self, names: list[str]) -> None:
        """Keeps which models were asked for, beside those of earlier runs, so that one that is missing is noticed."""
        path = self.folder / "requested.json"
        before = json.loads(path.read_text()) if path.exists() else []
        _write(path, sorted({*before, *names}))

    def rows(self) -> dict[str, dict[str, Any]]:
        """The results so far, by model; the last one counts."""
        return {row["name"]: row for row in read_rows(self._rows)}

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row, on disk when this returns."""
        with self._rows.open("a+") as file:
            # A run that was killed may have left half a line behind.
            file.seek(0, os.SEEK_END)
            if file.tell():
                file.seek(file.tell() - 1)
                if file.read(1) != "\n":
                    file.write("\n")
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _write(path: Path, found: Any) -> None:
    """Writes JSON so that the file is whole or not there."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(found, indent=1) + "\n")
    os.replace(temporary, path)


def read_rows(path: Path) -> Iterable[dict[str, Any]]:
    """The rows in a file; a line that was cut off isn't one."""
    if not path.exists():
        return
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        yield row
