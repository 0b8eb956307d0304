"""Models of text alone: words are traced to words."""

from __future__ import annotations

import pytest
import torch

import hilrp
from helpers.answer_models import TEXT_MODELS, text_model
from hilrp.answers.asked import Asked
from hilrp.answers.request import request_of

IDS = torch.tensor([[5, 9, 17, 22, 30]])
INPUTS = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
ANSWER = [11, 33, 8, 25]
#: Models whose softmax (of the attention, of the router) is computed in float32, whatever their type.
ROUNDED = ("gemma2", "mixtral", "qwen3_moe")


def explained(name, **options):
    return hilrp.explain_answer(text_model(name), inputs=INPUTS, **({"answer": ANSWER} | options))


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_words_and_nothing_sum_to_each_score(name):
    """``f = words relative to padding + f(nothing)``, and nothing flows backwards in time."""
    found = explained(name)
    exact = 1e-5 if name in ROUNDED else 1e-10
    assert [len(word.earlier) for word in found.words] == [0, 1, 2, 3]
    for word in found.words:
        kept = sum(float(v) for n, v in word.ledger.entries.items() if n != "reference")
        assert abs(word.score - word.nothing - kept - float(word.prompt.sum() + word.earlier.sum())) < exact
        assert float(word.ledger.residual) < exact
        assert word.prior == word.score
    later = found.explanation.relevance["earlier"]
    assert all(float(later[row, row:].abs().max()) == 0 for row in range(3))
    assert float(later[1:, 0].abs().amin(0).max()) > 0
    assert not found.explanation.unchecked


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_rules_without_a_reference(name):
    """Words and constants sum to the score itself."""
    found = explained(name, rules="hilrp")
    for word in found.words:
        parts = float(word.prompt.sum() + word.earlier.sum() + word.ledger.constants)
        assert abs(word.score - parts) < (1e-5 if name in ROUNDED else 1e-10)
        assert word.nothing == 0


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_the_explained_logits_are_the_models_own(name):
    model = text_model(name)
    request = request_of(model, None, None, None, INPUTS)
    asked = Asked.of(model, request, ANSWER)
    whole = torch.cat([IDS, torch.tensor([ANSWER[:-1]])], 1)
    with torch.no_grad():
        own = model(whole, attention_mask=torch.ones_like(whole), logits_to_keep=4, use_cache=False).logits[0]
        assert torch.equal(asked.module(**asked.input), own)
        torch.testing.assert_close(own, model(whole).logits[0, -4:])
    assert torch.equal(hilrp.explain_answer(model, inputs=INPUTS, answer=ANSWER).explanation.output, own)


def test_generation_with_a_cache_and_without():
    """The model's own answer, and one pass on all of it: the same logits."""
    model = text_model("llama")
    found = hilrp.explain_answer(model, inputs=INPUTS, max_new_tokens=4)
    own = model.generate(**INPUTS, max_new_tokens=4, do_sample=False)[0, 5:].tolist()
    assert [word.ids[0] for word in found.words] == own[: len(found.words)]
    assert not found.notes
    assert hilrp.explain_answer(model, inputs=INPUTS, answer=own[:1]).words[0].score == pytest.approx(found[0].score)


def test_padding_is_as_if_it_were_not_there():
    padded = {"input_ids": torch.cat([torch.zeros(1, 3, dtype=torch.long), IDS], 1)}
    padded["attention_mask"] = (padded["input_ids"] != 0).long()
    one = hilrp.explain_answer(text_model("gpt2"), inputs=padded, answer=ANSWER)
    other = explained("gpt2")
    assert one[2].score == other[2].score
    assert torch.equal(one[2].prompt, other[2].prompt)


def test_a_window_bounds_what_is_read():
    """Two layers of a window of three tokens reach five tokens: the last two of the prompt, and three of the answer."""
    found = explained("mistral")
    assert float(found[3].prompt[:3].abs().max()) == 0
    assert float(found[3].prompt[3:].abs().min()) > 0


def test_all_scores_share_a_forward_pass(monkeypatch):
    """Without checks: one pass under the engine and, as its reference, one beside it; a backward pass for each word."""
    from hilrp.attribution.forward_backward import Pass

    counts = {"forward": 0, "backward": 0}
    begun, ran = Pass.__init__, Pass.backward

    def begin(*args, **kwargs):
        counts["forward"] += 1
        begun(*args, **kwargs)

    def run(*args, **kwargs):
        counts["backward"] += 1
        return ran(*args, **kwargs)

    monkeypatch.setattr(Pass, "__init__", begin)
    monkeypatch.setattr(Pass, "backward", run)
    explained("llama", audit="off")
    assert counts == {"forward": 1, "backward": 4}


def test_a_span_is_the_sum_of_its_words():
    words, whole = explained("llama"), explained("llama", explain="answer")
    assert len(whole) == 1
    assert whole[0].score == pytest.approx(sum(word.score for word in words.words))
    torch.testing.assert_close(whole[0].prompt, sum(word.prompt for word in words.words))
    part = explained("llama", explain=[(1, 3)])
    assert part[0].score == pytest.approx(words[1].score + words[2].score)


def test_more_passes_have_the_same_sum():
    one, more = explained("llama"), explained("llama", passes=8)
    assert more.explanation.passes == 8
    for a, b in zip(one.words, more.words, strict=True):
        assert b.score == a.score
        assert float(b.prompt.sum() + b.earlier.sum()) == pytest.approx(a.score - a.nothing, abs=1e-9)
    assert not torch.allclose(one[3].prompt, more[3].prompt)


def test_experts_that_cannot_be_followed_are_an_error():
    model = text_model("mixtral")
    model.set_experts_implementation("eager")
    with pytest.raises(hilrp.ModelError, match=r"run as 'eager'.*set_experts_implementation\(\"batched_mm\"\)"):
        hilrp.explain_answer(model, inputs=INPUTS)


def test_norms_that_round_inside():
    """As models of transformers are: their norms compute in float32, and so close the books to that."""
    found = hilrp.explain_answer(text_model("llama", norms=False), inputs=INPUTS, answer=ANSWER)
    assert 1e-12 < float(found.explanation.ledger.residual.max()) < 1e-5
