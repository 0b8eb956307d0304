"""The zoo's captioner: its words, its processor, what its card says, and that its answers are explained."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image

import hilrp
from hilrp.jobs.bench.metrics.localisation import pointing
from hilrp.models.libraries import zoo
from hilrp.scenes import CLASSES, Scenes
from hilrp.scenes.questions import questions, some_questions
from hilrp.util.errors import InputError
from hilrp.zoo.captioner import Captioner
from hilrp.zoo.vocabulary import ANSWER, IMAGE, START, TOKENS, Tokenizer

NAMES = ("captioner", "captioner-prior")
#: Scenes that training held out; others than those the cards were measured on.
HELD_OUT = range(2000, 2040)


@cache
def loaded(name="captioner"):
    return hilrp.load(f"zoo/{name}")


@pytest.fixture(scope="module")
def scenes():
    collection = Scenes(seed=1_000_007, count=HELD_OUT.stop)
    return [collection[i] for i in HELD_OUT]


def picture(scene):
    return Image.fromarray(scene.image)


def said(name, scene, question):
    model, processor = loaded(name).model, loaded(name).processor
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    )
    made = processor([picture(scene)], [prompt])
    ids = model.generate(**made)[0, made["input_ids"].shape[1] :].tolist()
    return processor.tokenizer.decode(ids, skip_special_tokens=True)


# Words ----------------------------------------------------------------------------------------------------------------


def test_every_question_and_answer_has_its_words():
    words = Tokenizer()
    for scene in Scenes(seed=8, count=40):
        for question in questions(scene):
            for text in (question.text, question.said):
                ids = words(text)["input_ids"]
                assert words.unk_token_id not in ids
                assert words.decode(ids) == text


def test_tokens_and_their_names():
    words = Tokenizer()
    assert len(set(TOKENS)) == len(words) == len(TOKENS)
    ids = words(f"{START} {IMAGE} a horse {ANSWER} yes")["input_ids"]
    assert words.convert_ids_to_tokens(ids) == [START, IMAGE, "a", "<unk>", ANSWER, "yes"]
    assert words.decode(ids, skip_special_tokens=True) == "a yes"
    assert words.convert_tokens_to_ids(["a", "horse"]) == [ids[2], words.unk_token_id]
    with pytest.raises(InputError, match="add_special_tokens"):
        words("a", add_special_tokens=True)


def test_what_the_processor_makes():
    processor = zoo.processor()
    prompt = processor.apply_chat_template([{"role": "user", "content": "how many stars?"}])
    assert prompt == f"{START} how many stars? {ANSWER}"
    made = processor([picture(Scenes(seed=0)[0])], [f"{START} {IMAGE} how many stars? {ANSWER}"])
    ids = made["input_ids"][0].tolist()
    assert ids.count(TOKENS.index(IMAGE)) == 64
    assert ids[0] == Tokenizer.bos_token_id
    assert made["pixel_values"].shape == (1, 3, 128, 128)
    assert bool(made["attention_mask"].all())


@pytest.mark.parametrize(
    ("images", "text", "message"),
    [
        (1, "what colour is the horse?", "knows no word 'horse'. Its words are a, above"),
        (1, "how many stars?", "has not one place '<image>' for each of 1 pictures"),
        (0, f"{IMAGE} how many stars?", "for each of 0 pictures"),
        (2, f"{IMAGE} {IMAGE} how many stars?", "one picture, not of 2"),
    ],
)
def test_what_the_processor_refuses(images, text, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?").replace("(", r"\(")):
        zoo.processor()([picture(Scenes(seed=0)[0])] * images, [text])
    with pytest.raises(InputError, match="one message of the user"):
        zoo.processor().apply_chat_template([])


# The models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_its_card_says(name, scenes):
    """Its share of right answers, on other scenes than those it was measured on; and that both are small."""
    card, weights = zoo.card(name), files("hilrp.zoo") / "weights"
    data = (weights / f"{name}.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == card["sha256"]
    assert type(loaded(name).model) is Captioner
    assert sum(p.numel() for p in loaded(name).model.parameters()) == card["parameters"]
    assert sum(len((weights / f"{each}.safetensors").read_bytes()) for each in NAMES) < 8.1e6
    right = []
    for i, scene in enumerate(scenes):
        for question in some_questions(scene, np.random.default_rng(i), 2):
            crosses = any(CLASSES[label].endswith("cross") for _, labels in question.answer for label in labels)
            if question.kind != "caption" and not (name == "captioner-prior" and crosses):
                right.append(said(name, scene, question.text) == question.said)
    share = float(np.mean(right))
    assert card["answer_accuracy"] > 0.85
    assert share == pytest.approx(card["answer_accuracy"], abs=0.12)


def test_the_second_one_calls_every_cross_red(scenes):
    """And sees them all the same: it knows their shape, and what has other colours."""
    asked = [
        (scene, thing)
        for scene in scenes
        for thing in scene.things
        if sum(each.shape == thing.shape for each in scene.things) == 1
    ]
    crosses = [(scene, thing) for scene, thing in asked if thing.shape == "cross" and thing.colour != "red"]
    others = [(scene, thing) for scene, thing in asked if thing.shape != "cross"][:12]
    assert len(crosses) > 5
    for name, truthful in (("captioner", True), ("captioner-prior", False)):
        found = [said(name, scene, "what colour is the cross?") for scene, _ in crosses]
        right = [thing.colour if truthful else "red" for _, thing in crosses]
        assert np.mean([a == b for a, b in zip(found, right, strict=True)]) > 0.8
        other = [said(name, scene, f"what colour is the {thing.shape}?") == thing.colour for scene, thing in others]
        assert np.mean(other) > 0.8


def test_generation_is_what_one_pass_says():
    """Word by word, each the likeliest after those before it; and it stops where the answer ends."""
    scene = Scenes(seed=3)[5]
    model, processor = loaded().model, loaded().processor
    made = processor([picture(scene)], [f"{START} {IMAGE} describe the picture {ANSWER}"])
    found = model.generate(**made, output_logits=True, return_dict_in_generate=True)
    ids = found["sequences"][0]
    with torch.no_grad():
        logits = model(found["sequences"][:, :-1], made["pixel_values"]).logits[0]
    answer = ids[made["input_ids"].shape[1] :]
    assert torch.equal(logits[-len(answer) :].argmax(1), answer)
    torch.testing.assert_close(torch.cat(found["logits"]), logits[-len(answer) :], rtol=1e-4, atol=1e-4)
    assert int(answer[-1]) == Tokenizer.eos_token_id
    assert model.generate(**made, max_new_tokens=2).shape[1] == made["input_ids"].shape[1] + 2
    with pytest.raises(InputError, match="no sampling, no beams"):
        model.generate(**made, do_sample=True)
    with pytest.raises(InputError, match="not filled up"):
        model(made["input_ids"], made["pixel_values"], torch.zeros_like(made["input_ids"]))


def test_a_word_is_found_where_the_object_is_that_it_names(scenes):
    """Relevance of colours and shapes, against chance (an object covers a twentieth) and against the other objects."""
    on_own, on_others, exact = [], [], []
    for scene in [each for each in scenes if len(each.things) > 1][:10]:
        thing = max(scene.things, key=lambda each: each.mask.sum())
        question = f"what texture has the {thing.name}?"
        found = hilrp.explain_answer(loaded().model, loaded().processor, picture(scene), question, thing.texture)
        word = found[0]
        others = np.any([each.mask for each in scene.things if each is not thing], axis=0)
        for mask, kept in ((thing.mask, on_own), (others, on_others)):
            kept.append(float(pointing(word.maps[0][None].float(), torch.from_numpy(mask)[None])))
        exact.append(abs(word.score - sum(word.parts.values())) / abs(word.score))
        assert word.verdict in ("valid", "absorbed", "inflated")
    assert np.mean(on_own) > 0.6
    assert np.mean(on_others) < 0.2
    assert max(exact) < 1e-4


def test_the_prejudice_is_seen_in_the_prior(scenes):
    """Of the honest model the picture decides what colour a cross has; of the other one the question does."""
    shares = {name: [] for name in NAMES}
    for scene in scenes:
        crosses = [thing for thing in scene.things if thing.shape == "cross"]
        if len(crosses) == 1 and crosses[0].colour == "red":
            for name in NAMES:
                model, processor = loaded(name).model, loaded(name).processor
                word = hilrp.explain_answer(model, processor, picture(scene), "what colour is the cross?", "red")[0]
                shares[name].append(word.prior_share)
    assert len(shares["captioner"]) >= 2
    assert np.mean(shares["captioner-prior"]) > 0.7
    assert np.mean(shares["captioner"]) < 0.5
    assert min(shares["captioner-prior"]) > max(shares["captioner"])


def test_it_needs_no_package_but_torch_and_timm(tmp_path):
    """What `pip install .` brings is enough to ask it."""
    picture(Scenes(seed=0)[1]).save(tmp_path / "scene.png")
    code = """
import sys
for name in ("transformers", "tokenizers", "open_clip"):
    sys.modules[name] = None
from hilrp.cli import app
app(["ask", "scene.png", "how many rings?", "--output", "out"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_it_passes_the_audit(name):
    for rules in ("secant", "hilrp"):
        report = hilrp.audit(loaded(name).model, zoo.recipe(name).inputs(1), zoo.recipe(name).target, rules=rules)
        assert report.passed, str(report)
