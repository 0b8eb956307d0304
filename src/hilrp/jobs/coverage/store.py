"""The results of a coverage run: a folder with its settings and one line per model, which a later run goes on from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

import hilrp
from hilrp.jobs import store
from hilrp.jobs.store import append_row, begin, note, read_rows, sealed
from hilrp.models.resolve import LIBRARIES
from hilrp.util import sources
from hilrp.util.atomic_files import sweep, write_whole

_DISTRIBUTIONS = ("torch", *("open_clip_torch" if name == "open_clip" else name for name in LIBRARIES))


def versions() -> dict[str, str]:
    """The versions of hilrp, torch and the model libraries that are installed."""
    found = {name: version for name, version in store.versions(_DISTRIBUTIONS)["packages"].items() if version}
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


class Store:
    """A folder of results.

    Args:
        folder: Where ``settings.json`` and ``results.jsonl`` are, or will be.
        settings: Those of this run; they must be those of the folder.
        fresh: Discard what is there.

    Attributes:
        damaged: What was found damaged in the folder, and is made again.
    """

    def __init__(self, folder: Path, settings: Settings, fresh: bool = False) -> None:
        self.folder, self.settings = folder, settings
        self.damaged: list[str] = []
        self._requested, self._rows = folder / "requested.json", folder / "results.jsonl"
        if fresh:
            for file in (self._rows, folder / "settings.json", self._requested):
                file.unlink(missing_ok=True)
        remedy = "Choose another folder (--output), or discard what is in this one with --fresh."
        begin(folder / "settings.json", asdict(settings), remedy=remedy)
        sweep([folder])
        self._mend()

    def _mend(self) -> None:
        """Leaves out lines that are damaged, so that their models are run again, and says so once."""
        whole = [sealed(row) for row in read_rows(self._rows, self.damaged)]
        if self.damaged:
            write_whole(self._rows, "".join(f"{json.dumps(row)}\n" for row in whole))
        if self._requested.is_file() and self._asked() is None:
            note(self.damaged, self._requested, "the list of models is cut off or altered")
            self.request([])

    def request(self, names: list[str]) -> None:
        """Keeps which models were asked for, beside those of earlier runs, so that one that is missing is noticed."""
        names = sorted({*(self._asked() or ()), *self.rows(), *names})
        write_whole(self._requested, json.dumps(names, indent=1) + "\n")

    def _asked(self) -> list[str] | None:
        """The models that were asked for; ``None`` if the list isn't there or is damaged."""
        try:
            found = json.loads(self._requested.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, list) and all(isinstance(name, str) for name in found) else None

    def rows(self) -> dict[str, dict[str, Any]]:
        """The results so far, by model; the last one counts."""
        return {row["name"]: row for row in read_rows(self._rows)}

    def add(self, row: dict[str, Any]) -> None:
        """Appends a row, on disk when this returns."""
        append_row(self._rows, row)
