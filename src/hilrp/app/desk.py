"""What happens when something is clicked: one at a time computes, and nobody gets what is another's."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hilrp.app import pictures
from hilrp.app.code import Asked
from hilrp.app.comparison import Compared, compare
from hilrp.app.models import Models
from hilrp.app.predictions import predict
from hilrp.app.results import Result, on_processor
from hilrp.app.sessions import Session
from hilrp.errors import HilrpError, InputError
from hilrp.explainer import Explainer
from hilrp.libraries.loaded import Loaded
from hilrp.loading import class_names
from hilrp.references import named
from hilrp.targets import Contrast
from hilrp.wanted import Wanted


@dataclass
class Desk:
    """Explains pictures with models.

    Attributes:
        models: The models.
    """

    models: Models
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, session: Session) -> None:
        """What a new tab shows: a scene, explained."""
        if session.picture is None:
            session.add(pictures.scene(pictures.FIRST))
        session.loaded = self.models.get(self.models.first)
        self.look(session)

    def upload(self, session: Session, files: Sequence[Path]) -> list[str]:
        """Adds the pictures in files that were sent, and deletes the files. Returns what is wrong with those that aren't pictures."""
        problems, before = [], session.picture
        for file in files:
            try:
                session.add(pictures.uploaded(file))
            except (HilrpError, OSError) as error:
                problems.append(str(error))
            finally:
                discard(file)
        if session.picture is not before:
            self.look(session)
        return problems

    def scene(self, session: Session, index: int) -> None:
        """Adds a scene, or goes back to it."""
        name = f"scene {index}"
        known = [token for token, picture in session.pictures.items() if picture.name == name and picture.scene]
        if known:
            session.picture = session.pictures[known[0]]
        else:
            session.add(pictures.scene(index))
        self.look(session)

    def choose(self, session: Session, token: str) -> None:
        """Another of the pictures."""
        if token not in session.pictures:
            raise InputError("That picture is gone. Drop it again.")
        session.picture = session.pictures[token]
        self.look(session)

    def model(self, session: Session, name: str) -> None:
        """Another model, with its published weights."""
        session.loaded, session.checkpoint = self.models.get(name), None
        self.look(session)

    def weights(self, session: Session, name: str, checkpoint: Path, classes: Path | None) -> None:
        """Another model, with weights of the user's own; the files are deleted."""
        try:
            names = None if classes is None else class_names(classes)
            session.loaded = self.models.fitted(name, checkpoint, names)
            session.checkpoint = checkpoint.name
        finally:
            for file in (checkpoint, classes):
                if file is not None:
                    discard(file)
        self.look(session)

    def look(self, session: Session) -> None:
        """What the model says of the picture; and the explanation of the strongest."""
        session.forget_answers()
        loaded, _ = _both(session)
        with self._turn:
            session.prediction = predict(loaded, _prepared(session))
        if session.prediction.choices:
            session.target = session.prediction.choices[0].target
            self.explain(session)

    def explain(self, session: Session) -> None:
        """The explanation of what is asked for."""
        loaded, picture = _both(session)
        if session.target is None:
            raise InputError("Nothing is chosen that could be explained. Choose a class.")
        asked = Asked(session.target, session.against, session.rules, session.reference, session.checkpoint)
        wanted = Wanted.parse(asked.target, loaded, asked.against)
        reference = None
        if asked.reference is not None:
            reference = named(asked.reference, loaded.preprocess.mean, loaded.preprocess.std)
        with self._turn:
            found = Explainer(wanted.model(loaded), asked.rules, reference).explain(_prepared(session), _target(wanted))
        session.keep(Result(on_processor(found), picture, loaded, asked, wanted))

    @staticmethod
    def comparable(session: Session) -> Result:
        """The last explanation, if other methods have one for it, too."""
        result = session.result
        if result is None or result.explanation.target is None or result.explanation.against is not None:
            raise InputError(
                "Methods are compared on a class. Choose one of the classes, without a second one to contrast it with."
            )
        return result

    def compare(self, session: Session, result: Result, names: Sequence[str]) -> Iterator[list[Compared]]:
        """Yields what is compared so far, after each method, on what was explained."""
        if not names:
            raise InputError("No method is chosen. Tick two or more.")
        assert result.explanation.target is not None
        session.stop = stop = threading.Event()
        x = result.explanation.input.to(next(result.loaded.model.parameters()).device)
        label = int(result.explanation.target[0])
        found: list[Compared] = []
        for each in compare(result.loaded.model, x, label, names, result.truth, stop, lambda: self._turn):
            found.append(each)
            yield found


def _both(session: Session) -> tuple[Loaded, pictures.Picture]:
    if session.picture is None:
        raise InputError("There is no picture yet. Drop one, or choose a scene.")
    if session.loaded is None:
        raise InputError("There is no model yet. Choose one.")
    return session.loaded, session.picture


def _prepared(session: Session) -> Tensor:
    loaded, picture = _both(session)
    return loaded.batch([picture.image])


def _target(wanted: Wanted) -> Any:
    if wanted.target is not None:
        return wanted.target
    if wanted.against is None or wanted.label is None:
        return wanted.label
    return Contrast(wanted.label, wanted.against)


def discard(file: Path) -> None:
    """Deletes a file that was sent, and the folder that it came in, if that is empty."""
    file.unlink(missing_ok=True)
    with suppress(OSError):
        file.parent.rmdir()
