"""Slow float64 versions of the rules, on explicit matrices: no autograd, and no code shared with the engine.

Every step of a calculation is taken for ``y = sum_k M_k a_k + c`` with matrices that are held fixed. Its contributions
are ``z_ij = m_ij a_j``, with the constant as one more column, and the relevance of output i is handed out in proportion
to a function of the ``z_ij``. A `Sheet` is such a calculation, written down step by step and read backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

GAMMA = 0.25

# The rules on one matrix ------------------------------------------------------------------------------------------


def matrix_of(function: Callable[[Tensor], Tensor], shape: Sequence[int]) -> Tensor:
    """The matrix ``[outputs, inputs]`` of a linear function that maps batches of tensors of that shape."""
    basis = torch.eye(torch.Size(shape).numel(), dtype=torch.float64).reshape(-1, *shape)
    return function(basis).flatten(1).T


def contributions(matrix: Tensor, bias: Tensor, a: Tensor) -> Tensor:
    """``z_ij = w_ij a_j`` with the bias as one more column."""
    return torch.cat([matrix * a.reshape(1, -1), bias.reshape(-1, 1)], 1)


def epsilon(z: Tensor, w: Tensor) -> Tensor:
    """In proportion to the contributions."""
    return z


def gamma(z: Tensor, w: Tensor, gamma: float = GAMMA) -> Tensor:
    """``z + gamma z^s`` with the part of z that has the sign of the output."""
    sign = z.sum(1, keepdim=True).sign()
    return z + gamma * z * (z.sign() == sign)


def gamma_weights(z: Tensor, w: Tensor, gamma: float = GAMMA) -> Tensor:
    """``z + gamma z`` where the weight is positive, as the paper prints it: the bias has no share."""
    return without_bias(gamma_weights_bias(z, w, gamma))


def gamma_weights_bias(z: Tensor, w: Tensor, gamma: float = GAMMA) -> Tensor:
    """The same, with the bias as one more contribution, whose weight it is itself."""
    return z + gamma * z * (w > 0)


def zplus(z: Tensor, w: Tensor) -> Tensor:
    """The positive contributions."""
    return z.clamp(min=0)


def zplus_weights(z: Tensor, w: Tensor) -> Tensor:
    """The contributions of positive weights, as the paper prints it: the bias has no share."""
    return without_bias(z * (w > 0))


def without_bias(shares: Tensor) -> Tensor:
    """Shares of which the last column, the bias, is zero."""
    return torch.cat([shares[:, :-1], torch.zeros_like(shares[:, -1:])], 1)


def redistribute(shares: Tensor, relevance: Tensor, stabiliser: float = 0.0, signed: bool = True) -> Tensor:
    """``R_j = sum_i shares_ij / (sum_j' shares_ij' + stabiliser) R_i``; the bias' column is dropped at the end.

    ``signed``: the stabiliser has the sign of the sum, so that it never brings it nearer to zero.
    """
    total = shares.sum(1)
    total = total + stabiliser * torch.where((total < 0) & signed, -1.0, 1.0)
    return (shares * (relevance / total).unsqueeze(1)).sum(0)[:-1]


# A calculation, step by step --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Quantity:
    """A value on a sheet, and the shares ``[outputs, inputs]`` that hand its relevance to what it was made of."""

    value: Tensor
    sources: list[tuple[Quantity, Tensor]] = field(default_factory=list)
    kept: Tensor | None = None
    """The constants' share of each output."""


class Sheet:
    """A calculation on one sample. Each method writes down one step and returns its result."""

    def __init__(self) -> None:
        self._steps: list[Quantity] = []

    def given(self, value: Tensor) -> Quantity:
        """An input."""
        return self._note(Quantity(value))

    def linear(self, x: Quantity, layer: nn.Module) -> Quantity:
        """A linear layer or convolution: the gamma rule, with the bias as one more contribution."""
        zeros = torch.zeros(1, *x.value.shape, dtype=torch.float64)
        no_bias = {name: torch.zeros_like(p) for name, p in layer.named_parameters() if name == "bias"}

        def weights_alone(batch: Tensor) -> Tensor:
            return torch.func.functional_call(layer, no_bias, (batch,))

        out = layer(zeros)[0]
        return self._affine(out.shape, [(x, matrix_of(weights_alone, x.value.shape))], out, favour=GAMMA)

    def product(self, x: Quantity, matrix: Tensor) -> Quantity:
        """``M x`` on the last axis of x with constants M: a linear layer without a bias."""
        whole = matrix_of(lambda t: t @ matrix.T, x.value.shape)
        return self._affine((*x.value.shape[:-1], len(matrix)), [(x, whole)], favour=GAMMA)

    def mix(self, x: Quantity, matrix: Tensor, shape: Sequence[int]) -> Quantity:
        """``M x`` with an M that depends on the input and is held fixed: in proportion to ``m_ij a_j``."""
        return self._affine(shape, [(x, matrix)])

    def gate(self, x: Quantity, factor: Tensor, shift: Tensor | None = None) -> Quantity:
        """``x * factor + shift`` with the factor held fixed."""
        return self._affine(x.value.shape, [(x, torch.diag(factor.expand_as(x.value).flatten()))], shift)

    def activation(self, x: Quantity, function: Callable[[Tensor], Tensor]) -> Quantity:
        """``f(x) = x g(x)`` with ``g`` held fixed; f(0) is 0."""
        return self.gate(x, torch.where(x.value == 0, 0.0, function(x.value) / x.value))

    def norm(self, x: Quantity, groups: Sequence[int], eps: float, centre: bool = True) -> Quantity:
        """``(x - mean) / std`` over the last axis of ``x.reshape(groups)``: a centring matrix and a fixed divisor."""
        grouped = x.value.reshape(groups)
        count = grouped.shape[-1]
        centring = torch.eye(count, dtype=torch.float64) - (1 / count if centre else 0.0)
        divisor = ((grouped @ centring.T).square().mean(-1) + eps).sqrt()
        matrix = torch.block_diag(*(centring / d for d in divisor.flatten()))
        return self._affine(x.value.shape, [(x, matrix)])

    def layer_norm(self, x: Quantity, norm: nn.LayerNorm) -> Quantity:
        """Over the last axis, with scale and shift."""
        return self.gate(self.norm(x, x.value.shape, norm.eps), norm.weight, norm.bias)

    def batch_norm(self, x: Quantity, norm: nn.BatchNorm2d) -> Quantity:
        """In evaluation: a factor and a shift per channel of ``[C,H,W]``."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = norm.weight / (norm.running_var + norm.eps).sqrt()
        shift = norm.bias - norm.running_mean * factor
        return self.gate(x, factor[:, None, None], shift[:, None, None])

    def reindex(self, x: Quantity, function: Callable[[Tensor], Tensor]) -> Quantity:
        """Values moved or selected: a matrix with exactly one 1 per output. The function takes a batch."""
        matrix = matrix_of(function, x.value.shape)
        if not is_selection(matrix):
            raise ValueError("not a reindexing: an output has no source, several, or one that is weighted")
        return self._affine(function(x.value[None])[0].shape, [(x, matrix)])

    def add(self, x: Quantity, other: Quantity | Tensor) -> Quantity:
        """A residual addition, in proportion to the summands; a constant keeps its share."""
        one = torch.eye(x.value.numel(), dtype=torch.float64)
        if isinstance(other, Tensor):
            return self._affine(x.value.shape, [(x, one)], other)
        return self._affine(x.value.shape, [(x, one), (other, one)])

    def share_evenly(self, x: Quantity, y: Quantity) -> Quantity:
        """``x * y`` where neither is more of a gate: half of the relevance to each."""
        half = torch.eye(x.value.numel(), dtype=torch.float64) / 2
        nothing = torch.zeros(x.value.numel(), dtype=torch.float64)
        return self._note(Quantity(x.value * y.value, [(x, half), (y, half)], nothing))

    def concat(self, parts: Sequence[Quantity | Tensor], axis: int = 0) -> Quantity:
        """A coordinate embedding; parts that are constants keep their relevance."""
        values = [part if isinstance(part, Tensor) else part.value for part in parts]
        out = torch.cat(values, axis)
        terms, constant = [], torch.zeros_like(out)
        start = 0
        for part, value in zip(parts, values, strict=True):
            places = torch.arange(out.numel()).reshape(out.shape).narrow(axis, start, value.shape[axis]).flatten()
            start += value.shape[axis]
            if isinstance(part, Tensor):
                constant.view(-1)[places] = value.flatten()
            else:
                terms.append((part, torch.eye(out.numel(), dtype=torch.float64)[:, places]))
        return self._affine(out.shape, terms, constant)

    def attend(self, weights: Tensor, v: Quantity, value_heads: int | None = None) -> Quantity:
        """``A v`` with attention weights ``[heads, N, M]`` held fixed and values ``[M, value heads * width]``.

        Neighbouring heads share their values where there are fewer value heads (grouped queries).
        """
        heads, queries, keys = weights.shape
        groups = value_heads or heads
        width = v.value.shape[-1] // groups
        reads = torch.eye(groups, dtype=torch.float64).repeat_interleave(heads // groups, 0)
        matrix = torch.einsum("hij,hg,de->ihdjge", weights, reads, torch.eye(width, dtype=torch.float64))
        shape = (queries, heads * width)
        return self.mix(v, matrix.reshape(queries * heads * width, keys * groups * width), shape)

    def back(self, out: Quantity, relevance: Tensor) -> tuple[dict[Quantity, Tensor], float]:
        """The relevance of every quantity, given the output's, and the sum of what constants keep."""
        found = {step: torch.zeros_like(step.value) for step in self._steps}
        found[out] = relevance
        kept = 0.0
        for step in reversed(self._steps):
            flat = found[step].flatten()
            for source, shares in step.sources:
                found[source] = found[source] + (shares.T @ flat).reshape(source.value.shape)
            kept += float(flat @ step.kept) if step.kept is not None else 0.0
        return found, kept

    def _affine(
        self,
        shape: Sequence[int],
        terms: Sequence[tuple[Quantity, Tensor]],
        constant: Tensor | None = None,
        favour: float = 0.0,
    ) -> Quantity:
        """``y = sum_k M_k a_k + c``; contributions of the output's sign count ``1 + favour`` times."""
        size = torch.Size(shape).numel()
        matrix = torch.cat([m for _, m in terms], 1)
        constant = torch.zeros(size, dtype=torch.float64) if constant is None else constant.expand(*shape)
        z = contributions(matrix, constant, torch.cat([x.value.flatten() for x, _ in terms]))
        shares = gamma(z, matrix, favour)
        total = shares.sum(1, keepdim=True)
        # An output that is zero has no relevance to hand out.
        ratio = torch.where(total == 0, 0.0, shares / total)
        *parts, kept = ratio.split([*(x.value.numel() for x, _ in terms), 1], 1)
        sources = [(x, part) for (x, _), part in zip(terms, parts, strict=True)]
        return self._note(Quantity(z.sum(1).reshape(shape), sources, kept[:, 0]))

    def _note(self, step: Quantity) -> Quantity:
        self._steps.append(step)
        return step


def is_selection(matrix: Tensor) -> bool:
    """Whether each output has exactly one source, with weight 1."""
    return bool(((matrix == 0) | (matrix == 1)).all() and (matrix.sum(1) == 1).all())


def attention_weights(q: Tensor, k: Tensor, heads: int, bias: Tensor | None = None) -> Tensor:
    """``softmax(q k^T / sqrt(width) + bias)`` as ``[heads, N, M]``; a bias of ``-inf`` leaves a pair out."""
    width = q.shape[-1] // heads
    weights = []
    for head in range(heads):
        own = head * (k.shape[-1] // width) // heads  # heads that share a key: grouped queries
        logits = q[:, head * width : (head + 1) * width] @ k[:, own * width : (own + 1) * width].T / width**0.5
        if bias is not None:
            logits = logits + (bias[head] if bias.ndim == 3 else bias)
        exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
        weights.append(exponentials / exponentials.sum(-1, keepdim=True))
    return torch.stack(weights)
