"""What a word of an answer owes to pictures and words, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hilrp.answers.contrasts import OTHERS
from hilrp.attribution.error_bars import share_text
from hilrp.attribution.sentences import number, quoted
from hilrp.attribution.verdicts import Verdict

if TYPE_CHECKING:
    from hilrp.answers.answer import Answer, Word

#: What is less than this part of the whole isn't worth a word.
_VISIBLE = 0.005


def sentence(word: Word, answer: Answer) -> str:
    """How far a word is above what might be said instead, and what that comes from.

    Args:
        word: The word.
        answer: The answer that it is of.
    """
    above = "the other words" if word.against == OTHERS else quoted(word.against)
    start = f"{quoted(word.text)} is {number(abs(word.score))} {'above' if word.score >= 0 else 'below'} {above}"
    parts = word.parts
    gross = sum(map(abs, parts.values()))
    said = [
        f"{number(value)} {'' if name.startswith('without') else 'from '}{name}"
        for name, value in parts.items()
        if abs(value) > _VISIBLE * gross
    ]
    ending = "nothing is missing"
    if word.verdict is Verdict.DEGENERATE:
        missing = float(word.ledger.difference)
        ending = f"{share_text(missing / word.score if word.score else missing, None)} is missing"
    found = f"{start}: {', '.join(said)}; {ending}."
    if word.has_pictures:
        found += f" Without the {word.seen} it would be {number(word.prior)}."
    return found
