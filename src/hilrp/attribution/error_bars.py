"""How sure a map is: standard errors and intervals, from the spread of pairs of chains.

A pair of chains (see `hilrp.attribution.chains`) is one draw; pairs don't depend on each other. So the mean of ``n``
pairs has the standard error ``s / sqrt(n)``, and its intervals are Student's with ``n - 1`` degrees of freedom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hilrp.util.errors import InputError


@dataclass(frozen=True)
class RegionSum:
    """What a region holds, per sample.

    Attributes:
        relevance: The sum of the map over the region, ``[B]``.
        share: The same as a part of what is explained: of the score's difference to the reference's.
        stderr: The standard error of ``relevance``; ``None`` with fewer than two pairs of chains.
        share_stderr: That of ``share``.
        pairs: How many pairs of chains there are.
    """

    relevance: Tensor
    share: Tensor
    stderr: Tensor | None
    share_stderr: Tensor | None
    pairs: int

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor] | None:
        """Between which numbers the relevance of many more passes lies, with this probability; ``None`` if unknown."""
        if not isinstance(level, (int, float)) or not 0 <= level < 1:
            raise InputError(f"interval({level!r}): give a probability from 0 to 1, such as 0.95.")
        if self.stderr is None:
            return None
        reach = student_quantile(0.5 + level / 2, self.pairs - 1) * self.stderr
        return self.relevance - reach, self.relevance + reach

    def text(self, sample: int = 0) -> str:
        """The share of a sample in words, as `share_text` writes it."""
        if not bool(self.share[sample].isfinite()):
            return "nothing to explain"
        error = None if self.share_stderr is None else float(self.share_stderr[sample])
        return share_text(float(self.share[sample]), error)


def share_text(share: float, error: float | None) -> str:
    """A share in words: ``42 %``, with a standard error ``42 % ± 3 %``, or ``42.1 % ± 0.3 %`` where that is small.

    Example:
        >>> share_text(0.421, None), share_text(0.0042, None), share_text(0.421, 0.003)
        ('42 %', '0.4 %', '42.1 % ± 0.3 %')
    """
    if error is None:
        small = 0 < abs(share) < 0.01  # nearly nothing is not nothing
        return f"{with_minus(f'{100 * share:.1g}')} %" if small else f"{_rounded(100 * share, 0)} %"
    digits = next((digits for digits, least in enumerate((0.95, 0.095, 0.005)) if 100 * error >= least), 0)
    return f"{_rounded(100 * share, digits)} % ± {_rounded(100 * error, digits)} %"


def _rounded(value: float, digits: int) -> str:
    return with_minus(f"{round(value, digits) + 0.0:.{digits}f}")  # without the sign of a zero


def with_minus(number: str) -> str:
    """A number as a reader wants it: with a minus sign, where Python writes a hyphen.

    Example:
        >>> with_minus("-1e-05")
        '−1e-05'
    """
    return f"\u2212{number[1:]}" if number.startswith("-") else number


def standard_error(pairs: Tensor) -> Tensor:
    """That of the mean over pairs, ``[B,pairs,...]`` to ``[B,...]``."""
    return pairs.std(1) / math.sqrt(pairs.shape[1])


def region_sum(relevance: Tensor, pairs: Tensor | None, mask: Any, explained: Tensor) -> RegionSum:
    """The sum of maps ``[B,...]`` over a region, with what their pairs ``[B,pairs,...]`` say of its error."""
    shape = tuple(relevance.shape)
    try:
        mask = torch.as_tensor(mask.copy() if hasattr(mask, "__array_interface__") else mask)
    except (TypeError, ValueError, RuntimeError) as reason:
        raise InputError(
            f"region: the mask is no tensor ({reason}). Give one of shape {shape[1:]}, or one for each sample."
        ) from None
    if tuple(mask.shape) not in (shape[1:], shape, (1, *shape[1:])):
        raise InputError(
            f"region: the mask has the shape {tuple(mask.shape)}, the map {shape}: give {shape[1:]}, or one for each "
            "sample."
        )
    mask = mask.to(relevance.device, torch.float64).expand(shape)
    if not bool(((mask >= 0) & (mask <= 1)).all()):
        raise InputError("region: the mask holds numbers that aren't between 0 and 1.")
    total = (relevance.double() * mask).flatten(1).sum(1)
    error = None if pairs is None else standard_error((pairs.double() * mask[:, None]).flatten(2).sum(2))
    share_error = None if error is None else error / explained.abs()
    return RegionSum(total, total / explained, error, share_error, 0 if pairs is None else pairs.shape[1])


def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's distribution, by bisection.

    Example:
        >>> round(student_quantile(0.975, 3), 3)
        3.182
    """
    if not 0.5 <= probability < 1 or freedom < 1:
        raise InputError(
            f"student_quantile({probability}, {freedom}): give a probability from 0.5 and a freedom from 1."
        )
    low, high = 0.0, 1.0
    while _student(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student(middle, freedom) < probability else (low, middle)
    return high


def _student(t: float, freedom: int) -> float:
    """The distribution function for ``t`` from 0 on, as a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    term, total = (math.cos(angle), 0.0) if freedom % 2 else (1.0, 0.0)
    for k in range(1 + freedom % 2, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    if freedom % 2:
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    return 0.5 + math.sin(angle) * total / 2
