"""Calls that must end soon, and take little memory on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Who is still running after so many seconds never ends, however busy the machine is.
_PATIENCE = 60


def bounded(call: Callable[[], Any], seconds: float, megabytes: float) -> Any:
    """What a call returns, or the error that it raises.

    Fails if it takes more of the processor's time, or more memory.
    """
    outcome: list[Any] = []

    def run() -> None:
        start = time.thread_time()
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)
        outcome.append(time.thread_time() - start)

    _forget_peak()
    before = _memory("VmRSS")
    # Of a call that never returns, the thread ends with the process.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    assert not thread.is_alive(), "it doesn't end"
    found, took = outcome
    peak = _memory("VmHWM") - before
    assert took <= seconds, f"{took:.1f} s instead of {seconds} at most"
    assert peak <= megabytes, f"{peak:.0f} MB instead of {megabytes} at most"
    return found


def _forget_peak() -> None:
    with suppress(OSError):  # where there is no such thing, memory isn't measured
        Path("/proc/self/clear_refs").write_text("5")


def _memory(kind: str) -> float:
    """Megabytes that this process has now (VmRSS), or had at most since `_forget_peak` (VmHWM)."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(kind):
                return int(line.split()[1]) / 1024
    return 0.0
