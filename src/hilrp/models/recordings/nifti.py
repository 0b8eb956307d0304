"""NIfTI files (nibabel): volumes in scanner coordinates."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hilrp.attribution.kinds import Kind
from hilrp.models.recordings.recording import Recording, check_count, checked_path, finite, reading
from hilrp.util.errors import InputError
from hilrp.util.peers import imported
from hilrp.util.regular_files import printable

#: What pip is given.
INSTALL = "'hilrp[medical]'"
#: What a header says of where voxels lie; nothing else of it is copied.
_PLACED = (
    "pixdim", "xyzt_units", "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d", "qoffset_x",
    "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Space:
    """Where voxels lie in a scanner.

    Attributes:
        affine: From the index of a voxel to millimetres to the right, front and top (RAS), ``[4,4]``.
        header: Of a NIfTI: the fields of `_PLACED`, bit for bit. They hold as long as the affine is the file's own.
        version: Of the NIfTI.
    """

    affine: np.ndarray
    header: dict[str, np.ndarray] = field(default_factory=dict)
    version: int = 1
    endings: ClassVar[tuple[str, ...]] = (".nii.gz", ".nii")

    def moved(self, start: tuple[float, ...], step: tuple[float, ...]) -> Space:
        """That of other voxels."""
        return Space(moved_affine(self.affine, start, step), {}, self.version)

    def encoded(self, relevance: np.ndarray, ending: str, like: Recording, identify: bool) -> bytes:
        """A NIfTI with the same affine; of the header nothing but where voxels lie is copied."""
        return nifti_bytes(self, relevance, ending)

    def facts(self) -> dict[str, Any]:
        """The affine, and how far voxels are from each other."""
        spacing = np.linalg.norm(self.affine[:3, :3], axis=0)
        return {"affine": self.affine.tolist(), "spacing": spacing.tolist(), "orientation": orientation(self.affine)}


def read(path: Path) -> Recording:
    """A volume, with its further axes (time, directions) as channels."""
    nibabel = imported("nibabel", INSTALL)
    checked_path(path)
    with reading(path, "NIfTI"):
        image = nibabel.load(path)
        if not isinstance(image, nibabel.Nifti1Pair):
            raise InputError(f"{printable(path)}: it is {type(image).__name__}, no NIfTI.")
        shape, dtype = tuple(map(int, image.shape)), image.get_data_dtype()
        check_count(path, shape, "Crop it first, for instance with nibabel's slicer.")
        if dtype.names or dtype.kind == "c":
            raise InputError(
                f"{printable(path)}: its voxels are {'colours' if dtype.names else 'complex numbers'}, which are no "
                "single values. Convert them first."
            )
        if len(shape) < 3:
            raise InputError(f"{printable(path)}: its form is {shape}, which is no volume of three axes.")
        values = np.asarray(image.dataobj, dtype=np.float32)
        notes: list[str] = []
        held = finite(path, values.reshape(*shape[:3], -1).transpose(3, 0, 1, 2), "voxel", notes)
        header = {name: np.array(image.header[name]) for name in _PLACED}
        version = 2 if int(image.header["sizeof_hdr"]) == 540 else 1
        affine = np.asarray(image.affine, np.float64)
        if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-12:
            raise InputError(
                f"{printable(path)}: its affine says nowhere in space where voxels lie: {affine.tolist()}."
            )
    return Recording(held, Kind.VOLUME, Space(affine, header, version), path, tuple(notes))


def moved_affine(affine: np.ndarray, start: tuple[float, ...], step: tuple[float, ...]) -> np.ndarray:
    """An affine of other voxels: an index stands for the middle of a voxel."""
    move = np.eye(4)
    move[(0, 1, 2), (0, 1, 2)] = step
    move[:3, 3] = [first + each / 2 - 0.5 for first, each in zip(start, step, strict=True)]
    return affine @ move


def orientation(affine: np.ndarray) -> str:
    """Towards what each axis goes: "RAS" is right, front (anterior), top (superior).

    Example:
        >>> orientation(np.diag([-1.0, 1, 2, 1]))
        'LAS'
    """
    nibabel = imported("nibabel", INSTALL)
    return "".join(str(each) for each in nibabel.aff2axcodes(affine))


def nifti_bytes(space: Space, relevance: np.ndarray, ending: str) -> bytes:
    """A volume as a NIfTI of float32."""
    nibabel = imported("nibabel", INSTALL)
    form = nibabel.Nifti2Image if space.version == 2 else nibabel.Nifti1Image
    image = form(np.ascontiguousarray(relevance, np.float32), space.affine)
    if space.header:
        # As the file has it, and not as nibabel would make it of the affine: its quaternions, codes and units.
        for name, value in space.header.items():
            image.header[name] = value
        image.header["pixdim"][4:] = 1
    else:
        image.header.set_xyzt_units("mm")
    data: bytes = image.to_bytes()
    return gzip.compress(data, mtime=0) if ending == ".nii.gz" else data
