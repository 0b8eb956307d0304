"""A model, what it is asked and its answer as one function of pictures and words, and what stands for none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.answers.generation import with_answer
from hilrp.answers.given_answer import GivenAnswer
from hilrp.answers.pictures import Pictures
from hilrp.answers.request import Request, image_token
from hilrp.answers.tokens import phrases_in
from hilrp.util.errors import InputError

#: Inputs of the model that is explained: pictures, and the embeddings of the prompt and of earlier words.
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What is asked, with its answer.

    Attributes:
        module: The model, of pictures and embeddings.
        request: The prompt with its pictures.
        pictures: The pictures.
        ids: The tokens of the answer.
        input: What is explained: ``image``, ``prompt`` and ``earlier``.
        logits: The model's, of each token of the answer.
    """

    module: GivenAnswer
    request: Request
    pictures: Pictures
    ids: list[int]
    input: Inputs
    logits: Tensor

    @staticmethod
    def of(model: nn.Module, request: Request, ids: list[int]) -> Asked:
        """A model with a request and an answer: it runs once, without a graph."""
        pictures = Pictures(request, model)
        inputs = with_answer(model, request.inputs, ids)
        module = GivenAnswer(model, inputs, request.pixels, len(request.ids), len(ids))
        prompt, earlier, logits = module.embeddings(pictures.pixels)
        found: Inputs = {"image": {name: t[None] for name, t in pictures.pixels.items()}} if pictures.pixels else {}
        found |= {"prompt": prompt} | ({} if earlier is None else {"earlier": earlier})
        return Asked(module, request, pictures, ids, found, logits)

    def without_pictures(self, reference: Any) -> Inputs:
        """The same words, and something else for the pictures."""
        if not self.pictures.pixels:
            self.pictures.without(reference)  # raises where something is given all the same
            return self.input
        return self.input | {"image": {name: t[None] for name, t in self.pictures.without(reference).items()}}

    def states(self, reference: Any, without: str | Sequence[str] | None) -> list[Inputs]:
        """From nothing to what is asked: no words and no picture, words without a picture, and both."""
        alone = self.without_pictures(reference)
        parts: Inputs = {}
        if without is None:
            parts["prompt"] = self._padded(self.input["prompt"], self.words(self.request.ids))
            if "earlier" in self.input:
                parts["earlier"] = self._padded(self.input["earlier"], self.words(self.ids[:-1]))
        else:
            parts["prompt"] = self._padded(self.input["prompt"], self._named(without))
        return [alone | parts, alone, self.input] if self.pictures.pixels else [alone | parts, self.input]

    def nothing(self, without: str | Sequence[str] | None) -> str:
        """What the first of the states is called."""
        words = "padding for words"
        if without is not None:
            named = [without] if isinstance(without, str) else without
            words = f"the prompt without {', '.join(map(repr, named))}"
        seen = "no picture" if self.pictures.layout is not None else "zeros for the other input"
        return f"{seen} and {words}" if self.pictures.pixels else words

    def _padded(self, embeddings: Tensor, places: list[bool]) -> Tensor:
        """Embeddings with that of the padding token, or zero, in some places."""
        chosen = torch.tensor(places, device=embeddings.device)[:, None]
        return torch.where(chosen, self._padding(embeddings), embeddings)

    def _padding(self, like: Tensor) -> Tensor:
        model: Any = self.module.model
        if self.padding is None:
            return torch.zeros_like(like[:, :1])
        with torch.no_grad():
            found: Tensor = model.get_input_embeddings()(torch.tensor([[self.padding]], device=like.device))
        return found.to(like)

    @property
    def padding(self) -> int | None:
        """The token that stands for no word; ``None`` where there isn't one, and zero stands for it."""
        model: Any = self.module.model
        known = [getattr(self.request.tokenizer, "pad_token_id", None)]
        known += [getattr(getattr(model, name, None), "pad_token_id", None) for name in ("generation_config", "config")]
        return next((each for each in known if isinstance(each, int) and each >= 0), None)

    def words(self, ids: Sequence[int]) -> list[bool]:
        """Which tokens are words, and not marks of the model's own: those stay in every reference."""
        marks = set(getattr(self.request.tokenizer, "all_special_ids", ()))
        marks -= {getattr(self.request.tokenizer, "unk_token_id", None)}
        configs = (getattr(self.module.model, name, None) for name in ("generation_config", "config"))
        names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
        values = [getattr(config, name, None) for config in configs for name in names]
        marks |= {image_token(self.module.model)}
        marks |= {t for value in values for t in (value if isinstance(value, (list, tuple)) else [value])}
        return [token not in marks for token in ids]

    def _named(self, without: str | Sequence[str]) -> list[bool]:
        """Which tokens of the prompt belong to some of its words."""
        ids, named = self.request.ids, [without] if isinstance(without, str) else list(without)
        if not named:
            raise InputError("without is empty: give words of the prompt, or leave it out for all of them.")
        if self.request.tokenizer is None:
            raise InputError("without= names words: give processor=, too.")
        spans = [
            span for each in named for span in phrases_in(self.request.tokenizer, ids, each, "without", "the prompt")
        ]
        return [any(span.start <= place < span.stop for span in spans) for place in range(len(ids))]
