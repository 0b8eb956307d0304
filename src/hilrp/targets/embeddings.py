"""Targets that are embeddings: along a direction, close to another embedding, alike from view to view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from hilrp.util.errors import TargetError
from hilrp.util.nested import map_tensors, tensors

#: Where models of transformers keep the vector that stands for a picture.
_NAMES = ("image_embeds", "pooler_output")


def embedding_of(output: Any) -> Tensor:
    """The vector that stands for each sample in a model's output, ``[B,D]``.

    Itself, its pooled output, its class token, or the mean of its map.
    """
    if not isinstance(output, Tensor):
        named = output.get if isinstance(output, Mapping) else lambda name: getattr(output, name, None)
        for name in _NAMES:
            if isinstance(found := named(name), Tensor):
                return _vector(found)
        if isinstance(tokens := named("last_hidden_state"), Tensor) and tokens.ndim == 3:
            return tokens[:, 0]
        output = next((t for t in tensors(output) if t.is_floating_point()), None)
    return _vector(output)


def _vector(output: Any) -> Tensor:
    if isinstance(output, Tensor) and output.ndim == 2:
        return output
    if isinstance(output, Tensor) and output.ndim == 4:
        return output.mean((2, 3))
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise TargetError(
        f"The model's output ({shape}) is no vector for each sample. Pass of=function, which takes the output and "
        "returns one, for instance of=lambda out: out[:, 0] for a class token."
    )


def _fitted(vector: Tensor, embedding: Tensor, what: str) -> Tensor:
    """A vector for all samples, or one for each, where the embeddings are."""
    if not isinstance(vector, Tensor) or vector.ndim not in (1, 2) or vector.shape[-1] != embedding.shape[-1]:
        shape = tuple(vector.shape) if isinstance(vector, Tensor) else type(vector).__name__
        raise TargetError(
            f"{what} ({shape}) doesn't fit the model's embeddings of {embedding.shape[-1]} dimensions: give a vector "
            "of as many, or one for each sample."
        )
    if vector.ndim == 2 and vector.shape[0] not in (1, len(embedding)):
        raise TargetError(
            f"{what} has {vector.shape[0]} vectors for {len(embedding)} samples: give one, or one for each."
        )
    if not bool(vector.isfinite().all()):
        raise TargetError(f"{what} holds values that aren't finite (NaN or infinite).")
    return vector.detach().to(embedding)


@dataclass(frozen=True, eq=False)
class Direction:
    """How far an embedding reaches along a direction: the dot product, which is linear in it.

    Attributes:
        vector: ``[D]``, or one for each sample, ``[B,D]``.
        of: From the model's output to an embedding of each sample.

    Example:
        >>> import torch
        >>> Direction(torch.tensor([0.0, 2.0]))(torch.tensor([[1.0, 3.0]]))
        tensor([6.])
    """

    vector: Tensor
    of: Callable[[Any], Tensor] = embedding_of

    def __call__(self, output: Any) -> Tensor:
        """One number per sample."""
        embedding = self.of(output)
        return (embedding * _fitted(self.vector, embedding, "The direction")).sum(-1)


@dataclass(frozen=True, eq=False)
class Cosine:
    """How alike an embedding is to another one that is held fixed: of a caption, another picture, a prototype.

    Attributes:
        vector: The other embedding, ``[D]``, or one for each sample, ``[B,D]``.
        of: From the model's output to an embedding of each sample.

    Example:
        >>> import torch
        >>> Cosine(torch.tensor([0.0, 2.0]))(torch.tensor([[3.0, 4.0]]))
        tensor([0.8000])
    """

    vector: Tensor
    of: Callable[[Any], Tensor] = embedding_of

    def __call__(self, output: Any) -> Tensor:
        """One number per sample, from -1 to 1."""
        embedding = self.of(output)
        vector = _fitted(self.vector, embedding, "The other embedding")
        return (F.normalize(embedding, dim=-1) * F.normalize(vector, dim=-1)).sum(-1)


def mirrored(x: Tensor) -> Tensor:
    """Images with left and right exchanged."""
    return x.flip(-1)


@dataclass(frozen=True)
class Views:
    """How alike a model finds a picture and a changed view of it: the paper's objective without labels.

    The cosine of the two embeddings is explained by the pixels of the picture; the other view is held fixed.

    Attributes:
        change: From images ``[B,C,H,W]`` to their other views; by default mirrored.
        of: From the model's output to an embedding of each sample.
    """

    change: Callable[[Tensor], Tensor] = mirrored
    of: Callable[[Any], Tensor] = embedding_of

    def prepare(self, x: Any, run: Callable[[Any], Any]) -> Cosine:
        """The cosine to what the model makes of the other view."""
        if not any(t.ndim == 4 and t.is_floating_point() for t in tensors(x)):
            raise TargetError(
                "targets.Views: the input holds no images [B,C,H,W], of which there could be another view."
            )
        other = map_tensors(lambda t: self.change(t) if t.ndim == 4 and t.is_floating_point() else t, x)
        return Cosine(self.of(run(other)).detach(), self.of)
