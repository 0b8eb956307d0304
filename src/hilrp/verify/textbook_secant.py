"""Slow float64 versions of the forms relative to a reference: no autograd, and no code shared with the engine.

Each function is given an operation's operands on the input and on the reference, and returns *slopes*: a matrix
``M [outputs, inputs]`` with ``D y = M D a`` exactly, where ``D`` is the difference of the two. The relevance of input j
is then ``sum_i g_i M_ij D a_j`` for outputs of gradient g (`relevance`), and the slopes of operations that follow each
other are the product of their matrices. Tensors are of one sample; those that stand for several values are flat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

F64 = torch.float64


def relevance(gradient: Tensor, slopes: Tensor, a: Tensor, a0: Tensor) -> Tensor:
    """``R_j = sum_i g_i M_ij D a_j``: what each input holds of the difference of the scores."""
    return torch.einsum("i,ij,j->j", gradient.flatten(), slopes, (a - a0).flatten()).reshape(a.shape)


# Weighted sums ----------------------------------------------------------------------------------------------------


def weighted(matrix: Tensor, a: Tensor, a0: Tensor, gamma: float | Callable[[float, float], float] = 0.0) -> Tensor:
    """``y = W a + b`` under the gamma rule, applied to the contributions ``z_ij = w_ij D a_j``; a bias has none.

    Contributions of the sign of ``D y_i`` count ``1 + gamma`` times, and the whole is scaled to ``D y_i``. Gamma is a
    number (zero is the epsilon rule), or is made of the sums of a unit's contributions of either sign (`bounded`).
    """
    slopes = torch.zeros_like(matrix)
    for i, row in enumerate(matrix):
        z = row * (a - a0).flatten()
        total = float(z.sum())
        with_it = [float(part) for part in z if float(part) * total > 0]
        against = [float(part) for part in z if float(part) * total < 0]
        own = gamma(abs(sum(with_it)), abs(sum(against))) if callable(gamma) else gamma
        favoured = torch.tensor([1 + own if float(part) * total > 0 else 1.0 for part in z], dtype=F64)
        slopes[i] = row * favoured * (total / float((z * favoured).sum()) if total else 1.0)
    return slopes


def bounded(bound: float) -> Callable[[float, float], float]:
    """The least gamma under which a unit hands out at most ``bound`` times the relevance that it gets, in size.

    With sums ``p`` of its sign and ``n`` against it that is ``((1 + gamma) p + n) / ((1 + gamma) p - n) <= bound``.
    """
    return lambda p, n: max(0.0, n / p * (bound + 1) / (bound - 1) - 1)


# Products and quotients -------------------------------------------------------------------------------------------


def product(u: Tensor, u0: Tensor, v: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """``u v``, elementwise: each factor's effect, in the mean of the two orders in which they may change.

    The slopes of u and those of v. The first is ``v`` where v changes first and ``v0`` where u does: the midpoint.
    """
    return torch.diag((v + v0).flatten() / 2), torch.diag((u + u0).flatten() / 2)


def matrix_product(u: Tensor, u0: Tensor, v: Tensor, v0: Tensor) -> tuple[Tensor, Tensor]:
    """``u v`` of matrices ``[n,k]`` and ``[k,m]``, written as sums of products."""
    n, k = u.shape
    m = v.shape[1]
    of_u, of_v = torch.zeros(n, m, n, k, dtype=F64), torch.zeros(n, m, k, m, dtype=F64)
    for i in range(n):
        for j in range(m):
            for l in range(k):
                of_u[i, j, i, l] = (v[l, j] + v0[l, j]) / 2
                of_v[i, j, l, j] = (u[i, l] + u0[i, l]) / 2
    return of_u.reshape(n * m, n * k), of_v.reshape(n * m, k * m)


def quotient(a: Tensor, a0: Tensor, b: Tensor, b0: Tensor) -> tuple[Tensor, Tensor]:
    """``y = a / b``: the product ``a = y b`` solved for ``D y``, ``D a = D y bbar + ybar D b``.

    Where b changes its sign ``bbar`` may vanish: there it is the product of ``a`` and ``1 / b``.
    """
    of_a, of_b = [], []
    for now, before, by, by0 in zip(*(t.flatten().tolist() for t in (a, a0, b, b0)), strict=True):
        if (by > 0) == (by0 > 0):
            middle = (by + by0) / 2
            of_a.append(1 / middle)
            of_b.append(-(now / by + before / by0) / 2 / middle)
        else:
            of_a.append((1 / by + 1 / by0) / 2)
            of_b.append((now + before) / 2 * (1 / by - 1 / by0) / (by - by0))
    return torch.diag(torch.tensor(of_a, dtype=F64)), torch.diag(torch.tensor(of_b, dtype=F64))


# Functions of single values, norms --------------------------------------------------------------------------------


def elementwise(f: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], a: Tensor, a0: Tensor) -> Tensor:
    """``f(a)``: the secant, and where input and reference agree, the derivative, which is given."""
    change = (a - a0).flatten()
    secant = (f(a) - f(a0)).flatten() / change
    return torch.diag(torch.where(change == 0, slope(a).flatten(), secant))


def norm(x: Tensor, x0: Tensor) -> Tensor:
    """``n = |x|``: from ``n^2 - n0^2 = sum_j (x_j + x0_j) D x_j``."""
    x, x0 = x.flatten(), x0.flatten()
    return ((x + x0) / (x.square().sum().sqrt() + x0.square().sum().sqrt())).reshape(1, -1)


def normalised(x: Tensor, x0: Tensor, eps: float, centre: bool = True, scale: Tensor | None = None) -> Tensor:
    """``y = scale c / s`` of a vector, with ``c = x - mean`` (or x) and ``s^2 = mean(c^2) + eps``.

    The quotient ``c / s`` for each output, with the slopes ``mean(cbar D c) / sbar`` of the divisor.
    """
    count = len(x)
    centring = torch.eye(count, dtype=F64) - (1 / count if centre else 0.0)
    c, c0 = centring @ x, centring @ x0
    s, s0 = ((t.square().sum() / count + eps).sqrt() for t in (c, c0))
    of_s = (c + c0) / 2 / count @ centring / ((s + s0) / 2)
    slopes = torch.zeros(count, count, dtype=F64)
    for i in range(count):
        of_a, of_b = quotient(c[i], c0[i], s, s0)
        slopes[i] = of_a[0, 0] * centring[i] + of_b[0, 0] * of_s
    return slopes if scale is None else scale[:, None] * slopes


# Softmax and attention --------------------------------------------------------------------------------------------


def log_mean(a: float, b: float) -> float:
    """``(a - b) / (ln a - ln b)``, the logarithmic mean."""
    return a if a == b else (a - b) / float(torch.tensor(a, dtype=F64).log() - torch.tensor(b, dtype=F64).log())


def softmax(s: Tensor, s0: Tensor) -> Tensor:
    """The weights of a vector of scores: ``D A_i = L_i (D s_i - sum_j L_j D s_j / sum L)``.

    From ``D ln A_i = D s_i - c`` with a c that is the same for all, and weights that sum to one on both.
    """
    weights, weights0 = (t.exp() / t.exp().sum() for t in (s, s0))
    mean = torch.tensor([log_mean(float(w), float(w0)) for w, w0 in zip(weights, weights0, strict=True)], dtype=F64)
    return torch.diag(mean) - torch.outer(mean, mean) / mean.sum()


def attention(
    q: tuple[Tensor, Tensor], k: tuple[Tensor, Tensor], v: tuple[Tensor, Tensor], gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``softmax(q k^T / sqrt(d)) v`` of one head: the relevance of queries, keys and values.

    Two matrix products with a softmax between them. Operands ``[N,d]`` are pairs, on the input and on the reference.
    """
    scale = q[0].shape[1] ** -0.5
    scores, scores0 = (scale * torch.einsum("id,jd->ij", *pair) for pair in zip(q, k, strict=True))
    weights, weights0 = (t.exp() / t.exp().sum(1, keepdim=True) for t in (scores, scores0))
    of_weights, of_v = matrix_product(weights, weights0, *v)
    of_q, of_k = matrix_product(q[0], q[1], k[0].T, k[1].T)
    of_scores = torch.block_diag(*(softmax(*rows) for rows in zip(scores, scores0, strict=True)))
    through = scale * of_weights @ of_scores
    relevance_k = relevance(gradient, through @ of_k, k[0].T, k[1].T).T
    return relevance(gradient, through @ of_q, *q), relevance_k, relevance(gradient, of_v, *v)


# Selections -------------------------------------------------------------------------------------------------------


def selected(a: Tensor, a0: Tensor, rank: int = 0) -> Tensor:
    """The largest of a vector, or the one of that rank: where it is now and where it was share its difference.

    ``D y = t D_i + (1 - t) D_k`` with t between 0 and 1. A maximum always has one; of others, what is left goes to all
    by the sizes of their changes.
    """
    change = (a - a0).tolist()
    i, k = (int(t.argsort(descending=True)[rank]) for t in (a, a0))
    wanted = float(a[i] - a0[k])
    t = 0.5 if change[i] == change[k] else min(1.0, max(0.0, (wanted - change[k]) / (change[i] - change[k])))
    left = wanted - t * change[i] - (1 - t) * change[k]
    size = sum(map(abs, change))
    slopes = [left / size * ((part > 0) - (part < 0)) for part in change]
    slopes[i] += t
    slopes[k] += 1 - t
    return torch.tensor([slopes], dtype=F64)


def pooled(a: Tensor, a0: Tensor, windows: Sequence[Sequence[int]]) -> Tensor:
    """Max-pooling: the largest of each window, given by the places of its values in the flattened input."""
    slopes = torch.zeros(len(windows), a.numel(), dtype=F64)
    for row, places in zip(slopes, windows, strict=True):
        row[list(places)] = selected(a.flatten()[list(places)], a0.flatten()[list(places)])[0]
    return slopes
