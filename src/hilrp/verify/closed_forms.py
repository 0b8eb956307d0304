"""The paper's equations for patch merging, spatial reduction and linear layers, with its own indices, as plain loops.

They are as printed: the positive parts are of the weights, ``epsilon`` is added as it is, and a bias has no place in
them. The forms on contributions, which the paper doesn't print, are beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

#: ``(output, input, weight)``: the entries of a matrix that may be anything but zero.
Entries = list[tuple[int, int, float]]
#: From a weight and an activation to the share of their product.
Share = Callable[[float, float], float]


def positive(value: float) -> float:
    """``(.)^+``."""
    return max(value, 0.0)


def merge_rule(activations: Tensor, weights: Tensor, relevance: Tensor, epsilon: float) -> list[float]:
    """eq:merge-rule. ``R_{a_p} = sum_o a_p (W_{o,p})^+ / (sum_p' a_p' (W_{o,p'})^+ + epsilon) R_{y,o}``.

    Args:
        activations: ``[H,W,d]``.
        weights: ``[d_out,4d]``.
        relevance: ``[H/2,W/2,d_out]``.
        epsilon: The stabiliser.

    Returns:
        Relevance in the order of the activations.
    """
    a, w = activations.tolist(), weights.tolist()
    height, width, d = activations.shape
    found = [[[0.0] * d for _ in range(width)] for _ in range(height)]
    for r, row in enumerate(relevance.tolist()):
        for t, incoming in enumerate(row):
            sources = [(2 * r, 2 * t), (2 * r + 1, 2 * t), (2 * r, 2 * t + 1), (2 * r + 1, 2 * t + 1)]
            slots = [(i, j, channel) for i, j in sources for channel in range(d)]  # of p
            for o, r_yo in enumerate(incoming):
                terms = [a[i][j][q] * positive(w[o][p]) for p, (i, j, q) in enumerate(slots)]
                total = sum(terms) + epsilon
                for term, (i, j, q) in zip(terms, slots, strict=True):
                    found[i][j][q] += term / total * r_yo
    return [value for rows in found for places in rows for value in places]


def reduction_rule(activations: Tensor, kernels: Tensor, relevance: Tensor, stride: int, epsilon: float) -> list[float]:
    """eq:sr-rule, for each channel q and place (i, j), over the outputs ``O(i,j)`` whose window contains it.

    Args:
        activations: ``[Q,H,W]``.
        kernels: ``[Q,k,k]``.
        relevance: ``[Q,H',W']``.
        stride: s.
        epsilon: The stabiliser.

    Returns:
        Relevance in the order of the activations.
    """
    a, w, incoming = activations.tolist(), kernels.tolist(), relevance.tolist()
    k, (_, height, width), (_, rows, columns) = kernels.shape[-1], activations.shape, relevance.shape
    found = []
    for q in range(len(a)):
        for i in range(height):
            for j in range(width):
                outputs = [
                    (r, t)
                    for r in range(rows)
                    for t in range(columns)
                    if 0 <= i - stride * r <= k - 1 and 0 <= j - stride * t <= k - 1
                ]
                total = 0.0
                for r, t in outputs:
                    denominator = sum(
                        a[q][stride * r + u][stride * t + v] * positive(w[q][u][v]) for u in range(k) for v in range(k)
                    )
                    numerator = a[q][i][j] * positive(w[q][i - stride * r][j - stride * t])
                    total += numerator / (denominator + epsilon) * incoming[q][r][t]
                found.append(total)
    return found


def linear_rule(
    entries: Entries,
    a: list[float],
    relevance: list[float],
    share: Share,
    epsilon: float,
    biases: Sequence[float] = (),
) -> list[float]:
    """``R_j = sum_i share(w_ij, a_j) / (sum_j' share(w_ij', a_j') + epsilon) R_i`` over the entries of a matrix.

    ``biases`` are one more contribution to each output, ``share(b_i, 1)``, where the rule counts them.
    """
    denominator = [share(b, 1.0) for b in biases] or [0.0] * len(relevance)
    for i, j, w in entries:
        denominator[i] += share(w, a[j])
    found = [0.0] * len(a)
    for i, j, w in entries:
        found[j] += share(w, a[j]) / (denominator[i] + epsilon) * relevance[i]
    return found


def gamma_rule(entries: Entries, a: list[float], relevance: list[float], gamma: float, epsilon: float) -> list[float]:
    """eq:gamma-rule: shares ``a_j (w_ij + gamma (w_ij)^+)``."""
    return linear_rule(entries, a, relevance, lambda w, a: a * (w + gamma * positive(w)), epsilon)


def zplus_rule(entries: Entries, a: list[float], relevance: list[float], epsilon: float) -> list[float]:
    """eq:merge-rule and eq:sr-rule for any matrix: shares ``a_j (w_ij)^+``."""
    return linear_rule(entries, a, relevance, lambda w, a: a * positive(w), epsilon)


def positive_contributions_rule(
    entries: Entries, a: list[float], relevance: list[float], epsilon: float, biases: Sequence[float]
) -> list[float]:
    """The engine's ``zplus``: shares ``(w_ij a_j)^+ = w^+ a^+ + w^- a^-``, positive biases among them."""
    return linear_rule(entries, a, relevance, lambda w, a: positive(w * a), epsilon, biases)


def sign_aware_gamma_rule(
    entries: Entries, a: list[float], relevance: list[float], gamma: float, biases: Sequence[float]
) -> list[float]:
    """The engine's default: contributions of the output's sign count ``1 + gamma`` times. It needs no stabiliser."""
    outputs, found = list(biases), [0.0] * len(a)
    for i, j, w in entries:
        outputs[i] += w * a[j]

    def share(i: int, z: float) -> float:
        return z * (1 + gamma) if z * outputs[i] > 0 else z

    denominator = [share(i, b) for i, b in enumerate(biases)]
    for i, j, w in entries:
        denominator[i] += share(i, w * a[j])
    for i, j, w in entries:
        found[j] += share(i, w * a[j]) / denominator[i] * relevance[i]
    return found
