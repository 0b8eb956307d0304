"""Softmax, its logarithm and attention relative to a reference."""

from __future__ import annotations

import torch
from torch import Tensor

from hilrp.method.autograd import linearised
from hilrp.method.call import Call
from hilrp.method.secant import functions


def softmax(call: Call) -> Tensor:
    """Softmax over an axis."""
    s, dim = call.argument(0, "input"), call.argument(1, "dim", -1)
    value, before = call.value(), call.output_before
    if not s.requires_grad:
        return value
    out: Tensor = functions.softmax(s, call.before(s), value, before, dim)
    if call.reference is not None and call.reference.choosing:
        # What is masked on one of the two alone has no finite difference of scores.
        with torch.no_grad():
            change = (s - call.before(s)).nan_to_num_(0.0, 0.0, 0.0)
            mean = functions.mean_weights(s, call.before(s), value, before, dim)
            call.book(out, value - before - functions.through_softmax(change, mean, dim), "selection")
    return out


def log_sum(call: Call) -> Tensor:
    """Logsumexp and log_softmax.

    ``D lse = sum(L D s) / sum(L)`` with the logarithmic mean ``L`` of the two softmaxes.
    """
    s, dim = call.argument(0, "input"), call.argument(1, "dim", -1)
    value = call.value()
    if not s.requires_grad:
        return value
    with torch.no_grad():
        logs = [t - t.logsumexp(dim, keepdim=True) for t in (s, call.before(s))]
        mean = functions.log_mean(logs[0].exp(), logs[1].exp(), logs[0] - logs[1])
        weights = mean / mean.sum(dim, keepdim=True)
    total = (s * weights).sum(dim, keepdim=True)
    if call.name == "logsumexp":
        return linearised(total.reshape(value.shape), value)
    return linearised(s - total, value)


def attention(call: Call) -> Tensor:
    """Fused attention: the value stays the kernel's."""
    operands = [call.argument(i, name) for i, name in enumerate(("query", "key", "value"))]
    mask = call.argument(3, "attn_mask")
    scale = call.argument(6, "scale")
    scale = operands[0].shape[-1] ** -0.5 if scale is None else scale
    masks = (mask, call.before(mask)) if mask is not None else (None, None)
    causal = bool(call.argument(5, "is_causal", False))
    before = [call.before(t) for t in operands]
    out: Tensor = functions.attention(*operands, masks[0], *before, masks[1], call.value(), scale, causal)
    if mask is not None and call.changes(mask) and not mask.requires_grad and out.requires_grad:
        with torch.no_grad():
            call.book(out, functions.beyond_masks(operands, before, masks, scale, causal), "selection")
    return out
