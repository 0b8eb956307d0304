"""The theory, checked to machine precision.

`verify` runs every check and reports the measured errors beside their bounds.

- ``taxonomy``: thirteen attention mechanisms, the engine against textbook propagation;
- ``reduction``: resolution reduction as one linear map, and the paper's closed forms;
- ``closure``: random compositions of primitives;
- ``equivariance``: the theorem on an idealised model, and its approximate form on published weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import torch

from hilrp.util.errors import InputError
from hilrp.verify import closure, equivariance, reduction, taxonomy, transfer
from hilrp.verify.report import Realisation, Row, Section, VerifyReport

__all__ = ["SECTIONS", "Realisation", "Row", "Section", "VerifyReport", "verify"]

#: Name of a section -> its title.
SECTIONS = {
    "taxonomy": "Attention taxonomy",
    "reduction": "Resolution reduction",
    "closure": "Closure under composition",
    "equivariance": "Equivariance",
}

Progress = Callable[[str], None]


def verify(
    sections: Sequence[str] | None = None,
    checkpoints: Path | None = None,
    images: Path | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Checks the theory in float64.

    Args:
        sections: Some of `SECTIONS`; ``None`` for all.
        checkpoints: A folder with weights (``deit_tiny_patch16_224.safetensors``, ``tiny_vit_5m_224.safetensors``,
            ``swin_tiny_patch4_window7_224.safetensors``) for the measurements on real weights; a model without a file
            there is not run.
        images: A folder with photographs and an ``index.json``, for the same.
        progress: Called with the name of each row when it is done.

    Example:
        >>> report = verify(["reduction"])
        >>> report.passed, len(report.sections[0].rows)
        (True, 5)
    """
    wanted = list(SECTIONS) if sections is None else list(sections)
    for name in wanted:
        if name not in SECTIONS:
            raise InputError(f"verify: {name!r} is not a section. Use some of: {', '.join(SECTIONS)}.")
    with torch.random.fork_rng(devices=[]):  # models are made here; the caller's random numbers stay as they were
        return VerifyReport([_run(name, checkpoints, images, progress) for name in wanted])


def _run(name: str, checkpoints: Path | None, images: Path | None, progress: Progress | None) -> Section:
    start, rows = time.perf_counter(), list[Row]()
    for label, check in _checks(name, checkpoints, images):
        try:
            found = list(check())
        except Exception as error:  # whatever goes wrong in a check, the others are run and reported
            found = [Row(label, error=f"stopped by {type(error).__name__}: {error}")]
        rows += found
        if progress is not None:
            for row in found:
                progress(row.name)
    return Section(name, SECTIONS[name], rows, time.perf_counter() - start)


Check = Callable[[], Iterable[Row]]


def _checks(section: str, checkpoints: Path | None, images: Path | None) -> list[tuple[str, Check]]:
    """What is run for a section: names, and functions that return rows."""
    if section == "taxonomy":
        return [(mechanism.name, partial(_one, taxonomy.check, mechanism)) for mechanism in taxonomy.MECHANISMS]
    if section == "reduction":
        operators = [make() for make in reduction.OPERATORS]
        checks: list[tuple[str, Check]] = [(each.name, partial(_one, reduction.check, each)) for each in operators]
        return [*checks, ("patch merging with its LayerNorm", partial(_one, reduction.check_merging_with_norm))]
    if section == "closure":
        return [("random compositions", partial(_one, closure.check))]
    transfers = [(f"transfer, {name}", partial(transfer.check, name, checkpoints, images)) for name in transfer.MODELS]
    return [("cyclic model", equivariance.check), *transfers]


def _one(check: Callable[..., Row], *arguments: object) -> list[Row]:
    return [check(*arguments)]
