"""DICOM (pydicom, highdicom): series of slices, multi-frame objects and radiographs; maps as parametric maps."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hilrp.attribution.kinds import Kind
from hilrp.models.recordings.nifti import INSTALL, Space, moved_affine
from hilrp.models.recordings.recording import MOST, Recording, check_count, checked_path, finite, reading
from hilrp.util.errors import InputError
from hilrp.util.peers import imported
from hilrp.util.regular_files import not_a_file, printable

#: From millimetres to the left and back (DICOM) to those to the right and front (NIfTI).
_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
#: Slices are evenly spaced if none is further from its place than this part of their distance.
_EVEN = 0.01
#: How far the numbers of two orientations may be from each other: they are written with few digits.
_ALIKE = 1e-3
#: Files that are deflated as a whole have at most so many bytes.
_DEFLATED = 2**20
#: What of a dataset says where its pixels lie.
_PLACED = ("FrameOfReferenceUID", "ImageOrientationPatient", "ImagePositionPatient", "PixelSpacing", "SliceThickness")


@dataclass(frozen=True, eq=False)
class Patient(Space):
    """Where voxels of a DICOM series lie.

    Attributes:
        slices: The datasets, without their pixels, in the order of the volume.
    """

    slices: tuple[Any, ...] = ()
    endings: ClassVar[tuple[str, ...]] = (".dcm", ".nii.gz", ".nii")

    def moved(self, start: tuple[float, ...], step: tuple[float, ...]) -> Patient:
        """That of other voxels."""
        return replace(self, affine=moved_affine(self.affine, start, step))

    def encoded(self, relevance: np.ndarray, ending: str, like: Recording, identify: bool) -> bytes:
        """A parametric map, or a NIfTI in the same place."""
        if ending != ".dcm":
            return super().encoded(relevance, ending, like, identify)
        return _parametric_map(self, relevance, identify)


@dataclass(frozen=True)
class Plane:
    """A radiograph: nothing says where in the patient its pixels lie."""

    spacing: tuple[float, ...] | None
    endings: ClassVar[tuple[str, ...]] = ()

    def moved(self, start: tuple[float, ...], step: tuple[float, ...]) -> Plane:
        """That of other pixels."""
        return Plane(None if self.spacing is None else tuple(a * b for a, b in zip(self.spacing, step, strict=True)))

    def encoded(self, relevance: np.ndarray, ending: str, like: Recording, identify: bool) -> bytes:
        """Never asked for: it has no endings."""
        raise InputError("A radiograph lies nowhere in space; save its explanation with Explanation.save.")

    def facts(self) -> dict[str, Any]:
        """The size of a pixel on the detector."""
        return {"spacing": None if self.spacing is None else list(self.spacing)}


class _NoDicom(InputError):
    """A file that is something else."""


def read(path: Path, series: str | int | None = None) -> Recording:
    """A volume of a folder with one series or of a multi-frame object, or a radiograph."""
    imported("pydicom", INSTALL)
    with reading(path, "DICOM series" if path.is_dir() else "DICOM file"):
        return _read(path, series)


def _read(path: Path, series: str | int | None) -> Recording:
    """The same; what is written wrongly in a file may raise anything, wherever it is looked at."""
    notes: list[str] = []
    found = _of_folder(path, notes) if path.is_dir() else {path: _dataset(path)}
    held = _one_series(path, found, series)
    first = next(iter(held.values()))
    if len(held) > 1 and any(int(each.get("NumberOfFrames") or 1) > 1 for each in held.values()):
        raise InputError(f"{printable(path)}: {len(held)} files, some of several frames. Give one multi-frame file.")
    if int(first.get("NumberOfFrames") or 1) > 1 or "PerFrameFunctionalGroupsSequence" in first:
        return _multi_frame(next(iter(held)), first, notes)
    if len(held) == 1 and first.get("ImagePositionPatient") is None:
        return _radiograph(next(iter(held)), first, notes)
    return _stacked(path, held, notes)


def _of_folder(folder: Path, notes: list[str]) -> dict[Path, Any]:
    """The images in a folder (not in the folders in it)."""
    found, others, size = {}, 0, 0
    for file in sorted(folder.iterdir()):
        if file.is_dir() or file.name.startswith("."):
            continue
        if not_a_file(file) is not None:
            others += 1
            continue
        try:
            dataset = _dataset(file)
        except _NoDicom:
            others += 1
            continue
        if "Rows" not in dataset:
            others += 1
            continue
        size += int(dataset.Rows) * int(dataset.Columns) * int(dataset.get("NumberOfFrames") or 1)
        if size > MOST:
            raise InputError(f"{printable(folder)}: it holds more than {MOST / 1e6:,.0f} million values. Take a part.")
        found[file] = dataset
    if not found:
        raise InputError(f"{printable(folder)}: there is no DICOM image in it.")
    if others:
        notes.append(f"{others} files in the folder are no images and were left out")
    return found


def _dataset(file: Path) -> Any:
    """A file's dataset; pixels are decoded later."""
    pydicom = imported("pydicom", INSTALL)
    checked_path(file)
    try:
        try:
            _check_deflated(file)
            dataset = pydicom.dcmread(file)
        except pydicom.errors.InvalidDicomError:  # some begin at once, without saying what they are
            dataset = pydicom.dcmread(file, force=True)
            if "SOPClassUID" not in dataset:
                raise
        if "TransferSyntaxUID" not in dataset.file_meta:
            implicit, little = dataset.original_encoding
            uids = pydicom.uid
            plain = uids.ImplicitVRLittleEndian if implicit else uids.ExplicitVRLittleEndian
            dataset.file_meta.TransferSyntaxUID = plain if little else uids.ExplicitVRBigEndian
    except InputError:
        raise
    except pydicom.errors.InvalidDicomError as error:
        raise _NoDicom(f"{printable(file)}: it is no DICOM file. Is it complete?") from error
    except Exception as error:
        raise InputError(f"{printable(file)}: not a readable DICOM file ({error}). Is it complete?") from error
    return dataset


def _check_deflated(file: Path) -> None:
    """Raises where a file is packed as a whole, and may be a thousand times as large as it looks."""
    pydicom = imported("pydicom", INSTALL)
    syntax = pydicom.filereader.read_file_meta_info(file).get("TransferSyntaxUID")
    if syntax == pydicom.uid.DeflatedExplicitVRLittleEndian and file.stat().st_size > _DEFLATED:
        raise InputError(
            f"{printable(file)}: it is deflated, and larger than {_DEFLATED / 1e6:.0f} MB. Unpack it, with dcmconv."
        )


def _one_series(path: Path, found: dict[Path, Any], series: str | int | None) -> dict[Path, Any]:
    """The files of the one series that is meant."""
    by_series: dict[str, dict[Path, Any]] = {}
    for file, dataset in found.items():
        if "PixelData" not in dataset and "FloatPixelData" not in dataset:
            what = dataset.get("SOPClassUID")
            name = getattr(what, "name", "an object of no known class")
            raise InputError(f"{printable(file)}: it holds no pixels ({name}). Give the images.")
        uid = str(dataset.get("SeriesInstanceUID", ""))
        by_series.setdefault(uid, {})[file] = dataset
    if series is not None:
        number = {str(next(iter(each.values())).get("SeriesNumber")): uid for uid, each in by_series.items()}
        uid = str(series) if str(series) in by_series else number.get(str(series), "")
        if uid not in by_series:
            raise InputError(f"{printable(path)}: there is no series {series}. It has {_listed(by_series)}.")
        return by_series[uid]
    if len(by_series) > 1:
        raise InputError(
            f"{printable(path)}: it holds {len(by_series)} series: {_listed(by_series)}. Choose one with series=NUMBER."
        )
    return next(iter(by_series.values()))


def _listed(by_series: dict[str, dict[Path, Any]]) -> str:
    each = (f"{next(iter(files.values())).get('SeriesNumber')} ({len(files)} files)" for files in by_series.values())
    return ", ".join(sorted(each)[:20])


def _pixels(file: Path, dataset: Any) -> np.ndarray:
    """What a dataset's pixels mean: decoded, and scaled (Hounsfield units of a CT)."""
    pixels = imported("pydicom.pixels", INSTALL)
    try:
        if "PixelData" in dataset:
            stored = dataset.pixel_array
            meant: np.ndarray = np.asarray(pixels.apply_modality_lut(stored, dataset), np.float32)
        else:
            meant = np.asarray(dataset.pixel_array, np.float32)
    except Exception as error:
        reason = " ".join(str(error).split())
        syntax = getattr(getattr(dataset, "file_meta", None), "TransferSyntaxUID", None)
        packed = f" They are compressed ({syntax.name})." if syntax is not None and syntax.is_compressed else ""
        raise InputError(
            f"{printable(file)}: its pixels can't be decoded ({reason[:200]}).{packed} Is the file complete? What "
            "can't be decompressed here is decompressed with dcmdjpeg or gdcmconv --raw."
        ) from error
    return meant


def _stacked(path: Path, held: dict[Path, Any], notes: list[str]) -> Recording:
    """Slices of one orientation, evenly spaced, as a volume ``[1,D,H,W]``."""
    for file, dataset in held.items():
        missing = [name for name in _PLACED[1:4] if dataset.get(name) is None]
        if missing:
            raise InputError(
                f"{printable(file)}: it doesn't say where it lies ({', '.join(missing)} missing). It is no slice of a "
                "volume; give it alone."
            )
        if int(dataset.get("SamplesPerPixel", 1)) > 1:
            raise InputError(f"{printable(file)}: it is in colours, which no volume is. Give a series in greys.")
    first_file, first = next(iter(held.items()))
    rows = _numbers(first.ImageOrientationPatient)
    for file, dataset in held.items():
        if np.abs(_numbers(dataset.ImageOrientationPatient) - rows).max() > _ALIKE:
            raise InputError(
                f"{printable(file)}: it lies in another orientation than {first_file.name} (a scout view, or several "
                "scans in one series). Move the slices that are no part of the volume out of the folder."
            )
        own, usual = ((int(each.Rows), int(each.Columns), *_numbers(each.PixelSpacing)) for each in (dataset, first))
        if not np.allclose(own, usual, rtol=1e-5):
            raise InputError(
                f"{printable(file)}: {own[0]} x {own[1]} pixels of {own[2]:g} x {own[3]:g} mm, where {first_file.name} "
                f"has {usual[0]} x {usual[1]} of {usual[2]:g} x {usual[3]:g} mm. Take slices of one form."
            )
    normal = np.cross(rows[:3], rows[3:])
    placed = sorted(((float(normal @ _numbers(each.ImagePositionPatient)), file) for file, each in held.items()))
    _check_even(path, placed)
    check_count(path, (len(placed), first.Rows, first.Columns), "Take fewer slices.")
    ordered = [held[file] for _, file in placed]
    values = np.stack([_pixels(file, held[file]) for _, file in placed])
    corners = [_numbers(each.ImagePositionPatient) for each in (ordered[0], ordered[-1])]
    if len(placed) > 1:
        along = (corners[1] - corners[0]) / (len(placed) - 1)
        if abs(abs(float(normal @ along)) / np.linalg.norm(along) - 1) > _ALIKE:
            notes.append("its slices are stacked aslant (a tilted gantry): the affine says so")
    else:
        along = normal * float(first.get("SpacingBetweenSlices") or first.get("SliceThickness") or 1.0)
        notes.append("it is a single slice")
    affine = _affine(corners[0], along, rows, _numbers(first.PixelSpacing))
    return _volume(path, values, affine, [_without_pixels(each) for each in ordered], notes)


def _check_even(path: Path, placed: list[tuple[float, Path]]) -> None:
    """Raises unless places are evenly spaced."""
    places = np.array([place for place, _ in placed])
    gaps = np.diff(places)
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    for i, gap in enumerate(gaps):
        names = f"{placed[i][1].name} and {placed[i + 1][1].name}"
        if gap < 1e-4:
            raise InputError(
                f"{printable(path)}: {names} lie in the same place ({places[i]:g} mm): several times or contrasts in "
                "one series. Keep one of them."
            )
        if abs(gap - usual) > _EVEN * usual:
            missing = round(gap / usual) - 1
            said = f"{missing} missing" if missing > 0 and abs(gap / usual - missing - 1) < 0.1 else "unevenly spaced"
            raise InputError(
                f"{printable(path)}: between {names} are {gap:g} mm, elsewhere {usual:g} mm: slices are {said}. "
                "Complete the series, or resample it."
            )


def _affine(corner: np.ndarray, along: np.ndarray, rows: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """From slice, row and column to millimetres to the right, front and top."""
    affine = np.eye(4)
    # Going down a column, the row changes: that is the second vector of the orientation.
    affine[:3] = np.stack([along, rows[3:] * spacing[0], rows[:3] * spacing[1], corner], 1)
    return _TO_RAS @ affine


def _volume(path: Path, values: np.ndarray, affine: np.ndarray, slices: list[Any], notes: list[str]) -> Recording:
    held = finite(path, values[None], "voxel", notes)
    return Recording(held, Kind.VOLUME, Patient(affine, slices=tuple(slices)), path, tuple(notes))


def _multi_frame(file: Path, dataset: Any, notes: list[str]) -> Recording:
    """An enhanced object, whose frames say where they lie."""
    highdicom = imported("highdicom", INSTALL)
    check_count(file, (dataset.get("NumberOfFrames") or 1, dataset.Rows, dataset.Columns), "Take a part of it.")
    if dataset.get("PerFrameFunctionalGroupsSequence") is None:
        raise InputError(
            f"{printable(file)}: {dataset.NumberOfFrames} frames that don't say where they lie (an ultrasound or "
            "angiography, perhaps). Save them as a video (.mp4), and give that."
        )
    try:
        image = highdicom.Image.from_dataset(dataset)
        volume = image.get_volume(apply_real_world_transform=False)
    except Exception as error:
        raise InputError(
            f"{printable(file)}: its {dataset.NumberOfFrames} frames make no volume ({' '.join(str(error).split())}). "
            "They may be unevenly spaced, of several orientations, or of several times."
        ) from error
    return _volume(file, np.asarray(volume.array), _TO_RAS @ volume.affine, [_without_pixels(dataset)], notes)


def _radiograph(file: Path, dataset: Any, notes: list[str]) -> Recording:
    """A single picture that lies nowhere in space, ``[C,H,W]``."""
    check_count(file, (dataset.get("SamplesPerPixel", 1), dataset.Rows, dataset.Columns), "Scale it down first.")
    values = _pixels(file, dataset)
    if dataset.get("PhotometricInterpretation") == "MONOCHROME1":
        values = values.max() + values.min() - values
        notes.append("its greys were inverted: in the file, the largest value is black (MONOCHROME1)")
    values = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
    spacing = dataset.get("PixelSpacing") or dataset.get("ImagerPixelSpacing")
    plane = Plane(None if spacing is None else tuple(_numbers(spacing).tolist()))
    return Recording(finite(file, values, "pixel", notes), Kind.PICTURE, plane, file, tuple(notes))


def _numbers(values: Any) -> np.ndarray:
    return np.array([float(each) for each in values])


def _without_pixels(dataset: Any) -> Any:
    """What is kept of a dataset: not its pixels, which are in the recording."""
    pydicom = imported("pydicom", INSTALL)
    # As they are in the file: what is never looked at may be written wrongly.
    kept = pydicom.Dataset({tag: element for tag, element in dataset.items() if tag.group != 0x7FE0})
    kept.file_meta = dataset.file_meta
    return kept


def _parametric_map(space: Patient, relevance: np.ndarray, identify: bool) -> bytes:
    """A DICOM parametric map (float32) whose frames lie where the voxels do."""
    highdicom = imported("highdicom", INSTALL)
    codes = imported("pydicom.sr.codedict", INSTALL).codes
    first = space.slices[0]
    # Viewers lay a map over a scan of the same frame of reference: it numbers coordinates, and says no more.
    frame = first.get("FrameOfReferenceUID") or highdicom.UID()
    sources = [_identified(each, frame) for each in space.slices] if identify else [_anonymous(first, frame)]
    affine = np.linalg.inv(_TO_RAS) @ space.affine
    volume = highdicom.Volume(np.ascontiguousarray(relevance, np.float32), affine, "PATIENT", frame)
    limit = float(np.abs(relevance).max()) or 1.0
    values = highdicom.pm.RealWorldValueMapping("relevance", "relevance", codes.UCUM.NoUnits, (-limit, limit), 1.0, 0.0)
    made = highdicom.pm.ParametricMap(
        source_images=sources,
        pixel_array=volume,
        series_instance_uid=highdicom.UID(),
        series_number=1,
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer="HiLRP",
        manufacturer_model_name="hilrp",
        software_versions=_version(),
        device_serial_number="0",
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[values],
        voi_lut_transformations=[highdicom.VOILUTTransformation(window_center=0.0, window_width=2 * limit)],
        content_label="RELEVANCE",
    )
    if not identify:
        _unlinked(made)
    buffer = BytesIO()
    made.save_as(buffer)
    return buffer.getvalue()


def _version() -> str:
    """The version of hilrp, where it is installed."""
    try:
        return version("hilrp")
    except PackageNotFoundError:
        return "not installed"


#: What says whom an image is of, and to which study it belongs; DICOM asks for these, if only to be empty.
_WHOSE = (
    "PatientID", "PatientName", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate",
    "StudyTime", "ReferringPhysicianName",
)  # fmt: skip
#: What leads to other objects of the same patient.
_LINKS = ("ReferencedSeriesSequence", "SourceImageSequence", "DerivationImageSequence")


def _identified(dataset: Any, frame: str) -> Any:
    """A dataset as the source of a map that says whom it is of."""
    kept = copy(dataset)
    for name in _WHOSE:
        if name not in kept:
            setattr(kept, name, None)
    kept.FrameOfReferenceUID = frame
    return kept


def _anonymous(dataset: Any, frame: str) -> Any:
    """A source that says where it lies, and neither whom it is of nor to which study it belongs."""
    highdicom, pydicom = imported("highdicom", INSTALL), imported("pydicom", INSTALL)
    made = pydicom.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    made.SOPClassUID, made.SpecificCharacterSet = pydicom.uid.CTImageStorage, "ISO_IR 192"
    made.Modality, made.Rows, made.Columns = "CT", dataset.Rows, dataset.Columns
    for name in ("SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID"):
        setattr(made, name, highdicom.UID())
    for name in _WHOSE:
        setattr(made, name, None)
    made.FrameOfReferenceUID, made.PositionReferenceIndicator = frame, None
    made.ImageOrientationPatient, made.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 0]
    made.PixelSpacing, made.SliceThickness = [1, 1], 1
    return made


def _unlinked(made: Any) -> None:
    """Takes what leads to a source out of a map: there is none of that number."""
    for place in (made, *made.get("SharedFunctionalGroupsSequence", ()), *made.PerFrameFunctionalGroupsSequence):
        for name in _LINKS:
            if name in place:
                delattr(place, name)


__all__ = ["Patient", "Plane", "read"]
