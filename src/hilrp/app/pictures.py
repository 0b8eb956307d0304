"""Pictures that somebody wants to look at: uploaded ones, scenes, and one that greets."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

from PIL import Image

from hilrp.models.images import read
from hilrp.scenes import Scene, Scenes
from hilrp.util.errors import InputError
from hilrp.util.regular_files import printable

#: Larger pictures are scaled down: no model looks at more.
LONGEST = 2048
#: How many scenes there are to choose from.
SCENES = 24
#: The one that a new tab shows: three objects of different colours.
FIRST = 14
#: Pictures are decoded one at a time: each may take a gigabyte for a moment.
_DECODING = threading.Lock()


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture.

    Attributes:
        name: What it is called.
        image: It, in RGB.
        opening: The lines of Python that open it, as ``image``: imports, an empty line, the rest.
        notes: What was done to it that could matter.
        scene: Where the truth is known.
        token: What its thumbnail is asked for by.
    """

    name: str
    image: Image.Image
    opening: str
    notes: list[str] = field(default_factory=list)
    scene: Scene | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))

    @property
    def number(self) -> int | None:
        """The number of the scene, of one that can be chosen."""
        found = re.fullmatch("scene ([0-9]+)", self.name) if self.scene is not None else None
        return None if found is None else int(found[1])

    def thumbnail(self, side: int = 160) -> bytes:
        """A small one, as PNG."""
        small = self.image.copy()
        small.thumbnail((side, side))
        buffer = BytesIO()
        small.save(buffer, "PNG")
        return buffer.getvalue()


def uploaded(path: Path) -> Picture:
    """The picture in a file that was sent."""
    path.stat()  # raises if it isn't there, which is no fault of the picture's
    with _DECODING:
        return _decoded(path)


def _decoded(path: Path) -> Picture:
    try:
        image, notes = read(path)
    except InputError as error:
        # Where the server keeps the file is nobody's business.
        raise InputError(str(error).replace(f"{printable(path.parent)}/", "")) from error
    opening = f"\n\nimage = {path.name!r}"
    if max(image.size) > LONGEST:
        width, height = image.size
        image.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
        smaller = f"image.thumbnail(({LONGEST}, {LONGEST}), {int(Image.Resampling.LANCZOS)})  # LANCZOS"
        opening = f"\n\nimage = loaded.photo({path.name!r})\n{smaller}"
        notes = [*notes, f"the picture ({width} x {height}) was scaled down to {image.width} x {image.height}"]
    return Picture(path.name, image, opening, notes)


def scene(index: int) -> Picture:
    """A scene that comes with hilrp."""
    found = Scenes(seed=0)[index]
    opening = (
        "from PIL import Image\nfrom hilrp.scenes import Scenes\n\n"
        f"image = Image.fromarray(Scenes(seed=0)[{index}].image)"
    )
    return Picture(f"scene {index}", Image.fromarray(found.image), opening, scene=found)


def scenes() -> list[tuple[str, int]]:
    """The scenes to choose from: what is on them, and their numbers."""
    return [(f"{i}: {Scenes(seed=0)[i].caption}", i) for i in range(SCENES)]


def greeting(of_zoo: bool, classes: Sequence[str] | None) -> Picture | None:
    """What a new tab shows: a picture that fits the model, or nothing, where none is known.

    Args:
        of_zoo: Whether the model was trained on scenes.
        classes: The names of its classes, if it has any.
    """
    if of_zoo:
        return scene(FIRST)
    knows_cats = classes is None or any(re.search(r"\bcat\b", name) for name in classes)
    return _cat() if knows_cats else None


def _cat() -> Picture | None:
    """A photograph of a cat that scikit-image brings along, where that is installed; it is never fetched."""
    found = find_spec("skimage")
    places = () if found is None else found.submodule_search_locations or ()
    file = next((path for place in places if (path := Path(place) / "data" / "chelsea.png").is_file()), None)
    if file is None:
        return None
    image, _ = read(file)
    opening = "from PIL import Image\nfrom skimage.data import chelsea\n\nimage = Image.fromarray(chelsea())"
    note = "a sample picture of scikit-image: Chelsea the cat, by St\u00e9fan van der Walt (CC0)"
    return Picture(file.name, image, opening, [note])


def discard(file: Path) -> None:
    """Deletes a file that was sent, and the folder that it came in, if that is empty."""
    file.unlink(missing_ok=True)
    with suppress(OSError):
        file.parent.rmdir()
