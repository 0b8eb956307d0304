"""What each part of the page does to a session, in plain values: no word of Gradio here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hilrp.app.answers import ASK
from hilrp.app.controller import Controller
from hilrp.app.relative import PASSES, reference_of
from hilrp.app.sessions import Session
from hilrp.app.uploads import Uploads
from hilrp.util.errors import InputError


@dataclass(frozen=True)
class Actions:
    """What can be done on the page.

    Attributes:
        controller: It computes what an action asks for.
        uploads: The files that were sent: no other file is touched, whatever a request says.
    """

    controller: Controller
    uploads: Uploads

    def sent(self, session: Session, files: Iterable[str | None]) -> list[Path]:
        """The files of this tab that are read and deleted now."""
        found = [self.uploads.claim(file, session) for file in files if file is not None]
        session.files -= set(found)
        return found

    def upload(self, session: Session, files: list[str] | None) -> list[str]:
        """Pictures were dropped."""
        return self.controller.upload(session, self.sent(session, files or ()))

    def note(self, session: Session, file: str | None) -> None:
        """A file was dropped that is read later; if it never is, it goes with the tab."""
        if file is not None:
            self.uploads.claim(file, session)

    def weights(self, session: Session, name: str | None, checkpoint: str | None, classes: str | None) -> None:
        """Weights of somebody's own are to be loaded."""
        if checkpoint is None:
            raise InputError("There is no checkpoint yet. Drop a file with the weights.")
        files = self.sent(session, (checkpoint, classes))
        self.controller.weights(session, name or "", files[0], files[1] if len(files) > 1 else None)

    def scene(self, session: Session, index: int | None) -> None:
        """A scene was chosen."""
        if index is not None:
            self.controller.scene(session, int(index))

    def predicted(self, session: Session, target: str) -> None:
        """One of the predictions was clicked."""
        self.controller.ask(session, target=target, against=None)

    def label(self, session: Session, text: str | None) -> None:
        """A class was chosen by name."""
        if session.loaded is None or session.prediction is None or not text:
            return
        index, kind = session.loaded.index(str(text)), session.prediction.kind
        target = str(index)
        if kind == "regions":
            place = (session.target or "").split(":")[1]
            target = f"region:{place}:{index}"
        elif kind == "objects":
            target = f"detection:{session.loaded.named(index)}"
        self.controller.ask(session, target=target, against=None)

    def against(self, session: Session, text: str | None) -> None:
        """A class to contrast with was chosen; or none."""
        if session.loaded is not None:
            self.controller.ask(session, against=str(session.loaded.index(str(text))) if text else None)

    def region(self, session: Session, box: str) -> None:
        """A rectangle was drawn or typed."""
        numbers = re.findall(r"[0-9.]+", box)
        if len(numbers) != 4 or not re.fullmatch(r"\s*([0-9.]+[\s,]*){4}", box):
            raise InputError(f"region {box!r}: give left, top, right and bottom in pixels: 20, 20, 60, 70.")
        label = (session.target or "").rpartition(":")[2]
        self.controller.ask(session, target=f"region:{','.join(numbers)}:{label}", against=None)

    def caption(self, session: Session, text: str) -> None:
        """A caption was typed."""
        self.controller.ask(session, target=f"text:{text}", against=None)

    def question(self, session: Session, text: str) -> None:
        """A question was typed."""
        self.controller.ask(session, target=f"{ASK}{text}", against=None)

    def rules(self, session: Session, rules: str) -> None:
        """Other rules were chosen: they begin with a reference of their own, or with none."""
        self._relative(session, rules, reference_of(rules))

    def reference(self, session: Session, reference: str | None) -> None:
        """Something else was chosen that relevance is relative to; or nothing."""
        self._relative(session, session.rules, reference or reference_of(session.rules))

    def _relative(self, session: Session, rules: str, reference: str | None) -> None:
        try:
            passes = 1 if reference is None else session.passes
            self.controller.ask(session, rules=rules, reference=reference, passes=passes)
        except InputError as error:
            raise InputError(f"Rules {rules} relative to {reference or 'nothing'}: {error}") from error

    def passes(self, session: Session, passes: int | None) -> None:
        """Another number of passes was chosen."""
        if passes not in PASSES:
            raise InputError(f"passes {passes}: choose from {', '.join(map(str, PASSES))}.")
        self.controller.ask(session, passes=passes)
