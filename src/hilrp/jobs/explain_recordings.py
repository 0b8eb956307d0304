"""What explaining scans, scenes, films and sounds has of its own, beside pictures: see `explain_files`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.kinds import Kind
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.recordings import Recording, read_file
from hilrp.util.errors import InputError
from hilrp.util.regular_files import open_regular, printable


@dataclass(frozen=True)
class Recordings:
    """How recordings are read.

    Attributes:
        kind: What kind of thing they are, where it was said.
        options: What `hilrp.read_file` is given: frames of films, the series of a folder.
    """

    kind: Kind | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, path: Path, loaded: Loaded) -> Prepared:
        """A recording, as the model takes it."""
        return prepared(read_file(path, **self.options), loaded, self.kind)

    def settings(self) -> dict[str, Any]:
        """What a result depends on."""
        return {"kind": None if self.kind is None else str(self.kind), **self.options}


@dataclass(frozen=True)
class Prepared:
    """A recording, as a model takes it.

    Attributes:
        x: What the model is given, without a batch axis.
        kind: What kind of thing it is.
        recording: Where the values of ``x`` lie; ``None`` where that isn't known any more.
        whole: The recording as it was read.
        notes: What should be known of it.
    """

    x: Tensor
    kind: Kind | None
    recording: Recording | None
    whole: Recording
    notes: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """What is kept of it as json."""
        held = self.recording or self.whole
        return {"grid": self.whole.grid, "seen": tuple(self.x.shape), "place": held.geometry.facts()}

    def map_file(self) -> str | None:
        """The ending of the file that its map is written to."""
        place = self.recording
        return None if place is None or not place.geometry.endings else f"map{place.geometry.endings[0]}"

    def map_bytes(self, found: Explanation) -> bytes:
        """The map of a sample, in a file of its field."""
        place = self.recording
        assert place is not None
        held = found.map[0].detach().float().cpu()
        return place.geometry.encoded(held.numpy(), place.geometry.endings[0], place, identify=False)


def prepared(recording: Recording, loaded: Loaded, kind: Kind | None = None) -> Prepared:
    """A recording through the model's own preprocessing.

    That is a function of the recording. It returns a recording, whose values lie where they are known to lie, or a
    tensor; one of the recording's form lies where the recording does.
    """
    try:
        made = loaded.preprocess.function(recording)
    except Exception as error:  # anybody's function
        raise InputError(
            f"{loaded.name}: its preprocessing raised {type(error).__name__} on a recording ({error}). Give --model "
            "module:factory, a function of yours that returns (model, preprocess), where preprocess takes a "
            "hilrp.Recording and returns one, or a tensor."
        ) from error
    kind = kind or recording.kind
    notes = list(recording.notes)
    place: Recording | None
    if isinstance(made, Recording):
        place, x = made, made.values
    elif isinstance(made, Tensor):
        x, place = made, None
        sides = x.shape[1:] if x.ndim == len(recording.grid) + 1 else x.shape
        if tuple(sides) == recording.grid:
            place = recording.with_values(x if x.ndim == len(recording.grid) + 1 else x[None])
        else:
            notes.append(
                "where its values lie isn't known after the preprocessing, so that no map is laid over the file: let "
                "it return a hilrp.Recording (resized, cropped, with_values)"
            )
    else:
        raise InputError(f"{loaded.name}: its preprocessing returned {type(made).__name__}, no tensor or recording.")
    return Prepared(x.float() if not torch.is_floating_point(x) else x, kind, place, recording, tuple(notes))


def folder_checksum(folder: Path) -> str:
    """The SHA-256 of all files of a folder, with their names."""
    found = sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            with open_regular(file) as opened:
                found.update(printable(file.name).encode() + b"\0" + sha256(opened.read()).digest())
    return found.hexdigest()
