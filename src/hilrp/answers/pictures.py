"""Pictures that a model is asked of: what stands for none, and maps on their own pixels.

How a processor scales, cuts and pads pictures is measured and not read from its settings: it is handed pictures of the
same sizes that are black, white, of one grey for each picture, and a chart whose colours say where a pixel is. So it
works for any processor, however it lays the pixels out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.answers.layout import Layout, require
from hilrp.answers.request import Request
from hilrp.attribution.references import Blurred
from hilrp.models.window import Window, chart, measured
from hilrp.util.errors import InputError


@dataclass(frozen=True)
class Tile:
    """What a tile shows.

    Attributes:
        picture: Which picture.
        window: Which part of it; ``None`` where that isn't known, and the tile is a picture of its own.
        rows, columns: Which rows and columns of the tile show the picture; the others are padding.
    """

    picture: int
    window: Window | None
    rows: slice
    columns: slice


@dataclass(frozen=True)
class Pictures:
    """The pictures in a request.

    Attributes:
        request: The prompt with its pictures.
        model: The model that they are for.
    """

    request: Request
    model: nn.Module

    @cached_property
    def pixels(self) -> dict[str, Tensor]:
        """What is explained beside words, by the model's own names."""
        return {name: self.request.inputs[name] for name in self.request.pixels}

    @cached_property
    def layout(self) -> Layout | None:
        """How the pixels are laid out, where that is known."""
        if len(self.pixels) != 1:
            return None
        ((name, pixels),) = self.pixels.items()
        return Layout.of(name, pixels, self.request.inputs, self.model)

    # Measured ---------------------------------------------------------------------------------------------------

    def _seen_of(self, images: Sequence[Any]) -> list[Tensor]:
        """What the model sees of other pictures of the same sizes: tiles, as the processor hands them on."""
        assert self.layout is not None
        name, like = next(iter(self.pixels.items()))
        made = self.request.of_images(images)[name].to(like.device).double()
        if made.shape != like.shape:
            raise InputError(
                f"images: {type(self.request.processor).__name__} makes {tuple(made.shape)} of other pictures of the "
                f"same sizes, and {tuple(like.shape)} of these."
            )
        return self.layout.first_frames(made)

    @cached_property
    def _ends(self) -> tuple[list[Tensor], list[Tensor]] | None:
        """What black and white are after preprocessing, place by place; they are the same on padding."""
        images = self.request.images
        if not images or self.layout is None:
            return None
        from PIL import Image

        return tuple(self._seen_of([Image.new("RGB", each.size, (v, v, v)) for each in images]) for v in (0, 255))  # type: ignore[return-value]

    @cached_property
    def _shown(self) -> list[Tensor]:
        """Where each tile shows a picture, and not padding, ``[h,w]``."""
        if self._ends is None:
            layout = require(self.layout, next(iter(self.pixels.values())))
            # Without a processor: a tile of zeros is there to fill a batch up.
            tiles = layout.first_frames(next(iter(self.pixels.values())))
            return [torch.full(t.shape[1:], bool((t != 0).any()), device=t.device) for t in tiles]
        return [(white - black).abs().amin(0) > 1e-6 for black, white in zip(*self._ends, strict=True)]

    def _relative(self, tiles: Sequence[Tensor]) -> list[Tensor]:
        """Tiles from 0 (black) to 1 (white), with zeros on padding."""
        assert self._ends is not None
        found = []
        for tile, black, white, shown in zip(tiles, *self._ends, self._shown, strict=True):
            found.append(torch.where(shown, (tile - black) / torch.where(shown, white - black, 1), 0))
        return found

    @cached_property
    def owners(self) -> list[int]:
        """Of which picture each tile is."""
        if self._ends is None:
            return list(range(len(self._shown)))
        from PIL import Image

        images = self.request.images
        greys = [round(255 * (i + 1) / (len(images) + 1)) for i in range(len(images))]
        made = [Image.new("RGB", each.size, (v, v, v)) for each, v in zip(images, greys, strict=True)]
        found = []
        for tile, shown in zip(self._relative(self._seen_of(made)), self._shown, strict=True):
            value = float(tile[:, shown].mean()) if bool(shown.any()) else 0.0
            found.append(min(range(len(greys)), key=lambda i: abs(greys[i] / 255 - value)))
        return found

    @cached_property
    def tiles(self) -> list[Tile]:
        """What each tile shows."""
        if self._ends is None:
            return [Tile(i, None, slice(None), slice(None)) for i in range(len(self._shown))]
        images = self.request.images
        charts = self._relative(self._seen_of([chart(each.size) for each in images]))
        found = []
        for tile, shown, owner in zip(charts, self._shown, self.owners, strict=True):
            rows, columns = (_extent(shown.any(axis)) for axis in (1, 0))
            part, size = tile[:, rows, columns].cpu(), images[owner].size
            window = measured(lambda _, part=part: part, size) if part.numel() else None  # type: ignore[misc]
            found.append(Tile(owner, window, rows, columns))
        return found

    # References -------------------------------------------------------------------------------------------------

    def without(self, reference: Any) -> dict[str, Tensor]:
        """The pixels with something else for the pictures; padding stays.

        Args:
            reference: ``None``, one of `STANDS_FOR_NONE`, other pictures, or pixels as the model takes them.
        """
        if isinstance(reference, Tensor):
            return {name: self._like(reference, t) for name, t in self.pixels.items()}
        if not self.pixels:
            if reference is not None:
                raise InputError(f"reference={reference!r}: there are no pictures that something could stand for.")
            return {}
        name, pixels = next(iter(self.pixels.items()))
        if reference is None and (len(self.pixels) > 1 or name != "pixel_values"):  # sounds: silence
            return {name: torch.zeros_like(t) for name, t in self.pixels.items()}
        layout = require(self.layout, pixels)
        if reference is None or reference == "mean":
            colours = self._means(layout.first_frames(pixels))
        elif isinstance(reference, str) and reference in GREYS:
            if self._ends is None:
                raise InputError(
                    f"reference={reference!r}: what it is after preprocessing isn't known without processor."
                )
            colours = [b + GREYS[reference] * (w - b) for b, w in zip(*self._ends, strict=True)]
        else:
            others = self._blurred() if isinstance(reference, str) and reference == BLURRED else reference
            return {name: layout.from_tiles(self._of_others(others), pixels).to(pixels)}
        tiles = []
        for tile, colour, shown in zip(layout.first_frames(pixels), colours, self._shown, strict=True):
            plain = torch.where(shown, colour.to(tile).expand_as(tile), tile)
            # Tiles of nothing but zeros are padding to some models (Idefics3), and left out.
            tiles.append(plain if bool(plain.any()) or not bool(shown.any()) else plain + _NEARLY_ZERO)
        return {name: layout.from_tiles(tiles, pixels).to(pixels)}

    def _means(self, tiles: list[Tensor]) -> list[Tensor]:
        """The mean colour of each tile's picture, ``[C,1,1]``, over all of its tiles."""
        owners, found = self.owners, {}
        for owner in set(owners):
            own = [
                tile[:, shown] for tile, shown, each in zip(tiles, self._shown, owners, strict=True) if each == owner
            ]
            found[owner] = torch.cat(own, 1).mean(1)[:, None, None]
        return [found[owner] for owner in owners]

    def _blurred(self) -> list[Any]:
        """Each picture, blurred as `hilrp.references.Blurred` blurs the model's input."""
        from PIL import ImageFilter

        sigma = Blurred().sigma
        return [each.filter(ImageFilter.GaussianBlur(sigma * min(each.size))) for each in self.request.images]

    def _of_others(self, reference: Any) -> list[Tensor]:
        images = self.request.images
        others = reference if isinstance(reference, (list, tuple)) else [reference] * len(images)
        if isinstance(reference, str) or not images or not all(hasattr(each, "resize") for each in others):
            raise InputError(
                f"reference={reference!r}: give {', '.join(STANDS_FOR_NONE)}, other pictures, or pixels as the model "
                "takes them. All but pixels need the processor."
            )
        if len(others) != len(images):
            raise InputError(f"reference: {len(others)} pictures for {len(images)}. Give one for each, or one for all.")
        pairs = zip(others, images, strict=True)
        return self._seen_of([other.convert("RGB").resize(image.size) for other, image in pairs])

    @staticmethod
    def _like(reference: Tensor, pixels: Tensor) -> Tensor:
        if reference.shape != pixels.shape:
            own, given = tuple(pixels.shape), tuple(reference.shape)
            raise InputError(f"reference has the shape {given}, the pixels {own}: give one like them.")
        return reference.detach().to(pixels)

    # Results ----------------------------------------------------------------------------------------------------

    def maps(self, relevance: dict[str, Tensor]) -> list[Tensor]:
        """Relevance of pixels as a map of each picture, on its own pixels, ``[H,W]``; channels are summed.

        Sums stay what they are. Of tiles without a processor each is a picture of its own.
        """
        if self.layout is None:
            return []
        (pixels,) = relevance.values()
        tiles = [tile.double().sum(0) for tile in self.layout.tiles(pixels)]
        if self._ends is None:
            return tiles
        sizes = [image.size for image in self.request.images]
        found = [torch.zeros(height, width, dtype=torch.float64) for width, height in sizes]
        for values, tile in zip(tiles, self.tiles, strict=True):
            part = values[tile.rows, tile.columns].cpu()
            if not part.numel():
                continue
            width, height = sizes[tile.picture]
            seen = tile.window or Window((width, height), (part.shape[1], part.shape[0]), 0.0, 0.0, width, height)
            # Padding was cut off before: what a fitted line leaves beyond the border belongs to it.
            left, right = max(seen.left, 0.0), min(seen.right, float(width))
            top, bottom = max(seen.top, 0.0), min(seen.bottom, float(height))
            within = replace(seen, left=left, right=right, top=top, bottom=bottom)
            found[tile.picture] += within.restore(part)
        return found

    def drawn(self) -> list[Tensor]:
        """The pictures that maps belong on, ``[H,W,3]`` from 0 to 1."""
        if self.layout is None:
            return []
        if self._ends is None:
            tiles = self.layout.first_frames(next(iter(self.pixels.values())))
            return [_stretched(t.float().cpu()) for t in tiles]
        import numpy as np

        return [torch.from_numpy(np.asarray(image, np.float32) / 255) for image in self.request.images]


_NEARLY_ZERO = 1e-6
#: How bright greys are that have a name.
GREYS = {"black": 0.0, "grey": 0.5, "white": 1.0}
BLURRED = "blurred"
#: What can stand for no picture, by name; the mean is each picture's own mean colour.
STANDS_FOR_NONE = ("mean", *GREYS, BLURRED)


def _extent(line: Tensor) -> slice:
    """From the first place that is true to the last."""
    places = line.nonzero().flatten()
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


def _stretched(tile: Tensor) -> Tensor:
    """A tile whose normalisation isn't known, ``[h,w,3]``, stretched to its range."""
    low, high = tile.amin(), tile.amax()
    return ((tile - low) / (high - low).clamp(min=1e-12)).permute(1, 2, 0).expand(-1, -1, 3)
