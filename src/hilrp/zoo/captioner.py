"""A small model that answers questions about scenes in words: an image tower, a projector and a decoder, as LLaVA has.

It is called and generates as such models of transformers do, so that `hilrp.explain_answer` takes it like any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.util.errors import InputError
from hilrp.zoo.vocabulary import IMAGE, TOKENS, Tokenizer

#: So many patches along each side become one token.
MERGED = 2


@dataclass(frozen=True)
class Config:
    """What is known of the captioner's tokens."""

    image_token_id: int = TOKENS.index(IMAGE)
    pad_token_id: int = Tokenizer.pad_token_id
    bos_token_id: int = Tokenizer.bos_token_id
    eos_token_id: int = Tokenizer.eos_token_id
    is_encoder_decoder: bool = False


@dataclass(frozen=True)
class Output:
    """What the captioner returns: logits ``[B,L,vocabulary]``."""

    logits: Tensor


class Captioner(nn.Module):
    """Patches of a picture and words, one after the other, through a decoder that predicts the next word.

    Args:
        visual: From pictures to a class token and patches ``[B,1+N,width]``.
        width: Of these, and of the decoder.
    """

    def __init__(self, visual: nn.Module, width: int, layers: int = 4, heads: int = 4, hidden: int = 256) -> None:
        super().__init__()
        self.config = Config()
        self.visual: Any = visual
        self.project = nn.Sequential(nn.Linear(MERGED**2 * width, width), nn.GELU(), nn.Linear(width, width))
        self.words = nn.Embedding(len(TOKENS), width)
        nn.init.normal_(self.words.weight, std=0.1)
        self.layers = nn.ModuleList(_Layer(width, heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, 1e-6)

    def get_input_embeddings(self) -> nn.Module:
        """Where tokens are looked up."""
        return self.words

    def forward(
        self, input_ids: Tensor, pixel_values: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Output:
        """Logits of the word after each token.

        Args:
            input_ids: Tokens ``[B,L]``, with one for each patch of a picture.
            pixel_values: Pictures ``[B,3,H,W]``.
            attention_mask: Nothing but ones: prompts are not filled up.
        """
        if attention_mask is not None and not bool(attention_mask.all()):
            raise InputError("attention_mask: the zoo's captioner takes prompts that are not filled up.")
        x = self.words(input_ids)
        if pixel_values is not None:
            places = (input_ids == self.config.image_token_id)[..., None]
            x = x.masked_scatter(places, self.patches(pixel_values).to(x.dtype))
        return Output(self.decode(x, torch.arange(x.shape[1], device=x.device)))

    def patches(self, pixel_values: Tensor) -> Tensor:
        """What the decoder reads of pictures, ``[B,N,width]``."""
        return self.read(self.visual.forward_features(pixel_values)[:, 1:])

    def read(self, features: Tensor) -> Tensor:
        """The same, from the features of the patches ``[B,M,width]``: each square of four becomes one token."""
        side = int(features.shape[1] ** 0.5)
        squares = features.unflatten(1, (side // MERGED, MERGED, side // MERGED, MERGED)).transpose(2, 3)
        return self.project(squares.flatten(1, 2).flatten(2))

    def decode(self, x: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits, from what stands at each place.

        Args:
            x: ``[B,L,width]``.
            positions: Of each place, ``[L]`` or ``[B,L]``.
            mask: Which places see which, ``[B,1,L,L]``; by default each sees those before it.
        """
        turn = _angles(positions, self.layers[0].size)  # type: ignore[arg-type]
        for layer in self.layers:
            x = layer(x, turn, mask)
        return self.norm(x) @ self.words.weight.T

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        pixel_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        max_new_tokens: int = 30,
        do_sample: bool = False,
        num_beams: int = 1,
        output_logits: bool = False,
        return_dict_in_generate: bool = False,
    ) -> Any:
        """The likeliest next word, again and again, until the answer ends.

        The other arguments and what is returned are those of transformers; nothing is sampled.
        """
        if do_sample or num_beams != 1 or len(input_ids) != 1:
            raise InputError("The zoo's captioner says the likeliest word, to one prompt: no sampling, no beams.")
        ids, logits = input_ids, []
        for _ in range(max_new_tokens):
            last = self(ids, pixel_values).logits[:, -1]
            logits.append(last)
            ids = torch.cat([ids, last.argmax(-1, keepdim=True)], 1)
            if int(ids[0, -1]) == self.config.eos_token_id:
                break
        if not return_dict_in_generate:
            return ids
        return {"sequences": ids} | ({"logits": tuple(logits)} if output_logits else {})


class _Layer(nn.Module):
    """Attention to what came before, and a gated layer for each place: the block of a Llama."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.first, self.second = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """``[B,L,width]``."""
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = _turned(q, turn), _turned(k, turn)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _angles(positions: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of how far a query or a key is turned at each place (RoPE), ``[...,1,L,size]``."""
    speeds = 10_000 ** (-torch.arange(0, size, 2, device=positions.device) / size)
    angles = (positions[..., None] * speeds).repeat(*[1] * positions.ndim, 2).unsqueeze(-3)
    return angles.cos(), angles.sin()


def _turned(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.chunk(2, -1)
    cosine, sine = (each.to(x.dtype) for each in turn)
    return x * cosine + torch.cat([-second, first], -1) * sine
