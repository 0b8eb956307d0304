"""What the books say of a map, in one word and in one sentence."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Whether a map decomposes its score.

    The paper calls a map *degenerate* that arrives with next to nothing, or with many times the score, and still looks
    plausible. Books tell two cases apart: relevance that was lost on the way, and relevance that constants of the model kept.
    """

    VALID = "valid"
    ABSORBED = "absorbed"
    INFLATED = "inflated"
    DEGENERATE = "degenerate"

    @property
    def meaning(self) -> str:
        """What it means for someone who looks at the map."""
        return _MEANINGS[self]

    @property
    def colour(self) -> str:
        """For figures and pages."""
        return _COLOURS[self]


_MEANINGS = {
    Verdict.VALID: "The books close, and most of the score (or all of its difference to a reference) is on the pixels: the map decomposes the prediction.",
    Verdict.ABSORBED: "The books close, but biases, shifts and other constants of the model keep most of the score, or more than all of it: the map ranks what is left.",
    Verdict.INFLATED: "The books close, but the pixels hold more than twice the score, for or against, which constants make up for: read the map as a ranking.",
    Verdict.DEGENERATE: "The books do not close: relevance was lost or created on the way, and the map does not decompose the score.",
}
_COLOURS = {
    Verdict.VALID: "#1a7f37",
    Verdict.ABSORBED: "#9a6700",
    Verdict.INFLATED: "#9a6700",
    Verdict.DEGENERATE: "#c00020",
}
#: Between these shares of the score the pixels are said to hold it.
LEAST, MOST = 0.5, 2.0


def verdict(share: float, residual: float, tolerance: float) -> Verdict:
    """The verdict on one sample: the pixels' share of the score, and how far its books are from closing.

    Example:
        >>> str(verdict(share=0.02, residual=1e-7, tolerance=1e-4))
        'absorbed'
    """
    if not residual <= tolerance:  # what is not a number doesn't close
        return Verdict.DEGENERATE
    if abs(share) > MOST:
        return Verdict.INFLATED
    return Verdict.ABSORBED if share < LEAST else Verdict.VALID
