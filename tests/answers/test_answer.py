"""The result: a table, sentences, pictures and files."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch

import hilrp
from helpers.answer_models import photo, picture_model, prompt_of, text_model


@cache
def answer():
    model, processor = picture_model("idefics3")
    return hilrp.explain_answer(
        model, processor, [photo(), photo(24, 48, 1)], prompt_of("idefics3", 2), "a red cat", explain=["a", "red cat"]
    )


def test_the_table_has_a_row_for_each_word():
    rows = answer().table().splitlines()
    assert rows[0].split() == "word score image prompt earlier constants prior verdict".split()
    assert len(rows) == 3
    assert rows[2].startswith("red cat")
    numbers = [float(each) for each in rows[2].removeprefix("red cat").split()[:6]]
    score, image, prompt, earlier, constants, prior = numbers
    assert score == pytest.approx(image + prompt + earlier + constants, rel=2e-3, abs=2e-3)
    assert prior == pytest.approx(score - image, rel=2e-3, abs=2e-3)


def test_words_by_number_and_by_text():
    found = answer()
    assert found["red cat"] is found[1] is found.words[-1]
    assert len(found) == 2
    assert found.text == "a red cat"
    with pytest.raises(KeyError, match="'dog' is not among a, red cat"):
        found["dog"]
    assert "red cat" in repr(found[1])
    assert repr(found) == "Answer('a red cat', 2 words explained)"


def test_the_ledger_of_a_word():
    word = answer()[1]
    assert list(word.ledger.inputs) == ["image", "prompt", "earlier words"]
    assert float(word.ledger.inputs["image"]) == pytest.approx(word.image)
    assert float(word.ledger.inputs["earlier words"]) == pytest.approx(float(word.earlier.sum()))
    table = word.ledger.table()
    assert "on no picture and padding for words" in table
    assert "not accounted for" in table


def test_the_sentence():
    found = answer()
    said = found.sentence("red cat")
    assert said.startswith("“red cat” is ")
    assert "from the pictures" in said
    assert "nothing is missing" in said
    assert "Without the pictures it would be" in said
    words = hilrp.explain_answer(text_model("gpt2"), inputs={"input_ids": torch.tensor([[5, 9]])}, answer=[11, 12])
    assert "from the picture" not in words.sentence(1)
    assert "Without" not in words.sentence(1)
    assert "earlier words" in words.sentence(1)
    plain = hilrp.explain_answer(
        text_model("gpt2"), inputs={"input_ids": torch.tensor([[5, 9]])}, answer=[11, 12], rules="hilrp"
    )
    assert "constants of the model" in plain.sentence(1)


def test_a_picture_of_each_word():
    found = answer()
    overlay = found.overlay("a", 1, height=96)
    assert overlay.size == (48, 96)
    assert not np.array_equal(np.asarray(overlay), np.asarray(found.overlay("red cat", 1, height=96)))
    with pytest.raises(hilrp.InputError, match="picture=2: this answer has 2 pictures"):
        found.overlay(0, 2)


def test_files(tmp_path):
    found = answer()
    written = found.save(tmp_path / "out")
    names = ["answer.npz", "answer.png", "answer.json"]
    assert [file.name for file in written] == names
    facts = json.loads(written[-1].read_text())
    assert facts["words"][1]["text"] == "red cat"
    assert facts["words"][1]["pictures"] == pytest.approx([float(m.sum()) for m in found[1].maps])
    assert facts["words"][1]["image"] == pytest.approx(sum(facts["words"][1]["pictures"]))
    arrays = np.load(written[0])
    assert np.array_equal(arrays["1/map/0"], found[1].maps[0].numpy())
    assert np.array_equal(arrays["0/prompt"], found[0].prompt.numpy())
    assert len(facts["prompt_tokens"]) == len(found[0].prompt)


def test_how_likely_a_word_is():
    found = answer()
    likely = found.explanation.output.log_softmax(1)
    ids = [token for word in found.words for token in word.ids]
    each = [float(likely[i, token]) for i, token in enumerate(ids)]
    assert found[0].log_likelihood == pytest.approx(each[0])
    assert found[1].log_likelihood == pytest.approx(each[1] + each[2])
