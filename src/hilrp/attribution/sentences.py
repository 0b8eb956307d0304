"""What an explanation says, in a sentence for somebody who has read nothing about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hilrp.attribution.error_bars import RegionSum, share_text, with_minus
from hilrp.attribution.marking import MARKED, PAIRS
from hilrp.attribution.verdicts import Verdict

if TYPE_CHECKING:
    from hilrp.attribution.explanation import Explanation

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


def sentence(
    explanation: Explanation,
    sample: int,
    name: str | None,
    held: RegionSum | None,
    where: str = MARKED,
) -> str:
    """How much is explained, where it comes from, and whether anything is missing.

    Args:
        explanation: The explanation.
        sample: Of which sample.
        name: Whose score it is: the name of a class.
        held: What a region holds, if one is to be spoken of.
        where: What that region is.
    """
    ledger, relative_to = explanation.ledger, explanation.relative_to
    whole = float(ledger.explained[sample])
    nothing = explanation.verdicts[sample] is Verdict.NOTHING
    if relative_to is None:
        subject = f"the score {number(whole)}" + ("" if name is None else f" of {quoted(name)}")
        start = f"Of {subject}" if whole else f"{subject[:1].upper()}{subject[1:]} is zero: there is nothing to explain"
        nothing = not whole
    else:
        scores = "the score is" if name is None else f"{quoted(name)} scores"
        if nothing:
            start = f"{scores[:1].upper()}{scores[1:]} the same as on {relative_to}: there is nothing to explain"
        else:
            more = "lower" if whole < 0 else "higher"
            start = f"Of the {number(abs(whole))} by which {scores} {more} than on {relative_to}"
    if nothing:
        return f"{start}."
    return f"{start}, {_parts(explanation, sample, whole, held, where)}."


def _parts(explanation: Explanation, sample: int, whole: float, held: RegionSum | None, where: str) -> str:
    ledger = explanation.ledger
    pixels, missing = float(ledger.pixels[sample]) / whole, float(ledger.difference[sample]) / whole
    kept = 1 - pixels - missing
    said = []
    if held is not None:
        said.append(f"{held.text(sample)} comes from {where}{_unsure(explanation, held, where)}")
    if held is None or abs(kept) >= _VISIBLE:
        arrived = " and ".join(ledger.arrived)
        verb = "holds" if arrived.startswith("input") and " and " not in arrived else "hold"
        said.append(f"the {arrived} {verb} {share_text(pixels, None)}")
    if abs(kept) >= _VISIBLE:
        keeper = "constants of the model" if explanation.relative_to is None else "choices that the model makes"
        said.append(f"{keeper} keep {share_text(kept, None)}")
    lost = explanation.verdicts[sample] is Verdict.DEGENERATE or abs(missing) >= _VISIBLE
    ending = f"{share_text(missing, None)} is missing" if lost else "nothing is missing"
    return f"{', '.join(said)}; {ending}"


def _unsure(explanation: Explanation, held: RegionSum, where: str) -> str:
    """What it takes to know how sure a share is, where several passes don't say it."""
    from hilrp.attribution.chains import Chains

    if held.stderr is not None or explanation.passes == 1:
        return ""
    pairs = 2 * PAIRS if where == MARKED else PAIRS
    least = Chains.fewest(pairs)
    return (
        f" (\u00b1 from {least} passes on)"
        if explanation.passes < least
        else f" (\u00b1 takes {pairs} pairs of chains)"
    )
