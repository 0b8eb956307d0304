"""Calls that must end soon, and take little memory on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def bounded(call: Callable[[], Any], seconds: float, megabytes: float) -> Any:
    """What a call returns, or the error that it raises; fails if it takes longer, or more memory."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    _forget_peak()
    before, start = _memory("VmRSS"), time.monotonic()
    # Of a call that never returns, the thread ends with the process.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"still running after {seconds} s"
    took, peak = time.monotonic() - start, _memory("VmHWM") - before
    assert peak <= megabytes, f"{peak:.0f} MB instead of {megabytes} at most, in {took:.1f} s"
    return outcome[0]


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
