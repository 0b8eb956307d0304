"""Several methods on the same picture: their maps, their scores where the truth is known, and what they cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hilrp.app.stopping import Stopped
from hilrp.jobs.bench.batches import gradients
from hilrp.jobs.bench.methods import METHODS, Method, Undefined, find
from hilrp.jobs.bench.metrics.localisation import average_precision, energy, iou, pointing
from hilrp.util.errors import HilrpError

#: What is chosen at first: one of each kind that takes about a second.
CHOSEN = ("secant", "hilrp", "attnlrp", "grad-cam", "attention-gradient", "integrated-gradients", "smoothgrad")


@dataclass(frozen=True)
class Compared:
    """A method on a picture.

    Attributes:
        method: The method.
        map: Its map ``[H,W]``.
        seconds: What it took.
        passes: The same time, counted in forward and backward passes of the model.
        total: The sum of the map, where the method is signed.
        figures: How well the map lies on the object, where that is known.
        error: Why there is no map.
    """

    method: Method
    map: np.ndarray | None = None
    seconds: float = 0.0
    passes: float = 0.0
    total: float | None = None
    figures: dict[str, float] = field(default_factory=dict)
    error: str | None = None


class Stoppable(TorchFunctionMode):
    """Raises at the next operation of this thread once ``stop`` is set."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop = stop

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation itself."""
        if self._stop.is_set():
            raise Stopped
        return func(*args, **(kwargs or {}))


def choices() -> list[tuple[str, str]]:
    """The methods that there are to compare: titles and names."""
    return [(method.title, name) for name, method in METHODS.items()]


def compare(
    model: nn.Module,
    x: Tensor,
    label: int,
    names: Sequence[str],
    truth: Tensor | None,
    stop: threading.Event,
    turn: Callable[[], Any],
) -> Iterator[Compared]:
    """Yields each method's map of one picture ``[1,3,H,W]`` as it is done; ends early once ``stop`` is set.

    Args:
        model: The model.
        x: The picture.
        label: The class.
        names: The methods.
        truth: Where the object is, ``[H,W]``.
        stop: Set by whoever doesn't want to wait.
        turn: A context in which nobody else computes: each method waits for its own turn.
    """
    target = torch.tensor([label], device=x.device)
    for name in names:
        method = find(name)
        try:
            with turn(), Stoppable(stop):
                if stop.is_set():
                    return
                plain = min(_timed(lambda: gradients(model, x, target), x)[0] for _ in range(3))
                seconds, maps = _timed(lambda method=method: method(model, x, target), x)  # type: ignore[misc]
        except Stopped:
            return
        except (Undefined, HilrpError) as error:
            yield Compared(method, error=str(error))
            continue
        except Exception as error:  # captum and its kin raise what they like on models that they don't know
            yield Compared(method, error=f"{type(error).__name__}: {error}")
            continue
        figures = {} if truth is None else _figures(maps, truth.unsqueeze(0).to(maps.device))
        total = float(maps.sum()) if method.signed and method.kind != "control" else None
        yield Compared(method, maps[0].float().cpu().numpy(), seconds, seconds / plain, total, figures)


def _figures(maps: Tensor, truth: Tensor) -> dict[str, float]:
    measures = {"pointing": pointing, "energy": energy, "average precision": average_precision, "IoU": iou}
    return {name: float(measure(maps, truth)[0]) for name, measure in measures.items()}


def _timed(run: Callable[[], Tensor], x: Tensor) -> tuple[float, Tensor]:
    start = time.perf_counter()
    found = run()
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start, found
