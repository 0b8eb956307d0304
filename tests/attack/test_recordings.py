"""Damaged scans, scenes, films and sounds: each is read, or ends with an error that names the file."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

import hilrp
from helpers.dicom_files import saved, slice_of

nibabel = pytest.importorskip("nibabel")
pydicom = pytest.importorskip("pydicom")
rasterio = pytest.importorskip("rasterio")
av = pytest.importorskip("av")
soundfile = pytest.importorskip("soundfile")

#: Damaged files of each kind.
CASES = 60


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A whole file of each kind, by its name."""
    place = tmp_path_factory.mktemp("whole")
    rng = np.random.default_rng(0)
    scan = nibabel.Nifti1Image(rng.normal(100, 20, (7, 6, 5)).astype("f4"), np.eye(4))
    nibabel.save(scan, place / "a.nii")
    nibabel.save(scan, place / "a.nii.gz")
    about = {"dtype": "uint16", "crs": "EPSG:32633", "transform": rasterio.Affine(10, 0, 1, 0, -10, 1)}
    with rasterio.open(place / "a.tif", "w", "GTiff", 18, 16, 7, compress="deflate", **about) as raster:
        raster.write(rng.integers(0, 4000, (7, 16, 18)).astype("u2"))
    with av.open(place / "a.mp4", "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        for _ in range(6):
            frame = av.VideoFrame.from_ndarray(rng.integers(0, 255, (24, 32, 3)).astype("u1"), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    soundfile.write(place / "a.wav", np.sin(np.arange(900) / 9), 8000)
    soundfile.write(place / "a.flac", np.sin(np.arange(900) / 9), 8000)
    saved(place, [slice_of(0)], ["plain.dcm"])
    for name in ("MR_small_RLE", "MR_small_jp2klossless", "MR_small_jpeg_ls_lossless", "image_dfl"):
        shutil.copy(pydicom.data.get_testdata_file(f"{name}.dcm", download=False), place / f"{name}.dcm")
    return {file.name: file.read_bytes() for file in place.iterdir()}


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes that are others, cut off or put in."""
    bits = bytearray(data)
    how = draw.random()
    if how < 0.5:
        most = min(len(bits), 400) if draw.random() < 0.7 else len(bits)
        for _ in range(draw.choice([1, 3, 20])):
            bits[draw.randrange(most)] = draw.randrange(256)
    elif how < 0.8:
        del bits[draw.randrange(len(bits)) :]
    else:
        at = draw.randrange(len(bits))
        bits[at:at] = draw.randbytes(draw.choice([1, 8, 100]))
    return bytes(bits)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    ["a.nii", "a.nii.gz", "a.tif", "a.mp4", "a.wav", "a.flac", "plain.dcm", "MR_small_RLE.dcm",
     "MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm", "image_dfl.dcm"],
)  # fmt: skip
def test_damaged_files(whole, name, tmp_path):
    assert hilrp_reads(tmp_path / name, whole[name])
    draw = random.Random(name)
    said = []
    for _ in range(CASES):
        try:
            assert hilrp_reads(tmp_path / name, damaged(whole[name], draw))
        except hilrp.InputError as error:
            said.append(str(error))
    assert said
    assert all(name in each for each in said)


def hilrp_reads(file, data) -> bool:
    file.write_bytes(data)
    return bool(hilrp.read_file(file).values.isfinite().all())


def test_files_that_are_packed_as_a_whole(whole, tmp_path, monkeypatch):
    """A deflated file may be a thousand times as large as it looks."""
    monkeypatch.setattr("hilrp.models.recordings.dicom._DEFLATED", 100)
    with pytest.raises(hilrp.InputError, match=r"image_dfl.dcm: it is deflated"):
        hilrp_reads(tmp_path / "image_dfl.dcm", whole["image_dfl.dcm"])


def test_what_is_no_file(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.nii")
    with pytest.raises(hilrp.InputError, match=r"pipe.nii: it is a named pipe"):
        hilrp.read_file(tmp_path / "pipe.nii")
    (tmp_path / "empty.wav").touch()
    with pytest.raises(hilrp.InputError, match=r"empty.wav: it is empty"):
        hilrp.read_file(tmp_path / "empty.wav")
