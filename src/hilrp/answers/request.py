"""What a model is asked: its inputs, made of pictures and a prompt by its processor, or given as a processor does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hilrp.models.images import as_rgb, read
from hilrp.util.errors import HilrpError, InputError, ModelError


@dataclass(frozen=True)
class Request:
    """One prompt with its pictures, as the model takes it.

    Attributes:
        inputs: What the model takes, by name; without padding.
        tokenizer: What makes text of tokens, where there is one.
        processor: What made the inputs, and ``prompt`` and ``images`` what of, where they were not given as they are.
        images: The pictures, upright and in colours.
        pixels: Which of the inputs are pixels (or sounds), by name.
    """

    inputs: dict[str, Any]
    tokenizer: Any = None
    processor: Any = None
    prompt: Any = None
    images: list[Any] = field(default_factory=list)

    @property
    def pixels(self) -> list[str]:
        """Which of the inputs are explained beside words."""
        return [n for n, t in self.inputs.items() if isinstance(t, Tensor) and t.is_floating_point()]

    @property
    def ids(self) -> list[int]:
        """The tokens of the prompt."""
        found: list[int] = self.inputs["input_ids"][0].tolist()
        return found

    def of_images(self, images: Sequence[Any]) -> dict[str, Any]:
        """The inputs with other pictures of the same sizes, as the processor makes them."""
        return _processed(self.processor, self.prompt, images)


def request_of(model: nn.Module, processor: Any, images: Any, prompt: Any, inputs: Any) -> Request:
    """What is asked of a model.

    Args:
        model: The model.
        processor: Its processor; a tokeniser for text alone.
        images: One picture or several, as PIL images, arrays or files.
        prompt: The text as the processor takes it, with a token for each picture; or messages for its chat template.
        inputs: What a processor returned, instead of pictures and prompt.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    if inputs is not None:
        if images is not None or prompt is not None:
            raise InputError("inputs are what a processor made of pictures and a prompt: give either, not both.")
        return Request(_fitted(model, inputs), tokenizer)
    if processor is None or prompt is None:
        missing = "processor" if processor is None else "prompt"
        raise InputError(f"{missing} is missing: give processor and prompt, or inputs as a processor returns them.")
    pictures = _pictures(images)
    if pictures and getattr(processor, "image_processor", None) is None:
        raise InputError(
            f"images: {type(processor).__name__} takes no pictures. Give the model's own processor (AutoProcessor), or "
            "leave the pictures out."
        )
    text = _text(processor, prompt, pictures)
    made = _processed(processor, text, pictures)
    _check_places(model, processor, text, pictures, made)
    return Request(_fitted(model, made), tokenizer, processor, text, pictures)


def _pictures(images: Any) -> list[Any]:
    if images is None:
        return []
    return [_picture(each) for each in (images if isinstance(images, (list, tuple)) else [images])]


def _picture(image: Any) -> Any:
    """A picture, a file or an array ``[H,W,3]`` of bytes, upright and in colours."""
    if isinstance(image, (str, Path)):
        return read(Path(image))[0]
    if hasattr(image, "__array_interface__") and not hasattr(image, "load"):
        from PIL import Image

        try:
            image = Image.fromarray(image)
        except TypeError as error:
            raise InputError(f"images: an array is no picture ({error}). Give bytes, [H,W,3] from 0 to 255.") from error
    if not hasattr(image, "convert"):
        raise InputError(f"images: a {type(image).__name__} is no picture. Give PIL images, files or arrays of bytes.")
    return as_rgb(image)[0]


def _text(processor: Any, prompt: Any, pictures: Sequence[Any]) -> str:
    """The prompt as the processor takes it: where it has no place for pictures, by the chat template."""
    token = _place(processor)
    template = getattr(processor, "chat_template", None)
    if isinstance(prompt, str):
        if not prompt.strip() and not pictures:
            raise InputError("prompt is empty: it has no word.")
        if not pictures or template is None or token is None or token in prompt:
            return prompt
        content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": prompt}]
        prompt = [{"role": "user", "content": content}]
    if template is None and getattr(getattr(processor, "tokenizer", None), "chat_template", None) is None:
        raise InputError(f"prompt: {type(processor).__name__} has no chat template. Give a text.")
    found: str = processor.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
    return found


def _processed(processor: Any, text: Any, images: Sequence[Any]) -> dict[str, Any]:
    try:
        if getattr(processor, "image_processor", None) is None:
            return dict(processor([text], return_tensors="pt"))
        return dict(processor(images=list(images) or None, text=[text], return_tensors="pt"))
    except HilrpError:
        raise
    except Exception as error:
        raise InputError(
            f"{type(processor).__name__} does not take the prompt with {len(images)} pictures "
            f"({type(error).__name__}: {error}). Give a place in the prompt for each picture"
            f"{_as_in(_place(processor))}."
        ) from error


def _as_in(token: str | None) -> str:
    return f": {token!r}" if token else ""


def _place(processor: Any) -> str | None:
    """What stands in a prompt where a picture belongs."""
    token = getattr(processor, "image_token", None)
    found = getattr(token, "content", token)
    return found if isinstance(found, str) else None


def image_token(model: nn.Module) -> int | None:
    """The token that stands where a picture is."""
    config: Any = getattr(model, "config", None)
    for name in ("image_token_id", "image_token_index"):
        found = getattr(config, name, None)
        if isinstance(found, int):
            return found
    return None


def _check_places(
    model: nn.Module, processor: Any, text: str, pictures: Sequence[Any], made: Mapping[str, Any]
) -> None:
    """Raises where the prompt has no place for a picture, or one too many."""
    name, token = _place(processor), image_token(model)
    places = text.count(name) if name else 0
    if places and places != len(pictures) and len(pictures) + places > 1 and not _repeated(places, len(pictures)):
        raise InputError(
            f"images: {len(pictures)} pictures for {places} places {name!r} in the prompt. Give as many of one as of "
            "the other."
        )
    if not places and token is not None and len(pictures) > 1:  # the processor chose the places
        one = _processed(processor, text, pictures[:1])
        if int((one["input_ids"] == token).sum()) == int((made["input_ids"] == token).sum()):
            raise InputError(
                f"images: {type(processor).__name__} makes a place for one picture, and these are {len(pictures)}. "
                "Give one."
            )
    if pictures and token is not None and not bool((made["input_ids"] == token).any()):
        raise InputError(
            f"prompt: {text!r} has no place for the picture. Put {name!r} where it belongs, or give messages for the "
            "chat template."
        )


def _repeated(places: int, pictures: int) -> bool:
    """Whether each picture may have several places, which the user wrote out."""
    return pictures > 0 and places > pictures and places % pictures == 0


def _fitted(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """Inputs on the model's device, in its type, and without padding."""
    if not isinstance(inputs, Mapping) or not isinstance(inputs.get("input_ids"), Tensor):
        raise InputError("inputs must be a mapping with input_ids, as a processor returns it (return_tensors='pt').")
    ids = inputs["input_ids"]
    if ids.ndim != 2 or len(ids) != 1:
        raise InputError(
            f"input_ids has the shape {tuple(ids.shape)}, not [1,tokens]: answers are explained one by one. Give one "
            "prompt."
        )
    if not ids.shape[1]:
        raise InputError("The prompt is empty: it has no token.")
    own = next((p for p in model.parameters() if p.is_floating_point()), None)
    if own is None:
        raise ModelError("The model has no weights of floating-point numbers.")
    mask = inputs.get("attention_mask")
    kept = mask[0].bool() if isinstance(mask, Tensor) and mask.shape == ids.shape and not bool(mask.all()) else None

    def fit(t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        if kept is not None and t.shape == ids.shape and not t.is_floating_point():
            t = t[:, kept]  # one sample needs no padding, and generation counts no positions there
        return t.to(own.device, own.dtype if t.is_floating_point() else None)

    dropped = ("labels", "inputs_embeds", "past_key_values")
    found = {name: fit(t) for name, t in inputs.items() if name not in dropped}
    if not bool(found["input_ids"].numel()):
        raise InputError("The prompt is nothing but padding: attention_mask is zero everywhere.")
    return found


def check_model(model: Any) -> None:
    """Raises for models that generate nothing, or whose weights are no numbers that relevance can be of."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module.")
    can = getattr(model, "can_generate", None)
    if not callable(getattr(model, "generate", None)) or (callable(can) and not can()):
        raise ModelError(
            f"{type(model).__name__} generates nothing: it has no head for words. Load it with one "
            "(AutoModelForImageTextToText, AutoModelForCausalLM), or explain its output with hilrp.explain."
        )
    packed = _packed(model)
    kind = getattr(getattr(model, "config", None), "quantization_config", None)
    if getattr(model, "is_quantized", False) or kind is not None or packed is not None:
        raise ModelError(
            f"{type(model).__name__} has quantised weights{'' if packed is None else f' (`{packed}`)'}: what "
            "multiplies them hides from torch, and has no rule. Load it without quantization_config "
            "(dtype=torch.bfloat16)."
        )
    away = next((name for name, p in model.named_parameters() if p.is_meta), None)
    if away is not None:
        raise ModelError(
            f"{type(model).__name__} has weights that are not in memory (`{away}` is on the device meta). Load it "
            'whole onto one device: without device_map="auto", or on a machine with more memory.'
        )
    experts = _experts(model)
    if experts is not None:
        raise ModelError(
            f"The experts of {type(model).__name__} run as {experts!r}: how many tokens go through one depends on the "
            'input, and is another number on the reference. Call model.set_experts_implementation("batched_mm").'
        )


def _packed(model: nn.Module) -> str | None:
    """The first weight that is no number of 16 bits or more, or the first layer that keeps its own packed."""
    for name, p in model.named_parameters():
        plain = (p.is_floating_point() or p.is_complex()) and p.element_size() > 1
        if not plain or "torchao" in type(p.data).__module__:
            return name
    layers = (name for name, m in model.named_modules() if type(m).__module__.startswith("torch.ao.nn.quantized"))
    return next(layers, None)


def _experts(model: nn.Module) -> str | None:
    """How a mixture of experts runs, unless it is in a way that can be followed."""
    for module in model.modules():
        found = getattr(getattr(module, "config", None), "_experts_implementation", None)
        if hasattr(module, "_apply_gate") and found != "batched_mm":
            return str(found)
    return None


def check_answer(model: nn.Module, ids: Sequence[int]) -> None:
    """Raises for an answer in which a picture would have to be."""
    if image_token(model) in ids:
        raise InputError(f"answer: token {image_token(model)} stands for a picture, and is no word of an answer.")


def vocabulary(model: nn.Module) -> int:
    """How many tokens there are."""
    found: int = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    return found
