"""What belongs to one open tab, and nobody else."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from hilrp.app.answers import AnswerResult
from hilrp.app.pictures import Picture, discard
from hilrp.app.predictions import Prediction
from hilrp.app.relative import REFERENCE, RULES, Start
from hilrp.app.results import Result
from hilrp.attribution.explainer import Progress
from hilrp.models.libraries.loaded import Loaded
from hilrp.util.errors import InputError

#: How many pictures and results a tab keeps; the oldest go first.
PICTURES, _RESULTS = 30, 8
#: How many tabs are kept, and how many of one client elsewhere. Whoever opens more loses one of his own, nobody else's.
_TABS, _OF_CLIENT = 64, 16
#: After so many seconds a tab without a connection is closed; sooner, if others need the room.
_ALONE, _NEEDED = 300.0, 60.0


@dataclass(frozen=True, eq=False)
class Own:
    """A model with weights of somebody's own, and the names of the files that these and its classes' names are from."""

    loaded: Loaded
    checkpoint: str
    classes: str | None


@dataclass(eq=False)
class Session:
    """One open tab.

    Attributes:
        pictures: By their tokens.
        picture: The chosen one.
        untouched: Whether the picture is the page's choice, which greets, and nobody has chosen or removed any.
        loaded: The chosen model.
        unchosen: Whether that is the page's choice, for the scene that it begins with, and nobody's.
        checkpoint, classes: The files that its weights and the names of its classes are from, where they are somebody's
            own.
        files: Files that were sent and not yet read.
        own: Models with weights of the user's own, by what they are called on the page.
        prediction: What it says of the picture.
        target, against: What is explained, in the words of `hilrp explain`.
        rules, reference: How it is explained, by name.
        passes: In how many passes.
        progress: Is told how many passes are done, and how many there are.
        results: The last explanations by their tokens, the last one last.
        lock: Held while something of this tab changes.
        stop: Set when the user doesn't want to wait for a comparison.
        cancelled: Set when the user doesn't want to wait for more passes.
        gone: Set when the tab is closed: nobody waits for anything.
        client: Who opened it.
        open: How many connections the tab keeps to say that it is there.
        used: When it was last used.
    """

    pictures: OrderedDict[str, Picture] = field(default_factory=OrderedDict)
    picture: Picture | None = None
    untouched: bool = True
    loaded: Loaded | None = None
    unchosen: bool = False
    checkpoint: str | None = None
    classes: str | None = None
    files: set[Path] = field(default_factory=set)
    own: dict[str, Own] = field(default_factory=dict)
    prediction: Prediction | None = None
    target: str | None = None
    against: str | None = None
    rules: str = RULES
    reference: str | None = REFERENCE
    passes: int = 1
    progress: Progress | None = None
    results: OrderedDict[str, Result | AnswerResult] = field(default_factory=OrderedDict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    stop: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    client: str = ""
    open: int = 0
    used: float = field(default_factory=time.monotonic)

    def touch(self) -> None:
        """Notes that it is used."""
        self.used = time.monotonic()

    def alone(self, seconds: float) -> bool:
        """Whether nobody has been there for so long."""
        return not self.open and time.monotonic() - self.used > seconds

    def add(self, picture: Picture) -> None:
        """Adds a picture and chooses it."""
        if len(self.pictures) >= PICTURES:
            raise InputError(
                f"{picture.name}: there are {PICTURES} pictures already. Remove one, or use `hilrp explain` for "
                "whole folders."
            )
        self.pictures[picture.token] = self.picture = picture
        self.untouched = False

    def greet(self, picture: Picture | None) -> None:
        """Shows a picture instead of that which greeted before, or none."""
        self.pictures = OrderedDict() if picture is None else OrderedDict({picture.token: picture})
        self.picture = picture

    def remove(self) -> None:
        """Removes the chosen picture; the last of the others is chosen instead."""
        self.untouched = False
        if self.picture is not None:
            del self.pictures[self.picture.token]
        self.picture = next(reversed(self.pictures.values()), None)

    def end(self) -> None:
        """Nobody waits any longer: what runs for it stops, and what was sent is deleted."""
        self.gone.set()
        self.stop.set()
        for file in list(self.files):
            discard(file)
        self.files.clear()

    def keep(self, result: Result | AnswerResult) -> None:
        """Keeps an explanation; the oldest is forgotten."""
        self.results[result.token] = result
        while len(self.results) > _RESULTS:
            self.results.popitem(last=False)

    @property
    def result(self) -> Result | AnswerResult | None:
        """The last explanation."""
        return next(reversed(self.results.values()), None)

    def forget_answers(self) -> None:
        """The picture or the model is another: what was said of the last one is not of this one."""
        self.prediction, self.target, self.against = None, None, None
        self.results.clear()


@dataclass
class Sessions:
    """All open tabs.

    Attributes:
        start: How a new one explains.
    """

    start: Start = field(default_factory=Start)
    _open: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, tab: str, client: str = "loopback") -> Session:
        """The session of a tab; a new one, if there is none.

        A client that has as many as it may loses one of them: one that nobody looks at, else the oldest. Others lose
        none but those that nobody looks at.
        """
        evicted = None
        with self._lock:
            session = self._open.get(tab)
            if session is None:
                own = {name: each for name, each in self._open.items() if each.client == client}
                if len(own) >= (_TABS if client == "loopback" else _OF_CLIENT):
                    evicted = next((name for name, each in own.items() if not each.open), next(iter(own)))
                elif len(self._open) >= _TABS:
                    evicted = next((name for name, each in self._open.items() if each.alone(_NEEDED)), None)
                    if evicted is None:
                        raise InputError(
                            "Too many tabs are open on this page. Close one, or try again in some minutes."
                        )
                session = self._open[tab] = Session(client=client, **vars(self.start))
            session.touch()
            self._open.move_to_end(tab)
        if evicted is not None:
            self.close(evicted)
        return session

    def find(self, tab: str) -> Session | None:
        """The session of a tab, if it is open."""
        with self._lock:
            session = self._open.get(tab)
        if session is not None:
            session.touch()
        return session

    def sweep(self) -> None:
        """Closes tabs that nobody has looked at for minutes."""
        with self._lock:
            alone = [tab for tab, session in self._open.items() if session.alone(_ALONE)]
        for tab in alone:
            self.close(tab)

    def close(self, tab: str) -> None:
        """Forgets a tab and all that it holds."""
        with self._lock:
            session = self._open.pop(tab, None)
        if session is not None:
            session.end()

    def __len__(self) -> int:
        return len(self._open)

    def result(self, token: str) -> Result | AnswerResult | None:
        """A result by its token."""
        return next((s.results[token] for s in self._all() if token in s.results), None)

    def picture(self, token: str) -> Picture | None:
        """A picture by its token."""
        return next((s.pictures[token] for s in self._all() if token in s.pictures), None)

    def _all(self) -> list[Session]:
        with self._lock:
            return list(self._open.values())
