"""Models that people have asked for: loaded once, kept for a while."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hilrp.app.fetching import fetch
from hilrp.models.libraries.connection import cache_alone
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import SCENES_MODEL, load
from hilrp.models.resolve import LIBRARIES, ZOO, is_factory, library
from hilrp.util.errors import InputError, UnavailableError

#: How many are kept beside the operator's own.
_KEPT = 4


@dataclass
class Models:
    """Models by name.

    Attributes:
        device: Where they are put.
        own: The model that `hilrp serve` was started with, whose name may be a function or a folder: whoever starts it
            may run what he likes.
        checkpoint, classes: The files that its weights and the names of its classes are from.
    """

    device: str = "cpu"
    own: Loaded | None = None
    checkpoint: str | None = None
    classes: str | None = None
    _loaded: OrderedDict[str, Loaded] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def first(self) -> str:
        """What a new page begins with."""
        return self.own.name if self.own is not None else SCENES_MODEL

    def names(self) -> list[str]:
        """Those that are there: the operator's, and the zoo.

        Published ones are typed, since their weights have to be fetched.
        """
        own = [] if self.own is None else [self.own.name]
        return list(dict.fromkeys([*own, *(f"{ZOO}/{name}" for name in library(ZOO).trained())]))

    def get(self, name: str, gone: threading.Event | None = None) -> Loaded:
        """A model with its published weights; these are no longer fetched once ``gone`` is set."""
        name = name.strip()
        if self.own is not None and name == self.own.name:
            return self.own
        self._check(name)
        with self._lock:
            loaded = self._loaded.get(name)
        if loaded is None:  # others need not wait for what is fetched for one
            loaded = self._load(name, gone or threading.Event())
        with self._lock:
            self._loaded[name] = loaded
            self._loaded.move_to_end(name)
            while len(self._loaded) > _KEPT:
                self._loaded.popitem(last=False)
        return loaded

    def _load(self, name: str, gone: threading.Event) -> Loaded:
        if name.partition("/")[0] != ZOO:
            try:
                with cache_alone():
                    return load(name, device=self.device)
            except UnavailableError:  # no library has it
                raise
            except InputError:
                fetch(name, gone)
        return load(name, device=self.device)

    def fitted(self, name: str, checkpoint: Path, classes: Sequence[str] | None = None) -> Loaded:
        """A model with weights of somebody's own; not kept here, it is theirs."""
        self._check(name.strip())
        return load(name.strip(), checkpoint, classes, self.device)

    @staticmethod
    def _check(name: str) -> None:
        """Names come from anybody who can reach the page: they must not run code or open files."""
        if not name:
            raise InputError(
                "No model is chosen. Take zoo/swin, or a name of timm, torchvision, transformers or open_clip."
            )
        if len(name) > 200:
            raise InputError(f"{name[:40]}...: no model has a name of {len(name)} letters.")
        place = name.partition("/")[2] if name.partition("/")[0] in (ZOO, *LIBRARIES) else name
        if is_factory(name) or any(Path(each).exists() or Path(each).is_absolute() for each in (name, place) if each):
            raise InputError(
                f"{name}: functions and folders can't be opened from the page. Start the page with it: hilrp serve "
                f"--model {name}"
            )
