"""What an explanation says, in sentences for somebody who has read nothing about it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from torch import Tensor

from hilrp.attribution.chains import Chains
from hilrp.attribution.error_bars import with_minus
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.marking import PAIRS
from hilrp.attribution.verdicts import Verdict
from hilrp.pages.parts import badge, folded

#: What verdicts mean where a difference is explained.
_OF_DIFFERENCES = {
    Verdict.VALID: (
        "The pixels hold all of the difference: the numbers add up, and plain passes of the model confirm both scores."
    ),
    Verdict.UNVERIFIED: (
        "The numbers add up, but not all that could make the map wrong was ruled out: the notes say what was not "
        "checked."
    ),
    Verdict.NOTHING: "The two scores are the same: there is no difference to explain, and the map shows rounding.",
    Verdict.ABSORBED: (
        "The numbers add up, but less than half of the difference is on the pixels: the model chooses by its input, "
        "and what such a choice changes is no pixel\u2019s."
    ),
    Verdict.INFLATED: (
        "The numbers add up, but the pixels hold more than twice the difference, for or against, which choices that "
        "the model makes by its input make up for: read the map as a ranking."
    ),
    Verdict.DEGENERATE: (
        "The numbers do not add up: relevance was lost or created on the way, and the map does not decompose the "
        "difference."
    ),
}


def has_shares(explanation: Explanation) -> bool:
    """Whether parts of what is explained mean something: a part of a score below zero would have the wrong sign."""
    if explanation.reference is None:
        return float(explanation.ledger.explained[0]) > 0
    return explanation.verdicts[0] != Verdict.NOTHING


def meaning(word: Verdict, relative: bool) -> str:
    """What a verdict means to somebody who looks at a map; of a difference, where there is a reference."""
    return _OF_DIFFERENCES.get(word, word.meaning) if relative else word.meaning


def meanings(verdicts: Iterable[Verdict], relative: bool) -> str:
    """What the verdicts on a page mean, folded, as HTML."""
    found = set(verdicts)
    said = [(word, meaning(word, relative)) for word in Verdict if word in found]
    lines = "".join(f"<p>{badge(word, text)} {escape(text)}</p>" for word, text in said)
    return folded("What the verdicts mean", lines) if lines else ""


def verdict(explanation: Explanation) -> str:
    """The verdict, what it means, and the figures behind it, as HTML."""
    word, ledger, relative_to = explanation.verdicts[0], explanation.ledger, explanation.relative_to
    kind = explanation.main_of(explanation.relevance)[1]
    means = meaning(word, relative_to is not None).replace("pixel", kind.place)
    if relative_to is None:
        parts = [f"{name} hold {float(value[0] / ledger.score[0]):.1%}" for name, value in ledger.arrived.items()]
        kept = float(ledger.constants[0] / ledger.score[0])
        figures = (
            f"Of the score {_exactly(ledger.score[0])} the {' and the '.join(parts)}; "
            f"constants of the model keep {kept:.1%}."
        )
    else:
        before = float(ledger.score[0] - ledger.explained[0])
        figures = (
            f"The score is {_exactly(ledger.score[0])}, and {with_minus(f'{before:.3f}')} on {relative_to}. The "
            f"{kind.places} hold {_exactly(ledger.pixels[0])} of the difference {_exactly(ledger.explained[0])}."
        )
    missing = f"What is missing is {float(ledger.residual[0]):.0e} of the score."
    return f"<p>{badge(word, means)} {escape(means)}</p><p>{escape(figures)} {missing}</p>"


def _exactly(value: Tensor) -> str:
    return with_minus(f"{float(value):.3f}")


def surety(explanation: Explanation) -> str:
    """How sure the numbers are, or what it takes to know."""
    if explanation.reference is None:
        return ""
    pairs, passes = explanation.pair_maps, explanation.passes
    if pairs is not None:
        return (
            f"{passes} passes, in {pairs.shape[1]} pairs of chains that don\u2019t depend on each other. \u00b1 is the "
            "standard error: about how far a number is from that of very many passes."
        )
    spent = "One pass" if passes == 1 else f"{passes} passes"
    return f"{spent}. How sure the numbers are is known from {fewest_with_errors()} passes on."


def fewest_with_errors() -> int:
    """The least power of two of passes that has error bars."""
    return Chains.fewest(PAIRS)
