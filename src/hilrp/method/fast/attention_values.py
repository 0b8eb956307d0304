"""Fused attention whose weights are held fixed.

The gradient of the values alone, for the cost of one more forward pass.

torch's backward kernel computes the gradients of queries, keys and values together. That of the values is ``A^T g``
with the weights ``A_ij = exp(s_ij - l_i)``, where ``l`` are the logarithms of the softmax's sums. The forward kernel
itself computes it, with keys for queries, queries for keys, ``g`` for values and ``-l`` as a bias: it normalises over
the queries, and returns the sums that undo that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hilrp.method import bilinear
from hilrp.method.call import Call

_EFFICIENT = int(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION)  # type: ignore[call-overload]


def attend_fixed(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """`bilinear.attend_fixed`, where torch takes the kernel that can do this."""
    mask, causal, scale = call.argument(3, "attn_mask"), call.argument(5, "is_causal", False), call.argument(6, "scale")
    if not v.requires_grad or not fits(q, k, v.detach(), mask, causal, scale):
        return None
    return attend(lambda own: bilinear.attend(call, q, k, own), q, k, v, scale)


def fits(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> bool:
    """Whether torch takes the kernel that can do this: that of float32 on a GPU, without a mask."""
    if not (q.is_cuda and q.dtype == k.dtype == v.dtype == torch.float32 and mask is None and not causal):
        return False
    if q.ndim != 4 or q.shape[:2] != v.shape[:2] or k.shape[:2] != v.shape[:2] or torch.is_autocast_enabled("cuda"):
        return False
    return torch._fused_sdp_choice(q, k, v, scale=scale) == _EFFICIENT


def attend(attention: Callable[[Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    """``attention(v)``, the values mixed by the weights of ``q`` and ``k``, with a gradient for ``v``."""
    with torch.enable_grad():
        y = attention(v.detach().requires_grad_())
    return _Values.apply(v, y.detach(), q, k, y.grad_fn._saved_log_sumexp, scale)  # type: ignore[union-attr]


class _Values(Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, y: Tensor, q: Tensor, k: Tensor, log_sums: Tensor, scale: float | None) -> Tensor:
        ctx.save_for_backward(q, k, log_sums)
        ctx.scale = scale
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        q, k, log_sums = ctx.saved_tensors
        g = g if g.stride(-1) == 1 else g.contiguous()
        # The kernel keeps the sums in rows of a length that it can load at once.
        shift = log_sums.neg()[:, :, None, : q.shape[2]].expand(-1, -1, k.shape[2], -1)
        mixed, undone, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            k, q, g, shift, True, 0.0, False, scale=ctx.scale
        )
        return mixed * undone[:, :, : k.shape[2], None].exp(), None, None, None, None, None
