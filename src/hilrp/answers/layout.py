"""Where pixels are in what a model takes: pictures, tiles of pictures, or patches along one axis.

Every form becomes a list of **tiles** ``[C,h,w]``: a picture as it is scaled for the model, one of the crops that a
large one is cut into, or a picture put together again from its patches. Maps of tiles are made of relevance in the same
way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hilrp.util.errors import InputError


@dataclass(frozen=True)
class Layout:
    """The tiles in a tensor of pixels.

    Attributes:
        name: What the model calls the tensor.
        grids: Of patches along one axis, the frames, rows and columns of patches of each picture; ``None`` for others.
        patch: Frames, rows and columns of pixels in a patch.
        merge: How many patches along each side are next to each other in that axis, since the model merges them.
    """

    name: str
    grids: tuple[tuple[int, int, int], ...] | None = None
    patch: tuple[int, int, int] = (1, 1, 1)
    merge: int = 1

    @staticmethod
    def of(name: str, pixels: Tensor, inputs: Mapping[str, Any], model: Any) -> Layout | None:
        """The layout of a tensor of pixels; ``None`` for one that isn't known."""
        grids = inputs.get("image_grid_thw")
        if grids is not None and name == "pixel_values" and pixels.ndim == 2:
            vision = getattr(getattr(model, "config", None), "vision_config", None)
            size, frames = getattr(vision, "patch_size", None), getattr(vision, "temporal_patch_size", 1)
            merge = getattr(vision, "spatial_merge_size", 1)
            if isinstance(size, int) and pixels.shape[1] % (frames * size * size) == 0:
                return Layout(name, tuple(map(tuple, grids.tolist())), (frames, size, size), merge)
            return None
        return Layout(name) if pixels.ndim in (4, 5) and pixels.shape[-3] in (1, 3, 4) else None

    def tiles(self, pixels: Tensor) -> list[Tensor]:
        """The tiles ``[C,h,w]`` of a tensor of pixels, as views where they are there; of patches, frames are summed."""
        if self.grids is None:
            return list(pixels.reshape(-1, *pixels.shape[-3:]))
        return [self._together(rows, grid).sum(1) for rows, grid in self._by_picture(pixels)]

    def from_tiles(self, tiles: Sequence[Tensor], like: Tensor) -> Tensor:
        """A tensor of pixels with these tiles; of patches, every frame shows the same."""
        if self.grids is None:
            return torch.stack(list(tiles)).reshape(like.shape)
        parts = []
        for tile, (rows, grid) in zip(tiles, self._by_picture(like), strict=True):
            whole = tile[:, None].expand(self._together(rows, grid).shape)
            parts.append(self._apart(whole, grid, rows.shape))
        return torch.cat(parts)

    def first_frames(self, pixels: Tensor) -> list[Tensor]:
        """The tiles of the first frame, where patches hold several."""
        if self.grids is None:
            return self.tiles(pixels)
        return [self._together(rows, grid)[:, 0] for rows, grid in self._by_picture(pixels)]

    def _by_picture(self, pixels: Tensor) -> list[tuple[Tensor, tuple[int, int, int]]]:
        assert self.grids is not None
        parts = pixels.split([t * h * w for t, h, w in self.grids])
        return list(zip(parts, self.grids, strict=True))

    def _together(self, rows: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """Patches ``[t h w, C frames rows columns]`` as a picture, ``[C, frames, H, W]``."""
        (t, h, w), (frames, high, wide), m = grid, self.patch, self.merge
        x = rows.reshape(t, h // m, w // m, m, m, -1, frames, high, wide)
        # t, h/m, w/m, m, m, C, frames, high, wide -> C, t frames, (h/m m high), (w/m m wide)
        return x.permute(5, 0, 6, 1, 3, 7, 2, 4, 8).reshape(-1, t * frames, h * high, w * wide)

    def _apart(self, picture: Tensor, grid: tuple[int, int, int], shape: torch.Size) -> Tensor:
        (t, h, w), (frames, high, wide), m = grid, self.patch, self.merge
        x = picture.reshape(-1, t, frames, h // m, m, high, w // m, m, wide)
        return x.permute(1, 3, 6, 4, 7, 0, 2, 5, 8).reshape(shape)


def require(layout: Layout | None, pixels: Tensor) -> Layout:
    """The layout, or an error where it isn't known."""
    if layout is None:
        raise InputError(
            f"Where the pictures are in pixels of shape {tuple(pixels.shape)} isn't known, and so not what a mean "
            "colour is. Give reference= as a tensor of that shape."
        )
    return layout
