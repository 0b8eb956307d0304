"""Which recordings are meant by files, folders and globs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from hilrp.models.images import Source, find, sources_of
from hilrp.models.recordings import FORMATS, PICTURES, ending_of
from hilrp.util.regular_files import not_a_file

#: So many files of a folder are looked at, whether they are DICOM.
_LOOKED_AT = 5
_DICOM = (".dcm", ".dicom")


def are_recordings(arguments: Iterable[str | Path]) -> bool:
    """Whether files are meant that hold no pictures: by their endings, or since a folder holds nothing else.

    Example:
        >>> are_recordings(["scan.nii.gz"]), are_recordings(["photo.jpg"]), are_recordings(["scene.tif"])
        (True, False, False)
    """
    arguments = [str(each) for each in arguments]
    endings = {ending for ending in FORMATS if ending not in PICTURES}
    if any(ending_of(each) in endings for each in arguments):
        return True
    folders = [each for each in arguments if Path(each).is_dir()]
    if not folders or len(folders) < len(arguments) or find(folders)[0]:
        return False
    return bool(find_recordings(folders)[0])


def is_recording(path: Path) -> bool:
    """Whether a file ends as recordings do, or begins as DICOM does."""
    return ending_of(path) in FORMATS or _is_dicom(path)


def find_recordings(
    arguments: Iterable[str | Path], output: Path | None = None, pictures: bool = False
) -> tuple[list[Source], dict[str, str]]:
    """The recordings that are meant, and why some arguments mean none; the DICOM files of a folder are one.

    Args:
        arguments: Files, folders and globs.
        output: Where the results go: folders are searched without it.
        pictures: Whether files count that may be pictures, too (``.tif``).
    """
    endings = tuple(each for each in FORMATS if pictures or each not in PICTURES)
    # A folder is searched for ".gz", of which only what is a NIfTI is kept.
    sources, problems = find(arguments, output, (*endings, ".gz"))
    given = [Path(each) for each in arguments]
    found: dict[Path, str] = {}
    for source in sources:
        ending, parent = ending_of(source.path), source.path.parent
        if source.path.suffix == ".gz" and ending != ".nii.gz":
            continue
        if ending in _DICOM and source.path not in given:
            above = Path(source.name).parent.as_posix()
            found.setdefault(parent, parent.resolve().name if above == "." else above)
        else:
            found[source.path] = source.name.removesuffix(".nii")
    for folder in given:
        if folder.is_dir() and not any(path.is_relative_to(folder) for path in found) and _holds_dicom(folder):
            found[folder] = folder.resolve().name
            problems.pop(str(folder), None)
    return sources_of(found), problems


def _holds_dicom(folder: Path) -> bool:
    """Whether the first files of a folder begin as DICOM does: they need no ending."""
    files = (each for each in sorted(folder.iterdir()) if not_a_file(each) is None and not each.name.startswith("."))
    return any(_is_dicom(file) for file in islice(files, _LOOKED_AT))


def _is_dicom(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(132)[128:] == b"DICM"
