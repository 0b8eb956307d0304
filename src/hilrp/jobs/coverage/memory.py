"""How much memory there is, and how much of it is left."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def free_part(device: str = "cpu") -> float | None:
    """Which part of the memory is free, of the machine's and of the device's the smaller.

    ``None`` where nobody says.
    """
    parts = [free / total for total, free in (_machine(), _device(device)) if total]
    return min(parts, default=None)


def part_used_by(process: int) -> float:
    """Which part of the machine's memory a process takes up."""
    total, _ = _machine()
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / total if total else 0.0


def _device(device: str) -> tuple[int, int]:
    if not device.startswith("cuda"):
        return 0, 0
    free, total = torch.cuda.mem_get_info(device)
    return total, free


def _machine() -> tuple[int, int]:
    """Bytes that this process may use in all, and what is left of them; zeros where the system doesn't say."""
    try:
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        kilobytes = {words[0].rstrip(":"): int(words[1]) for words in lines}
        total, free = kilobytes["MemTotal"] * 1024, kilobytes["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return 0, 0
    limit = _container_limit()
    if limit is not None and limit[0] < total:
        total, free = limit[0], min(free, limit[0] - limit[1])
    return total, free


def _container_limit() -> tuple[int, int] | None:
    """Limit and use of the control group, with the file cache (which can be dropped) taken off the use."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
        figures = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit, used - int(figures.get("inactive_file", 0))
    except (OSError, ValueError):
        return None


def default_jobs() -> int:
    """How many models to audit at once: one for each core."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
