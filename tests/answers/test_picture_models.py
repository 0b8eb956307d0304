"""Models of pictures and text: words are traced to pixels and to words, as a chain that adds up."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

import hilrp
from helpers.answer_models import PICTURE_MODELS, photo, picture_model, prompt_of, sound_model
from hilrp.answers.asked import Asked
from hilrp.answers.request import request_of
from hilrp.attribution.forward_backward import Pass

SAID = "a red cat"
#: How many pictures of different sizes each is given: the prompt of some has no place for a second.
COUNTS = {name: 1 if name in ("paligemma", "florence2", "blip2") else 2 for name in PICTURE_MODELS}
SIZES = [(40, 24), (24, 48)]
#: Models that rotate in float32 in their tower of pictures, whatever their type.
ROUNDED = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@cache
def model_of(name):
    return picture_model(name)


def pictures_of(name):
    return [photo(*size, seed=i) for i, size in enumerate(SIZES[: COUNTS[name]])]


def prompt(name):
    return prompt_of(name, COUNTS[name])


@cache
def explained(name, **options):
    return hilrp.explain_answer(*model_of(name), pictures_of(name), prompt(name), SAID, **options)


def asked_of(name):
    model, processor = model_of(name)
    request = request_of(model, processor, pictures_of(name), prompt(name), None)
    return Asked.of(model, request, request.tokenizer(SAID, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", PICTURE_MODELS)
def test_the_chain_adds_up(name):
    """``f = (pictures relative to none) + (words relative to padding, without pictures) + f(nothing)``."""
    found = explained(name)
    exact = 1e-7 if name in ROUNDED else 1e-10
    assert [word.text for word in found.words] == ["a", "red", "cat"]
    for word in found.words:
        parts = word.image + float(word.prompt.sum() + word.earlier.sum()) + word.nothing
        assert abs(word.score - parts) < exact * max(1, abs(word.score))
        assert abs(word.score - word.image - word.prior) < exact * max(1, abs(word.score))
        assert float(word.ledger.residual) < exact
        assert word.verdict in ("valid", "absorbed", "inflated")
        assert abs(word.image) > 1e-6
    assert not found.explanation.unchecked
    words, pictures = found.steps
    assert float(words.relevance["image"]["pixel_values"].abs().max()) == 0
    assert all(float(pictures.relevance[part].abs().max()) == 0 for part in ("prompt", "earlier"))


@pytest.mark.parametrize("name", PICTURE_MODELS)
def test_rules_without_a_reference(name):
    """Pictures, words and constants sum to the score itself; the prior is a plain pass."""
    found = explained(name, rules="hilrp")
    for word, relative in zip(found.words, explained(name).words, strict=True):
        parts = word.image + float(word.prompt.sum() + word.earlier.sum() + word.ledger.constants)
        assert abs(word.score - parts) < 1e-9 * max(1, abs(word.score))
        assert word.score == relative.score
        assert word.prior == pytest.approx(relative.prior, abs=1e-9)


@pytest.mark.parametrize("name", PICTURE_MODELS)
def test_the_explained_logits_are_the_models_own(name):
    """Bit for bit, under the engine and without, and those of generation but for rounding."""
    model, processor = model_of(name)
    asked = asked_of(name)
    assert torch.equal(explained(name).explanation.output, asked.logits)
    made = processor(images=pictures_of(name), text=[prompt(name)], return_tensors="pt")
    made = {n: t.double() if t.is_floating_point() else t for n, t in made.items()}
    with torch.no_grad():
        assert torch.equal(asked.module(**asked.input), asked.logits)
        found = model.generate(
            **made, max_new_tokens=1, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
    torch.testing.assert_close(found.logits[0][0], asked.logits[0].float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PICTURE_MODELS)
def test_maps_lie_on_the_pictures_own_pixels(name):
    """What a bright spot becomes lies, put back, where the spot was; and sums stay what they are."""
    model, processor = model_of(name)
    images, places = [], []
    for i, (width, height) in enumerate(SIZES[: COUNTS[name]]):
        array = np.zeros((height, width, 3), np.uint8)
        left, top = (width // 2 - 2, height // 4) if i else (width // 2 + 2, height // 2)
        array[top : top + 6, left : left + 6] = 255
        images.append(Image.fromarray(array))
        places.append((left + 3, top + 3))
    pictures = Asked.of(model, request_of(model, processor, images, prompt(name), None), [3, 3]).pictures
    black, _ = pictures._ends
    shown = pictures.layout.first_frames(pictures.pixels["pixel_values"])
    light = [t - dark.to(t) for t, dark in zip(shown, black, strict=True)]
    lit = pictures.layout.from_tiles(light, pictures.pixels["pixel_values"])
    maps = pictures.maps({"pixel_values": lit})
    assert [tuple(each.shape) for each in maps] == [(height, width) for width, height in SIZES[: COUNTS[name]]]
    assert float(sum(each.sum() for each in maps)) == pytest.approx(float(lit.sum()), rel=1e-9)
    for each, (x, y) in zip(maps, places, strict=True):
        rows, columns = torch.arange(each.shape[0]) + 0.5, torch.arange(each.shape[1]) + 0.5
        centre = float((each.sum(0) * columns).sum() / each.sum()), float((each.sum(1) * rows).sum() / each.sum())
        assert abs(centre[0] - x) < 1
        assert abs(centre[1] - y) < 1


@pytest.mark.parametrize("name", PICTURE_MODELS)
def test_no_picture_is_its_mean_colour(name):
    """One colour for all tiles of a picture, which is the mean over them; padding stays."""
    pictures = asked_of(name).pictures
    (before,), (after,) = pictures.pixels.values(), pictures.without(None).values()
    was, now = (pictures.layout.first_frames(t) for t in (before, after))
    for picture in range(COUNTS[name]):
        own = [i for i, owner in enumerate(pictures.owners) if owner == picture]
        shown = [pictures._shown[i] for i in own]
        seen = torch.cat([now[i][:, mask] for i, mask in zip(own, shown, strict=True)], 1)
        mean = torch.cat([was[i][:, mask] for i, mask in zip(own, shown, strict=True)], 1).mean(1)
        torch.testing.assert_close(seen, mean[:, None].expand_as(seen))
        assert all(torch.equal(now[i][:, ~mask], was[i][:, ~mask]) for i, mask in zip(own, shown, strict=True))


@pytest.mark.parametrize("name", PICTURE_MODELS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_as_if_it_were_not_there(name, side, monkeypatch):
    """On either side, and with all that belongs to each token (its type, its positions)."""
    model, processor = model_of(name)
    monkeypatch.setattr(processor.tokenizer, "padding_side", side)
    given = {"images": pictures_of(name), "text": [prompt(name)], "return_tensors": "pt"}
    short = dict(processor(**given))
    length = short["input_ids"].shape[1]
    filled = dict(processor(**given, padding="max_length", max_length=length + 3))
    assert filled["input_ids"].shape[1] == length + 3
    one, other = (
        hilrp.explain_answer(model, processor, inputs=each, answer=[12, 14], explain=[(1, 2)])[0]
        for each in (short, filled)
    )
    assert one.score == other.score
    assert torch.equal(one.prompt, other.prompt)
    assert all(torch.equal(a, b) for a, b in zip(one.maps, other.maps, strict=True))


def test_a_model_that_hears():
    """Of a sound there is no map; silence stands for none."""
    model, processor = sound_model()
    sound = np.sin(np.arange(16000) * 0.05).astype(np.float32)
    text = "<|audio_bos|> <|AUDIO|> <|audio_eos|> what is this"
    made = dict(processor(text=[text], audio=[sound], sampling_rate=16000, return_tensors="pt"))
    for rules in ("secant", "hilrp"):
        found = hilrp.explain_answer(model, processor, inputs=made, answer=[20, 21], rules=rules)
        for word in found.words:
            assert abs(word.score - sum(word.parts.values())) < 1e-10
            assert abs(word.image) > 1e-6
            assert word.maps == []
            assert next(iter(word.parts)) == "the other input"
        assert "picture" not in found.sentence(0)
        assert "picture" not in str(found.explanation.relative_to)
        assert not found.explanation.unchecked


@pytest.mark.parametrize("name", ["llava", "idefics3", "qwen2_5_vl", "llava_onevision"])
def test_other_references(name):
    """Black, another picture, pixels: each closes. Relative to itself a picture adds nothing."""
    model, processor = model_of(name)
    images = pictures_of(name)
    for reference in ("black", "grey", [photo(30, 30, seed=9)] * COUNTS[name]):
        found = hilrp.explain_answer(model, processor, images, prompt(name), SAID, reference=reference)
        word = found[1]
        parts = word.image + float(word.prompt.sum() + word.earlier.sum()) + word.nothing
        assert abs(word.score - parts) < 1e-7 * max(1, abs(word.score))
        assert word.score == explained(name)[1].score
        assert word.prior != pytest.approx(explained(name)[1].prior)
    same = hilrp.explain_answer(model, processor, images, prompt(name), SAID, reference=images)
    assert same[1].image == 0
    assert same[1].prior == pytest.approx(same[1].score)
    pixels = processor(images=images, text=[prompt(name)], return_tensors="pt")["pixel_values"]
    given = hilrp.explain_answer(model, processor, images, prompt(name), SAID, reference=pixels)
    assert given[2].image == 0


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "florence2"])
def test_each_step_is_explained_once(name, monkeypatch):
    """One backward pass for each word and step: what is fixed is known to be constant, and no step is run again."""
    counted, ran = [], Pass.backward
    monkeypatch.setattr(Pass, "backward", lambda *args: (counted.append(args[1:]), ran(*args))[1])
    model, processor = model_of(name)
    found = hilrp.explain_answer(model, processor, pictures_of(name), prompt(name), SAID)
    assert len(counted) == 2 * len(found)
    assert not found.notes


def test_prepared_inputs_are_tiles():
    """Without a processor a tile is a picture of its own, and words have numbers."""
    model, processor = model_of("llava_onevision")
    made = dict(processor(images=[photo()], text=[prompt_of("llava_onevision")], return_tensors="pt"))
    ids = processor.tokenizer(SAID, add_special_tokens=False)["input_ids"]
    found = hilrp.explain_answer(model, inputs=made, answer=ids)
    tiles = made["pixel_values"].shape[1]
    assert [tuple(m.shape) for m in found[0].maps] == [(16, 16)] * tiles
    assert found.text == " ".join(map(str, ids))
    for word in found.words:
        assert float(sum(m.sum() for m in word.maps)) == pytest.approx(word.image)


def test_a_word_of_the_prompt_is_left_out():
    """``without=``: the second step begins with the prompt without it, and all of it lies on that word."""
    model, processor = model_of("llava")
    images, text = [photo()], prompt_of("llava")
    found = hilrp.explain_answer(model, processor, images, text, SAID, without="colour")
    word = found[2]
    places = [i for i, token in enumerate(found.prompt_tokens) if token == "colour"]
    assert len(places) == 1
    others = [i for i in range(len(word.prompt)) if i not in places]
    assert float(word.prompt[others].abs().max()) == 0
    assert float(word.earlier.abs().max()) == 0
    assert abs(word.score - word.image - float(word.prompt[places[0]]) - word.nothing) < 1e-10
    whole = hilrp.explain_answer(model, processor, images, text, SAID)
    assert (word.image, word.prior) == (whole[2].image, whole[2].prior)
    with pytest.raises(hilrp.InputError, match="without: 'horse' is not in the prompt"):
        hilrp.explain_answer(model, processor, images, text, SAID, without="horse")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types(dtype):
    model, processor = picture_model("llava")
    found = hilrp.explain_answer(model.to(dtype), processor, [photo()], prompt_of("llava"), SAID)
    assert float(found.explanation.ledger.residual.max()) < found.explanation.tolerance
    exact = hilrp.explain_answer(*model_of("llava"), [photo()], prompt_of("llava"), SAID)
    limit = 1e-4 if dtype == torch.float32 else 0.1
    assert found[0].score == pytest.approx(exact[0].score, rel=limit)
    assert found[0].image == pytest.approx(exact[0].image, rel=limit)
