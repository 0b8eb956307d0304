"""GeoTIFF files (rasterio): bands on the surface of the earth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hilrp.attribution.kinds import Kind
from hilrp.models.recordings.recording import Recording, check_count, checked_path, finite, reading
from hilrp.util.errors import InputError
from hilrp.util.peers import imported
from hilrp.util.regular_files import printable

#: What pip is given.
INSTALL = "'hilrp[geo]'"
#: GDAL looks at nothing but the file itself.
_ALONE = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_PAM_ENABLED": "NO"}


@dataclass(frozen=True, eq=False)
class Ground:
    """Where pixels lie on the earth.

    Attributes:
        crs: The coordinate system, as rasterio has it.
        transform: From column and row to it, from the edge of the first pixel.
        points: Ground control points and their coordinate system, of a raster that has those instead.
    """

    crs: Any
    transform: Any
    points: tuple[tuple[Any, ...], Any] = ((), None)
    endings = (".tif", ".tiff")

    def moved(self, start: tuple[float, ...], step: tuple[float, ...]) -> Ground:
        """That of other pixels."""
        (top, left), (down, across) = start, step
        move = np.array([[across, 0, left], [0, down, top], [0, 0, 1]], np.float64)
        transform = type(self.transform)(*(np.array(self.transform).reshape(3, 3) @ move)[:2].flatten().tolist())
        kept, crs = self.points
        points = tuple(
            type(each)((each.row - top) / down, (each.col - left) / across, each.x, each.y, each.z) for each in kept
        )
        return Ground(self.crs, transform, (points, crs))

    def encoded(self, relevance: np.ndarray, ending: str, like: Recording, identify: bool) -> bytes:
        """A GeoTIFF of float32 in the same place; tags of the file are not copied."""
        rasterio = imported("rasterio", INSTALL)
        layers = relevance[None] if relevance.ndim == 2 else relevance
        about = {"count": len(layers), "height": layers.shape[1], "width": layers.shape[2], "dtype": "float32"}
        place = {} if self.points[0] else {"crs": self.crs, "transform": self.transform}
        with _quiet(), rasterio.MemoryFile() as memory:
            with memory.open(driver="GTiff", compress="deflate", **about, **place) as raster:
                if self.points[0]:
                    raster.gcps = (list(self.points[0]), self.points[1])
                raster.write(layers.astype(np.float32))
                for i in range(len(layers)):
                    raster.set_band_description(
                        i + 1, "relevance" if len(layers) == 1 else f"relevance of band {i + 1}"
                    )
            return bytes(memory.read())

    def facts(self) -> dict[str, Any]:
        """The coordinate system and the transform."""
        crs = self.points[1] if self.points[0] else self.crs
        return {"crs": None if crs is None else crs.to_string(), "transform": list(self.transform)[:6]}


def _quiet() -> Any:
    """Rasters without a place are usual: rasterio warns of them."""
    import warnings

    context = warnings.catch_warnings()
    warnings.simplefilter("ignore")
    return context


def read(path: Path) -> Recording:
    """All bands; pixels without a value hold zero, and that is noted."""
    rasterio = imported("rasterio", INSTALL)
    checked_path(path)
    with (
        reading(path, "GeoTIFF"),
        _quiet(),
        rasterio.Env(**_ALONE),
        rasterio.open(path.absolute(), driver="GTiff") as raster,
    ):
        check_count(path, (raster.count, raster.height, raster.width), "Cut a window out of it first.")
        if any(np.dtype(each).kind not in "uif" for each in raster.dtypes):
            raise InputError(
                f"{printable(path)}: its bands are of type {raster.dtypes[0]}, which are no plain numbers."
            )
        notes: list[str] = []
        values = raster.read(out_dtype=np.float32)
        slopes, offsets = (np.array(each, np.float64).reshape(-1, 1, 1) for each in (raster.scales, raster.offsets))
        if (slopes != 1).any() or offsets.any():
            values = (values * slopes + offsets).astype(np.float32)
            notes.append("its bands have slopes and offsets, which were applied")
        held = finite(path, values, "value", notes, lambda: raster.read_masks() == 0)
        points, crs = raster.gcps
        ground = Ground(raster.crs, raster.transform, (tuple(points), crs))
        if raster.crs is None and not points:
            notes.append("it says nowhere where it lies on the earth")
    kind = Kind.of(held[None])
    assert kind is not None
    return Recording(held, kind, ground, path, tuple(notes))
