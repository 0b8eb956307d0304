"""Answers on the page: what can be asked, and an explained answer as it is shown and exported."""

from __future__ import annotations

import re
import secrets
import threading
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from hilrp.answers import pictures
from hilrp.answers.answer import Answer
from hilrp.app.pictures import Picture
from hilrp.app.predictions import Choice, Prediction
from hilrp.app.relative import REFERENCE, REFERENCES, RULES
from hilrp.attribution.explanation import Explanation
from hilrp.jobs.inquiry import Inquiry
from hilrp.models.libraries.loaded import Loaded
from hilrp.pages.answer import answer_page
from hilrp.scenes import Scene
from hilrp.scenes.questions import questions
from hilrp.util.errors import InputError
from hilrp.zoo.architectures import SIZE

#: What a target begins with that is a question.
ASK = "ask:"
#: What can stand for no picture, in words.
STANDS_FOR_NONE = {name: REFERENCES[name] for name in pictures.STANDS_FOR_NONE}
#: So many questions are offered, and of so many letters they may be.
_OFFERED, _LONGEST = 5, 2000
#: matplotlib's settings are those of the process.
_DRAWING = threading.Lock()


def offered(loaded: Loaded, picture: Picture) -> Prediction:
    """What can be asked of a picture by a click: where its truth is known, of each kind one."""
    if not loaded.of_zoo:
        asked = ["Describe the picture.", "What is in the picture?"]
    else:
        asked = list(islice(_of_scene(picture.scene), _OFFERED))
    return Prediction("answers", [Choice(f"{ASK}{each}", each, "", 0.0) for each in asked])


def _of_scene(scene: Scene | None) -> list[str]:
    if scene is None:
        return ["describe the picture", "what colour is the star?", "how many rings?"]
    by_kind: dict[str, str] = {}
    for question in questions(scene):
        unlikely = question.said in ("none", "no", "nothing")
        if not unlikely:
            by_kind.setdefault(question.kind, question.text)
    return list(by_kind.values())


def inquiry(target: str, picture: Picture, rules: str, reference: str | None, passes: int) -> Inquiry:
    """What the page asks.

    Args:
        target: The question, behind `ASK`.
        picture: The picture.
        rules: A preset.
        reference: What stands for no picture, by name.
        passes: How many passes are spent.
    """
    question = target.removeprefix(ASK).strip()
    if not question:
        raise InputError("There is no question. Type one, and press Enter.")
    if len(question) > _LONGEST:
        raise InputError(f"The question has {len(question)} letters; it may have {_LONGEST}. Shorten it.")
    # Only names: what comes from the page must open no file.
    if reference is not None and reference not in STANDS_FOR_NONE:
        raise InputError(
            f"{REFERENCES.get(reference, reference)} can't stand for no picture. Choose {', '.join(STANDS_FOR_NONE)}."
        )
    return Inquiry(question, (picture.image,), rules=rules, reference=reference, passes=passes)


@dataclass(frozen=True, eq=False)
class AnswerResult:
    """An explained answer of a model about a picture.

    Attributes:
        answer: The answer.
        picture: The picture.
        loaded: The model.
        inquiry: What was asked of it.
        checkpoint: The file that its weights are from, where they are somebody's own.
        token: What its page is asked for by: nobody can guess it.
    """

    answer: Answer
    picture: Picture
    loaded: Loaded
    inquiry: Inquiry
    checkpoint: str | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def explanation(self) -> Explanation:
        """All words, as one explanation with a row for each."""
        return self.answer.explanation

    @property
    def title(self) -> str:
        """What was asked."""
        return self.inquiry.question

    @property
    def name(self) -> str:
        """What its files are named by."""
        stem = self.picture.name.rpartition(".")[0] or self.picture.name
        rules, reference, passes = self.inquiry.rules, self.inquiry.reference, self.inquiry.passes
        usual = (rules, reference) == (RULES, REFERENCE)
        how = [] if usual else [rules, *([] if reference is None else [reference])]
        parts = (stem, self.title, *how, *([f"{passes} passes"] if passes > 1 else []))
        return "-".join(re.sub(r"[^\w]+", "_", part).strip("_")[:40] or "answer" for part in parts)

    @cached_property
    def page(self) -> str:
        """All of it, to look at."""
        about = self.inquiry.about(self.loaded, [self.picture.name])
        notes = self.picture.notes + self.loaded.notes(self.picture.image.size, (SIZE, SIZE))
        return answer_page(self.answer, self.title, about, notes, self.code)

    def export(self, kind: str) -> bytes:
        """One of `hilrp.app.results.KINDS`."""
        if kind == "html":
            return self.page.encode()
        if kind == "py":
            return self.code.encode()
        with _DRAWING:
            return self.answer.encode(kind)

    @property
    def code(self) -> str:
        """Lines of Python that make the same."""
        return self.inquiry.code(self.loaded, "image", self.picture.opening, self.checkpoint)
