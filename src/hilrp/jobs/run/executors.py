"""Who explains which piece: this process, or actors of Ray."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch

from hilrp.jobs.run.store import Piece
from hilrp.jobs.run.worker import Done, Job, Worker
from hilrp.util.errors import InputError, UnavailableError
from hilrp.util.telemetry import switches

#: Pieces that an actor is given at once: between them it needs not wait.
_GIVEN = 2


def choose(workers: int | None, address: str | None, device: str = "cpu") -> str:
    """``"ray"`` where several workers, a cluster or several GPUs are wanted; else ``"local"``, in this process."""
    several = (workers or 1) > 1 or address is not None
    if several and device.startswith("cuda:"):
        raise InputError(f"--device {device} with several workers: each sees one GPU of its own. Write --device cuda.")
    if several and address is None and device == "cuda" and (workers or 1) > torch.cuda.device_count():
        raise InputError(
            f"--workers {workers} --device cuda: there are {torch.cuda.device_count()} GPUs, one for each worker."
        )
    if several and importlib.util.find_spec("ray") is None:
        raise UnavailableError(
            "several workers need Ray, which is not installed. Install it with: pip install 'hilrp[scale]'; or run "
            "with one worker, and several runs beside each other with --shard."
        )
    return "ray" if several else "local"


def local(job: Job, pieces: Sequence[Piece]) -> Iterator[Done]:
    """In this process."""
    yield from Worker(job).run(pieces)


class _Actor:
    """A worker in a process of its own; it writes what it finds, and tells how many."""

    #: Of the class that is made for a run: it travels with it, also to an actor that is started again.
    job: Job

    def __init__(self) -> None:
        os.environ.update(switches())  # a cluster's processes don't have the environment of the command
        self._worker = Worker(self.job)

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        columns = zip(*(batch[name] for name in ("number", "offset", "count", "first", "sha256")), strict=True)
        pieces = [
            Piece(int(n), int(offset), int(count), int(first), str(own)) for n, offset, count, first, own in columns
        ]
        for piece in pieces:
            if self._worker.store.done(piece):  # by an actor that ended before it could tell
                yield {"number": [piece.number], "images": [piece.count], "failed": [0]}
        for done in self._worker.run(pieces):
            yield {name: [value] for name, value in asdict(done).items()}


@contextmanager
def _without_reports() -> Iterator[None]:
    """Keeps Ray from starting the process that reports, unless the user wants it.

    Without a dashboard it has no other purpose. Even where reports are switched off, it asks the metadata services of
    three clouds where it is, and a name server for one of them; Ray has no switch for that.
    """
    from ray._private import services

    start = getattr(services, "start_api_server", None)
    if start is None or os.environ.get("RAY_USAGE_STATS_ENABLED") != "0":
        yield
        return
    services.start_api_server = lambda *_, **__: (None, None)  # what it returns where it can't be started
    try:
        yield
    finally:
        services.start_api_server = start


def on_ray(job: Job, pieces: Sequence[Piece], workers: int, address: str | None) -> Iterator[Done]:
    """On actors of Ray, on this machine or a cluster.

    An actor that is killed is started again, and its pieces with it. On this machine Ray listens to loopback alone:
    whoever can reach its ports can run programs.
    """
    os.environ.update(switches())
    if address is None:
        # As on macOS and Windows: Ray listens to loopback, and asks nobody which address this machine has.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray
    import ray.data

    for name in [each for each in logging.root.manager.loggerDict if each.partition(".")[0] == "ray"]:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        # Without an address it is this machine's own, whatever cluster the environment names.
        options = {} if address is not None else {"include_dashboard": False}
        with _without_reports():
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"--address {address}: no Ray cluster answers there ({error}).") from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    gpus = 1 if job.device.startswith("cuda") else None
    cpus = 1.0 if address is not None or gpus else max(0.5, (os.cpu_count() or 1) / workers)
    try:
        blocks = -(-len(pieces) // _GIVEN)
        data = ray.data.from_items([asdict(piece) for piece in pieces], override_num_blocks=blocks)
        found = data.map_batches(
            type("Worker", (_Actor,), {"job": job}),
            batch_size=_GIVEN,
            concurrency=min(workers, blocks),
            num_cpus=cpus,
            num_gpus=gpus,
        )
        for row in found.iter_rows():
            yield Done(**{name: int(value) for name, value in row.items()})
    except ray.exceptions.RayError as error:
        raise InputError(f"Ray: {str(error).strip().splitlines()[-1]}") from error
    finally:
        ray.shutdown()


def workers_for(device: str, wanted: int | None) -> int:
    """How many workers: those that are wanted, one for each GPU, or one."""
    if wanted is not None:
        return wanted
    return torch.cuda.device_count() if device == "cuda" and importlib.util.find_spec("ray") is not None else 1
