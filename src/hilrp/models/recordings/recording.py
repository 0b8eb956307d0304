"""What was read from a file, and where its values lie, so that a map can be laid over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.kinds import Kind
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError, InputError
from hilrp.util.regular_files import open_regular, printable

if TYPE_CHECKING:
    import numpy as np

#: The most values that are read of a file: 512 x 512 x 1024 voxels, 1 GiB.
MOST = 2**28
#: The interpolation of values by their number of axes.
_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


class Geometry(Protocol):
    """Where values lie: in space, on the earth, in time. One for each format."""

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of files that a map can be written to; the first is the usual one."""

    def moved(self, start: tuple[float, ...], step: tuple[float, ...]) -> Geometry:
        """That of other values: the edge of the first of them lies at ``start``, and each is ``step`` long.

        Both are in values of this one, along each axis, counted from the edge of the first.
        """

    def encoded(self, relevance: np.ndarray, ending: str, like: Recording, identify: bool) -> bytes:
        """A map as a file."""

    def facts(self) -> dict[str, Any]:
        """What can be said of it in JSON, nothing of which says whom it is of."""


@dataclass(frozen=True, repr=False)
class Recording:
    """A scan, a satellite picture, a film or a sound.

    Attributes:
        values: ``[C,...]`` in float32, as the file means them (scaled by its slope): voxels, bands, frames, moments.
        kind: What kind of thing it is, for `hilrp.explain`.
        geometry: Where the values lie.
        path: The file or folder.
        notes: What had to be done to it that could matter.
    """

    values: Tensor
    kind: Kind
    geometry: Geometry
    path: Path
    notes: tuple[str, ...] = ()

    @property
    def grid(self) -> tuple[int, ...]:
        """How many values it has along each axis, without channels."""
        return tuple(self.values.shape[1:])

    def __repr__(self) -> str:
        return f"Recording({str(self.kind)!r}, values {tuple(self.values.shape)}, {self.path.name!r})"

    def with_values(self, values: Tensor) -> Recording:
        """The same with other values in the same places: normalised, for instance."""
        if tuple(values.shape[1:]) != self.grid:
            raise InputError(
                f"with_values: {tuple(values.shape)} has not the form {('C', *self.grid)} of the recording. Use "
                "resized or cropped, which know where the values lie then."
            )
        return replace(self, values=values)

    def resized(self, *sides: int) -> Recording:
        """The same, sampled anew with so many values along each axis, linearly.

        Example:
            >>> import numpy, nibabel, hilrp
            >>> nibabel.save(nibabel.Nifti1Image(numpy.zeros((8, 6, 4), "f4"), numpy.eye(4)), "a.nii")
            >>> small = hilrp.read_file("a.nii").resized(4, 3, 2)
            >>> small.grid, small.geometry.facts()["spacing"]
            ((4, 3, 2), [2.0, 2.0, 2.0])
        """
        self._check(sides, "resized")
        values = self.values[None]
        step = tuple(old / new for old, new in zip(self.grid, sides, strict=True))
        values = F.interpolate(values, tuple(sides), mode=_MODES[len(sides)], align_corners=False)
        return replace(self, values=values[0], geometry=self.geometry.moved((0.0,) * len(sides), step))

    def cropped(self, start: Sequence[int], sides: Sequence[int]) -> Recording:
        """A part of it, from a value on, so many along each axis."""
        self._check(sides, "cropped")
        ends = [first + side for first, side in zip(start, sides, strict=True)]
        if any(first < 0 or end > most for first, end, most in zip(start, ends, self.grid, strict=True)):
            raise InputError(f"cropped({tuple(start)}, {tuple(sides)}): the recording has {self.grid} values.")
        part = self.values[(slice(None), *(slice(first, end) for first, end in zip(start, ends, strict=True)))]
        moved = self.geometry.moved(tuple(map(float, start)), (1.0,) * len(ends))
        return replace(self, values=part, geometry=moved)

    def _check(self, sides: Sequence[int], what: str) -> None:
        if len(sides) != len(self.grid) or not all(isinstance(side, Integral) and side > 0 for side in sides):
            raise InputError(f"{what}: give {len(self.grid)} sides, each at least 1 and whole, not {tuple(sides)}.")

    def write(self, path: str | Path, found: Explanation | Tensor, sample: int = 0, identify: bool = False) -> Path:
        """Writes a map into a file of its field, in the place where the values lie.

        Nothing of the file is copied that could tell whom it is of: neither names nor dates nor free texts.

        Args:
            path: The file: a NIfTI, a DICOM parametric map, a GeoTIFF, a film, a sound.
            found: The explanation, or a map with the form of the recording's values, without channels; of bands it may
                have them.
            sample: Which sample of an explanation.
            identify: Copy what says whom it is of and to what study it belongs, where the format has that (DICOM).
        """
        place = Path(path)
        if not self.geometry.endings:
            raise InputError(
                f"{printable(self.path)}: nothing in it says where in space it lies, so that no map can be laid over "
                "it. Use Explanation.save."
            )
        ending = next((each for each in self.geometry.endings if place.name.lower().endswith(each)), None)
        if ending is None:
            raise InputError(
                f"{printable(place)}: a map of {self.path.name} is written as {' or '.join(self.geometry.endings)}."
            )
        if self._is_source(place, ending):
            raise InputError(f"{printable(place)}: the recording was read from it. Give the map a file of its own.")
        held = found.map[sample] if isinstance(found, Explanation) else found
        held = held.detach().float().cpu()
        shapes = [self.grid, *([tuple(self.values.shape)] if self.kind is Kind.BANDS else [])]
        if tuple(held.shape) not in shapes:
            raise InputError(
                f"{printable(place)}: the map has the form {tuple(held.shape)}, the recording {self.grid}. Resize or "
                "crop the recording by its own methods before it is explained, and write with what they return."
            )
        write_whole(place, self.geometry.encoded(held.numpy(), ending, self, identify))
        return place

    def _is_source(self, place: Path, ending: str) -> bool:
        """Whether a file is what this was read from, or a DICOM file beside those of its series."""
        if not place.exists() or not self.path.exists():
            return False
        return place.samefile(self.path) or (ending == ".dcm" and place.parent.samefile(self.path))


def checked_path(path: Path) -> None:
    """Raises unless a path leads to a regular file that isn't empty, which can be waited for."""
    try:
        open_regular(path).close()
    except HilrpError as error:
        raise InputError(f"{printable(path)}: {error}") from error
    except OSError as error:
        raise InputError(f"{printable(path)}: it can't be opened ({error.strerror}).") from error


def check_count(path: Path, shape: Sequence[int], remedy: str) -> None:
    """Raises if so many values are none, or more than are read; before any of them is decoded."""
    count = 1
    for side in shape:
        count *= int(side)
    if count < 1:
        raise InputError(f"{printable(path)}: its form is {tuple(map(int, shape))}: it holds no values.")
    if count > MOST:
        raise InputError(
            f"{printable(path)}: its form is {tuple(map(int, shape))}, {count / 1e6:,.0f} million values; at most "
            f"{MOST / 1e6:,.0f} are read. {remedy}"
        )


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Whatever a library raises on a file becomes an `InputError` that names it."""
    try:
        yield
    except HilrpError:
        raise
    except Exception as error:  # of many kinds, on files that are cut short or are something else
        reason = " ".join((str(error) or type(error).__name__).split())[:200]
        raise InputError(f"{printable(path)}: not a readable {what} ({reason}). Is the file complete?") from error


def finite(
    path: Path, values: np.ndarray, thing: str, notes: list[str], missing: Callable[[], np.ndarray] | None = None
) -> Tensor:
    """Values as a tensor, with zero where there are none, which is noted.

    Args:
        path: The file.
        values: The values.
        thing: What one is called.
        notes: Where it is noted.
        missing: Which of them are said to be none.
    """
    t = torch.from_numpy(values.astype("float32", copy=False).copy())
    gone = ~t.isfinite()
    if missing is not None:
        gone |= torch.from_numpy(missing())
    count = int(gone.sum())
    if count == t.numel():
        raise InputError(f"{printable(path)}: none of its {thing}s has a value. Is it the right file?")
    if count:
        notes.append(f"{count} of {t.numel()} {thing}s have no value; they were set to 0")
        t[gone] = 0
    return t
