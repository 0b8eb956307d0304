"""What an explanation says, in a sentence for somebody who has read nothing about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hilrp.attribution.error_bars import RegionSum, share_text, with_minus
from hilrp.attribution.marking import MARKED, PAIRS
from hilrp.attribution.verdicts import Verdict

if TYPE_CHECKING:
    from hilrp.attribution.explanation import Explanation

#: How what is marked is called begins.
_MARKED = "the marked"
#: What is less than this part of the whole isn't worth a word.
_VISIBLE = 0.005


def number(value: float) -> str:
    """A number as a reader wants it: ``9.53``, ``0.012``.

    Example:
        >>> number(9.532), number(-0.01234)
        ('9.53', '−0.012')
    """
    return with_minus(f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}")


def quoted(name: str) -> str:
    """The name of a class between quotation marks; a title that has some already, as it is."""
    return name if "\u201c" in name else f"\u201c{name}\u201d"


def titled(name: str | None, against: str | None) -> str | None:
    """What is explained, in words: a class, or one rather than another."""
    return name if against is None else f"{name} rather than {against}"


@dataclass(frozen=True)
class Sentence:
    """A sentence in three parts: a page puts another region into it.

    Attributes:
        start: How much is explained.
        held: How much of it comes from a region, where one is spoken of.
        end: What else holds a part, and whether anything is missing.
    """

    start: str
    held: str = ""
    end: str = "."

    def __str__(self) -> str:
        return f"{self.start}{self.held}{self.end}"


def sentence(
    explanation: Explanation,
    sample: int,
    name: str | None,
    held: RegionSum | None,
    where: str = MARKED,
    against: str | None = None,
) -> Sentence:
    """How much is explained, where it comes from, and whether anything is missing.

    Args:
        explanation: The explanation.
        sample: Of which sample.
        name: Whose score it is: the name of a class.
        held: What a region holds, if one is to be spoken of.
        where: What that region is.
        against: The class that it is contrasted with.
    """
    whole = float(explanation.ledger.explained[sample])
    start, nothing = _start(explanation, sample, name, against)
    if nothing:
        return Sentence(start)
    own, others, ending = _parts(explanation, sample, whole, held, where)
    return Sentence(f"{start}, ", own, f"{', ' if own and others else ''}{others}; {ending}.")


def _start(explanation: Explanation, sample: int, name: str | None, against: str | None) -> tuple[str, bool]:
    """How a sentence begins, and whether there is nothing to explain."""
    whole, relative_to = float(explanation.ledger.explained[sample]), explanation.relative_to
    of = "" if name is None else f" of {quoted(name)}" + ("" if against is None else f" over {quoted(against)}")
    what = "score" if against is None else "lead"
    if relative_to is None:
        subject = f"the {what} {number(whole)}{of}"
        if whole:
            return f"Of {subject}", False
        return f"{_capital(subject)} is zero: there is nothing to explain", True
    scores = f"the {what}{of} is" if name is None or against is not None else f"{quoted(name)} scores"
    if explanation.verdicts[sample] is Verdict.NOTHING:
        return f"{_capital(scores)} the same as on {relative_to}: there is nothing to explain", True
    more = "lower" if whole < 0 else "higher"
    return f"Of the {number(abs(whole))} by which {scores} {more} than on {relative_to}", False


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _parts(
    explanation: Explanation, sample: int, whole: float, held: RegionSum | None, where: str
) -> tuple[str, str, str]:
    """What a region holds, what others hold, and what is missing."""
    ledger = explanation.ledger
    pixels, missing = float(ledger.pixels[sample]) / whole, float(ledger.difference[sample]) / whole
    kept = 1 - pixels - missing
    own, others = "", []
    if held is not None:
        own = f"{held.text(sample)} comes from {where}{_unsure(explanation, held, where)}"
    if held is None or abs(kept) >= _VISIBLE:
        arrived = " and ".join(ledger.arrived)
        verb = "holds" if arrived.startswith("input") and " and " not in arrived else "hold"
        others.append(f"the {arrived} {verb} {share_text(pixels, None)}")
    if abs(kept) >= _VISIBLE:
        keeper = "constants of the model" if explanation.relative_to is None else "choices that the model makes"
        others.append(f"{keeper} keep {share_text(kept, None)}")
    lost = explanation.verdicts[sample] is Verdict.DEGENERATE or abs(missing) >= _VISIBLE
    ending = f"{share_text(missing, None)} is missing" if lost else "nothing is missing"
    return own, ", ".join(others), ending


def _unsure(explanation: Explanation, held: RegionSum, where: str) -> str:
    """What it takes to know how sure a share is, where several passes don't say it."""
    from hilrp.attribution.chains import Chains

    if held.stderr is not None or explanation.passes == 1:
        return ""
    pairs = 2 * PAIRS if where.startswith(_MARKED) else PAIRS
    least = Chains.fewest(pairs)
    return (
        f" (\u00b1 from {least} passes on)"
        if explanation.passes < least
        else f" (\u00b1 takes {pairs} pairs of chains)"
    )
