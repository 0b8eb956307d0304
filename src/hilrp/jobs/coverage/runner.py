"""Runs many audits, one process per model, several at once, within the memory that there is."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pickle import UnpicklingError
from typing import Any

from hilrp.jobs.coverage import worker
from hilrp.jobs.coverage.memory import default_jobs, free_part, part_used_by
from hilrp.jobs.coverage.store import Settings, Store

#: Another model is started while the first part of the memory is free. Below the second, the largest model is stopped,
#: if it takes up more than the third.
_ROOM, _SHORTAGE, _LARGE = 0.3, 0.06, 0.1

Row = dict[str, Any]


@dataclass
class _Job:
    """A model being audited."""

    name: str
    settings: Settings
    process: Any
    results: Connection
    began: float
    alone: bool


def run(
    names: Iterable[str],
    store: Store,
    jobs: int | None = None,
    timeout: float = 900.0,
    retry: bool = False,
    on_row: Callable[[Row], None] = lambda row: None,
) -> dict[str, Row]:
    """Audits models and stores a row for each; those that the store has are not run again.

    A model that crashes, or takes longer than ``timeout`` seconds, gets a row that says so. One that runs out of
    memory beside others is run again alone, and one that does so alone with a single image.

    Args:
        names: Full names, ``library/model``.
        store: Where the rows go.
        jobs: How many at once; default: one for each core.
        timeout: Seconds for one model.
        retry: Run those again that did not pass.
        on_row: Called with each row, also with those that were there.

    Returns:
        All rows of ``names``, in that order.
    """
    names = list(dict.fromkeys(names))
    store.request(names)
    done = {name: row for name, row in store.rows().items() if not retry or row["status"] == "pass"}
    for name in names:
        if name in done:
            on_row(done[name])
    pool = _Pool(store, jobs or default_jobs(), timeout)
    try:
        for row in pool.run([name for name in names if name not in done]):
            store.add(row)
            done[row["name"]] = row
            on_row(row)
    finally:
        pool.stop()
    return {name: done[name] for name in names}


class _Pool:
    def __init__(self, store: Store, jobs: int, timeout: float) -> None:
        self._store, self._jobs, self._timeout = store, jobs, timeout
        methods = multiprocessing.get_all_start_methods()
        # A server that has torch imported forks in milliseconds; a fresh interpreter takes seconds.
        self._context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            self._context.set_forkserver_preload(["hilrp.jobs.coverage.preload"])
        self._threads = max(1, default_jobs() // jobs)
        self._running: list[_Job] = []

    def run(self, names: list[str]) -> Iterable[Row]:
        """The rows, as they come."""
        settings = self._store.settings
        queue, alone = deque(names), deque[tuple[str, Settings]]()
        while queue or alone or self._running:
            while queue and self._has_room():
                self._start(queue.popleft(), settings, alone=False)
            if not queue and not self._running and alone:
                self._start(*alone.popleft(), alone=True)
            wait([job.results for job in self._running], timeout=0.2)
            ended = [(job, self._row(job)) for job in self._ended()]
            largest = self._to_be_stopped()
            if largest is not None:
                ended.append((largest, self._kill(largest, "memory", "stopped before the machine ran out of memory")))
            for job, row in ended:
                if row["status"] != "memory" or (job.alone and job.settings.batch == 1):
                    yield row
                else:
                    alone.append((job.name, replace(settings, batch=1) if job.alone else settings))

    def stop(self) -> None:
        """Stops what is still running."""
        for job in list(self._running):
            self._kill(job, "stopped", "")

    def _start(self, name: str, settings: Settings, alone: bool) -> None:
        receiver, sender = self._context.Pipe(duplex=False)
        threads = default_jobs() if alone else self._threads
        process = self._context.Process(target=worker.main, args=(name, settings, threads, sender), daemon=True)
        process.start()
        sender.close()
        self._running.append(_Job(name, settings, process, receiver, time.monotonic(), alone))

    def _has_room(self) -> bool:
        if not self._running:
            return True
        if len(self._running) >= self._jobs or any(job.alone for job in self._running):
            return False
        free = free_part(self._store.settings.device)
        # A job that has just begun has not taken its memory yet.
        return free is None or (free > _ROOM and time.monotonic() - self._running[-1].began > 0.2)

    def _to_be_stopped(self) -> _Job | None:
        """When memory is short: the largest model, if it is one of ours that takes the memory."""
        free = free_part()
        if free is None or free >= _SHORTAGE or not self._running:
            return None
        largest = max(self._running, key=lambda job: part_used_by(job.process.pid))
        return largest if part_used_by(largest.process.pid) > _LARGE else None

    def _ended(self) -> list[_Job]:
        """Jobs that have sent their row, died, or run out of time."""
        late = time.monotonic() - self._timeout
        return [j for j in self._running if j.results.poll() or not j.process.is_alive() or j.began < late]

    def _row(self, job: _Job) -> Row:
        try:
            row: Row | None = job.results.recv() if job.results.poll() else None
        except (EOFError, OSError, UnpicklingError):  # the process has ended, or is about to
            job.process.join(5)
            if job.process.is_alive():
                return self._kill(job, "crash", "closed its channel without a result")
            row = None
        if row is not None:
            job.process.join(5)
            self._kill(job, "", "")
            return row
        if job.process.is_alive():
            return self._kill(job, "timeout", f"not done after {self._timeout:.0f} s")
        code = job.process.exitcode
        reason = f"killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit status {code}"
        # The kernel's way of saying that memory ran out.
        return self._kill(job, "memory" if code == -signal.SIGKILL else "crash", reason)

    def _kill(self, job: _Job, status: str, reason: str) -> Row:
        job.process.kill()
        job.process.join()
        job.results.close()
        self._running.remove(job)
        return {"name": job.name, "status": status, "reason": reason, "seconds": round(time.monotonic() - job.began, 1)}
