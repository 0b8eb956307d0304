"""GeoTIFFs: bands, and maps on the same ground."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from hilrp import InputError

rasterio = pytest.importorskip("rasterio")

#: Turned: north is not up. Metres of UTM zone 33.
TRANSFORM = rasterio.Affine(9.7, 1.3, 399960.125, 1.1, -9.9, 5800020.375)


def _written(path, data, **others):
    count, height, width = data.shape
    about = {"driver": "GTiff", "count": count, "height": height, "width": width, "dtype": data.dtype}
    about |= {"crs": "EPSG:32633", "transform": TRANSFORM} | others
    with rasterio.open(path, "w", **about) as raster:
        raster.write(data)
        raster.update_tags(OWNER="Jane Doe", TIFFTAG_ARTIST="Jane Doe")
    return path


def _on_the_ground(transform, column, row):
    a, b, c, d, e, f = tuple(transform)[:6]
    return a * column + b * row + c, d * column + e * row + f


@pytest.fixture
def scene(tmp_path):
    data = np.random.default_rng(0).integers(0, 4000, (7, 12, 10)).astype(np.uint16)
    return _written(tmp_path / "scene.tif", data)


def test_a_map_lies_on_the_same_ground(scene, tmp_path):
    recording = hilrp.read_file(scene)
    assert recording.kind == "bands"
    with rasterio.open(scene) as raster:
        np.testing.assert_array_equal(recording.values, raster.read())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(7, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    found = hilrp.explain(model, recording.values[None] / 4000, 0, kind=recording.kind)
    file = recording.write(tmp_path / "map.tif", found)
    with rasterio.open(file) as after:
        assert after.crs == rasterio.CRS.from_epsg(32633)
        assert after.transform == TRANSFORM
        assert (after.count, after.dtypes, after.descriptions) == (1, ("float32",), ("relevance",))
        np.testing.assert_array_equal(after.read(1), found.map[0].numpy())
    assert b"Jane" in scene.read_bytes()
    assert b"Jane" not in file.read_bytes()
    with rasterio.open(recording.write(tmp_path / "bands.tif", found.relevance[0])) as after:
        assert after.count == 7
        assert after.descriptions[6] == "relevance of band 7"
        np.testing.assert_array_equal(after.read(), found.relevance[0].numpy())


def test_other_pixels_lie_on_the_same_ground(scene):
    """A ramp in metres stays one, at the middle of each pixel."""
    recording = hilrp.read_file(scene)
    row, column = np.meshgrid(np.arange(12) + 0.5, np.arange(10) + 0.5, indexing="ij")
    east, north = _on_the_ground(TRANSFORM, column, row)
    ramp = torch.from_numpy(np.stack([east - 4e5, north - 5.8e6])).float()
    for other in (
        recording.with_values(ramp).cropped((3, 2), (6, 4)),
        recording.with_values(ramp).cropped((0, 1), (12, 9)).resized(4, 3),
    ):
        across, down = np.meshgrid(np.arange(other.grid[1]) + 0.5, np.arange(other.grid[0]) + 0.5)
        own = _on_the_ground(other.geometry.transform, across, down)
        np.testing.assert_allclose(other.values, [own[0] - 4e5, own[1] - 5.8e6], atol=0.01)


def test_pictures_and_places(tmp_path):
    data = np.random.default_rng(0).integers(1, 255, (3, 6, 5)).astype(np.uint8)
    assert hilrp.read_file(_written(tmp_path / "rgb.tif", data)).kind == "picture"
    with pytest.warns(rasterio.errors.NotGeoreferencedWarning):
        bare = _written(tmp_path / "bare.tif", data, crs=None, transform=None)
    recording = hilrp.read_file(bare)
    assert recording.notes == ("it says nowhere where it lies on the earth",)
    with rasterio.open(recording.write(tmp_path / "map.tif", recording.values[0])) as after:
        assert after.crs is None
    points = [
        rasterio.control.GroundControlPoint(row, column, 10 + column / 7, 50 - row / 9, 100.0)
        for row, column in ((0, 0), (0, 5), (6, 0), (6, 5))
    ]
    data = data.astype(np.float32)
    data[0, :2] = -9999
    tied = _written(tmp_path / "tied.tif", data, crs="EPSG:4326", transform=None, gcps=points, nodata=-9999)
    recording = hilrp.read_file(tied)
    assert recording.notes == ("10 of 90 values have no value; they were set to 0",)
    with rasterio.open(recording.write(tmp_path / "map.tif", recording.values[1])) as after:
        kept, crs = after.gcps
        assert crs == rasterio.CRS.from_epsg(4326)
        assert [(p.row, p.col, p.x, p.y, p.z) for p in kept] == [(p.row, p.col, p.x, p.y, p.z) for p in points]


def test_a_scene_is_not_overwritten_and_no_input_by_itself(scene, tmp_path):
    recording, before = hilrp.read_file(scene), scene.read_bytes()
    (tmp_path / "link.tif").symlink_to(scene)
    for place in (scene, tmp_path / "link.tif"):
        with pytest.raises(InputError, match="was read from it"):
            recording.write(place, recording.values[0])
    assert scene.read_bytes() == before
    with pytest.raises(InputError, match=r"The input is a Recording.*x.values\[None\]"):
        hilrp.explain(nn.Conv2d(7, 4, 3).eval(), recording, 0)
    with pytest.raises(InputError, match="each at least 1 and whole"):
        recording.resized(3.5, 3)


def test_values_are_what_the_file_means(tmp_path):
    """Satellite products keep reflectances as whole numbers, with a slope and an offset for each band."""
    data = np.random.default_rng(1).integers(1, 4000, (2, 6, 5)).astype(np.uint16)
    data[0, 0, 0] = 0
    path = _written(tmp_path / "scaled.tif", data, nodata=0)
    with rasterio.open(path, "r+") as raster:
        raster.scales, raster.offsets = (0.0001, 2.0), (-0.1, 0.0)
    recording = hilrp.read_file(path)
    with rasterio.open(path) as raster:  # rasterio's own arithmetic
        expected = np.stack([raster.read(i + 1) * raster.scales[i] + raster.offsets[i] for i in range(2)])
    expected[0, 0, 0] = 0
    np.testing.assert_allclose(recording.values, expected, rtol=1e-6)
    assert any("slopes and offsets" in note for note in recording.notes)
    assert any("1 of 60 values have no value" in note for note in recording.notes)


def test_what_cannot_be_read(scene, tmp_path, monkeypatch):
    whole = scene.read_bytes()
    for part in (4, 200, len(whole) // 2):
        (tmp_path / "cut.tif").write_bytes(whole[:part])
        with pytest.raises(InputError, match=r"cut.tif: not a readable GeoTIFF"):
            hilrp.read_file(tmp_path / "cut.tif")
    (tmp_path / "virtual.tif").write_text('<VRTDataset rasterXSize="2" rasterYSize="2"></VRTDataset>')
    with pytest.raises(InputError, match=r"virtual.tif: not a readable GeoTIFF"):
        hilrp.read_file(tmp_path / "virtual.tif")
    odd = _written(tmp_path / "odd.tif", np.ones((1, 4, 4), np.complex64))
    with pytest.raises(InputError, match=r"odd.tif: its bands are of type complex64"):
        hilrp.read_file(odd)
    monkeypatch.setattr("hilrp.models.recordings.recording.MOST", 100)
    with pytest.raises(InputError, match=r"its form is \(7, 12, 10\)"):
        hilrp.read_file(scene)
    with pytest.raises(InputError, match="can't be opened"):
        hilrp.read_file("/vsicurl/http://localhost/a.tif")
