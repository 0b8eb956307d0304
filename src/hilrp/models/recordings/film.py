"""Video files (PyAV): frames of colours, and maps drawn over them."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hilrp.attribution.kinds import Kind
from hilrp.attribution.marking import smoothed
from hilrp.attribution.panels import Panel
from hilrp.attribution.pictures import composed
from hilrp.models.recordings.recording import Recording, check_count, checked_path, reading
from hilrp.util.errors import InputError
from hilrp.util.peers import imported
from hilrp.util.regular_files import printable

#: What pip is given.
INSTALL = "'hilrp[video]'"


@dataclass(frozen=True)
class Frames:
    """When frames are shown.

    Attributes:
        rate: How many there are in a second.
        times: When each begins, in seconds of the file.
    """

    rate: float
    times: tuple[float, ...]
    endings = (".mp4",)

    def moved(self, start: tuple[float, ...], step: tuple[float, ...]) -> Frames:
        """That of other frames."""
        count = max(1, round((len(self.times) - start[0]) / step[0]))
        inside = [start[0] + (i + 0.5) * step[0] - 0.5 for i in range(count)]
        times = np.interp(inside, range(len(self.times)), self.times)
        return Frames(self.rate / step[0], tuple(times.tolist()))

    def encoded(self, relevance: np.ndarray, ending: str, like: Recording, identify: bool) -> bytes:
        """A film of the same frames, with relevance drawn over them; the numbers are in the map."""
        av = imported("av", INSTALL)
        shown = smoothed(torch.from_numpy(np.ascontiguousarray(relevance)))
        limit = float(shown.abs().flatten().kthvalue(max(1, int(0.995 * shown.numel()))).values) or 1.0
        made = BytesIO()
        height, width = (side - side % 2 or 2 for side in shown.shape[1:])
        unseen = np.zeros(tuple(shown.shape[1:]), bool)
        with av.open(made, "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=Fraction(self.rate).limit_denominator(1001))
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for picture, held in zip(like.values.permute(1, 2, 3, 0), shown, strict=True):
                ground = picture.expand(*picture.shape[:2], 3).clamp(0, 1).numpy()
                drawn = composed(Panel(ground, held.numpy(), limit, None, unseen))
                drawn = np.pad(drawn, ((0, max(0, 2 - len(drawn))), (0, max(0, 2 - drawn.shape[1])), (0, 0)), "edge")
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(drawn[:height, :width]), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        return made.getvalue()

    def facts(self) -> dict[str, Any]:
        """The rate, and when frames are."""
        return {"rate": self.rate, "times": list(self.times)}


def read(path: Path, frames: int | None = None, span: tuple[float, float] | None = None) -> Recording:
    """Frames ``[3,T,H,W]`` from 0 to 1: all, or so many evenly spread over the film or a part of it."""
    av = imported("av", INSTALL)
    checked_path(path)
    if frames is not None and frames < 1:
        raise InputError(f"{printable(path)}: frames={frames}: give at least 1.")
    with reading(path, "video"):
        with av.open(str(path.absolute()), options={"protocol_whitelist": "file"}) as container:
            if not container.streams.video:
                raise InputError(f"{printable(path)}: there are no pictures in it, only sound.")
            check_count(
                path, (3, container.streams.video[0].height, container.streams.video[0].width), "Scale it down."
            )
            times = _times(container, span)
            if not times:
                within = "" if span is None else f" between {span[0]:g} s and {span[1]:g} s"
                raise InputError(f"{printable(path)}: no frame of it{within} can be decoded. Is the file complete?")
            said, rate = container.streams.video[0].frames, container.streams.video[0].average_rate
        chosen = range(len(times)) if frames is None else _spread(len(times), frames)
        kept = [times[i] for i in chosen]
        with av.open(str(path.absolute()), options={"protocol_whitelist": "file"}) as container:
            stream = container.streams.video[0]
            remedy = "Give frames=16, evenly spread, or span=(from, to) in seconds."
            check_count(path, (3, len(kept), stream.height, stream.width), remedy)
            pictures = _pictures(container, kept)
    notes = []
    if span is None and said and len(times) < said:
        notes.append(f"{len(times)} of {said} frames could be decoded")
    if frames is not None and frames < len(times):
        notes.append(f"{frames} of {len(times)} frames were taken, evenly spread")
    if frames is not None and frames > len(times):
        notes.append(f"it has {len(times)} frames; some were taken more than once to make {frames}")
    values = torch.from_numpy(np.stack(pictures)).permute(3, 0, 1, 2).float() / 255
    own = float(rate) if rate else 25.0
    kept_rate = own if frames is None else own * len(kept) / len(times)
    return Recording(values.contiguous(), Kind.VIDEO, Frames(kept_rate, tuple(kept)), path, tuple(notes))


def _spread(count: int, wanted: int) -> list[int]:
    """So many of some numbers, each in the middle of its part."""
    return [int((i + 0.5) * count / wanted) for i in range(wanted)]


def _times(container: Any, span: tuple[float, float] | None) -> list[float]:
    """When the frames begin that can be decoded."""
    found, first = [], None
    for i, frame in enumerate(_decoded(container)):
        time = float(frame.time) if frame.time is not None else float(i)
        first = time if first is None else first
        if span is None or span[0] <= time - first < span[1]:
            found.append(time)
    return found


def _pictures(container: Any, times: list[float]) -> list[np.ndarray]:
    """The frames that begin at some times, in order."""
    wanted = set(times)
    found = {}
    for i, frame in enumerate(_decoded(container)):
        time = float(frame.time) if frame.time is not None else float(i)
        if time in wanted:
            found[time] = frame.to_ndarray(format="rgb24")
    shapes = {each.shape for each in found.values()}
    if len(shapes) > 1:
        raise InputError(f"{container.name}: its frames have several sizes.")
    return [found[time] for time in times]


def _decoded(container: Any) -> Any:
    """Frames, up to where the file ends or is broken."""
    errors = imported("av", INSTALL).error
    try:
        yield from container.decode(video=0)
    except errors.FFmpegError:
        return
