"""Targets: what is explained, one scalar per sample.

A class is a number, or ``None`` for the predicted one. Everything else is a small object, or any function of the
model's output:

- `Contrast`: why one class rather than another.
- `Cosine`, `Direction`: how much of an embedding lies along another.
- `Views`: how alike the model finds two views of the same picture, without any label.
- `Region`: a class of a segmentation, in a mask, a box or at a pixel.
- `Detection`: a class of a query of a detector, or a side of its box.
- `Missed`: an object that a detector did not find, at a place.
- `Mask`, `Keypoint`: the mask of an object, and where one of its joints is.
"""

from __future__ import annotations

from hilrp.targets.classes import Contrast, Score, Target, logits_of, score_of
from hilrp.targets.dense import Detection, Keypoint, Mask, Missed, Region
from hilrp.targets.embeddings import Cosine, Direction, Views, embedding_of
from hilrp.targets.prepared import Needs, settled

__all__ = [
    "Contrast",
    "Cosine",
    "Detection",
    "Direction",
    "Keypoint",
    "Mask",
    "Missed",
    "Needs",
    "Region",
    "Score",
    "Target",
    "Views",
    "embedding_of",
    "logits_of",
    "score_of",
    "settled",
]
