"""Reference blocks with two streams or modalities, and the grouped-query attention of language models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.verify.attention import Attention, Block, Mlp, gelu, join_heads, split_heads
from hilrp.verify.textbook import Quantity, Sheet, attention_weights


class Across(nn.Module):
    """Multi-head attention of one sequence to another, with projections of their own."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """As coded, with einsum."""
        q, k, v = (split_heads(t, self.heads) for t in (self.q(x), self.k(context), self.v(context)))
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5).softmax(-1)
        return self.proj(join_heads(torch.einsum("bhij,bhjd->bhid", weights, v)))

    def textbook(self, sheet: Sheet, x: Quantity, context: Quantity) -> Quantity:
        """On paper: relevance goes to the context, through the values."""
        q, k = sheet.linear(x, self.q).value, sheet.linear(context, self.k).value
        weights = attention_weights(q, k, self.heads)
        return sheet.linear(sheet.attend(weights, sheet.linear(context, self.v)), self.proj)


class CrossAttention(Block):
    """CrossViT's: the class token of one branch, taken to the width of the other, reads the other's tokens."""

    shapes = ((5, 4), (7, 6))

    def __init__(self) -> None:
        super().__init__()
        self.norm_in, self.project = nn.LayerNorm(4), nn.Linear(4, 6)
        self.norm, self.attention = nn.LayerNorm(6), Across(6, 2)
        self.norm_out, self.revert = nn.LayerNorm(6), nn.Linear(6, 4)

    def forward(self, small: Tensor, large: Tensor) -> Tensor:
        """As coded; the first token of each branch is its class token."""
        token = self.project(F.gelu(self.norm_in(small[:, :1])))
        both = self.norm(torch.cat([token, large[:, 1:]], 1))
        token = token + self.attention(both[:, :1], both)
        token = self.revert(F.gelu(self.norm_out(token)))
        return torch.cat([token, small[:, 1:]], 1)

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper."""
        small, large = streams
        token = sheet.layer_norm(sheet.reindex(small, lambda t: t[:, :1]), self.norm_in)
        token = sheet.linear(sheet.activation(token, gelu), self.project)
        both = sheet.layer_norm(sheet.concat([token, sheet.reindex(large, lambda t: t[:, 1:])]), self.norm)
        token = sheet.add(token, self.attention.textbook(sheet, sheet.reindex(both, lambda t: t[:, :1]), both))
        token = sheet.linear(sheet.activation(sheet.layer_norm(token, self.norm_out), gelu), self.revert)
        return sheet.concat([token, sheet.reindex(small, lambda t: t[:, 1:])])


class CrossModal(Block):
    """CLIP: an image tower, and the cosines of its embedding with three captions."""

    shapes = ((3, 8, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4, bias=False)
        self.cls, self.positions = nn.Parameter(torch.empty(1, 1, 8)), nn.Parameter(torch.empty(1, 5, 8))
        self.norm_in, self.norm1, self.norm2, self.norm_out = (nn.LayerNorm(8) for _ in range(4))
        self.attention, self.fc1, self.fc2 = Attention(8, 2), nn.Linear(8, 16), nn.Linear(16, 8)
        self.projection, self.captions = nn.Parameter(torch.empty(8, 6)), nn.Parameter(torch.empty(3, 6))
        self.temperature = nn.Parameter(torch.empty(()))

    def forward(self, image: Tensor) -> Tensor:
        """As coded."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = self.norm_in(torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions)
        x = x + self.attention(self.norm1(x))
        hidden = self.fc1(self.norm2(x))
        x = x + self.fc2(hidden * torch.sigmoid(1.702 * hidden))
        embedding = self.norm_out(x[:, 0]) @ self.projection
        embedding = embedding / embedding.norm(dim=-1, keepdim=True)
        captions = self.captions / self.captions.norm(dim=-1, keepdim=True)
        return self.temperature.exp() * embedding @ captions.T

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper: the embedding's norm is held fixed."""
        x = sheet.reindex(sheet.linear(streams[0], self.patches), lambda t: t.flatten(2).transpose(1, 2))
        x = sheet.layer_norm(sheet.add(sheet.concat([self.cls[0], x]), self.positions[0]), self.norm_in)
        x = sheet.add(x, self.attention.textbook(sheet, sheet.layer_norm(x, self.norm1)))
        hidden = sheet.linear(sheet.layer_norm(x, self.norm2), self.fc1)
        hidden = sheet.gate(hidden, 1 / (1 + (-1.702 * hidden.value).exp()))
        x = sheet.add(x, sheet.linear(hidden, self.fc2))
        pooled = sheet.layer_norm(sheet.reindex(x, lambda t: t[:, 0]), self.norm_out)
        embedding = sheet.product(pooled, self.projection.T)
        embedding = sheet.gate(embedding, self.temperature.exp() / embedding.value.square().sum().sqrt())
        return sheet.product(embedding, self.captions / self.captions.square().sum(-1, keepdim=True).sqrt())


class CoAttention(Block):
    """Two modalities that read each other (ViLBERT, LXMERT), each with an MLP; their tokens end in one sequence."""

    shapes = ((5, 6), (4, 6))

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3, self.norm4 = (nn.LayerNorm(6) for _ in range(4))
        self.first_reads, self.second_reads = Across(6, 2), Across(6, 3)
        self.first_mlp, self.second_mlp = Mlp(6), Mlp(6)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """As coded."""
        a, b = self.norm1(first), self.norm2(second)
        first, second = first + self.first_reads(a, b), second + self.second_reads(b, a)
        first = first + self.first_mlp(self.norm3(first))
        second = second + self.second_mlp(self.norm4(second))
        return torch.cat([first, second], 1)

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper."""
        a, b = sheet.layer_norm(streams[0], self.norm1), sheet.layer_norm(streams[1], self.norm2)
        first = sheet.add(streams[0], self.first_reads.textbook(sheet, a, b))
        second = sheet.add(streams[1], self.second_reads.textbook(sheet, b, a))
        first = sheet.add(first, self.first_mlp.textbook(sheet, sheet.layer_norm(first, self.norm3)))
        second = sheet.add(second, self.second_mlp.textbook(sheet, sheet.layer_norm(second, self.norm4)))
        return sheet.concat([first, second])


class GroupedQuery(Block):
    """Four query heads that share two key and value heads, rotary positions, RMS norms and a SwiGLU."""

    shapes = ((6, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(8, eps=1e-6), nn.RMSNorm(8, eps=1e-6)
        self.q, self.k, self.v, self.proj = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(16, 8)
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        """As coded: heads of width 4, keys and values repeated for the queries that share them."""
        normed = self.norm1(x)
        q, k, v = split_heads(self.q(normed), 4), split_heads(self.k(normed), 2), split_heads(self.v(normed), 2)
        angles = torch.outer(torch.arange(x.shape[1], dtype=x.dtype), x.new_tensor([1.0, 0.1])).repeat(1, 2)
        q, k = (t * angles.cos() + torch.cat([-t[..., 2:], t[..., :2]], -1) * angles.sin() for t in (q, k))
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        x = x + self.proj(join_heads(F.scaled_dot_product_attention(q, k, v)))
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper: rotary positions are a rotation matrix per token, on queries and keys alone."""
        normed = self._rms(sheet, streams[0], self.norm1)
        q, k = (sheet.linear(normed, layer).value for layer in (self.q, self.k))
        weights = attention_weights(rotated(q, 4), rotated(k, 4), 4)
        mixed = sheet.attend(weights, sheet.linear(normed, self.v), value_heads=2)
        x = sheet.add(streams[0], sheet.linear(mixed, self.proj))
        normed = self._rms(sheet, x, self.norm2)
        gate = sheet.activation(sheet.linear(normed, self.gate), lambda t: t / (1 + (-t).exp()))
        return sheet.add(x, sheet.linear(sheet.share_evenly(gate, sheet.linear(normed, self.up)), self.down))

    def _rms(self, sheet: Sheet, x: Quantity, norm: nn.RMSNorm) -> Quantity:
        return sheet.gate(sheet.norm(x, x.value.shape, 1e-6, centre=False), norm.weight)


def rotated(x: Tensor, width: int) -> Tensor:
    """Rotary positions by explicit rotation matrices: coordinates ``(d, d + width/2)`` of token n turn by ``n f_d``."""
    out = torch.zeros_like(x)
    half = width // 2
    for n in range(len(x)):
        rotation = torch.zeros(width, width, dtype=torch.float64)
        for d, frequency in enumerate([1.0, 0.1]):
            angle = torch.tensor(n * frequency, dtype=torch.float64)
            rotation[d, d] = rotation[d + half, d + half] = angle.cos()
            rotation[d, d + half], rotation[d + half, d] = -angle.sin(), angle.sin()
        out[n] = torch.block_diag(*[rotation] * (x.shape[1] // width)) @ x[n]
    return out
