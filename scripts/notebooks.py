"""Runs the notebooks of docs/notebooks/ and writes them back with their outputs.

    python scripts/notebooks.py [NAME...]

Each runs in an empty folder with the package of this checkout. What differs from machine to machine is left out: times,
kernels, random ids. Pictures are kept with 256 colours, so that a notebook stays small.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from PIL import Image

from hilrp.models.picture_files import opened

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "notebooks"
#: Seconds that one cell may take.
_LIMIT = 600
#: One core, so that sums are in one order; no colours of a terminal; no word of a bar that isn't drawn.
_SETTINGS = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}


def paths() -> list[Path]:
    """All notebooks."""
    return sorted(FOLDER.glob("*.ipynb"))


def executed(path: Path) -> Any:
    """A notebook, run from its first cell to its last; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as commands, tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        environment = surroundings(Path(commands))
        client = NotebookClient(notebook, timeout=_LIMIT, kernel_name="python3", resources=resources)
        client.coalesce_streams = True
        client.execute(env=environment)
    return tidied(notebook)


def surroundings(commands: Path) -> dict[str, str]:
    """The environment in which the package of this checkout and its command are found first."""
    command = commands / "hilrp"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hilrp "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, **_SETTINGS}
    environment.pop("MPLBACKEND", None)  # notebooks have their own
    for name, place in (("PYTHONPATH", ROOT / "src"), ("PATH", commands)):
        environment[name] = os.pathsep.join(filter(None, [str(place), os.environ.get(name, "")]))
    return environment


def tidied(notebook: Any) -> Any:
    """A notebook without what depends on the machine and the moment."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise SystemExit(f"cell {number} writes warnings or errors: {output.text}")
            data = output.get("data", {})
            if "image/png" in data:
                data.pop("image/jpeg", None)  # the same once more
                data["image/png"] = small(data["image/png"])
    return notebook


def small(picture: str) -> str:
    """A picture (PNG in base64) with at most 256 colours."""
    with opened(BytesIO(base64.b64decode(picture))) as decoded:
        # Rare colours are kept, too: a small object may be all that a picture is about.
        reduced = decoded.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=5, dither=Image.Dither.NONE)
    buffer = BytesIO()
    reduced.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def main(names: Sequence[str]) -> None:
    """Runs those of these names, or all."""
    for path in [FOLDER / f"{name}.ipynb" for name in names] or paths():
        notebook = executed(path)
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
