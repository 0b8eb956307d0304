"""From an item of a data set to what models take: read, decoded, preprocessed; on threads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image
from torch import Tensor

from hilrp.jobs.bench.data import box_mask, marked
from hilrp.jobs.run.item import Item
from hilrp.jobs.run.items import Reader
from hilrp.models.images import read
from hilrp.models.libraries.loaded import Loaded
from hilrp.util.errors import HilrpError
from hilrp.util.regular_files import PASSING


@dataclass
class Prepared:
    """An image as each model takes it; or why there is none."""

    item: Item
    size: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    masks: list[Tensor | None] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True)
class Preparer:
    """Prepares images for several models.

    Attributes:
        models: The models.
        boxes: How boxes are given: see `Job`.
        reader: Who reads them.
    """

    models: Sequence[Loaded]
    boxes: str = "xyxy"
    reader: Reader = field(default_factory=Reader)

    def __call__(self, item: Item) -> Prepared:
        """The image as each model takes it, or why there is none."""
        if "error" in item:
            return Prepared(item, error=item["error"])
        try:
            image, notes = read(self.reader.image(item), reduce=not item.get("boxes"))
            made = Prepared(item, image.size, notes)
            mask = self._mask(item, image, notes)
            for loaded in self.models:
                made.inputs.append(loaded.preprocess(image))
                made.masks.append(self._seen(loaded, mask, notes))
        except Exception as error:  # files are anybody's, and so is the preprocessing
            if isinstance(error, OSError) and error.errno in PASSING:
                raise  # the disk's fault and not the image's: the run ends, and goes on when it is started again
            said = str(error) if isinstance(error, (HilrpError, OSError)) else f"{type(error).__name__}: {error}"
            # An address in memory says nothing, and is another each time.
            return Prepared(item, error=re.sub(r" ?<_io\.BytesIO object at 0x[0-9a-f]+>", "", said))
        return made

    @staticmethod
    def _seen(loaded: Loaded, mask: np.ndarray | None, notes: list[str]) -> Tensor | None:
        if mask is None:
            return None
        if loaded.preprocess.mean is None:
            notes.append(f"where the object is can't be told after the preprocessing of {loaded.name}")
            return None
        return loaded.seen_mask(mask)

    def _mask(self, item: Item, image: Image.Image, notes: list[str]) -> np.ndarray | None:
        """Where the object is, if that is known; a place that can't be read is no reason not to explain the image."""
        try:
            mask = self.reader.mask(item)
            if mask is not None:
                return marked(read(mask)[0])
            boxes = item.get("boxes")
            if not boxes:
                return None
            boxes = [boxes] if isinstance(boxes[0], (int, float)) else boxes
            if self.boxes == "xywh":
                boxes = [[x, y, x + w, y + h] for x, y, w, h in boxes]
            found = box_mask(image.size, boxes)
            if not found.any():
                raise ValueError("they hold no pixel")
        except OSError as error:
            if error.errno in PASSING:
                raise
            notes.append(f"its mask can't be read ({error})")
        except Exception as error:  # annotations are anybody's
            notes.append(f"its mask or boxes can't be used ({error})")
        else:
            return found
        return None
