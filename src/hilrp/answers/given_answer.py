"""A model with its answer given: one pass on the whole answer, of the pictures and of the embeddings of all words.

A generated word is explained in a pass that has all words before it as input (teacher forcing), without a cache of keys
and values. The model is called as it stands, with its own token numbers; where it looks their embeddings up, it is
handed those that are explained. So masks and positions that it makes of token numbers stay what they are, and nothing
on it is changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hilrp.targets import logits_of
from hilrp.util.errors import HilrpError, ModelError
from hilrp.util.nested import tensors


class GivenAnswer(nn.Module):
    """A model as a function of pictures and of the embeddings of words: to the logits that predict its answer.

    Every input has a first axis of one, that of the sample: a model whose first axis of pixels is that of patches (of
    Qwen) or of pictures is not taken for one of many samples.

    Args:
        model: A model that generates.
        inputs: What it takes, with the answer: token numbers and all that belongs to them.
        pictures: Which of these are pixels, by name.
        prompt: How many tokens the prompt has, in what is looked up; the others are the answer's.
        answer: How many tokens of the answer are predicted.
    """

    start: Tensor

    def __init__(
        self, model: nn.Module, inputs: Mapping[str, Any], pictures: Sequence[str], prompt: int, answer: int
    ) -> None:
        super().__init__()
        self.model = model
        self._fixed = {name: value for name, value in inputs.items() if name not in pictures}
        for i, t in enumerate(tensors(self._fixed)):
            # As buffers they are known to be constants: a tensor from elsewhere might depend on the input.
            self.register_buffer(f"fixed_{i}", t, persistent=False)
        self._table = model.get_input_embeddings().weight  # type: ignore[operator]
        self._in_two = "decoder_input_ids" in inputs
        self._prompt, self._answer = prompt, answer
        #: The embedding that a decoder begins with: no word, but a constant of the model.
        self.register_buffer("start", None)
        taken = inspect.signature(model.forward).parameters
        every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
        # The explained pass has no cache, and makes no logits of the prompt's own tokens where it can be spared.
        self._fixed |= {"use_cache": False} if "use_cache" in taken or every else {}
        self._fixed |= {"logits_to_keep": answer} if "logits_to_keep" in taken and not self._in_two else {}

    def forward(
        self, image: Mapping[str, Tensor] | None = None, prompt: Tensor | None = None, earlier: Tensor | None = None
    ) -> Tensor:
        """The logits of each token of the answer, ``[answer, vocabulary]``.

        Args:
            image: The pixels, by the names that the model has for them.
            prompt: The embeddings of the prompt, ``[1,tokens,features]``.
            earlier: Those of the answer's tokens but the last, which predicts none of them.
        """
        assert prompt is not None
        before = [self.start] if self._in_two else [prompt]
        read = torch.cat([*before, earlier], 1) if earlier is not None else before[0]
        given = [prompt, read] if self._in_two else [read]
        logits, _ = self._run({name: t[0] for name, t in (image or {}).items()}, given)
        return logits

    def embeddings(self, pictures: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None, Tensor]:
        """What the model looks up for the prompt and for the answer, and its own logits, without a graph.

        Args:
            pictures: The pixels, as the model takes them.
        """
        try:
            with torch.no_grad():
                logits, found = self._run(pictures, None)
        except (HilrpError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ModelError(
                f"{type(self.model).__name__} raised {type(error).__name__} on the prompt with its answer ({error}). "
                "Give it what its own processor makes, and no more tokens than it has positions for."
            ) from error
        if self._in_two:
            prompt, earlier = found[0], found[1][:, 1:]
            self.start = found[1][:, :1].clone()
        else:
            prompt, earlier = found[0][:, : self._prompt], found[0][:, self._prompt :]
        return prompt.clone(), earlier.clone() if earlier.shape[1] else None, logits

    def _run(self, pictures: Mapping[str, Tensor], given: Sequence[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """The logits of the answer, and what was looked up."""
        with LookedUp(self._table, given) as looked:
            output = self.model(**self._fixed, **pictures)
        wanted = len(given) if given is not None else 2 if self._in_two else 1
        if len(looked.found) < wanted:
            raise ModelError(
                f"{type(self.model).__name__} looks its tokens up in no torch embedding (get_input_embeddings), so "
                "that words can't be told apart. Explain the pictures alone: hilrp.explain with a target of yours."
            )
        logits = logits_of(output)
        return logits[0, logits.shape[1] - self._answer :], looked.found


class LookedUp(TorchFunctionMode):
    """Stands where a model looks its tokens up: notes what it finds, or hands it other embeddings.

    Args:
        table: The embeddings of all tokens.
        given: What to hand it, in the order in which it asks; ``None`` to note what there is.
    """

    def __init__(self, table: Tensor, given: Sequence[Tensor] | None) -> None:
        super().__init__()
        self._table, self._given = table, given
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.embedding or (args[1] if len(args) > 1 else kwargs["weight"]) is not self._table:
            return func(*args, **kwargs)
        if self._given is None:
            out = func(*args, **kwargs)
            self.found.append(out.detach())
            return out
        index = args[0] if args else kwargs["input"]
        place = len(self.found)
        if place < len(self._given) and index.shape == self._given[place].shape[:2]:
            self.found.append(self._given[place])
            return self._given[place]
        return func(*args, **kwargs)
