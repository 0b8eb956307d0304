"""A small model of two towers, for scenes and their captions."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.scenes.objects import COLOURS, SHAPES, TEXTURES
from hilrp.util.errors import InputError

#: All words of captions; the first stands for none.
WORDS = (
    "", "a", *(t for t in TEXTURES if t != "plain"), *COLOURS, *SHAPES,
    "above", "below", "left", "right", "of", ",", "with", "and",
)  # fmt: skip
#: Words of the longest caption: four objects with their textures.
LENGTH = 24


def pieces(caption: str) -> list[str]:
    """The words of a caption."""
    return re.findall(r"[\w]+|,", caption.lower())


def tokenise(caption: str) -> Tensor:
    """Word numbers ``[24]``, filled with zeros.

    Example:
        >>> tokenise("a striped red star")[:5].tolist() == [WORDS.index(w) for w in ("a", "striped", "red", "star", "")]
        True
    """
    words = pieces(caption)
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        raise InputError(f"the zoo's text tower knows no word {unknown[0]!r}, only {' '.join(w for w in WORDS if w)}")
    ids = [WORDS.index(word) for word in words]
    return torch.tensor(ids + [0] * (LENGTH - len(ids)))


class TwoTowers(nn.Module):
    """A flat transformer for pictures and one for words, with embeddings of one kind.

    Args:
        visual: From pictures to features.
        width: Of these features.
        size: Of the embeddings.
    """

    def __init__(self, visual: nn.Module, width: int, size: int = 64) -> None:
        super().__init__()
        self.visual, self.project = visual, nn.Linear(width, size, bias=False)
        self.words, self.positions = nn.Embedding(len(WORDS), size), nn.Parameter(0.02 * torch.randn(LENGTH, size))
        self.blocks = nn.ModuleList(_Block(size) for _ in range(3))
        self.norm, self.text_project = nn.LayerNorm(size), nn.Linear(size, size, bias=False)
        self.scale, self.bias = nn.Parameter(torch.tensor(2.3)), nn.Parameter(torch.tensor(-3.0))

    def encode_image(self, pixels: Tensor) -> Tensor:
        """``[B,D]``."""
        return self.project(self.visual(pixels))

    def encode_text(self, ids: Tensor) -> Tensor:
        """``[B,D]``: the mean over the words, which see each other and not what fills the caption up."""
        ids = ids if ids.ndim == 2 else ids[None]
        there = ids != 0
        x = self.words(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, there[:, None, None])
        kept = there[..., None].to(x.dtype)
        return self.text_project((self.norm(x) * kept).sum(1) / kept.sum(1))

    def forward(self, pixels: Tensor, ids: Tensor) -> Tensor:
        """The logits of every picture with every caption, ``[pictures,captions]``."""
        image, text = (F.normalize(e, dim=-1) for e in (self.encode_image(pixels), self.encode_text(ids)))
        return self.scale.exp() * image @ text.T + self.bias


class _Block(nn.Module):
    """Attention among words, and a layer for each."""

    def __init__(self, size: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.layer = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """``[B,L,D]``."""
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.layer(self.second(x))
