"""``hilrp ask``, used as a person would, of small models saved in folders."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers")

import hilrp
from helpers.answer_models import photo, picture_model, prompt_of, text_model, tokenizer
from helpers.commands import invoke, words
from hilrp.jobs.inquiry import Inquiry
from hilrp.util.errors import InputError

QUESTION = prompt_of("llava")


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    """A small model of pictures and text, with its processor."""
    folder = tmp_path_factory.mktemp("llava")
    model, processor = picture_model("llava")
    model.float().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A small model of text alone, with its tokeniser."""
    folder = tmp_path_factory.mktemp("gpt2")
    text_model("gpt2").float().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def picture(tmp_path):
    photo(40, 24).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def asked(model, *given, answer="a red cat", **options):
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    return invoke("ask", *given, "--model", model, *(["--answer", answer] if answer else []), *flags)


def test_an_answer_about_a_picture(llava, picture, tmp_path):
    """What is printed and written is what the library says."""
    out = tmp_path / "out"
    result = asked(llava, picture, QUESTION, output=out)
    assert result.exit_code == 0, result.output
    assert {file.name for file in out.iterdir()} == {"answer.npz", "answer.png", "answer.json", "index.html"}
    loaded = hilrp.load(str(llava))
    found = hilrp.explain_answer(loaded.model, loaded.processor, picture, QUESTION, "a red cat", max_new_tokens=40)
    facts = json.loads((out / "answer.json").read_text())
    assert [word["text"] for word in facts["words"]] == ["a", "red", "cat"]
    for own, word in zip(facts["words"], found.words, strict=True):
        assert own["score"] == word.score
        assert own["prior_share"] == word.prior_share
        assert found.sentence(word.text) in words(result)
    assert np.array_equal(np.load(out / "answer.npz")["1/map/0"], found[1].maps[0].numpy())
    assert "Without the picture it would be" in words(result)


def test_options_are_those_of_the_function(llava, picture, tmp_path):
    """Rules, reference, contrast, phrases, words left out, passes: each changes what is explained, as in Python."""
    photo(30, 30, seed=9).save(tmp_path / "other.png")
    loaded = hilrp.load(str(llava))
    for flags, options in (
        ({"rules": "hilrp"}, {"rules": "hilrp"}),
        ({"reference": "black"}, {"reference": "black"}),
        ({"reference": tmp_path / "other.png"}, {"reference": Image.open(tmp_path / "other.png")}),
        ({"explain": "red cat"}, {"explain": ["red cat"]}),
        ({"explain": "answer"}, {"explain": "answer"}),
        ({"explain": "red", "against": "blue"}, {"explain": ["red"], "against": "blue"}),
        ({"against": "runner-up"}, {"against": "runner-up"}),
        ({"without": "colour"}, {"without": ["colour"]}),
        ({"passes": 4}, {"passes": 4}),
    ):
        result = asked(llava, picture, QUESTION, output=tmp_path / "out", **flags)
        assert result.exit_code == 0, result.output
        facts = json.loads((tmp_path / "out" / "answer.json").read_text())
        found = hilrp.explain_answer(loaded.model, loaded.processor, picture, QUESTION, "a red cat", **options)
        assert [word["text"] for word in facts["words"]] == [word.text for word in found.words]
        assert [word["image"] for word in facts["words"]] == [word.image for word in found.words]
        assert [word["prior"] for word in facts["words"]] == [word.prior for word in found.words]


def test_the_models_own_answer(gpt2, tmp_path):
    """Of text alone, too: then there is no picture to draw, and nothing without one."""
    result = invoke("ask", "what colour is the cat", "--model", gpt2, "--max-new-tokens", 3, "--output", tmp_path / "o")
    assert result.exit_code == 0, result.output
    assert {file.name for file in (tmp_path / "o").iterdir()} == {"answer.npz", "answer.json", "index.html"}
    loaded = hilrp.load(str(gpt2))
    found = hilrp.explain_answer(loaded.model, loaded.processor, None, "what colour is the cat", max_new_tokens=3)
    assert json.loads((tmp_path / "o" / "answer.json").read_text())["text"] == found.text
    assert found.text in words(result)
    assert "picture" not in words(result)


def test_for_machines(gpt2, tmp_path):
    result = asked(gpt2, "what is", output=tmp_path / "o")
    printed = invoke("ask", "what is", "--model", gpt2, "--answer", "a red cat", "--output", tmp_path / "o", "--json")
    assert json.loads(printed.stdout) == json.loads((tmp_path / "o" / "answer.json").read_text())
    assert result.exit_code == printed.exit_code == 0


def test_what_is_wrong_is_said_and_nothing_is_written(llava, gpt2, picture, tmp_path):
    """Each error names what was given and what to do."""
    out = tmp_path / "out"
    (tmp_path / "notes.txt").write_text("no picture")
    for given, options, said in (
        ([picture], {}, "that is a file. Write the question behind the image files"),
        (["missing.png", QUESTION], {}, "missing.png: no such file. Image files come first, and the question last"),
        ([tmp_path / "notes.txt", QUESTION], {}, "notes.txt: not a readable image"),
        ([picture, "what colour is the cat"], {}, "Give a place in the prompt for each picture: '<image>'"),
        ([picture, picture, QUESTION], {}, "does not take the prompt with 2 pictures"),
        ([picture, QUESTION], {"reference": "nobody.png"}, "--reference nobody.png: neither an image file nor one of"),
        ([picture, QUESTION], {"reference": "neutral"}, "--reference neutral: it can't stand for no picture"),
        ([picture, QUESTION], {"rules": "hilrp", "passes": 8}, "--passes 8: --rules hilrp has no reference"),
        ([picture, QUESTION], {"explain": "horse"}, "explain: 'horse' is not in the answer. Its words are a, red, cat"),
        ([picture, QUESTION], {"against": "blue"}, "against='blue' is one word for 3"),
        ([picture, QUESTION], {"without": "horse"}, "without: 'horse' is not in the prompt"),
        ([picture, QUESTION], {"answer": "a red horse"}, "can't be tokenised back"),
        ([picture, QUESTION], {"rules": "nonsense"}, "nonsense"),
    ):
        result = asked(llava, *given, output=out, **options)
        assert result.exit_code == 2, (given, options, result.output)
        assert said in words(result), result.output
        assert not out.exists()
    result = asked(gpt2, picture, "what is", output=out)
    assert result.exit_code == 2
    assert "takes no pictures" in words(result)
    result = asked("zoo/swin", picture, "what is", output=out)
    assert result.exit_code == 2
    assert "zoo/swin answers no questions. Ask a model that does" in words(result)


def test_a_model_that_answers_classifies_nothing(llava, picture, tmp_path):
    """It says so, and which command there is, wherever pictures alone are given to it."""
    result = invoke("explain", picture, "--model", llava, "--output", tmp_path / "out")
    assert result.exit_code != 0
    assert "answers in words, and tells no classes apart. Ask it: hilrp ask FILE QUESTION" in words(result)
    loaded = hilrp.load(str(llava))
    assert "answers in words" in repr(loaded)
    with pytest.raises(InputError, match="answers in words"):
        loaded.batch([picture])


def test_a_file_with_other_weights(llava, picture, tmp_path):
    from safetensors.torch import load_file, save_file

    own = load_file(llava / "model.safetensors")
    save_file({name: value * 0.5 for name, value in own.items()}, tmp_path / "half.safetensors")
    result = asked(llava, picture, QUESTION, output=tmp_path / "out", checkpoint=tmp_path / "half.safetensors")
    assert result.exit_code == 0, result.output
    loaded = hilrp.load(str(llava), tmp_path / "half.safetensors")
    parameter = next(loaded.model.parameters())
    assert torch.equal(parameter, next(hilrp.load(str(llava)).model.parameters()) * 0.5)
    assert loaded.weights == "weights of half.safetensors"
    wrong = dict(own) | {"extra": torch.zeros(2)}
    del wrong[next(name for name in wrong if "layers.0" in name)]
    save_file(wrong, tmp_path / "wrong.safetensors")
    result = asked(llava, picture, QUESTION, output=tmp_path / "no", checkpoint=tmp_path / "wrong.safetensors")
    assert result.exit_code == 2
    assert "does not fit" in words(result)
    assert "and 1 more" in words(result)


def test_the_lines_of_python_make_the_same(llava, picture, tmp_path, monkeypatch):
    """For all options at once, as they stand on the page."""
    inquiry = Inquiry(QUESTION, (picture,), "a red cat", ("red",), "blue", ("colour",), "black", passes=4, longest=5)
    loaded = hilrp.load(str(llava))
    found = inquiry.run(loaded)
    code = inquiry.code(loaded, repr([str(picture)]))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "code", "exec"), names)
    assert names["answer"].facts() == found.facts()
    assert (tmp_path / "answer" / "answer.json").is_file()
    assert "--" not in code
