"""Prototypes of a class, and what fits none: clusters of what concepts hold in its pictures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: No clustering has been seen to need more steps.
_STEPS = 200


class Clusters(NamedTuple):
    """Clusters of vectors.

    Attributes:
        centres: The mean of each, ``[count,K]``.
        labels: Which cluster each vector is in, ``[N]``.
        distances: How far each vector is from the centre of its cluster, ``[N]``.
    """

    centres: np.ndarray
    labels: np.ndarray
    distances: np.ndarray


def directions(relevance: np.ndarray) -> np.ndarray:
    """What concepts hold, ``[N,K]``, without how large the score is: each row has the length one, or is zero."""
    length = np.linalg.norm(relevance.astype(np.float64), axis=1, keepdims=True)
    return np.asarray(np.divide(relevance, length, out=np.zeros(relevance.shape), where=length > 0))


def cluster(vectors: np.ndarray, count: int) -> Clusters:
    """Cuts vectors into clusters (k-means); the same every time.

    It begins with the vector that is nearest to the mean, and each time with the one that is farthest from all before.

    Example:
        >>> cluster(np.array([[0.0], [0.1], [5.0], [5.1]]), 2).labels.tolist()
        [0, 0, 1, 1]
    """
    centres = vectors[[int(np.square(vectors - vectors.mean(0)).sum(1).argmin())]]
    while len(centres) < count:
        nearest = _squares(vectors, centres).min(1)
        centres = np.concatenate([centres, vectors[[int(nearest.argmax())]]])
    labels = np.full(len(vectors), -1)
    for _ in range(_STEPS):
        squares = _squares(vectors, centres)
        now = squares.argmin(1)
        if (now == labels).all():
            break
        labels = now
        for i in range(count):
            if (labels == i).any():  # one that nobody is left in stays where it was
                centres[i] = vectors[labels == i].mean(0)
    own = _squares(vectors, centres)[np.arange(len(vectors)), labels]
    return Clusters(centres, labels, np.sqrt(own))


def _squares(vectors: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The squared distance of each vector from each centre."""
    return np.stack([np.square(vectors - centre).sum(1) for centre in centres], 1)
