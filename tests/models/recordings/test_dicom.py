"""DICOM: series as volumes, parametric maps in the same place, and what is wrong with files of hospitals."""

from __future__ import annotations

import copy
import re
import shutil

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from helpers.dicom_files import COLUMN, CORNER, GAP, NORMAL, ROW, saved, slice_of
from hilrp import InputError

pydicom = pytest.importorskip("pydicom")
highdicom = pytest.importorskip("highdicom")
nibabel = pytest.importorskip("nibabel")


@pytest.fixture
def series(tmp_path):
    return saved(tmp_path / "series", [slice_of(i) for i in range(4)])


def test_a_series_is_a_volume_in_space(series):
    """Slices in the order of their places, scaled; the affine by highdicom's own reading of the series."""
    recording = hilrp.read_file(series)
    assert (recording.kind, recording.grid) == ("volume", (4, 6, 5))
    number, row, column = np.meshgrid(range(4), range(6), range(5), indexing="ij")
    np.testing.assert_array_equal(recording.values[0], 2 * (number * 100 + row * 10 + column) - 1024)
    volume = highdicom.get_volume_from_series([pydicom.dcmread(file) for file in series.iterdir()])
    wanted = np.diag([-1, -1, 1, 1]) @ volume.affine
    own = recording.geometry.affine
    if not np.allclose(own, wanted):  # from the other end
        flip = np.diag([-1.0, 1, 1, 1])
        flip[0, 3] = 3
        wanted = wanted @ flip
        np.testing.assert_allclose(volume.array[::-1], recording.values[0])
    np.testing.assert_allclose(own, wanted, atol=1e-6)
    at = own @ [2, 4, 3, 1]
    by_hand = CORNER + 2 * GAP * NORMAL + 4 * 0.75 * COLUMN + 3 * 0.5 * ROW
    np.testing.assert_allclose(at[:3], by_hand * [-1, -1, 1], atol=1e-6)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv3d(1, 3, 3, padding=1)

    def forward(self, x):
        return self.convolution(x / 100).relu().mean((2, 3, 4))


@pytest.mark.parametrize("identify", [False, True])
def test_a_parametric_map_lies_where_the_series_does(series, tmp_path, identify):
    """Read by highdicom: each value at its place in the patient; whom it is of is copied only if that is asked for."""
    recording = hilrp.read_file(series)
    found = hilrp.explain(Net().eval(), recording.values[None], 1, kind=recording.kind)
    file = recording.write(tmp_path / "map.dcm", found, identify=identify)
    written = pydicom.dcmread(file)
    volume = highdicom.imread(file).get_volume()
    to_ras = np.diag([-1, -1, 1, 1]) @ volume.affine
    back = np.linalg.inv(recording.geometry.affine) @ to_ras
    index = np.stack(np.meshgrid(*map(np.arange, volume.spatial_shape), indexing="ij"), -1)
    there = nibabel.affines.apply_affine(back, index)
    np.testing.assert_allclose(there, there.round(), atol=1e-5)
    at = there.round().astype(int)
    np.testing.assert_array_equal(
        volume.array.astype(np.float32), found.map[0].numpy()[at[..., 0], at[..., 1], at[..., 2]]
    )
    assert written.FrameOfReferenceUID == "1.2.99"
    assert written.SOPClassUID == pydicom.uid.ParametricMapStorage
    data, text = file.read_bytes(), str(written)
    secrets = [
        "Jane",
        "MRN-4711",
        "19700101",
        "20200202",
        "ACC-31",
        "STUDY-9",
        "House",
        "Princeton",
        "1.2.3.4.",
        "1.2.77",
    ]
    copied = [each for each in secrets if each.encode() in data or each in text]
    if identify:
        assert {"Jane", "MRN-4711", "1.2.77", "1.2.3.4."} <= set(copied)
    else:
        assert copied == []
        assert "1.2.88" not in text


def test_a_nifti_of_a_series(series, tmp_path):
    recording = hilrp.read_file(series)
    after = nibabel.load(recording.write(tmp_path / "map.nii.gz", recording.values[0]))
    np.testing.assert_allclose(after.affine, recording.geometry.affine, rtol=1e-6)
    np.testing.assert_array_equal(after.get_fdata(), recording.values[0])
    np.testing.assert_allclose(after.header.get_zooms(), (2.5, 0.75, 0.5), rtol=1e-5)
    small = recording.cropped((1, 0, 0), (2, 6, 5))
    file = small.write(tmp_path / "part.dcm", small.values[0])
    volume = highdicom.imread(file).get_volume()
    assert volume.spatial_shape == (2, 6, 5)
    ends = sorted(tuple(np.round(p, 4)) for p in (volume.affine[:3, 3], (volume.affine @ [1, 0, 0, 1])[:3]))
    assert ends == sorted(tuple(np.round(CORNER + i * GAP * NORMAL, 4)) for i in (1, 2))


def test_one_slice_of_a_series(tmp_path):
    folder = saved(tmp_path / "one", [slice_of(0)], ["a.dcm"])
    recording = hilrp.read_file(folder / "a.dcm")
    assert recording.grid == (1, 6, 5)
    assert recording.notes == ("it is a single slice",)
    np.testing.assert_allclose(np.linalg.norm(recording.geometry.affine[:3, 0]), 2.5, rtol=1e-6)
    again = hilrp.read_file(recording.write(tmp_path / "map.dcm", recording.values[0]))
    torch.testing.assert_close(again.values, recording.values)
    np.testing.assert_allclose(again.geometry.affine[:3, 1:], recording.geometry.affine[:3, 1:], atol=1e-5)


def _broken(tmp_path, change, count=5):
    slices = [slice_of(i) for i in range(count)]
    change(slices)
    return saved(tmp_path / "broken", slices, [f"{i}.dcm" for i in range(len(slices))])


def _tilt(slices):
    slices[2].ImageOrientationPatient = [1, 0, 0, 0, 1, 0]


def _other_size(slices):
    slices[3] = slice_of(3, rows=7)


def _other_spacing(slices):
    slices[3].PixelSpacing = [0.8, 0.5]


def _nowhere(slices):
    del slices[1].ImagePositionPatient


def _again(slices):
    slices.append(copy.deepcopy(slices[1]))
    slices[-1].SOPInstanceUID = "1.2.3.4.77"


def _uneven(slices):
    slices[4].ImagePositionPatient = [float(v) for v in CORNER + 4.4 * GAP * NORMAL]


def _two_series(slices):
    slices[0].SeriesInstanceUID, slices[0].SeriesNumber = "1.2.89", 4


def _coloured(slices):
    for each in slices:
        each.SamplesPerPixel, each.PhotometricInterpretation, each.PlanarConfiguration = 3, "RGB", 0


def _cut(slices):
    slices[2].PixelData = slices[2].PixelData[:-10]


def _several_frames(slices):
    slices[2].NumberOfFrames = 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_tilt, r"2.dcm: it lies in another orientation than 0.dcm \(a scout view"),
        (_other_size, r"3.dcm: 7 x 5 pixels of 0.75 x 0.5 mm, where 0.dcm has 6 x 5"),
        (_other_spacing, r"3.dcm: 6 x 5 pixels of 0.8 x 0.5 mm"),
        (_nowhere, r"1.dcm: it doesn't say where it lies \(ImagePositionPatient missing\)"),
        (_again, r"broken: 1.dcm and 5.dcm lie in the same place|broken: 5.dcm and 1.dcm lie in the same place"),
        (lambda slices: slices.pop(2), r"between 1.dcm and 2.dcm are 5 mm, elsewhere 2.5 mm: slices are 1 missing"),
        (_uneven, r"between 3.dcm and 4.dcm are 3.5 mm, elsewhere 2.5 mm: slices are unevenly spaced"),
        (_two_series, r"it holds 2 series: 3 \(4 files\), 4 \(1 files\). Choose one with series=NUMBER"),
        (_coloured, r"it is in colours"),
        (_cut, r"2.dcm: its pixels can't be decoded .*Is the file complete\?"),
        (_several_frames, r"5 files, some of several frames"),
    ],
)
def test_series_that_make_no_volume(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        hilrp.read_file(_broken(tmp_path, change))


def test_a_series_is_chosen(tmp_path):
    folder = _broken(tmp_path, _two_series)
    assert hilrp.read_file(folder, series=3).grid == (4, 6, 5)
    assert hilrp.read_file(folder, series="1.2.89").grid == (1, 6, 5)
    with pytest.raises(InputError, match=r"there is no series 9. It has 3 \(4 files\)"):
        hilrp.read_file(folder, series=9)


def test_a_slice_is_not_overwritten(tmp_path):
    series = saved(tmp_path, [slice_of(i) for i in range(4)], [f"{i}.dcm" for i in range(4)])
    recording = hilrp.read_file(series)
    held = {file: file.read_bytes() for file in series.iterdir()}
    for file in held:
        with pytest.raises(InputError, match="was read from it"):
            recording.write(file, recording.values[0])
    assert held == {file: file.read_bytes() for file in series.iterdir()}


def test_what_lies_beside_a_series(series, tmp_path):
    (series / "notes.txt").write_text("no image")
    shutil.copy(pydicom.data.get_testdata_file("rtstruct.dcm", download=False), series / "structures.dcm")
    (series / ".hidden").write_bytes(b"x")
    recording = hilrp.read_file(series)
    assert recording.grid == (4, 6, 5)
    assert recording.notes == ("2 files in the folder are no images and were left out",)
    with pytest.raises(InputError, match=r"structures.dcm: it holds no pixels \(RT Structure Set Storage\)"):
        hilrp.read_file(series / "structures.dcm")
    with pytest.raises(InputError, match="there is no DICOM image in it"):
        hilrp.read_file(tmp_path)
    (tmp_path / "text.dcm").write_text("no image" * 99)
    with pytest.raises(InputError, match=r"text.dcm: it is no DICOM file"):
        hilrp.read_file(tmp_path / "text.dcm")


def _of_pydicom(name):
    return pydicom.data.get_testdata_file(name, download=False)


@pytest.mark.parametrize(
    "name",
    [
        "MR_small.dcm",
        "MR_small_RLE.dcm",
        "MR_small_jp2klossless.dcm",
        "MR_small_jpeg_ls_lossless.dcm",
        "MR_small_bigendian.dcm",
    ],
)
def test_compressed_slices_are_the_plain_ones(name):
    """RLE, JPEG 2000 and JPEG-LS, by pydicom's own files of one slice."""
    torch.testing.assert_close(
        hilrp.read_file(_of_pydicom(name)).values, hilrp.read_file(_of_pydicom("MR_small.dcm")).values
    )


def test_files_of_pydicom_that_are_cut_or_cannot_be_decompressed(tmp_path):
    with pytest.raises(InputError, match=r"MR_truncated.dcm: its pixels can't be decoded"):
        hilrp.read_file(_of_pydicom("MR_truncated.dcm"))
    ds = slice_of(0)
    ds.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLosslessSV1
    ds.PixelData = pydicom.encaps.encapsulate([b"\xff\xd8no picture\xff\xd9"])
    ds["PixelData"].VR = "OB"
    file = saved(tmp_path / "packed", [ds], ["a.dcm"]) / "a.dcm"
    with pytest.raises(InputError, match=r"a.dcm: its pixels can't be decoded .*compressed \(JPEG Lossless.*gdcmconv"):
        hilrp.read_file(file)


def test_multi_frame_objects(tmp_path, series):
    """A parametric map is one: written and read again, it lies in the same place. A dose has no places for frames."""
    recording = hilrp.read_file(series)
    file = recording.write(tmp_path / "map.dcm", recording.values[0])
    again = hilrp.read_file(file)
    assert again.grid == recording.grid
    back = np.linalg.inv(recording.geometry.affine) @ again.geometry.affine
    at = back @ [1, 2, 3, 1]
    index = tuple(np.round(at[:3]).astype(int))
    np.testing.assert_allclose(at[:3], np.round(at[:3]), atol=1e-5)
    assert float(again.values[0, 1, 2, 3]) == float(recording.values[0][index])
    assert float(again.values.sum()) == float(recording.values.sum())
    once_more = again.write(tmp_path / "again.dcm", again.values[0])
    assert "Jane" not in str(pydicom.dcmread(once_more))
    np.testing.assert_allclose(hilrp.read_file(once_more).geometry.affine, again.geometry.affine, atol=1e-6)
    with pytest.raises(InputError, match=r"15 frames that don't say where they lie"):
        hilrp.read_file(_of_pydicom("rtdose.dcm"))


def test_radiographs(tmp_path):
    ds = slice_of(0)
    del ds.ImagePositionPatient, ds.ImageOrientationPatient
    ds.PhotometricInterpretation = "MONOCHROME1"
    recording = hilrp.read_file(saved(tmp_path / "xray", [ds], ["x.dcm"]) / "x.dcm")
    assert (recording.kind, tuple(recording.values.shape)) == ("picture", (1, 6, 5))
    assert float(recording.values[0, 0, 0]) == float(recording.values.max())
    assert re.search("greys were inverted", recording.notes[0])
    with pytest.raises(InputError, match="nothing in it says where in space"):
        recording.write(tmp_path / "map.dcm", recording.values[0])
    colour = hilrp.read_file(_of_pydicom("SC_rgb_rle.dcm"))
    assert colour.values.shape[0] == 3


def test_names_in_a_folder_say_nothing(series, tmp_path):
    """A DICOM file needs no ending: its first bytes say what it is."""
    shutil.copy(series / "IM0003", tmp_path / "IM")
    assert hilrp.read_file(tmp_path / "IM").grid == (1, 6, 5)


def test_files_without_a_preamble(tmp_path):
    """They begin with the data at once."""
    file = tmp_path / "bare.dcm"
    for implicit in (True, False):
        bare = slice_of(1)
        del bare.file_meta
        bare.save_as(file, implicit_vr=implicit, little_endian=True)
        assert file.read_bytes()[128:132] != b"DICM"
        recording = hilrp.read_file(file)
        assert recording.values.flatten()[:2].tolist() == [2 * 100 - 1024, 2 * 101 - 1024]
