"""Models of pictures and words: which pixels, and which words, make up what the model says of both.

A model of two towers finds a picture and a caption alike. With the caption held fixed, the picture's tower is explained
by `hilrp.targets.Cosine` to the caption's embedding; for both at once, `ImageText` is a model of the pixels and of how
much each word is there (all of it: one). The relevance of a word is then that of its embedding:

    explanation = hilrp.explain(ImageTower(model), pixels, Cosine(caption_embeddings(model, ids)))
    pair = ImageText(model, ids)
    explanation = hilrp.explain(pair, pair.inputs(pixels), similarity)

`Joint` is the same for a model that takes both at once, and in which one attends to the other (BLIP's matching head,
BridgeTower, ViLT):

    joint = Joint(model, ids)
    explanation = hilrp.explain(joint, joint.inputs(pixels), target)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hilrp.targets import embedding_of
from hilrp.util.errors import InputError, ModelError


class ImageTower(nn.Module):
    """The picture's tower of a model of two, as a model of its own: from pixels to embeddings."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._encode = _encoder(model, "image")

    def forward(self, pixels: Tensor) -> Tensor:
        """``[B,D]``."""
        return self._encode(pixels)


class ZeroShot(nn.Module):
    """An image tower as a classifier: the cosine to the embedding of each class's caption, times the model's scale."""

    def __init__(self, tower: nn.Module, captions: Tensor, scale: float) -> None:
        super().__init__()
        self.tower, self.scale = tower, scale
        self.register_buffer("captions", F.normalize(captions, dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, classes]``."""
        return self.scale * F.normalize(embedding_of(self.tower(x)), dim=-1) @ self.captions.T  # type: ignore[operator]


class _Worded(nn.Module):
    """What the models of pixels and words have in common: the words, and what weighs them."""

    input_names = ("pixels", "words")

    def __init__(self, model: nn.Module, ids: Tensor | Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = model
        self._ids, self._others = _tokens(ids)

    @property
    def words(self) -> Tensor:
        """How much each token is there, ``[B,L]``: the second input, of ones."""
        return torch.ones(self._ids.shape, device=self._ids.device)

    def inputs(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """The two inputs, for `hilrp.explain`: pixels, and `words` for each picture."""
        self._check_count(len(pixels))
        return pixels, self.words.to(pixels).expand(len(pixels), -1)

    def _check_count(self, pictures: int) -> None:
        if len(self._ids) not in (1, pictures):
            raise InputError(f"{len(self._ids)} captions for {pictures} pictures: give one, or one for each picture.")

    def _weighed(self, run: Callable[..., Any], pixels: Tensor, words: Tensor | None, each: bool) -> Any:
        """Runs what takes token numbers, with its words weighed; ``each``: with as many captions as pictures."""
        ids, others = self._ids.to(pixels.device), {name: t.to(pixels.device) for name, t in self._others.items()}
        self._check_count(len(pixels))
        if words is not None and len(words) == 1 < len(pixels):
            raise InputError(
                f"one row of words for {len(pixels)} pictures: give {type(self).__name__}.inputs(pixels), which has "
                "one for each."
            )
        if len(ids) == 1 and (each or (words is not None and len(words) == len(pixels))):
            ids, others = (
                ids.expand(len(pixels), -1),
                {n: t.expand(len(pixels), *t.shape[1:]) for n, t in others.items()},
            )
        if words is None:
            return run(ids, **others)
        if words.shape != ids.shape:
            raise InputError(
                f"words has the shape {tuple(words.shape)}, the tokens {tuple(ids.shape)}: give "
                f"{type(self).__name__}.inputs(pixels), one number for each token."
            )
        with _Weighed(ids, words) as weighed:
            out = run(ids, **others)
        if not weighed.done:
            raise ModelError(
                f"{type(self.model).__name__} looks its tokens up in no torch embedding, so that words can't be told "
                f"apart. Explain the picture alone: hilrp.explain({type(self).__name__}(...), pixels)."
            )
        return out


class ImageText(_Worded):
    """How alike a model of two towers finds pictures and captions: the cosine of each pair.

    Args:
        model: open_clip's models, CLIP, SigLIP and their kin of transformers, the zoo's; any with ``encode_image`` and
            ``encode_text``, or with ``get_image_features`` and ``get_text_features``.
        ids: Token numbers ``[L]`` of one caption, or of one for each picture, ``[B,L]``; or a mapping with
            ``input_ids``, as tokenisers of transformers return it.
    """

    def __init__(self, model: nn.Module, ids: Tensor | Mapping[str, Tensor]) -> None:
        super().__init__(model, ids)
        self._image, self._text = _encoder(model, "image"), _encoder(model, "text")

    def forward(self, pixels: Tensor, words: Tensor | None = None) -> Tensor:
        """The cosine of each pair, ``[B]``; of one caption and several pictures, that of each with it."""
        image = self._image(pixels)
        text = self._weighed(self._text, pixels, words, each=False)
        return (F.normalize(image, dim=-1) * F.normalize(text, dim=-1)).sum(-1)


class Joint(_Worded):
    """A model that takes pictures and words at once, of the pixels and of how much each word is there.

    Its output is the model's own, so that every target is one: a class, or a function of the output.

    Args:
        model: Takes ``pixel_values`` and ``input_ids`` by keyword, as models of transformers do.
        ids: Token numbers ``[L]`` of one text, or of one for each picture, ``[B,L]``; or a mapping with ``input_ids``
            and what else the model takes, as processors of transformers return it (``pixel_values`` in it are left out:
            they are the input).
    """

    def __init__(self, model: nn.Module, ids: Tensor | Mapping[str, Tensor]) -> None:
        if isinstance(ids, Mapping):
            ids = {name: t for name, t in ids.items() if name != "pixel_values"}
        super().__init__(model, ids)

    def forward(self, pixels: Tensor, words: Tensor | None = None) -> Any:
        """What the model says of each picture with its words."""

        def run(ids: Tensor, **others: Tensor) -> Any:
            return self.model(pixel_values=pixels, input_ids=ids, **others)

        return self._weighed(run, pixels, words, each=True)


def similarity(output: Tensor) -> Tensor:
    """The output of `ImageText` as a target."""
    return output


def caption_embeddings(model: nn.Module, ids: Tensor | Mapping[str, Tensor]) -> Tensor:
    """What the text tower makes of captions, ``[B,D]``, without a graph."""
    tokens, others = _tokens(ids)
    with torch.no_grad():
        return _encoder(model, "text")(tokens, **others)


class _Weighed(TorchFunctionMode):
    """Multiplies the embeddings of the tokens, where the model looks them up, by how much each is there.

    The model is not changed.
    """

    def __init__(self, ids: Tensor, words: Tensor) -> None:
        super().__init__()
        self.ids, self.words, self.done = ids, words, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func is not F.embedding or self.done:
            return out
        index = args[0] if args else kwargs["input"]
        if index.numel() != self.ids.numel() or not torch.equal(index.reshape(-1), self.ids.reshape(-1)):
            return out  # of positions
        self.done = True
        return out * self.words.reshape(*index.shape, 1).to(out.dtype)


def _tokens(ids: Tensor | Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Token numbers ``[B,L]``, and what else the text tower takes."""
    others: dict[str, Tensor] = {}
    if isinstance(ids, Mapping):
        if "input_ids" not in ids:
            raise InputError(f"ids has no input_ids, only {', '.join(map(str, ids))}.")
        others = {name: t if t.ndim > 1 else t[None] for name, t in ids.items() if name != "input_ids"}
        ids = ids["input_ids"]
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim not in (1, 2):
        raise InputError("ids must be a tensor of token numbers, [L] or [B,L].")
    if not ids.numel():
        raise InputError("ids is empty: the caption has no token.")
    return (ids if ids.ndim == 2 else ids[None]), others


def _encoder(model: nn.Module, what: str) -> Callable[..., Tensor]:
    """The function that turns the input of a tower into embeddings."""
    for name in (f"encode_{what}", f"get_{what}_features"):
        method = getattr(model, name, None)
        if callable(method):
            return lambda *args, **others: embedding_of(method(*args, **others))
    raise InputError(
        f"{type(model).__name__} has neither encode_{what} nor get_{what}_features: it is no model of two towers, for "
        "pictures and text."
    )
