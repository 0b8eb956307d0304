"""Words of answers: which tokens they are, and which another word would have."""

from __future__ import annotations

from itertools import pairwise

import pytest

import hilrp
from helpers.answer_models import tokenizer, tokenizers, transformers
from hilrp.answers.tokens import Span, instead, pieces_of, spans_of, tokens_of, words_of

WORDS = tokenizer("<image>")


def ids_of(text):
    return WORDS(text, add_special_tokens=False)["input_ids"]


def bytewise():
    """A tokeniser of bytes, in which a letter may have several tokens, and of a few longer pieces."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    table = {"<pad>": 0, "</s>": 1} | {letter: i for i, letter in enumerate(alphabet, 2)}
    merges = [("Ġ", "s"), ("Ġs", "t"), ("Ġst", "r"), ("b", "e"), ("be", "r"), ("r", "y"), ("Ġ", "r")]
    table |= {"".join(pair): len(table) + i for i, pair in enumerate(merges)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(table, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")


BYTES = bytewise()


def test_words_end_at_spaces_and_marks():
    text = " strawberry, ready!"
    ids = BYTES(text)["input_ids"]
    found = words_of(BYTES, ids)
    assert [word.text for word in found] == ["strawberry", ",", "ready", "!"]
    assert found[0].start == 0
    assert found[-1].stop == len(ids)
    assert all(a.stop == b.start for a, b in pairwise(found))
    assert found[0].stop - found[0].start == 5  # Ġstr a w ber ry


def test_letters_of_several_tokens_are_one_word():
    ids = BYTES(" été")["input_ids"]
    assert len(ids) == 6
    assert pieces_of(BYTES, ids) == [" ", "", "é", "t", "", "é"]
    assert words_of(BYTES, ids) == [Span("été", 0, 6)]


def test_a_letter_that_is_never_whole_is_still_a_word():
    ids = BYTES("é")["input_ids"][:1]
    assert [(word.start, word.stop) for word in words_of(BYTES, ids)] == [(0, 1)]


def test_special_tokens_are_words_of_their_own():
    ids = [*ids_of("a red"), 2, *ids_of("cat")]
    assert [word.text for word in words_of(WORDS, ids)] == ["a", "red", "</s>", "cat"]
    assert [word.text for word in words_of(WORDS, [2, 2])] == ["</s>", "</s>"]


def test_spans():
    ids = ids_of("a red cat on the house")
    assert [span.text for span in spans_of(WORDS, ids, "words")] == "a red cat on the house".split()
    assert spans_of(WORDS, ids, "answer") == [Span("a red cat on the house", 0, 6)]
    assert spans_of(WORDS, ids, "red cat") == [Span("red cat", 1, 3)]
    assert spans_of(WORDS, ids, ["house", (0, 2)]) == [Span("house", 5, 6), Span("a red", 0, 2)]
    assert [span.text for span in spans_of(BYTES, BYTES("a b")["input_ids"], "tokens")] == ["a", "Ġ", "b"]
    for wrong, message in (
        ("dog", "'dog' is not in the answer. Its words are a, red, cat"),
        ("ed", "'ed' is not in the answer"),
        ([], "explain is empty"),
        ([(3, 3)], r"\(3, 3\) is no part of an answer of 6 tokens"),
        ([(0, 9)], "no part of an answer"),
        ([7], "7 is no phrase of the answer"),
        ([" "], "no phrase"),
    ):
        with pytest.raises(hilrp.InputError, match=message):
            spans_of(WORDS, ids, wrong)


def test_answers_as_tokens():
    assert tokens_of(WORDS, "a red cat", 40) == ids_of("a red cat")
    assert tokens_of(None, [3, 4], 40) == [3, 4]
    for wrong, message in (
        ("", "answer is empty"),
        ("  ", "answer is empty"),
        ([], "answer is empty"),
        ("a horse", "can't be tokenised back; its tokens say 'a <unk>'"),
        ([40], "40 is no token, which are numbered from 0 to 39"),
        ([-1], "-1 is no token"),
    ):
        with pytest.raises(hilrp.InputError, match=message):
            tokens_of(WORDS, wrong, 40)
    with pytest.raises(hilrp.InputError, match="answer is a text: give processor="):
        tokens_of(None, "a red cat", 40)


def test_another_word_in_the_place():
    ids = ids_of("a red cat")
    assert instead(WORDS, ids, Span("red", 1, 2), "blue") == (1, ids_of("blue")[0])
    long = BYTES(" strawberry")["input_ids"]
    whole = Span("strawberry", 0, len(long))
    place, token = instead(BYTES, long, whole, "stay")
    assert (place, BYTES.convert_ids_to_tokens(token)) == (0, "Ġst")
    place, token = instead(BYTES, long, whole, "stray")
    assert (place, BYTES.convert_ids_to_tokens(token)) == (2, "y")
    with pytest.raises(hilrp.InputError, match="'straw' has the same first tokens"):
        instead(BYTES, long, whole, "straw")
    with pytest.raises(hilrp.InputError, match="'horse' can't be tokenised in the place of 'red'"):
        instead(WORDS, ids, Span("red", 1, 2), "horse")
