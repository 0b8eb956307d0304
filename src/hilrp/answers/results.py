"""From explanations of a chain to an answer: what each word owes to pictures, prompt and earlier words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from hilrp.answers.answer import Answer, Word
from hilrp.answers.asked import Asked
from hilrp.answers.tokens import Span, labels_of, names_of, text_of
from hilrp.attribution.chains import summed
from hilrp.attribution.explanation import Explanation
from hilrp.method.ledger import REFERENCE, Ledger

#: What the parts of a score are called in tables.
IMAGE, PROMPT, EARLIER = "image", "prompt", "earlier words"


def answered(
    asked: Asked,
    spans: Sequence[Span],
    against: Sequence[str],
    steps: list[Explanation],
    priors: list[float] | None,
    nothing: str | None,
    notes: Sequence[str],
) -> Answer:
    """The answer that explanations of its words make up.

    Args:
        asked: What was asked, and the answer.
        spans: What was explained of it.
        against: What each was contrasted with.
        steps: The explanations, from words alone to words with pictures; or one without a reference.
        priors: The score of each without the pictures, where no step says it.
        nothing: What all of it is relative to, if it is.
        notes: What else is worth saying.
    """
    whole = summed(steps) if len(steps) > 1 else steps[0]
    whole = replace(whole, ledger=_named(whole.ledger, nothing))
    tokenizer = asked.request.tokenizer
    likely = asked.logits.double().log_softmax(1)
    log_odds = [float(likely[i, token]) for i, token in enumerate(asked.ids)]
    if priors is None:
        last = steps[-1].ledger
        priors = (last.entries[REFERENCE] if asked.pictures.pixels else last.score).tolist()
    words = []
    for row, span in enumerate(spans):
        words.append(_word(asked, whole, row, span, against[row], priors[row], sum(log_odds[span.start : span.stop])))
    return Answer(
        text=text_of(tokenizer, asked.ids).strip(),
        words=words,
        prompt_tokens=names_of(tokenizer, asked.request.ids),
        tokens=names_of(tokenizer, asked.ids),
        prompt_labels=labels_of(tokenizer, asked.request.ids),
        labels=labels_of(tokenizer, asked.ids),
        prompt_marks=[not word for word in asked.words(asked.request.ids)],
        explanation=whole,
        steps=steps,
        pictures=asked.pictures.drawn(),
        notes=dict.fromkeys([*whole.notes, *notes], 1),
    )


def _word(
    asked: Asked, whole: Explanation, row: int, span: Span, against: str, prior: float, log_likelihood: float
) -> Word:
    relevance = whole.relevance
    prompt = relevance["prompt"][row].double().sum(-1).cpu()
    earlier = relevance["earlier"][row].double().sum(-1).cpu() if "earlier" in relevance else prompt.new_zeros(0)
    image = {name: t[row] for name, t in relevance.get("image", {}).items()}
    ledger = whole.ledger
    own = [ledger.inputs, ledger.entries, ledger.leaks]
    inputs, entries, leaks = ({name: t[row : row + 1] for name, t in each.items()} for each in own)
    return Word(
        text=span.text,
        ids=tuple(asked.ids[span.start : span.stop]),
        start=span.start,
        against=against,
        score=float(whole.score[row]),
        prior=float(prior),
        nothing=float(entries[REFERENCE]) if REFERENCE in entries else 0.0,
        log_likelihood=log_likelihood,
        maps=asked.pictures.maps(image) if image else [],
        prompt=prompt,
        earlier=earlier[: span.stop - 1],
        ledger=replace(
            ledger,
            score=ledger.score[row : row + 1],
            pixels=ledger.pixels[row : row + 1],
            inputs=inputs,
            entries=entries,
            leaks=leaks,
        ),
        verdict=whole.verdicts[row],
        image=sum((t.double().sum() for t in image.values()), prompt.new_zeros(())).item(),
    )


def _named(ledger: Ledger, relative_to: str | None) -> Ledger:
    """A ledger whose inputs are called as in tables; several inputs of pixels are one."""
    inputs: dict[str, Tensor] = {}
    for name, value in ledger.inputs.items():
        said = IMAGE if name.startswith("image") else {"prompt": PROMPT, "earlier": EARLIER}[name]
        inputs[said] = inputs[said] + value if said in inputs else value
    return replace(ledger, inputs=inputs, relative_to=relative_to)
