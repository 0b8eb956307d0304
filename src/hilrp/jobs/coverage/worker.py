"""One model's audit, in a process of its own: whatever happens here costs one row."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import warnings
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from hilrp.attribution.audit import audit
from hilrp.jobs.coverage.store import Settings
from hilrp.models.random_models import build
from hilrp.util.errors import HilrpError
from hilrp.util.nested import tensors

#: How the libraries of a device say that its memory ran out.
_MEMORY_SIGNS = (
    "out of memory",
    "ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "can't allocate memory",
)


def audit_row(name: str, settings: Settings) -> dict[str, Any]:
    """The row of one model: its verdict (``status``), its figures, and why it fails if it does.

    Where the pixels' share is so small that an error in it would be lost in the tolerance, the model is audited in
    float64, if it runs in that type.

    Example:
        >>> audit_row("timm/test_vit", Settings(batch=1))["status"]
        'pass'
    """
    row = _audited(name, settings)
    if row["status"] != "pass" or "unseen" not in row:
        return row
    closer = _audited(name, replace(settings, dtype="float64"))
    if closer["status"] in ("pass", "fail"):
        return closer | {"dtype": "float64", "seconds": row["seconds"] + closer["seconds"]}
    return row


def _audited(name: str, settings: Settings) -> dict[str, Any]:
    began = time.perf_counter()
    row: dict[str, Any] = {"name": name}
    if settings.device != "cpu":
        # The books are checked at the precision of float32 itself.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    try:
        dtype = getattr(torch, settings.dtype)
        built = build(
            name, dtype=dtype, device=settings.device, batch=settings.batch, size=settings.size, seed=settings.seed
        )
        row |= {"parameters": built.parameters, "input": [list(t.shape) for t in tensors(built.inputs)]}
        report = audit(built.model, built.inputs, built.target, settings.rules)
    except (torch.OutOfMemoryError, MemoryError) as error:
        row |= {"status": "memory", "reason": str(error)[:300]}
    except HilrpError as error:
        row |= {"status": "error", "reason": str(error)[:600]}
    except Exception as error:  # a model that can't even be built or called is a row, too
        row |= {"status": "error", "reason": f"{type(error).__name__}: {error}"[:600]}
    else:
        found = report.as_dict()
        kept = ("forward_difference", "residual", "leak", "share", "tolerance", "operations", "gates", "splits", "kept")
        row |= {"status": "pass" if report.passed else "fail"} | {key: found[key] for key in kept}
        row |= {} if report.visible else {"unseen": True}
        reasons = [*report.problems, *([report.error] if report.error else [])]
        row |= {"reason": "; ".join(reasons)[:600]} if reasons else {}
    if row["status"] != "pass" and any(sign in row.get("reason", "") for sign in _MEMORY_SIGNS):
        row["status"] = "memory"
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def _end_with_parent() -> None:
    """A run that was killed leaves nobody behind who goes on computing."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def main(name: str, settings: Settings, threads: int, results: Connection) -> None:
    """Audits in this process and sends the row."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # What libraries print belongs to nobody here; what goes wrong is in the row.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    results.send(audit_row(name, settings))
    results.close()
