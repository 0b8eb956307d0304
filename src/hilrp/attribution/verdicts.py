"""What the ledger says of a map, in one word and in one sentence."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Whether a map decomposes its score.

    The paper calls a map *degenerate* that arrives with next to nothing, or with many times the score, and still looks
    plausible. The ledger tells two cases apart: relevance that was lost on the way, and relevance that constants of the
    model kept. *Valid* is earned: the ledger closes, and the explanation was compared with plain passes of the model.
    """

    VALID = "valid"
    UNVERIFIED = "unverified"
    NOTHING = "nothing to explain"
    ABSORBED = "absorbed"
    INFLATED = "inflated"
    DEGENERATE = "degenerate"

    @property
    def meaning(self) -> str:
        """What it means for someone who looks at the map."""
        return _MEANINGS[self]

    @property
    def colour(self) -> str:
        """Its colour in figures and on pages."""
        return _COLOURS[self]


_MEANINGS = {
    Verdict.VALID: (
        "The numbers add up, and the pixels hold most of the score, or of its difference to that on the reference, as "
        "plain passes of the model confirm: the map decomposes it."
    ),
    Verdict.UNVERIFIED: (
        "The numbers add up, but not all that could make the map wrong was ruled out: the notes say what was not "
        "checked."
    ),
    Verdict.NOTHING: (
        "The score is the same on the reference: there is no difference to decompose, and the map shows rounding."
    ),
    Verdict.ABSORBED: (
        "The numbers add up, but biases, shifts and other constants of the model keep most of the score, or more "
        "than all of it: the map ranks what is left."
    ),
    Verdict.INFLATED: (
        "The numbers add up, but the pixels hold more than twice the score, for or against, which constants make up "
        "for: read the map as a ranking."
    ),
    Verdict.DEGENERATE: (
        "The numbers do not add up: relevance was lost or created on the way, and the map does not decompose the score."
    ),
}
_COLOURS = {
    Verdict.VALID: "#1a7f37",
    Verdict.UNVERIFIED: "#57606a",
    Verdict.NOTHING: "#57606a",
    Verdict.ABSORBED: "#9a6700",
    Verdict.INFLATED: "#9a6700",
    Verdict.DEGENERATE: "#c00020",
}
#: Between these shares of the score the pixels are said to hold it.
LEAST, MOST = 0.5, 2.0


def verdict(share: float, residual: float, tolerance: float, difference: float = 1.0, checked: bool = True) -> Verdict:
    """The verdict on one sample.

    Args:
        share: The pixels' share of what is explained: of the score, or of its difference to that of a reference.
        residual: How far its ledger is from closing.
        tolerance: How far they may be.
        difference: How large what is explained is beside the larger of the two scores; without a reference, one.
        checked: Whether the explanation was compared with plain passes of the model.

    Example:
        >>> str(verdict(share=0.02, residual=1e-7, tolerance=1e-4))
        'absorbed'
    """
    if not residual <= tolerance:  # what is not a number doesn't close
        return Verdict.DEGENERATE
    if difference <= tolerance:
        return Verdict.NOTHING
    if abs(share) > MOST:
        return Verdict.INFLATED
    if share < LEAST:
        return Verdict.ABSORBED
    return Verdict.VALID if checked else Verdict.UNVERIFIED
