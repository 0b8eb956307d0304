"""Explains an answer: generates it or takes it, and traces each of its words to the pictures and to other words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hilrp.answers.answer import Answer
from hilrp.answers.asked import Asked
from hilrp.answers.contrasts import Against, check_against, contrasts
from hilrp.answers.generation import Generated, beside, generate
from hilrp.answers.request import check_answer, check_model, request_of, vocabulary
from hilrp.answers.results import answered
from hilrp.answers.tokens import spans_of, tokens_of
from hilrp.attribution import checks
from hilrp.attribution.chains import Chains
from hilrp.attribution.explainer import Audit, Explainer
from hilrp.method.rules import DEFAULT_RULES, AnyRules, Rules


def explain_answer(
    model: nn.Module,
    processor: Any = None,
    images: Any = None,
    prompt: Any = None,
    answer: str | Sequence[int] | None = None,
    *,
    max_new_tokens: int = 20,
    explain: str | Sequence[Any] = "words",
    against: Against = None,
    reference: Any = None,
    without: str | Sequence[str] | None = None,
    rules: AnyRules = DEFAULT_RULES,
    passes: int | Chains = 1,
    audit: Audit = "strict",
    inputs: Mapping[str, Any] | None = None,
) -> Answer:
    """Traces each word of an answer to the pixels of the pictures, to the prompt and to the words before it.

    Relative to a reference, the score of a word is a sum of three: what the pictures add to no pictures, what the words
    (prompt and earlier answer) add to padding where there is no picture, and what is left with neither. What the word
    scores without the pictures is the *language prior*: so much of it did not need them.

    Args:
        model: A model of transformers that generates: of pictures and text, or of text alone. It is not changed.
        processor: Its processor; a tokeniser for text alone.
        images: One picture or several: PIL images, files, or arrays of bytes.
        prompt: The text as the processor takes it, with its token where a picture belongs; or messages for the chat
            template. A plain text with pictures is put into the chat template, if there is one.
        answer: What to explain, as text or as token numbers; by default what the model generates.
        max_new_tokens: At most so many tokens are generated.
        explain: ``"words"``, ``"tokens"``, ``"answer"`` for all of it as one, or some of its words and phrases.
        against: What a word is contrasted with. By default all other tokens, as likely as the model finds them;
            ``"runner-up"`` for the likeliest of them; a word, where one is explained; or a mapping from words to words.
        reference: What stands for no picture: ``"mean"`` for each picture's mean colour (the default), ``"black"``,
            ``"grey"``, ``"white"``, ``"blurred"``, another picture (or one for each), or pixels as the model takes
            them.
        without: Words of the prompt that the reference does not have; by default all, and no earlier word either.
        rules: As for `hilrp.explain`. Rules without a reference decompose the score itself, of which constants keep a
            share.
        passes: How many passes to spend on the pictures, and as many on the words. See `hilrp.explain`.
        audit: As for `hilrp.explain`.
        inputs: Instead of ``images`` and ``prompt``: what a processor returns (``input_ids``, ``pixel_values``, ...).

    Example:
        >>> import torch, hilrp
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=50, **size)).eval()
        >>> found = hilrp.explain_answer(model, inputs={"input_ids": torch.tensor([[3, 7, 9]])}, answer=[11, 5])
        >>> found.text, [len(word.earlier) for word in found.words]
        ('11 5', [0, 1])
        >>> word = found.words[1]
        >>> bool(abs(word.score - word.nothing - word.prompt.sum() - word.earlier.sum()) < 1e-4)
        True
    """
    check_model(model)
    checks.check_model(model)
    request = request_of(model, processor, images, prompt, inputs)
    if answer is None:
        generated = generate(model, request.inputs, max_new_tokens)
    else:
        generated = Generated(tokens_of(request.tokenizer, answer, vocabulary(model)), None)
    check_answer(model, generated.ids)
    spans = spans_of(request.tokenizer, generated.ids, explain)
    check_against(against, spans)
    asked = Asked.of(model, request, generated.ids)
    target, said = contrasts(request.tokenizer, generated.ids, spans, asked.logits, against)
    notes = [] if (note := beside(generated.logits, asked.logits)) is None else [note]
    chosen = Rules.named(rules)
    if chosen.constants == "reference" or reference is not None or without is not None:
        explainer = Explainer(asked.module, chosen.relative(), None, audit, stages=None)
        steps = explainer.explain_chain(asked.states(reference, without), target, passes)
        notes += [] if asked.padding is not None else ["words are relative to zero: the model has no padding token"]
        return answered(asked, spans, said, steps, None, asked.nothing(without), notes)
    steps = [Explainer(asked.module, chosen, None, audit, stages=None).explain(asked.input, target, None, passes)]
    with torch.no_grad():
        priors = target(asked.module(**asked.without_pictures(None))).tolist()
    return answered(asked, spans, said, steps, priors, None, notes)
