"""Sounds in files (soundfile): WAV, FLAC, Ogg."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from hilrp.attribution.kinds import Kind
from hilrp.models.recordings.recording import Recording, check_count, checked_path, finite, reading
from hilrp.util.errors import InputError
from hilrp.util.peers import imported
from hilrp.util.regular_files import printable

#: What pip is given.
INSTALL = "'hilrp[sound]'"


@dataclass(frozen=True)
class Time:
    """When moments are.

    Attributes:
        rate: How many there are in a second.
        start: When the first begins, in seconds of the file.
    """

    rate: float
    start: float = 0.0
    endings = (".wav",)

    def moved(self, start: tuple[float, ...], step: tuple[float, ...]) -> Time:
        """That of other moments."""
        return Time(self.rate / step[0], self.start + start[0] / self.rate)

    def encoded(self, relevance: np.ndarray, ending: str, like: Recording, identify: bool) -> bytes:
        """Relevance as a signal of float32 at the same rate, so that an editor lays it beside the sound."""
        if self.rate != round(self.rate):
            raise InputError(f"A WAV has whole moments a second, and these are {self.rate:g}. Resample it otherwise.")
        made = BytesIO()
        soundfile = imported("soundfile", INSTALL)
        soundfile.write(made, relevance.T, round(self.rate), format="WAV", subtype="FLOAT")
        return made.getvalue()

    def facts(self) -> dict[str, Any]:
        """The rate and the start."""
        return {"rate": self.rate, "start": self.start}


def read(path: Path, span: tuple[float, float] | None = None) -> Recording:
    """All channels ``[C,T]``, from -1 to 1, or what lies between two times in seconds."""
    soundfile = imported("soundfile", INSTALL)
    checked_path(path)
    with reading(path, "sound"), soundfile.SoundFile(str(path)) as file:
        first, last = 0, file.frames
        if span is not None:
            first, last = (round(second * file.samplerate) for second in span)
            if not 0 <= first < last <= file.frames:
                raise InputError(
                    f"{printable(path)}: span={span}: give two times from 0 to {file.frames / file.samplerate:g} s."
                )
        check_count(path, (file.channels, last - first), "Give span=(from, to) in seconds.")
        file.seek(first)
        values = file.read(last - first, dtype="float32", always_2d=True)
        if len(values) < last - first:
            raise InputError(
                f"{printable(path)}: it ends after {len(values)} of {last - first} moments. Is the file complete?"
            )
        notes: list[str] = []
        held = finite(path, values.T, "moment", notes)
        return Recording(held, Kind.SOUND, Time(float(file.samplerate), first / file.samplerate), path, tuple(notes))
