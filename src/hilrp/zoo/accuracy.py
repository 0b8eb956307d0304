"""How well a model of scenes recognises what is in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def average_precision(scores: NDArray[np.floating], labels: NDArray[np.generic]) -> float:
    """The mean, over what belongs to a class, of the precision among all that score at least as high.

    Example:
        >>> average_precision(np.array([0.9, 0.8, 0.7]), np.array([1.0, 0.0, 1.0])) == (1 + 2 / 3) / 2
        True
    """
    # Of those with the same score none comes before the other.
    values, place = np.unique(-scores, return_inverse=True)
    hits, counts = np.bincount(place, labels, len(values)), np.bincount(place, minlength=len(values))
    precision = np.cumsum(hits) / np.cumsum(counts)
    return float((precision * hits).sum() / hits.sum())


def mean_average_precision(scores: NDArray[np.floating], labels: NDArray[np.floating]) -> float:
    """`average_precision` of each column, averaged: ``scores`` and ``labels`` are ``[images, classes]``."""
    return float(np.mean([average_precision(s, t) for s, t in zip(scores.T, labels.T, strict=True)]))
