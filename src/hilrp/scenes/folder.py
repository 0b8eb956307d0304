"""Scenes as files: for other programs, and for those who want to look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hilrp.scenes.scene import Scenes, Thing
from hilrp.util.atomic_files import write_whole


def write(scenes: Scenes, folder: Path) -> list[dict[str, Any]]:
    """Writes pictures, masks, pictures without one object, and last ``index.json``, which lists the objects.

    Returns that list.
    """
    index = []
    for i, scene in enumerate(scenes):
        file = _save(scene.image, folder, f"images/{i:04d}.png")
        for thing in scene.things:
            stem = f"{i:04d}-{thing.name.replace(' ', '-')}.png"
            index.append(
                {
                    "file": file,
                    "label": thing.label,
                    "name": thing.name,
                    "boxes": [_box(thing)],
                    "mask": _save(255 * thing.mask.astype(np.uint8), folder, f"masks/{stem}"),
                    "without": _save(scene.without(thing.label), folder, f"without/{stem}"),
                    "visible": round(thing.visible, 4),
                    "caption": scene.caption,
                }
            )
    write_whole(folder / "index.json", json.dumps(index, indent=1))
    return index


def _save(picture: Any, folder: Path, name: str) -> str:
    # A seed draws it again: it needs not outlast a power cut.
    write_whole(folder / name, lambda file: Image.fromarray(picture).save(file, "PNG"), durable=False)
    return name


def _box(thing: Thing) -> list[int]:
    """Left, top, right and bottom; the last two just beyond."""
    rows, columns = np.flatnonzero(thing.mask.any(1)), np.flatnonzero(thing.mask.any(0))
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
