"""The words of the zoo's captioner, and what makes its inputs of pictures and prompts.

It has what `hilrp.explain_answer` asks of a processor of transformers, without that package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hilrp.scenes.questions import DESCRIBE, NUMBERS, PLURALS
from hilrp.util.errors import InputError
from hilrp.zoo import towers

#: What stands for no word, before and behind a text, for a word that isn't known, for a patch of a picture, and between
#: a question and its answer.
PAD, START, END, UNKNOWN, IMAGE, ANSWER = "<pad>", "<s>", "</s>", "<unk>", "<image>", "<answer>"
_MARKS = (PAD, START, END, UNKNOWN, IMAGE, ANSWER)
_QUESTIONS = "plain what colour is the ? how many object objects shape texture has there nothing yes no"
#: All tokens, by number.
TOKENS = tuple(
    dict.fromkeys([*_MARKS, *towers.WORDS[1:], *_QUESTIONS.split(), *DESCRIBE.split(), *PLURALS.values(), *NUMBERS])
)
_NUMBERS = {token: number for number, token in enumerate(TOKENS)}


class Tokenizer:
    """Words to numbers and back: a token is a word, a comma, a question mark, or one of the marks.

    Example:
        >>> words = Tokenizer()
        >>> words.decode(words("A striped red star, with a blue ring")["input_ids"])
        'a striped red star, with a blue ring'
    """

    pad_token_id, bos_token_id, eos_token_id, unk_token_id = (_NUMBERS[mark] for mark in (PAD, START, END, UNKNOWN))
    all_special_ids: tuple[int, ...] = tuple(_NUMBERS[mark] for mark in _MARKS)
    chat_template: str | None = None

    def __len__(self) -> int:
        return len(TOKENS)

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        """The numbers of a text, as they stand there: no mark is added."""
        if add_special_tokens:
            raise InputError("add_special_tokens: marks are written in the text here.")
        return {"input_ids": [_NUMBERS.get(piece, self.unk_token_id) for piece in _pieces(text)]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of some tokens."""
        marks = set(self.all_special_ids) if skip_special_tokens else set()
        said = " ".join(TOKENS[each] for each in ids if each not in marks)
        return re.sub(r" (?=[,?])", "", said)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """What each token is called."""
        return [TOKENS[each] for each in ids]

    def convert_tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """The numbers of some tokens."""
        return [_NUMBERS.get(each, self.unk_token_id) for each in tokens]


def _pieces(text: str) -> list[str]:
    return re.findall(r"</?\w+>|\w+|[^\w\s]", text.lower())


class Processor:
    """Makes what the captioner takes of pictures and a prompt.

    Args:
        preprocess: From an RGB picture to pixels ``[3,H,W]``.
        patches: How many tokens stand for a picture.
    """

    image_token, chat_template = IMAGE, "question and answer"

    def __init__(self, preprocess: Callable[[Any], Tensor], patches: int) -> None:
        self.tokenizer, self.image_processor, self._patches = Tokenizer(), preprocess, patches

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **_: Any) -> str:
        """The prompt of a question, as the captioner was trained on: a picture, the question, and the answer begins."""
        if len(messages) != 1 or messages[0].get("role") != "user":
            raise InputError("prompt: the zoo's captioner answers one question. Give one message of the user.")
        content = messages[0]["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        said = " ".join(IMAGE if part["type"] == "image" else part["text"] for part in parts)
        return f"{START} {said} {ANSWER}"

    def __call__(
        self, images: Sequence[Any] | None = None, text: Sequence[str] = (), return_tensors: str = "pt"
    ) -> dict[str, Tensor]:
        """``input_ids`` ``[1,L]``, ``attention_mask`` and, with a picture, ``pixel_values`` ``[1,3,H,W]``.

        Args:
            images: The picture, if there is one.
            text: One prompt, in a list.
            return_tensors: ``"pt"``: tensors of torch are what is returned.
        """
        if len(text) != 1 or return_tensors != "pt":
            raise InputError('text: give one prompt, as a list of one text, and return_tensors="pt".')
        count = len(images or ())
        if count > 1:
            raise InputError(f"images: the zoo's captioner is asked of one picture, not of {count}.")
        unknown = [each for each in _pieces(text[0]) if each not in _NUMBERS]
        if unknown:
            words = ", ".join(sorted(token for token in TOKENS if token.isalpha()))
            raise InputError(f"prompt: the zoo's captioner knows no word {unknown[0]!r}. Its words are {words}.")
        ids: list[int] = []
        for number in self.tokenizer(text[0])["input_ids"]:
            ids += [number] * (self._patches if number == _NUMBERS[IMAGE] else 1)
        if ids.count(_NUMBERS[IMAGE]) != count * self._patches:
            raise InputError(f"prompt: {text[0]!r} has not one place {IMAGE!r} for each of {count} pictures.")
        found = {"input_ids": torch.tensor([ids])}
        found["attention_mask"] = torch.ones_like(found["input_ids"])
        if images:
            found["pixel_values"] = torch.stack([self.image_processor(image.convert("RGB")) for image in images])
        return found
