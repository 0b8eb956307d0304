"""Maps put back on the pixels of the photographs of which the model saw a part, scaled and cropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hilrp.util.errors import InputError

#: Files hold maps of photographs with up to so many pixels.
MOST = 2 * 10**6


def window_of(loaded: Any, photo: Any) -> Any:
    """Which part of a photograph, or of its file, a model of `hilrp.load` saw."""
    if loaded is None or isinstance(loaded, Sequence):
        raise InputError("photo: which part of it the model saw is known of a loaded model. Give loaded=, too.")
    window = loaded.window(photo)
    if window is None:
        raise InputError(
            "photo: which part of it the model saw can't be told, since its preprocessing does more than scale, "
            "crop and pad. Leave it out: what the model saw is drawn then."
        )
    return window


def placed(of_model: Tensor, window: Any) -> Tensor:
    """A map of what the model saw, ``[h,w]``, on the pixels of its photograph."""
    if tuple(of_model.shape) != window.seen[::-1]:
        raise InputError(
            f"photo: the map is {list(of_model.shape)}, and the model of loaded= sees {window.seen[0]} x "
            f"{window.seen[1]} pixels. Give the one that was explained."
        )
    found: Tensor = window.restore(of_model.detach().float().cpu())
    return found


def restored(maps: Tensor, windows: Sequence[Any]) -> dict[str, Tensor]:
    """Maps, ``[B,h,w]``, on the pixels of their photographs, by the names that they have in a file.

    Args:
        maps: Of what the model saw.
        windows: Which part of its photograph that was, of each.

    Returns:
        ``photo_map``, ``[B,H,W]``; of photographs of several sizes ``photo_map/0``, ...; of one with more than `MOST`
        pixels none.
    """
    found = {i: placed(maps[i], w) for i, w in enumerate(windows) if w.size[0] * w.size[1] <= MOST}
    if found and len({window.size for window in windows}) == 1:
        return {"photo_map": torch.stack([*found.values()])}
    return {f"photo_map/{i}": each for i, each in found.items()}
