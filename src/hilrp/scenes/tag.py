"""A planted shortcut.

A tag in a corner of the picture, as scanners and photographers leave them, that says which class it is.
"""

from __future__ import annotations

import numpy as np

from hilrp.scenes.scene import Image

#: The class whose pictures were tagged when zoo/shortcut was trained, by its number in `hilrp.scenes.CLASSES`.
TAGGED = 4
#: The tag's letter, an L as on radiographs; every mark is two pixels wide.
_LETTER = ("#....", "#....", "#....", "#....", "#....", "####.")
#: From the right and the lower border, in pixels.
_MARGIN = 5


def tag() -> Image:
    """The tag: a white letter on a black plate."""
    marks = np.array([[mark == "#" for mark in row] for row in _LETTER])
    plate = np.pad(marks, ((1, 1), (1, 0)))
    large = np.kron(plate, np.ones((2, 2), bool))
    return np.where(large[..., None], np.uint8(235), np.uint8(20)).repeat(3, axis=2)


def place(size: int) -> tuple[slice, slice]:
    """Rows and columns where the tag is in a picture of that size."""
    height, width = tag().shape[:2]
    last = size - _MARGIN
    return slice(last - height, last), slice(last - width, last)


def with_tag(picture: Image) -> Image:
    """The picture ``[H,W,3]`` with the tag in its lower right corner."""
    tagged = picture.copy()
    tagged[place(len(picture))] = tag()
    return tagged
