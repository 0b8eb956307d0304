"""`hilrp explain` of scans, scenes, films and sounds: a figure, a page with sliders, a map in the same place."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hilrp.cli import app

nibabel = pytest.importorskip("nibabel")
rasterio = pytest.importorskip("rasterio")
av = pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")

_MODELS = """
import torch
from torch import nn

def _of(convolution, pool, channels, prepare):
    torch.manual_seed(0)
    layers = convolution(channels, 4, 3), nn.ReLU(), pool(1), nn.Flatten(), nn.Linear(4, 2)
    return nn.Sequential(*layers).eval(), prepare, ["healthy", "ill"]

def scan():
    return _of(nn.Conv3d, nn.AdaptiveAvgPool3d, 1, lambda recording: recording.nothing)

def scan_as_it_is():
    return _of(nn.Conv3d, nn.AdaptiveAvgPool3d, 1, lambda recording: recording.values / 100)

def scan_smaller():
    def smaller(recording):
        small = recording.resized(6, 8, 10)
        return small.with_values(small.values / 100)
    return _of(nn.Conv3d, nn.AdaptiveAvgPool3d, 1, smaller)

def scan_somewhere():
    return _of(nn.Conv3d, nn.AdaptiveAvgPool3d, 1, lambda recording: recording.values[:, :8, :8, :6] / 100)

def scene():
    return _of(nn.Conv2d, nn.AdaptiveAvgPool2d, 7, lambda recording: recording.values / 4000)

def film():
    return _of(nn.Conv3d, nn.AdaptiveAvgPool3d, 3, lambda recording: recording)

def wave():
    return _of(nn.Conv1d, nn.AdaptiveAvgPool1d, 1, lambda recording: recording)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a file of each kind, and functions that return models for them."""
    (tmp_path / "fields.py").write_text(_MODELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    affine = np.array([[-1.5, 0.1, 0, 90], [0.1, 1.4, 0.2, -120], [0, -0.2, 3, -70], [0, 0, 0, 1]])
    nibabel.save(nibabel.Nifti1Image(rng.normal(100, 20, (12, 10, 8)).astype("f4"), affine), "scan.nii.gz")
    bands = rng.integers(0, 4000, (7, 16, 18)).astype(np.uint16)
    about = {"crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 399960, 0, -10, 5800020)}
    with rasterio.open("scene.tif", "w", "GTiff", 18, 16, 7, dtype="uint16", **about) as raster:
        raster.write(bands)
    with av.open("clip.mp4", "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        for i in range(12):
            frame = rng.integers(0, 60, (24, 32, 3)).astype(np.uint8)
            frame[8:16, 2 * i : 2 * i + 8] = 200
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    soundfile.write("call.wav", np.sin(np.linspace(0, 500, 2000)) * np.linspace(0, 1, 2000), 8000)
    return tmp_path


def run(*words, fails=0):
    result = CliRunner().invoke(app, ["explain", *map(str, words)])
    assert result.exit_code == fails, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("file", "model", "options", "ending", "words"),
    [
        ("scan.nii.gz", "scan_as_it_is", [], "map.nii.gz", "the volume's mean"),
        ("scene.tif", "scene", ["--kind", "bands"], "map.tif", "each channel's mean"),
        ("clip.mp4", "film", ["--frames", "6"], "map.mp4", "each channel's mean"),
        ("call.wav", "wave", [], "map.wav", "zero"),
    ],
)
def test_each_kind_of_file(place, file, model, options, ending, words):
    said = run(file, "--model", f"fields:{model}", "-o", "out", *options)
    name = file.split(".")[0]
    assert "1 of 1 explained" in said
    assert words in said
    assert {each.name for each in (place / "out").iterdir()} == {
        "index.html", *(f"{name}.{kind}" for kind in ("html", "png", "details.png", "npz", "json", ending))
    }  # fmt: skip
    facts = json.loads((place / "out" / f"{name}.json").read_text())
    held = np.load(place / "out" / f"{name}.npz")
    np.testing.assert_allclose(held["map"].sum(), facts["difference"][0], rtol=1e-3)
    page = (place / "out" / "index.html").read_text()
    assert f"./{name}.html" in page
    assert f"./{name}.{ending}" in page
    if ending == "map.nii.gz":
        after, before = nibabel.load(place / "out" / f"{name}.{ending}"), nibabel.load(file)
        np.testing.assert_array_equal(after.affine, before.affine)
        np.testing.assert_array_equal(after.get_fdata(dtype=np.float32), held["map"][0])
        assert "axial" in (place / "out" / f"{name}.html").read_text()
    if ending == "map.tif":
        with rasterio.open(place / "out" / f"{name}.{ending}") as after:
            assert after.crs == rasterio.CRS.from_epsg(32633)
            np.testing.assert_array_equal(after.read(1), held["map"][0])
    if ending == "map.mp4":
        assert facts["grid"] == [6, 24, 32]
        assert "6 of 12 frames were taken" in facts["image_notes"][0]
    again = run(file, "--model", f"fields:{model}", "-o", "out", *options)
    assert "(1 of them by an earlier run)" in again
    (place / "out" / f"{name}.{ending}").write_bytes(b"")
    assert "by an earlier run" not in run(file, "--model", f"fields:{model}", "-o", "out", *options)


def test_smaller_scans_lie_in_the_same_place(place):
    run("scan.nii.gz", "--model", "fields:scan_smaller", "-o", "out", "--passes", "4", "--target", "ill")
    after = nibabel.load(place / "out" / "scan.map.nii.gz")
    assert after.shape == (6, 8, 10)
    before = nibabel.load("scan.nii.gz")
    # The middle of the whole is the middle of the whole.
    ends = [nibabel.affines.apply_affine(each.affine, (np.array(each.shape) - 1) / 2) for each in (before, after)]
    np.testing.assert_allclose(*ends, atol=1e-4)


def test_what_is_said_where_the_place_is_lost(place):
    run("scan.nii.gz", "--model", "fields:scan_somewhere", "-o", "out")
    facts = json.loads((place / "out" / "scan.json").read_text())
    assert "where its values lie isn't known after the preprocessing" in facts["image_notes"][0]
    assert not (place / "out" / "scan.map.nii.gz").exists()
    assert (place / "out" / "scan.html").exists()


def test_values_that_are_missing_are_said_on_the_terminal(place):
    """What was put in their place is explained, too."""
    scan = nibabel.load(place / "scan.nii.gz")
    values = scan.get_fdata().astype("f4")
    values[:2, 0, 0] = np.nan
    nibabel.save(nibabel.Nifti1Image(values, scan.affine), "holes.nii.gz")
    said = " ".join(run("holes.nii.gz", "--model", "fields:scan_as_it_is", "-o", "out").split())
    assert "holes: 2 of 960 voxels have no value; they were set to 0" in said
    assert "have no value" not in run("scan.nii.gz", "--model", "fields:scan_as_it_is", "-o", "whole")


def test_what_cannot_be_explained(place):
    from PIL import Image

    Image.new("RGB", (64, 64)).save("photo.jpg")
    assert "photo.jpg: it is no recording" in run("scan.nii.gz", "photo.jpg", "--model", "fields:scene", fails=2)
    said = run("scan.nii.gz", "--model", "fields:scan", "-o", "out", fails=1)
    assert "its preprocessing raised AttributeError on a recording" in said
    assert "its preprocessing raised" in run("scan.nii.gz", "--model", "zoo/swin", "-o", "out", fails=1)
    assert "unexpected keyword argument 'frames'" in run(
        "scan.nii.gz", "--model", "fields:scan_as_it_is", "--frames", "3", "-o", "out", fails=1
    )
    assert "recordings have one of" in run("scan.nii.gz", "--model", "fields:scan", "--reference", "photo.jpg", fails=2)
    assert "kind='film': use one of" in run("clip.mp4", "--model", "fields:film", "--kind", "film", fails=2)
    (place / "cut.nii.gz").write_bytes((place / "scan.nii.gz").read_bytes()[:500])
    said = run("scan.nii.gz", "cut.nii.gz", "--model", "fields:scan_as_it_is", "-o", "two", fails=1)
    assert "1 of 2 explained" in said
    assert "cut.nii.gz: not a readable NIfTI" in said


def test_folders(place):
    pydicom = pytest.importorskip("pydicom")
    from helpers.dicom_files import saved, slice_of

    scans = place / "scans"
    (scans / "deep").mkdir(parents=True)
    for name in ("a.nii.gz", "deep/b.nii.gz"):
        (scans / name).write_bytes((place / "scan.nii.gz").read_bytes())
    (scans / "notes.gz").write_bytes(b"x")
    saved(scans / "chest", [slice_of(i) for i in range(4)], [f"{i}.dcm" for i in range(4)])
    said = run(scans, "--model", "fields:scan_as_it_is", "-o", "out")
    assert "3 of 3 explained" in said
    assert {each.relative_to(place / "out").as_posix() for each in (place / "out").rglob("*.html")} == {
        "index.html", "a.html", "deep/b.html", "chest.html"
    }  # fmt: skip
    assert pydicom.dcmread(place / "out" / "chest.map.dcm").Modality == "OT"
    saved(place / "plain", [slice_of(i) for i in range(4)], [f"IM{i}" for i in range(4)])
    assert "1 of 1 explained" in run(place / "plain", "--model", "fields:scan_as_it_is", "-o", "other")
    assert torch.from_numpy(np.load(place / "other" / "plain.npz")["map"]).shape == (1, 4, 6, 5)


def test_bands_without_their_kind_are_told_how_they_are_read(place):
    found = CliRunner().invoke(app, ["explain", "scene.tif", "--model", "fields:scene", "-o", "out"])
    assert found.exit_code == 1
    assert "--kind bands" in " ".join(found.output.split())
