"""NIfTI files: volumes, and maps in the same place."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from hilrp import InputError

nibabel = pytest.importorskip("nibabel")

#: Turned, mirrored and sheared a little, with voxels of 1.5 x 0.8 x 3 mm.
AFFINE = np.array([[-1.4, 0.2, 0.3, 90.25], [0.3, 0.7, -0.4, -126.5], [0.1, -0.3, 2.9, -72.125], [0, 0, 0, 1]])


@pytest.fixture
def scan(tmp_path):
    rng = np.random.default_rng(0)
    image = nibabel.Nifti1Image(rng.normal(100, 20, (7, 6, 5)).astype(np.int16), AFFINE)
    image.header.set_xyzt_units("mm", "sec")
    image.header["descrip"] = b"Jane Doe 1970-01-01"
    image.header["aux_file"] = b"jane.txt"
    image.set_qform(np.diag([-1.5, 0.8, 3, 1.0]), code=1)
    image.set_sform(AFFINE, code=4)
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"Jane Doe"))
    nibabel.save(image, tmp_path / "scan.nii.gz")
    return tmp_path / "scan.nii.gz"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv3d(1, 3, 3, padding=1)

    def forward(self, x):
        return self.convolution(x / 100).relu().mean((2, 3, 4))


@pytest.mark.parametrize("ending", [".nii.gz", ".nii"])
def test_a_map_lies_where_the_scan_does(scan, tmp_path, ending):
    """Affine, qform, sform, codes, spacing and units are the file's own, bit for bit, by nibabel."""
    recording = hilrp.read_file(scan)
    before = nibabel.load(scan)
    assert recording.kind == "volume"
    np.testing.assert_array_equal(recording.values[0], before.get_fdata().astype(np.float32))
    found = hilrp.explain(Net().eval(), recording.values[None], 1, kind=recording.kind)
    file = recording.write(tmp_path / f"map{ending}", found)
    after = nibabel.load(file)
    np.testing.assert_array_equal(after.affine, before.affine)
    for name in ("get_qform", "get_sform"):
        for own, was in zip(getattr(after, name)(coded=True), getattr(before, name)(coded=True), strict=True):
            np.testing.assert_array_equal(own, was)
    assert after.header.get_zooms() == before.header.get_zooms()
    assert after.header.get_xyzt_units() == before.header.get_xyzt_units()
    assert nibabel.aff2axcodes(after.affine) == nibabel.aff2axcodes(before.affine)
    np.testing.assert_array_equal(after.get_fdata(dtype=np.float32), found.map[0].numpy())
    assert float(after.get_fdata().sum()) == pytest.approx(float(found.ledger.explained), rel=1e-4)


def test_nothing_that_says_whom_it_is_of_is_copied(scan, tmp_path):
    recording = hilrp.read_file(scan)
    data = recording.write(tmp_path / "map.nii", torch.zeros(7, 6, 5)).read_bytes()
    assert b"Jane" in gzip.decompress(scan.read_bytes())
    assert b"ane" not in data
    assert recording.write(tmp_path / "a.nii.gz", torch.ones(7, 6, 5)).read_bytes() == (
        recording.write(tmp_path / "b.nii.gz", torch.ones(7, 6, 5)).read_bytes()
    )


def test_other_grids_lie_in_the_same_place(scan, tmp_path):
    """Nibabel's own resampling is the other way: a ramp in millimetres stays the ramp."""
    before = nibabel.load(scan)
    index = np.stack(np.meshgrid(*map(np.arange, before.shape), indexing="ij"), -1)
    world = nibabel.affines.apply_affine(before.affine, index)
    recording = hilrp.read_file(scan).with_values(torch.from_numpy(world).permute(3, 0, 1, 2).float())
    for other in (recording.cropped((2, 1, 0), (4, 3, 5)), recording.cropped((1, 0, 2), (5, 6, 3)).resized(5, 3, 1)):
        file = other.write(tmp_path / "part.nii", other.values[0])
        own = nibabel.load(file)
        at = np.stack(np.meshgrid(*map(np.arange, own.shape), indexing="ij"), -1)
        there = nibabel.affines.apply_affine(own.affine, at)
        np.testing.assert_allclose(other.values.permute(1, 2, 3, 0), there, atol=1e-4)
    large = recording.resized(14, 12, 10)
    middle = nibabel.affines.apply_affine(large.geometry.affine, [6, 6, 4])
    np.testing.assert_allclose(large.values[:, 6, 6, 4], middle, atol=1e-4)
    with pytest.raises(InputError, match=r"part.nii: the map has the form \(7, 6, 5\), the recording \(14, 12, 10\)"):
        large.write(tmp_path / "part.nii", recording.values[0])
    for wrong in ((3, 3), (0, 3, 3)):
        with pytest.raises(InputError, match="give 3 sides, each at least 1"):
            recording.resized(*wrong)
    with pytest.raises(InputError, match=r"cropped\(\(5, 0, 0\), \(3, 1, 1\)\)"):
        recording.cropped((5, 0, 0), (3, 1, 1))
    with pytest.raises(InputError, match=r"has not the form \('C', 7, 6, 5\)"):
        recording.with_values(torch.zeros(1, 2, 2, 2))


def test_slopes_series_and_versions(tmp_path):
    """Values are what the slope makes of them; further axes are channels; NIfTI-2 stays one; big-endian files, too."""
    data = np.arange(2 * 3 * 4 * 2, dtype=np.int16).reshape(2, 3, 4, 2)
    image = nibabel.Nifti2Image(data, AFFINE)
    image.header.set_slope_inter(0.5, -3)
    nibabel.save(image, tmp_path / "series.nii")
    recording = hilrp.read_file(tmp_path / "series.nii")
    assert recording.values.shape == (2, 2, 3, 4)
    np.testing.assert_allclose(recording.values.permute(1, 2, 3, 0), nibabel.load(tmp_path / "series.nii").get_fdata())
    assert float(recording.values[1, 0, 0, 0]) == float(nibabel.load(tmp_path / "series.nii").get_fdata()[0, 0, 0, 1])
    again = nibabel.load(recording.write(tmp_path / "map.nii", torch.rand(2, 3, 4)))
    assert isinstance(again, nibabel.Nifti2Image)
    np.testing.assert_array_equal(again.affine, image.affine)
    big = nibabel.Nifti1Image(data[..., 0], AFFINE, nibabel.Nifti1Header(endianness=">"))
    nibabel.save(big, tmp_path / "big.nii")
    swapped = hilrp.read_file(tmp_path / "big.nii")
    np.testing.assert_array_equal(swapped.values[0], data[..., 0])
    written = nibabel.load(swapped.write(tmp_path / "map2.nii", swapped.values[0]))
    np.testing.assert_array_equal(written.affine, nibabel.load(tmp_path / "big.nii").affine)
    np.testing.assert_array_equal(written.get_fdata(), data[..., 0])


def _saved(path, data, affine=AFFINE):
    nibabel.save(nibabel.Nifti1Image(data, affine), path)
    return path


def test_what_cannot_be_read(scan, tmp_path, monkeypatch):
    whole = scan.read_bytes()
    cut = tmp_path / "cut.nii.gz"
    for part in (0, 100, len(whole) // 2, len(whole) - 5):
        cut.write_bytes(whole[:part])
        with pytest.raises(InputError, match=r"cut.nii.gz: .*[Ii]s the file complete\?"):
            hilrp.read_file(cut)
    plain = _saved(tmp_path / "plain.nii", np.ones((6, 5, 4), np.float32))
    plain.write_bytes(plain.read_bytes()[:-50])
    with pytest.raises(InputError, match=r"plain.nii: not a readable NIfTI"):
        hilrp.read_file(plain)
    for name, content in (("text.nii", b"no scan" * 99), ("zero.nii", b"\0" * 400)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name}: not a readable NIfTI"):
            hilrp.read_file(tmp_path / name)
    colours = np.zeros((4, 4, 4), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    for name, data, message in (
        ("colours.nii", colours, "its voxels are colours"),
        ("complex.nii", np.zeros((4, 4, 4), np.complex64), "its voxels are complex numbers"),
        ("flat.nii", np.zeros((4, 4), np.float32), r"its form is \(4, 4\), which is no volume"),
        ("nan.nii", np.full((4, 4, 4), np.nan, np.float32), "none of its voxels has a value"),
    ):
        with pytest.raises(InputError, match=f"{name}: .*{message}"):
            hilrp.read_file(_saved(tmp_path / name, data))
    nowhere = nibabel.load(_saved(tmp_path / "placed.nii", np.ones((4, 4, 4), np.float32)))
    nowhere.header["srow_x"] = 0
    block = nowhere.header.binaryblock + bytes(4) + np.ones((4, 4, 4), np.float32).tobytes()
    (tmp_path / "nowhere.nii").write_bytes(block)
    with pytest.raises(InputError, match=r"nowhere.nii: its affine says nowhere"):
        hilrp.read_file(tmp_path / "nowhere.nii")
    monkeypatch.setattr("hilrp.models.recordings.recording.MOST", 100)
    with pytest.raises(InputError, match=r"its form is \(7, 6, 5\), 0 million values; at most 0 are read. Crop it"):
        hilrp.read_file(scan)


def test_voxels_without_a_value(tmp_path):
    data = np.ones((4, 4, 4), np.float32)
    data[0, 0, :3] = np.nan, np.inf, -np.inf
    recording = hilrp.read_file(_saved(tmp_path / "holes.nii", data))
    assert recording.notes == ("3 of 64 voxels have no value; they were set to 0",)
    assert float(recording.values.sum()) == 61


def test_errors_name_the_package(scan, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nibabel", None)
    with pytest.raises(
        hilrp.HilrpError, match=r"nibabel is not installed. Install it with: pip install 'hilrp\[medical\]'"
    ):
        hilrp.read_file(scan)


def test_files_of_no_known_kind(scan, tmp_path):
    (tmp_path / "a.xyz").write_bytes(b"something")
    with pytest.raises(InputError, match=r"a.xyz: not a file of a kind that is known by its ending: .nii,"):
        hilrp.read_file(tmp_path / "a.xyz")
    with pytest.raises(InputError, match=r"gone.nii: it can't be opened \(No such file"):
        hilrp.read_file(tmp_path / "gone.nii")
    with pytest.raises(InputError, match=r"frames.*Leave that option out"):
        hilrp.read_file(scan, frames=3)
    recording = hilrp.read_file(scan)
    with pytest.raises(InputError, match=r"map.png: a map of scan.nii.gz is written as .nii.gz or .nii"):
        recording.write(tmp_path / "map.png", recording.values[0])
    assert not (tmp_path / "map.png").exists()
