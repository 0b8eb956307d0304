"""Files as fields keep what they record: scans, satellite pictures, films, sounds; and maps written back beside them.

`hilrp.read_file` reads one. Which format it is, is told by the name of the file; each has a module of its own here,
which is imported only when such a file is met, with the package that it needs.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from hilrp.models.recordings.recording import Recording, checked_path
from hilrp.util.errors import InputError
from hilrp.util.regular_files import printable

#: Endings of files -> the module that reads them.
FORMATS = {
    ".nii": "nifti", ".nii.gz": "nifti", ".dcm": "dicom", ".dicom": "dicom", ".tif": "geotiff", ".tiff": "geotiff",
    ".mp4": "film", ".m4v": "film", ".mov": "film", ".avi": "film", ".mkv": "film", ".webm": "film",
    ".wav": "sound", ".flac": "sound", ".ogg": "sound",
}  # fmt: skip
#: What of these are pictures, too: they are read as pictures, unless somebody says otherwise.
PICTURES = (".tif", ".tiff")


def ending_of(path: str | Path) -> str:
    """The ending of a file, in small letters: "scan.nii.gz" has two.

    Example:
        >>> ending_of("a/scan.NII.gz"), ending_of("clip.mp4"), ending_of("IM0001")
        ('.nii.gz', '.mp4', '')
    """
    name = Path(path).name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else Path(name).suffix


def read_file(path: str | Path, **options: Any) -> Recording:
    """A scan, a satellite picture, a film or a sound in a file, with where its values lie; maps can be written back.

    Args:
        path: NIfTI (``.nii``, ``.nii.gz``), DICOM (one file, or the folder of a series), GeoTIFF (``.tif``), video
            files (``.mp4``, ``.mov``, ``.avi``, ``.mkv``, ``.webm``) or sounds (``.wav``, ``.flac``, ``.ogg``).
        options: Of films ``frames`` (so many, evenly spread) and ``span`` (from and to, in seconds); of sounds
            ``span``; of a folder of DICOM files ``series`` (its SeriesInstanceUID or SeriesNumber).

    Returns:
        The recording: its ``values`` ``[C,...]``, its ``kind``, and `Recording.write` for maps.
    """
    place = Path(path)
    kind = "dicom" if place.is_dir() or place.name.upper() == "DICOMDIR" else FORMATS.get(ending_of(place))
    if kind is None:
        checked_path(place)
        with place.open("rb") as file:
            kind = "dicom" if file.read(132)[128:] == b"DICM" else None
    if kind is None:
        raise InputError(
            f"{printable(place)}: not a file of a kind that is known by its ending: {', '.join(FORMATS)}. Pictures "
            "(JPEG, PNG, ...) are read by hilrp.load(...).batch; of arrays make a tensor yourself."
        )
    module = import_module(f"hilrp.models.recordings.{kind}")
    try:
        found: Recording = module.read(place, **options)
    except TypeError as error:
        if options and "unexpected keyword" in str(error):
            raise InputError(f"{printable(place)}: {error}. Leave that option out for such a file.") from error
        raise
    return found


__all__ = ["FORMATS", "PICTURES", "Recording", "ending_of", "read_file"]
