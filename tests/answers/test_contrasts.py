"""What is explained of a word: a contrast of logits that has the slope of the log-odds."""

from __future__ import annotations

import pytest
import torch

import hilrp
from helpers.answer_models import picture_model, prompt_of, text_model, tokenizer
from hilrp.answers.contrasts import contrasts
from hilrp.answers.tokens import Span, words_of

WORDS = tokenizer()
IDS = WORDS("a red cat", add_special_tokens=False)["input_ids"]
LOGITS = torch.randn(3, len(WORDS), dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
EACH = words_of(WORDS, IDS)


def log_odds(logits, i):
    likely = logits[i].softmax(0)[IDS[i]]
    return (likely / (1 - likely)).log()


def test_the_score_is_the_log_odds_but_for_the_entropy_of_the_others():
    target, said = contrasts(WORDS, IDS, EACH, LOGITS, None)
    scores = target(LOGITS)
    assert said == ["others"] * 3
    for i in range(3):
        others = LOGITS[i].clone()
        others[IDS[i]] = -torch.inf
        entropy = torch.distributions.Categorical(logits=others).entropy()
        assert float(scores[i] + 0 - entropy) == pytest.approx(float(log_odds(LOGITS, i)))


def test_it_has_the_slope_of_the_log_odds():
    logits = LOGITS.clone().requires_grad_()
    target, _ = contrasts(WORDS, IDS, EACH, logits, None)
    ours = torch.autograd.grad(target(logits).sum(), logits)[0]
    theirs = torch.autograd.grad(sum(log_odds(logits, i) for i in range(3)), logits)[0]
    torch.testing.assert_close(ours, theirs)


def test_what_is_added_to_all_logits_changes_nothing():
    target, _ = contrasts(WORDS, IDS, EACH, LOGITS, None)
    torch.testing.assert_close(target(LOGITS + 7), target(LOGITS))


def test_tokens_that_are_ruled_out():
    logits = LOGITS.clone()
    logits[:, 0] = -torch.inf
    target, _ = contrasts(WORDS, IDS, EACH, logits, None)
    assert bool(target(logits).isfinite().all())


def test_the_runner_up():
    target, said = contrasts(WORDS, IDS, EACH, LOGITS, "runner-up")
    for i, score in enumerate(target(LOGITS).tolist()):
        others = LOGITS[i].clone()
        others[IDS[i]] = -torch.inf
        assert score == pytest.approx(float(LOGITS[i, IDS[i]] - others.max()))
        assert said[i] == WORDS.convert_ids_to_tokens(int(others.argmax()))


def test_another_word():
    blue = WORDS.convert_tokens_to_ids("blue")
    target, said = contrasts(WORDS, IDS, [Span("red", 1, 2)], LOGITS, "blue")
    assert said == ["blue"]
    assert float(target(LOGITS)[0]) == pytest.approx(float(LOGITS[1, IDS[1]] - LOGITS[1, blue]))
    target, said = contrasts(WORDS, IDS, EACH, LOGITS, {"red": "blue"})
    assert said == ["others", "blue", "others"]
    assert float(target(LOGITS)[1]) == pytest.approx(float(LOGITS[1, IDS[1]] - LOGITS[1, blue]))
    phrase, _ = contrasts(WORDS, IDS, [Span("red cat", 1, 3)], LOGITS, "blue cat")
    assert float(phrase(LOGITS)[0]) == pytest.approx(float(LOGITS[1, IDS[1]] - LOGITS[1, blue]))


def test_red_rather_than_blue():
    """Of a model: the difference of two logits, traced."""
    model, processor = picture_model("llava")
    from helpers.answer_models import photo

    def ask(**options):
        return hilrp.explain_answer(model, processor, photo(), prompt_of("llava"), "a red cat", **options)

    rather, other = ask(explain="red", against="blue"), ask(explain="red", against="green")
    logits = rather.explanation.output
    ids = {word: processor.tokenizer.convert_tokens_to_ids(word) for word in ("red", "blue", "green")}
    assert rather[0].score == pytest.approx(float(logits[1, ids["red"]] - logits[1, ids["blue"]]))
    assert other[0].score == pytest.approx(float(logits[1, ids["red"]] - logits[1, ids["green"]]))
    assert "“blue”" in rather.sentence(0)
    for wrong, message in (
        ({"explain": "words", "against": "blue"}, "'blue' is one word for 3: say which"),
        ({"against": {"dog": "cat"}}, "'dog' is not explained"),
        ({"explain": "red", "against": "red"}, "'red' has the same first tokens"),
        ({"explain": "red", "against": " "}, "give a word"),
        ({"explain": "red", "against": 3}, "give a word"),
        ({"explain": ["red", "red cat"], "against": {"red cat": "blue cat"}}, "is in another span"),
    ):
        with pytest.raises(hilrp.InputError, match=message):
            ask(**wrong)


def test_a_model_without_a_tokeniser():
    inputs = {"input_ids": torch.tensor([[5, 9, 17]])}
    found = hilrp.explain_answer(text_model("gpt2"), inputs=inputs, answer=[3, 4], against="runner-up")
    assert all(word.against.isdigit() for word in found.words)
    with pytest.raises(hilrp.InputError, match="against='red' is a word: give processor="):
        hilrp.explain_answer(text_model("gpt2"), inputs=inputs, answer=[3], against="red")
