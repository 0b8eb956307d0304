"""An explanation as it is shown and exported: a page, figures, arrays, numbers, and the lines that make it again."""

from __future__ import annotations

import re
import secrets
import threading
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

import hilrp
from hilrp.app.code import Request, written
from hilrp.app.pictures import Picture
from hilrp.app.relative import REFERENCE, RULES
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.sentences import titled
from hilrp.jobs.target_text import ParsedTarget
from hilrp.models.libraries.loaded import Loaded
from hilrp.pages.viewer import viewer_page
from hilrp.util.errors import InputError
from hilrp.util.nested import map_tensors

#: What can be exported, and what it is.
KINDS = {
    "html": ("text/html; charset=utf-8", "this page, by itself"),
    "png": ("image/png", "figure"),
    "svg": ("image/svg+xml", "figure"),
    "pdf": ("application/pdf", "figure"),
    "npz": ("application/octet-stream", "arrays"),
    "json": ("application/json", "numbers"),
    "py": ("text/x-python; charset=utf-8", "the same in Python"),
}
#: matplotlib's settings are those of the process.
_DRAWING = threading.Lock()


@dataclass(frozen=True, eq=False)
class Result:
    """An explanation of a picture.

    Attributes:
        explanation: Of this one sample, on the processor.
        picture: The picture that is explained.
        loaded: The model.
        request: What was asked of it.
        parsed: The target of the request, read from its text.
        token: What its page is asked for by: nobody can guess it.
    """

    explanation: Explanation
    picture: Picture
    loaded: Loaded
    request: Request
    parsed: ParsedTarget
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def title(self) -> str:
        """What is explained, in words."""
        return titled(*self._subject) or "the score"

    @cached_property
    def _subject(self) -> tuple[str | None, str | None]:
        """What is explained, and what it is contrasted with."""
        found, said = self.explanation, self.parsed.titles(self.loaded, self.explanation.output, 1)
        if said is not None:
            return said[0], None
        name = None if found.target is None else self.loaded.named(int(found.target[0]))
        return name, None if found.against is None else self.loaded.named(int(found.against[0]))

    @property
    def about(self) -> str:
        """The picture, the model and the rules, in words."""
        relative = f", relative to {self.relative_to}" if self.relative_to else ""
        passes = f", {self.request.passes} passes" if self.request.passes > 1 else ""
        model = f"{self.loaded.name} ({self.loaded.weights})"
        return f"{self.picture.name}, {model}, rules {self.request.rules}{relative}{passes}"

    @property
    def relative_to(self) -> str | None:
        """What relevance is relative to, in words."""
        return self.explanation.relative_to

    @property
    def notes(self) -> list[str]:
        """What was done to the picture that could matter, and what else should be known of it."""
        seen = tuple(self.explanation.map.shape[:0:-1])
        return self.picture.notes + self.loaded.notes(self.picture.image.size, seen)

    @property
    def name(self) -> str:
        """What its files are named by."""
        stem = self.picture.name.rpartition(".")[0] or self.picture.name
        rules, reference, passes = self.request.rules, self.request.reference, self.request.passes
        usual = (rules, reference) == (RULES, REFERENCE)
        how = [] if usual else [rules, *([] if reference is None else [reference])]
        parts = (stem, self.title, *how, *([f"{passes} passes"] if passes > 1 else []))
        return "-".join(re.sub(r"[^\w]+", "_", part).strip("_")[:40] or "picture" for part in parts)

    @cached_property
    def truth(self) -> Tensor | None:
        """Where the explained object is, ``[H,W]``, where that is known."""
        scene, found = self.picture.scene, self.explanation.target
        if scene is None or found is None or not self.loaded.classes or self.loaded.preprocess.mean is None:
            return None
        # A model of somebody's own may have classes of the same numbers.
        names = {thing.name: thing.label for thing in scene.things}
        label = names.get(self.loaded.named(int(found[0])))
        return None if label is None else self.loaded.seen_mask(scene.mask(label))

    @property
    def seen(self) -> Tensor | None:
        """What the model saw, ``[1,3,H,W]``."""
        return self.loaded.preprocess.picture(self.explanation.image_of(self.explanation.input))

    @cached_property
    def asked(self) -> Tensor | None:
        """The region that is asked about, ``[1,H,W]``: a part of the picture, the box of a detection."""
        height, width = self.explanation.map.shape[-2:]
        return self.parsed.outlines((height, width), self.explanation.output, 1)

    @cached_property
    def page(self) -> str:
        """All of it, to look at."""
        name, against = self._subject
        return viewer_page(
            self.explanation,
            name,
            self.about,
            self.notes,
            None if self.seen is None else self.seen[0],
            None if self.asked is None else self.asked[0],
            self.truth,
            regions=self.request.target.startswith("region:"),
            code=self.code,
            name=self.name,
            against=against,
        )

    def export(self, kind: str) -> bytes:
        """One of `KINDS`."""
        if kind not in KINDS:
            raise InputError(f"{kind}: choose from {', '.join(KINDS)}.")
        if kind == "html":
            return self.page.encode()
        if kind == "py":
            return self.code.encode()
        facts = {
            "hilrp": hilrp.__version__,
            "model": self.loaded.name,
            "weights": self.loaded.weights,
            "picture": self.picture.name,
            "image_notes": self.notes,
            "explained": self.title,
            "target_words": self.request.target,
            "reference": self.request.reference,
            "difference_to_reference": None if self.relative_to is None else self.explanation.ledger.explained.tolist(),
        }
        titles = self.parsed.titles(self.loaded, self.explanation.output, 1)
        photos = [self.picture.image] if self._whole else None
        with _DRAWING:
            return self.explanation.encode(kind, self.loaded, photos, facts=facts, titles=titles, outlines=self.asked)

    @cached_property
    def _whole(self) -> bool:
        """Whether figures are drawn on the whole picture: it is known which part of it the model saw."""
        return self.loaded.window(self.picture.image.size) is not None

    @property
    def code(self) -> str:
        """Lines of Python that make the same explanation."""
        return written(self.picture.opening, self.loaded, self.request, self.parsed, self.name, self._whole)


def on_processor(found: Explanation) -> Explanation:
    """The same explanation with all its tensors in the processor's memory, without a graph."""
    moved: Explanation = map_tensors(lambda t: t.detach().cpu(), found)
    return moved
