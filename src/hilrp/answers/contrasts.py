"""What is explained of a word: by how much its logit is above that of what the model might have said instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hilrp.answers.tokens import Span, instead, names_of
from hilrp.targets.classes import Several
from hilrp.util.errors import InputError

#: What a word is contrasted with: all others, as likely as the model has them; the next likely one; or a word.
Against = str | Mapping[str, str] | None
OTHERS, RUNNER_UP = "others", "runner-up"


def contrasts(
    tokenizer: Any, ids: Sequence[int], spans: Sequence[Span], logits: Tensor, against: Against
) -> tuple[Several, list[str]]:
    """The scores of some spans as a target, and what each is contrasted with, in words.

    A logit alone means nothing: the same may be added to all of them. The log-odds of a word,
    ``ln p / (1 - p)``, do, but pass a logarithm of a sum, at which rules without a reference stop. So a word is
    contrasted with the mean of the other logits, each weighed by how likely the model finds it *if it weren't this
    word*. At the input this is the log-odds less a constant (the entropy of the alternatives), and has their slope.
    The weights are held fixed: relative to a reference, too, it is the same sum of logits.

    Args:
        tokenizer: Of the answer.
        ids: The tokens of the answer.
        spans: What is explained.
        logits: The model's, of each token of the answer, ``[tokens, vocabulary]``.
        against: See `Against`; a mapping has a word for each of some words.
    """
    weights = torch.zeros(len(ids), logits.shape[1], dtype=torch.float64, device=logits.device)
    at = torch.arange(len(ids), device=logits.device)
    own = torch.tensor(list(ids), device=logits.device)
    others = logits.detach().double().clone()
    others[at, own] = -torch.inf
    runners = others.argmax(1)
    if against == RUNNER_UP:
        weights[at, runners] = -1.0
    else:
        weights -= others.softmax(1)
    weights[at, own] = 1.0
    members = torch.zeros(len(spans), len(ids), dtype=torch.float64, device=logits.device)
    said = []
    for row, span in enumerate(spans):
        other = _other_word(against, span, len(spans))
        members[row, span.start : span.stop] = 1.0
        if other is not None:
            place, token = instead(tokenizer, ids, span, other)
            if any(s is not span and s.start <= place < s.stop for s in spans):
                raise InputError(f"against: {span.text!r} is in another span that is explained. Explain it alone.")
            weights[place] = 0.0
            weights[place, ids[place]], weights[place, token] = 1.0, -1.0
            members[row] = 0.0
            members[row, place] = 1.0  # what follows the first token that differs, follows from it
            said.append(other)
        elif against == RUNNER_UP:
            said.append(" ".join(names_of(tokenizer, runners[span.start : span.stop].tolist())))
        else:
            said.append(OTHERS)
    weights, members = weights.to(logits.dtype), members.to(logits.dtype)
    # A token that is ruled out (an infinite logit) has no weight, and what no weight falls on need not be added up.
    counted = (weights != 0).any(0) & logits.isfinite().all(0)
    used = None if bool(counted.all()) else counted.nonzero().flatten()

    def scores(output: Tensor) -> Tensor:
        """The contrast of each token, summed over the tokens of each span: logarithms of odds add up, too."""
        likely, counts = (output, weights) if used is None else (output.index_select(1, used), weights[:, used])
        return (members * (likely * counts).sum(1)).sum(1)

    return Several(scores), said


def _other_word(against: Against, span: Span, spans: int) -> str | None:
    """The word that a span is contrasted with, where that is one."""
    if isinstance(against, Mapping):
        return against.get(span.text)
    if against in (None, OTHERS, RUNNER_UP):
        return None
    if spans > 1:
        raise InputError(
            f"against={against!r} is one word for {spans}: say which, explain=[...], or give a mapping, "
            f"against={{word: {against!r}}}."
        )
    return against


def check_against(against: Against, spans: Sequence[Span]) -> None:
    """Raises for words that nothing is explained of."""
    if isinstance(against, Mapping):
        unknown = [word for word in against if word not in {span.text for span in spans}]
        if unknown:
            raise InputError(
                f"against: {unknown[0]!r} is not explained. Choose from {', '.join(span.text for span in spans)}."
            )
    elif against is not None and (not isinstance(against, str) or not against.strip()):
        raise InputError(f'against={against!r}: give a word, "{RUNNER_UP}", or a mapping from words to words.')
