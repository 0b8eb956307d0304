"""Slow float64 versions of the linear rules, on the explicit matrix of the map: no autograd, no shared code."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def matrix_of(function: Callable[[Tensor], Tensor], shape: torch.Size) -> Tensor:
    """The matrix ``[outputs, inputs]`` of a linear function of a tensor of that shape."""
    basis = torch.eye(shape.numel(), dtype=torch.float64).reshape(-1, *shape)
    return torch.stack([function(unit).reshape(-1) for unit in basis], 1)


def contributions(matrix: Tensor, bias: Tensor, a: Tensor) -> Tensor:
    """``z_ij = w_ij a_j`` with the bias as one more column."""
    return torch.cat([matrix * a.reshape(1, -1), bias.reshape(-1, 1)], 1)


def epsilon(z: Tensor, w: Tensor) -> Tensor:
    return z


def gamma(z: Tensor, w: Tensor, gamma: float = 0.25) -> Tensor:
    """``z + gamma z^s`` with the part of z that has the sign of the output."""
    sign = z.sum(1, keepdim=True).sign()
    return z + gamma * z * (z.sign() == sign)


def gamma_weights(z: Tensor, w: Tensor, gamma: float = 0.25) -> Tensor:
    return z + gamma * z * (w > 0)


def zplus(z: Tensor, w: Tensor) -> Tensor:
    return z.clamp(min=0)


def redistribute(shares: Tensor, relevance: Tensor, stabiliser: float = 0.0) -> Tensor:
    """``R_j = sum_i shares_ij / sum_j' shares_ij' R_i``; the bias' column is dropped at the end."""
    total = shares.sum(1)
    total = total + stabiliser * torch.where(total < 0, -1.0, 1.0)
    return (shares * (relevance / total).unsqueeze(1)).sum(0)[:-1]
