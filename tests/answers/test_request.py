"""What can't be asked is an error that says what to do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hilrp
from helpers.answer_models import PROMPT, TEXT, photo, picture_model, prompt_of, text_model, tokenizer, transformers

INPUTS = {"input_ids": torch.tensor([[5, 9, 17]])}


def test_models_that_do_not_generate():
    config = transformers.LlamaConfig(**TEXT, vocab_size=40)
    with pytest.raises(hilrp.ModelError, match=r"LlamaModel generates nothing.*AutoModelForImageTextToText"):
        hilrp.explain_answer(transformers.LlamaModel(config).eval(), inputs=INPUTS)
    with pytest.raises(hilrp.ModelError, match="Linear generates nothing"):
        hilrp.explain_answer(nn.Linear(2, 2), inputs=INPUTS)
    with pytest.raises(hilrp.InputError, match=r"model is a str, not a torch\.nn\.Module"):
        hilrp.explain_answer("llava", inputs=INPUTS)


def test_quantised_weights():
    model = text_model("llama")
    layer = model.model.layers[0].mlp
    layer.up_proj.weight = nn.Parameter(torch.zeros(48, 32, dtype=torch.int8), requires_grad=False)
    with pytest.raises(hilrp.ModelError, match=r"quantised weights \(`model.layers.0.mlp.up_proj.weight`\).*bfloat16"):
        hilrp.explain_answer(model, inputs=INPUTS)
    other = text_model("llama")
    other.config.quantization_config = {"quant_method": "bitsandbytes"}
    with pytest.raises(hilrp.ModelError, match="quantised weights: what multiplies them"):
        hilrp.explain_answer(other, inputs=INPUTS)


def _with(change):
    model = text_model("llama").float()
    change(model)
    return model


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: setattr(m.lm_head, "weight", nn.Parameter(m.lm_head.weight.to(torch.float8_e4m3fn))),
            r"quantised weights \(`lm_head.weight`\)",
        ),
        (
            lambda m: setattr(m.model.layers[0].mlp, "up_proj", _packed_layer(m.model.layers[0].mlp.up_proj)),
            r"quantised weights \(`model.layers.0.mlp.up_proj`\)",
        ),
        (lambda m: m.model.layers[1].to("meta"), r"`model.layers.1.self_attn.q_proj.weight` is on the device meta"),
    ],
)
def test_weights_that_are_packed_or_away(change, message):
    with pytest.raises(hilrp.ModelError, match=message):
        hilrp.explain_answer(_with(change), inputs=INPUTS)


def _packed_layer(layer):
    """As torch's own dynamic quantisation leaves it: its numbers are no parameters."""
    return type("Linear", (nn.Identity,), {"__module__": "torch.ao.nn.quantized.dynamic.modules.linear"})()


@pytest.mark.parametrize(
    ("count", "places", "message"),
    [
        (1, 0, "Give a place in the prompt for each picture: '<image>'"),
        (2, 1, "2 pictures"),
        (1, 3, "1 pictures"),
        (0, 1, "0 pictures"),
    ],
)
def test_places_for_pictures(count, places, message):
    model, processor = picture_model("llava")
    text = " ".join(["<image>"] * places + [PROMPT])
    with pytest.raises(hilrp.InputError, match=message):
        hilrp.explain_answer(model, processor, [photo()] * count, text, "a red cat")


@pytest.mark.parametrize("name", ["qwen2_vl", "internvl"])
def test_no_place_for_a_picture(name):
    """Whoever notices it, the processor or nobody."""
    model, processor = picture_model(name)
    with pytest.raises(hilrp.InputError, match="place"):
        hilrp.explain_answer(model, processor, photo(), PROMPT, "a red cat")


def test_more_pictures_than_the_processor_makes_places_for():
    """BLIP-2's writes one place, whatever it is given, and its model would look at the first picture alone."""
    model, processor = picture_model("blip2")
    with pytest.raises(hilrp.InputError, match=r"makes a place for one picture, and these are 3\. Give one\."):
        hilrp.explain_answer(model, processor, [photo(seed=i) for i in range(3)], PROMPT, "a red cat")


def test_pictures_for_a_tokeniser():
    with pytest.raises(hilrp.InputError, match=r"takes no pictures\. Give the model's own processor"):
        hilrp.explain_answer(text_model("gpt2"), tokenizer(), photo(), PROMPT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "processor is missing"),
        ({"processor": 1}, "prompt is missing"),
        ({"inputs": INPUTS, "prompt": "a"}, "give either, not both"),
        ({"inputs": {"pixel_values": torch.zeros(1, 3, 4, 4)}}, "must be a mapping with input_ids"),
        ({"inputs": {"input_ids": torch.zeros(2, 3, dtype=torch.long)}}, r"\(2, 3\), not \[1,tokens\]"),
        ({"inputs": {"input_ids": torch.zeros(1, 0, dtype=torch.long)}}, "The prompt is empty"),
        ({"inputs": INPUTS | {"attention_mask": torch.zeros(1, 3, dtype=torch.long)}}, "nothing but padding"),
        ({"inputs": INPUTS, "max_new_tokens": 0}, "max_new_tokens=0"),
        ({"inputs": INPUTS, "answer": []}, "answer is empty"),
        ({"inputs": INPUTS, "answer": 7}, "answer=7: give a text, or the numbers of its tokens"),
        ({"inputs": INPUTS, "answer": ["a", "red"]}, r"answer=\['a', 'red'\]: give a text"),
        ({"inputs": INPUTS, "answer": [1.5, 2.0]}, r"answer=\[1.5, 2.0\]: give a text"),
        ({"inputs": INPUTS, "answer": [3], "explain": 3}, 'explain=3: give "words"'),
        ({"inputs": INPUTS, "answer": [3], "reference": "black"}, "there are no pictures"),
        ({"inputs": INPUTS, "answer": [3], "without": "a"}, "without= names words"),
        ({"inputs": INPUTS, "answer": [3], "without": []}, "without is empty"),
        ({"inputs": INPUTS, "answer": [3], "rules": "rule"}, "rule"),
    ],
)
def test_arguments(options, message):
    with pytest.raises(hilrp.InputError, match=message):
        hilrp.explain_answer(text_model("gpt2"), **options)


def test_references_that_cannot_be():
    model, processor = picture_model("llava")
    for wrong, message in (
        ("purple", "give mean, black, grey, white, blurred, other pictures"),
        (torch.zeros(2, 3, 16, 16), r"\(2, 3, 16, 16\), the pixels \(1, 3, 16, 16\)"),
        ([photo(), photo()], "2 pictures for 1"),
    ):
        with pytest.raises(hilrp.InputError, match=message):
            hilrp.explain_answer(model, processor, photo(), prompt_of("llava"), "a red cat", reference=wrong)
    made = dict(processor(images=[photo()], text=[prompt_of("llava")], return_tensors="pt"))
    with pytest.raises(hilrp.InputError, match="isn't known without processor"):
        hilrp.explain_answer(model, inputs=made, answer=[20], reference="black")


def test_an_answer_with_a_picture_in_it():
    model, processor = picture_model("llava")
    token = processor.tokenizer.convert_tokens_to_ids("<image>")
    with pytest.raises(hilrp.InputError, match=f"token {token} stands for a picture"):
        hilrp.explain_answer(model, processor, photo(), prompt_of("llava"), [token])


def test_an_answer_of_nothing():
    """A model that ends at once."""
    model = text_model("gpt2")
    model.generation_config.eos_token_id = list(range(40))
    with pytest.raises(hilrp.ModelError, match=r"answers with nothing: it ends at once\. Give an answer"):
        hilrp.explain_answer(model, inputs=INPUTS)


def test_a_prompt_that_is_too_long():
    with pytest.raises(hilrp.ModelError, match="no more tokens than it has positions for"):
        hilrp.explain_answer(text_model("gpt2"), inputs={"input_ids": torch.full((1, 70), 5)}, answer=[3])


def test_a_model_that_still_trains():
    model = text_model("gpt2").train()
    with pytest.raises(hilrp.ModelError, match="train"):
        hilrp.explain_answer(model, inputs=INPUTS, answer=[3])


def test_the_model_is_left_as_it_was():
    model, processor = picture_model("qwen2_vl")
    before = {name: t.clone() for name, t in model.state_dict().items()}
    settings, modes = model.config.to_dict(), [module.training for module in model.modules()]
    hilrp.explain_answer(model, processor, photo(), prompt_of("qwen2_vl"), "a red cat")
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert model.config.to_dict() == settings
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())


def test_chat_templates():
    """A plain text with pictures is put into the template; messages are, too."""
    model, processor = picture_model("llava")
    processor.chat_template = (
        "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<image> "
        "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    plain = hilrp.explain_answer(model, processor, photo(), f"<image> {PROMPT}", "a red cat")
    put = hilrp.explain_answer(model, processor, photo(), PROMPT, "a red cat")
    content = [{"type": "image"}, {"type": "text", "text": PROMPT}]
    messages = [{"role": "user", "content": content}]
    told = hilrp.explain_answer(model, processor, photo(), messages, "a red cat")
    assert plain[1].score == put[1].score == told[1].score
    with pytest.raises(hilrp.InputError, match="has no chat template"):
        hilrp.explain_answer(text_model("gpt2"), tokenizer(), None, messages)


def test_files_and_arrays(tmp_path):
    import numpy as np

    model, processor = picture_model("llava")
    picture = photo()
    picture.save(tmp_path / "one.png")
    scores = {
        hilrp.explain_answer(model, processor, each, prompt_of("llava"), "a red cat")[1].score
        for each in (picture, np.asarray(picture), str(tmp_path / "one.png"), [tmp_path / "one.png"])
    }
    assert len(scores) == 1
    with pytest.raises(hilrp.InputError, match=r"an array is no picture .*Give bytes, \[H,W,3\]"):
        hilrp.explain_answer(model, processor, np.zeros((4, 4, 3)), prompt_of("llava"))
    with pytest.raises(hilrp.InputError, match="a int is no picture"):
        hilrp.explain_answer(model, processor, 7, prompt_of("llava"))
