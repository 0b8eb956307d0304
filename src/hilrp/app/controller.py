"""What happens when something is clicked: one at a time computes, and nobody gets what is another's."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hilrp.app import pictures
from hilrp.app.answers import AnswerResult, inquiry, offered
from hilrp.app.code import Request
from hilrp.app.comparison import Compared, compare
from hilrp.app.models import Models
from hilrp.app.predictions import predict
from hilrp.app.results import Result, on_processor
from hilrp.app.sessions import Own, Session
from hilrp.app.stopping import Stopped, between_layers
from hilrp.attribution.explainer import Explainer
from hilrp.attribution.references import named
from hilrp.jobs.target_text import ParsedTarget
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import DEFAULT_MODEL, class_names
from hilrp.targets import Contrast
from hilrp.util.errors import HilrpError, InputError


@dataclass
class Controller:
    """Explains pictures with models.

    Attributes:
        models: The models.
    """

    models: Models
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, session: Session) -> None:
        """Prepares what a new tab shows: a picture that fits the model, explained, where there is one."""
        self.model(session, self.models.first)
        session.unchosen = self.models.own is None

    def upload(self, session: Session, files: Sequence[Path]) -> list[str]:
        """Adds the pictures in files that were sent, and deletes the files.

        Returns what is wrong with those that aren't pictures.
        """
        problems, before = [], session.picture
        for file in files:
            try:
                session.add(pictures.uploaded(file))
            except HilrpError as error:
                problems.append(str(error))
            except OSError:
                problems.append(f"{file.name}: it did not arrive whole. Drop it again.")
            finally:
                pictures.discard(file)
        if session.picture is not before:
            problems += self._photograph(session)
        return problems

    def _photograph(self, session: Session) -> list[str]:
        """Looks at a picture of somebody's own, with the usual model for photographs where nobody has chosen one.

        Returns why it isn't there.
        """
        if session.unchosen and session.loaded is not None:
            session.unchosen = False  # it is tried once
            try:
                self.model(session, DEFAULT_MODEL)
                return []
            except InputError as error:
                self.look(session)
                return [f"{error} Until you choose another model, this is {session.loaded.name}, which knows scenes."]
        self.look(session)
        return []

    def scene(self, session: Session, index: int) -> None:
        """Adds a scene, or goes back to it."""
        name = f"scene {index}"
        known = [token for token, picture in session.pictures.items() if picture.name == name and picture.scene]
        if known:
            session.picture, session.untouched = session.pictures[known[0]], False
        else:
            session.add(pictures.scene(index))
        self.look(session)

    def choose(self, session: Session, token: str) -> None:
        """Chooses another of the pictures."""
        if token not in session.pictures:
            raise InputError("That picture is gone. Drop it again.")
        session.picture, session.untouched = session.pictures[token], False
        self.look(session)

    def remove(self, session: Session) -> None:
        """Removes the chosen picture."""
        session.remove()
        if session.picture is None:
            session.forget_answers()
        else:
            self.look(session)

    def model(self, session: Session, name: str | None) -> None:
        """Takes another model, with its published weights; or the operator's."""
        session.unchosen = False
        if name in session.own:
            own = session.own[name]
            return self.look(session, own.loaded, own.checkpoint, own.classes)
        loaded = self.models.get(name or "", session.gone)
        operators = loaded is self.models.own
        files = (self.models.checkpoint, self.models.classes) if operators else (None, None)
        return self.look(session, loaded, *files)

    def weights(self, session: Session, name: str, checkpoint: Path, classes: Path | None) -> None:
        """Takes another model, with weights of the user's own; the files are deleted."""
        try:
            names = None if classes is None else class_names(classes)
            loaded = self.models.fitted(name, checkpoint, names)
        except InputError as error:
            # Where the server keeps files is nobody's business.
            said = str(error).replace(f"{checkpoint.parent}/", "")
            raise InputError(said if classes is None else said.replace(f"{classes.parent}/", "")) from error
        finally:
            for file in (checkpoint, classes):
                if file is not None:
                    pictures.discard(file)
        own = Own(loaded, checkpoint.name, None if classes is None else classes.name)
        session.own = {f"{loaded.name} ({own.checkpoint})": own}  # the last one: they are large
        self.look(session, loaded, own.checkpoint, own.classes)

    @staticmethod
    def _fitting(session: Session, loaded: Loaded) -> pictures.Picture | None:
        """The chosen picture; as long as nobody has chosen or removed any, one that fits the model."""
        if not session.untouched:
            return session.picture
        fitting = pictures.greeting(loaded.of_zoo, loaded.classes)
        same = fitting is not None and session.picture is not None and fitting.name == session.picture.name
        return session.picture if same else fitting

    def look(
        self, session: Session, loaded: Loaded | None = None, checkpoint: str | None = None, classes: str | None = None
    ) -> None:
        """Keeps what the model, or another one, says of the picture, and explains the strongest class.

        Where there is no picture, the model waits for one.
        """
        loaded = loaded or session.loaded
        if loaded is None:
            raise InputError("There is no model yet. Choose one.")
        picture, prediction = self._fitting(session, loaded), None
        if picture is not None:
            if loaded.processor is not None:
                prediction = offered(loaded, picture)
            else:
                with self._computing(session):
                    prediction = predict(loaded, loaded.batch([picture.image]))
        # All of it at once: what can't be looked at leaves everything as it was.
        if loaded is not session.loaded:
            session.loaded, session.checkpoint, session.classes = loaded, checkpoint, classes
        if picture is not session.picture:
            session.greet(picture)
        session.forget_answers()
        session.prediction = prediction
        if prediction is not None and prediction.choices:
            session.target = prediction.choices[0].target
            self._explain_at_least_once(session)

    def _explain_at_least_once(self, session: Session) -> None:
        """Explains; whoever doesn't want to wait for all passes gets one."""
        try:
            self.explain(session)
        except Stopped:
            if not session.gone.is_set():
                session.passes = 1
                self.explain(session)
            raise

    def ask(self, session: Session, **changes: str | int | None) -> None:
        """Explains something else; what can't be explained is not kept.

        Else the page would say one thing and show another.
        """
        before = {name: getattr(session, name) for name in changes}
        try:
            for name, value in changes.items():
                setattr(session, name, value)
            self.explain(session)
        except Exception:
            for name, value in before.items():
                setattr(session, name, value)
            raise

    def explain(self, session: Session) -> None:
        """Explains what the session asks for, and keeps the result."""
        loaded, picture = session.loaded, session.picture
        if loaded is None or picture is None or session.target is None:
            raise InputError("There is nothing to explain yet. Choose a picture, a model and a class.")
        if loaded.processor is not None:
            session.keep(self._answered(session, loaded, picture, session.target))
            return
        request = Request(
            session.target,
            session.against,
            session.rules,
            session.reference,
            session.passes,
            session.checkpoint,
            session.classes,
        )
        reference = None
        if request.reference is not None:
            reference = named(request.reference, loaded.preprocess.mean, loaded.preprocess.std)
        # One pass is not worth a cancellation: it would leave nothing to look at.
        with self._computing(session, *([session.cancelled] if request.passes > 1 else ())):
            parsed = ParsedTarget.parse(request.target, loaded, request.against)
            explainer = Explainer(parsed.model(loaded), request.rules, reference)
            x = loaded.batch([picture.image])
            found = explainer.explain(x, _target(parsed), passes=request.passes, progress=session.progress)
        session.keep(Result(on_processor(found), picture, loaded, request, parsed))

    def _answered(self, session: Session, loaded: Loaded, picture: pictures.Picture, target: str) -> AnswerResult:
        """What a model answers, explained word by word."""
        asked = inquiry(target, picture, session.rules, session.reference, session.passes)
        with self._computing(session, *([session.cancelled] if session.passes > 1 else ())):
            return AnswerResult(asked.run(loaded), picture, loaded, asked, session.checkpoint)

    @contextmanager
    def _computing(self, session: Session, *stops: threading.Event) -> Iterator[None]:
        """The turn of a tab, which ends at the next layer of the model once the tab is closed or told to stop."""
        with self._turn, between_layers(session.gone, *stops):
            yield

    @staticmethod
    def comparable(session: Session) -> Result:
        """The last explanation, if other methods have one for it, too."""
        why = not_comparable(session)
        if why or not isinstance(session.result, Result):
            raise InputError(why)
        return session.result

    def compare(self, session: Session, result: Result, names: Sequence[str]) -> Iterator[list[Compared]]:
        """Yields what is compared so far, after each method, on what was explained."""
        if not names:
            raise InputError("No method is chosen. Tick two or more.")
        assert result.explanation.target is not None
        stop = session.stop
        x = result.explanation.image_of(result.explanation.input).to(result.loaded.device)
        label = int(result.explanation.target[0])
        found: list[Compared] = []
        for each in compare(result.loaded.model, x, label, names, result.truth, stop, lambda: self._turn):
            found.append(each)
            yield found


def not_comparable(session: Session) -> str:
    """Why there is nothing to compare other methods on; empty where there is."""
    if session.result is None:
        return "There is no explanation yet to compare others with."
    if isinstance(session.result, AnswerResult):
        return "Other methods explain the score of one class of a picture. This is an answer in words."
    found = session.result.explanation
    if found.target is None:
        return "Other methods explain the score of one class of a picture. This question is another one."
    if found.against is not None:
        return "Other methods explain one class. Here are two: set \u201crather than\u201d to no other class."
    return ""


def _target(parsed: ParsedTarget) -> Any:
    if parsed.target is not None:
        return parsed.target
    if parsed.against is None or parsed.label is None:
        return parsed.label
    return Contrast(parsed.label, parsed.against)
