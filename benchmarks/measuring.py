"""Time and memory of passes, and how they are written down: what the benchmarks have in common."""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from counting import Count
from torch import Tensor, nn

import hilrp

Run = Callable[[], object]
_Found = TypeVar("_Found")

#: The first call finds out how many classes there are, the second makes the form of input known, the third records.
CALLS_TO_RECORD = 2


def on_gpu(device: str) -> bool:
    return torch.device(device).type == "cuda"


def plain_pass(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """A forward pass and the gradient of the input, as code for gradients does it."""

    def run() -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(model(leaf).amax(1).sum(), leaf)[0]

    return run


#: Secant rules relative to each picture's own mean colour, and along chains: name -> number of passes.
EACH = {"secant-each": 1, "secant-8": 8}


def explainer(
    model: nn.Module, rules: str | hilrp.Rules, compile: bool = False, recompute: str | None = None
) -> hilrp.Explainer:
    """An explainer that does nothing but explain: no audit, no maps of stages.

    Secant rules are relative to grey, which all pictures share, or (`EACH`) to each picture's own mean.
    """
    reference: float | str | None = "mean" if rules in EACH else None
    rules = "secant" if rules in EACH else rules
    if reference is None and hilrp.Rules.named(rules).constants == "reference":
        reference = 0.0
    return hilrp.Explainer(model, rules, reference, audit="off", stages=None, compile=compile, recompute=recompute)


def recording_of(made: hilrp.Explainer) -> str:
    """Whether an explainer replays a recording: ``"yes"``, ``"no"``, or why there is none."""
    recorder = made._runner.recorder
    if recorder is None:
        return "no"
    return recorder.failure or ("yes" if recorder._recordings else "no")


def graphed(run: Run) -> Run:
    """A pass, captured as a CUDA graph."""
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = run()

    def replay() -> object:
        graph.replay()
        return result

    return replay


# Measuring ----------------------------------------------------------------------------------------------------


def timed(run: Run, device: str) -> float:
    """Seconds that a pass takes."""
    if on_gpu(device):
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if on_gpu(device):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def interleaved(runs: Mapping[str, Run], device: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of several passes, in turns, so that what slows the machine down slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(timed(run, device))
    return times


def peak(run: Run, device: str) -> int:
    """The most bytes that a pass holds at once, beside what was there before."""
    gc.collect()
    if not on_gpu(device):
        with Count() as count:
            run()
        return count.peak
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def attempt(run: Callable[[], _Found]) -> tuple[_Found | None, str | None]:
    """What a measurement found, or why there is none: a row that fails is no reason to lose the others."""
    try:
        return run(), None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200].replace("|", "/")
    release()  # only here, where the error no longer holds the tensors of its frames
    return None, reason


def release() -> None:
    """Lets go of what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# Settings and results -----------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser, repeats: int) -> None:
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--precision", choices=("float32", "tf32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw figures to this file")


@contextmanager
def precision(name: str, device: str) -> Iterator[None]:
    """Products in float32, in TF32 where the GPU has it, or under autocast in bfloat16."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=name == "bfloat16"):
        yield


def environment(options: argparse.Namespace, *packages: Any) -> dict[str, str]:
    """What the figures depend on beside the code."""
    name = torch.cuda.get_device_name(options.device) if on_gpu(options.device) else platform.processor() or "CPU"
    return {
        "torch": torch.__version__,
        **{package.__name__: package.__version__ for package in packages},
        "device": f"{options.device} ({name})",
        "threads": str(torch.get_num_threads()),
        "precision": options.precision,
        "repeats": str(options.repeats),
    }


def header(about: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in about.items())


def save(file: Path | None, about: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes all rows so far: a run that is cut short leaves what it has."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"environment": dict(about), "rows": list(rows)}, indent=1) + "\n")


def ratio(times: Sequence[float], base: Sequence[float]) -> str:
    """The median of ratios to passes right beside them, with the smallest and the largest."""
    ratios = [one / other for one, other in zip(times, base, strict=True)]
    return f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def heading(columns: Sequence[str]) -> str:
    return f"{line(columns)}\n|{'---|' * len(columns)}"
