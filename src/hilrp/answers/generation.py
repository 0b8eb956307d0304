"""What a model answers, and its inputs with an answer."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.util.errors import HilrpError, InputError, ModelError


@dataclass(frozen=True)
class Generated:
    """What a model answered.

    Attributes:
        ids: The tokens, without what ends an answer.
        logits: What the model gave each of them by, ``[tokens, vocabulary]``, where it says so.
    """

    ids: list[int]
    logits: Tensor | None


def generate(model: nn.Module, inputs: Mapping[str, Any], max_new_tokens: int) -> Generated:
    """The model's own answer, the likeliest token each time.

    Args:
        model: A model that generates.
        inputs: The prompt.
        max_new_tokens: At most so many tokens.
    """
    if not isinstance(max_new_tokens, int) or isinstance(max_new_tokens, bool) or max_new_tokens < 1:
        raise InputError(f"max_new_tokens={max_new_tokens!r}: give a whole number, 1 or more.")
    options = {"do_sample": False, "num_beams": 1, "return_dict_in_generate": True, "output_logits": True}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of settings for sampling, which is not done
            found = model.generate(**inputs, max_new_tokens=max_new_tokens, **options)  # type: ignore[operator]
    except (HilrpError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} could not generate ({type(error).__name__}: {error}). The processor has to be the "
            "model's own, and the prompt to have a place for each picture."
        ) from error
    raw = [] if isinstance(found, Tensor) else list(found.get("logits") or [])
    sequence = (found if isinstance(found, Tensor) else found["sequences"])[0].tolist()
    ids = sequence[len(sequence) - len(raw) :] if raw else _answer_of(model, inputs, sequence)
    kept = len(ids)
    ends = _ends(model)
    while kept and ids[kept - 1] in ends:
        kept -= 1
    if not kept:
        raise ModelError(
            f"{type(model).__name__} answers with nothing: it ends at once. Give an answer (answer=) to be explained, "
            "or another prompt."
        )
    return Generated([int(each) for each in ids[:kept]], torch.cat(raw)[:kept] if raw else None)


def _answer_of(model: nn.Module, inputs: Mapping[str, Any], sequence: list[int]) -> list[int]:
    """The answer in a sequence that may begin with the prompt."""
    prompt = inputs["input_ids"][0].tolist()
    if not in_two(model) and sequence[: len(prompt)] == prompt:
        return sequence[len(prompt) :]
    return sequence[1:] if in_two(model) else sequence


def _ends(model: nn.Module) -> set[int]:
    """The tokens that end an answer, and those that fill it up."""
    found: set[int] = set()
    for config in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        for name in ("eos_token_id", "pad_token_id"):
            value = getattr(config, name, None)
            found |= set(value) if isinstance(value, (list, tuple)) else set() if value is None else {value}
    return found


def in_two(model: nn.Module) -> bool:
    """Whether an encoder reads the prompt, and a decoder writes the answer."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def with_answer(model: Any, inputs: Mapping[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """The inputs with all tokens of an answer but the last, which predicts none of them.

    What belongs to each token (a mask, its type) grows as it does in the model's own generation.
    """
    found = dict(inputs)
    prompt = inputs["input_ids"]
    given = torch.tensor([list(ids[:-1])], dtype=prompt.dtype, device=prompt.device)
    if in_two(model):
        found["decoder_input_ids"] = torch.cat([_start(model, prompt), given], 1)
        return found
    found["input_ids"] = torch.cat([prompt, given], 1)
    grown = {name: t for name, t in inputs.items() if _of_tokens(t, prompt.shape[1])}
    for _ in ids[:-1]:
        grown = _longer(model, grown)
    return found | {name: t for name, t in grown.items() if name != "input_ids"}


def _longer(model: Any, grown: dict[str, Any]) -> dict[str, Any]:
    """What belongs to each token, with one token more: as a model of transformers says, else a longer mask."""
    update = getattr(model, "_update_model_kwargs_for_generation", None)
    if update is not None:
        from transformers.utils import ModelOutput

        found: dict[str, Any] = update(ModelOutput(), grown, is_encoder_decoder=False)
        return found
    mask = grown.get("attention_mask")
    return grown if mask is None else grown | {"attention_mask": torch.cat([mask, mask.new_ones(1, 1)], 1)}


def _of_tokens(t: Any, count: int) -> bool:
    return isinstance(t, Tensor) and not t.is_floating_point() and t.ndim >= 2 and t.shape[-1] == count


def _start(model: Any, prompt: Tensor) -> Tensor:
    """The token that a decoder begins with."""
    for config in (model.generation_config, model.config):
        for name in ("decoder_start_token_id", "bos_token_id"):
            value = getattr(config, name, None)
            if isinstance(value, int):
                return prompt.new_full((1, 1), value)
    raise ModelError(f"{type(model).__name__} has no decoder_start_token_id: give it one in its generation_config.")


def takes(model: Any, name: str) -> bool:
    """Whether a model's forward has an argument of that name."""
    return name in inspect.signature(model.forward).parameters


def beside(generated: Tensor | None, logits: Tensor) -> str | None:
    """What to say where the logits of the pass that is explained are not those that the answer was generated by.

    Args:
        generated: Those of generation, word by word, with a cache.
        logits: Those of one pass on the whole answer.
    """
    if generated is None or generated.shape != logits.shape:
        return None
    limit = 1e-2 if logits.dtype in (torch.float32, torch.float64) else 0.2
    finite = generated.isfinite() & logits.isfinite()
    apart = torch.where(finite, (generated.double() - logits.double()).abs(), 0.0).amax()
    scale = torch.where(finite, generated.double().abs(), 0.0).amax()
    if bool(apart <= limit * scale):
        return None
    return (
        f"one pass on the whole answer gives other logits than generation did (by {float(apart):.2g} of "
        f"{float(scale):.2g}): the model generates in another way than it reads"
    )
