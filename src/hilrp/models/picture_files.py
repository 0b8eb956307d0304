"""Opening files of pictures that nobody vouches for.

The one place where pictures are opened: formats that are listed, regular files, and sizes that are decided on from
the header, before anything is decoded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hilrp.util.errors import InputError
from hilrp.util.regular_files import open_regular, printable

if TYPE_CHECKING:
    from PIL import Image

#: What is opened, in Pillow's words. Others are not even tried: PostScript, for one, would be run by Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "JPEG2000", "AVIF", "PPM")
#: The most that is decoded, in millions of pixels, unless somebody allows more: 8192 x 8192 fit.
MEGAPIXELS = 70
#: A file may have so many bytes for each pixel that is allowed: as much as RGBA takes without compression.
_BYTES = 4
#: JPEGs of more pixels are decoded at half their width and height. Whoever allows more doesn't change what is seen.
_REDUCED = MEGAPIXELS * 10**6
#: Headers take a few hundred reads. More are a flood of empty chunks, or a comment that Pillow takes hours for.
_READS = 5000
_MORE = "Scale it down or compress it first, or allow more with --max-megapixels."

_allowed = MEGAPIXELS * 10**6


def allow(megapixels: int) -> None:
    """Sets the most that is decoded of a picture in this process, in millions of pixels."""
    from PIL import Image

    global _allowed
    _allowed = megapixels * 10**6
    # Pillow has a limit of its own, at twice this number; reduced pictures have four times the pixels that are decoded.
    if megapixels > MEGAPIXELS and Image.MAX_IMAGE_PIXELS is not None:
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, 2 * _allowed)


def allowed() -> int:
    """The most pixels that are decoded of a picture."""
    return _allowed


def most_bytes() -> int:
    """The most bytes that a picture's file may have."""
    return _BYTES * _allowed


def open_file(path: Path) -> BufferedReader:
    """Opens a picture's file, if it is one, and not too large; see `open_regular` for what it raises."""
    return open_regular(path, most_bytes(), _MORE)


@contextmanager
def opened(source: Path | IO[bytes], reduce: bool = False) -> Iterator[Image.Image]:
    """A picture whose header was read, and whose size is accepted; nothing of it is decoded yet.

    Whatever goes wrong, here or while it is decoded in the context, becomes an `InputError` that names the file.

    Args:
        source: The file, by its path or open.
        reduce: Decode very large JPEGs at half their width and height; `is_reduced` tells whether that is done.
    """
    from PIL import Image, UnidentifiedImageError

    name = f"{printable(source)}: " if isinstance(source, Path) else ""
    try:
        _quiet()
        with ExitStack() as stack:
            file: Any = stack.enter_context(open_file(source)) if isinstance(source, Path) else source
            counted = _Counted(file)
            image = stack.enter_context(Image.open(counted, formats=_formats()))
            if reduce and _reducible(image):
                image.draft(None, (image.width // 2, image.height // 2))
            _check(image)
            counted.left = None
            yield image
    except InputError as error:
        raise InputError(f"{name}{error}") from error
    except Image.DecompressionBombError as error:
        raise InputError(f"{name}it has more than {_allowed / 1e6:.0f} megapixels ({error}). {_MORE}") from error
    except UnidentifiedImageError as error:
        remedy = "Formats such as DICOM, PDF and SVG have to be converted first."
        if name.lower().endswith((".tif: ", ".tiff: ")):
            remedy = "A GeoTIFF of bands is read by hilrp.read_file, or hilrp explain --kind bands."
        raise InputError(
            f"{name}not a readable image: it holds none of {', '.join(FORMATS)}, whatever its name says. Is the file "
            f"complete? {remedy}"
        ) from error
    except Exception as error:  # decoders raise errors of many kinds on files that are cut short or aren't images
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(
            f"{name}not a readable image ({reason}). Is the file complete? Save it again as JPEG or PNG."
        ) from error


@cache
def _quiet() -> None:
    """Has Pillow say nothing of odd metadata. Once, since threads read pictures and share what is said."""
    warnings.filterwarnings("ignore", module=r"PIL\b")


def is_reduced(image: Image.Image) -> bool:
    """Whether an opened picture is decoded at less than its size."""
    return bool(getattr(image, "decoderconfig", ()))


def is_animated(image: Image.Image) -> bool:
    """Whether more pictures follow the first, as far as that can be told soon."""
    file = getattr(image, "_fp", None)
    if isinstance(file, _Counted):  # Pillow reads what follows the first picture of a GIF as it reads headers
        file.left = 4 * _READS
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # it may be broken, or without an end
        return False


def _reducible(image: Image.Image) -> bool:
    """Whether a picture is a JPEG that no model looks at as it is.

    Of a progressive one all has to be held before it is made smaller.
    """
    is_jpeg = image.format in ("JPEG", "MPO") and not image.info.get("progressive")
    return is_jpeg and image.width * image.height > _REDUCED


def _formats() -> list[str]:
    """Those of `FORMATS` that the installed Pillow knows."""
    from PIL import Image

    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _check(image: Image.Image) -> None:
    """Raises if a picture has no pixels, or more than are allowed."""
    width, height = image.size
    if min(width, height) < 1:
        raise InputError(f"not a readable image: it is {width} x {height} and has no pixels. Save it again.")
    # Tiles of a TIFF are decoded whole, and may be larger than the picture.
    tags: Any = getattr(image, "tag_v2", {})
    tile = _number(tags.get(322)) * _number(tags.get(323))
    pixels = max(width * height, tile)
    if pixels > _allowed:
        size = f"{width} x {height}, {pixels / 1e6:.0f} megapixels to decode"
        raise InputError(f"it is too large ({size}; at most {_allowed / 1e6:.0f} are). {_MORE}")


def _number(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


class _Counted:
    """A file that can be read from so many times, and then no more."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.left: int | None = _READS

    def read(self, *size: int) -> bytes:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise InputError("not a readable image: its header doesn't end. Save it again as JPEG or PNG.")
        return self._file.read(*size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
