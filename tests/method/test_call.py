"""The same operations in the forms that people write them in: keywords, operand lists, operands that coincide."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import hilrp
from helpers.nets import Apply

W44, V4 = torch.randn(4, 4, generator=torch.Generator().manual_seed(3)).double(), torch.linspace(0.5, 2, 4).double()
CALL_FORMS = {
    "matmul, keywords": lambda x: torch.matmul(input=x, other=W44),
    "linear, keywords": lambda x: F.linear(input=x, weight=W44, bias=V4),
    "conv, keywords": lambda x: F.conv1d(input=x, weight=torch.ones(2, 3, 2).double(), bias=V4[:2], padding=1),
    "attention, keywords": lambda x: F.scaled_dot_product_attention(query=x, key=x * 2, value=x + 1),
    "attention of one tensor": lambda x: F.scaled_dot_product_attention(x, x, x),
    "layer norm, keywords": lambda x: F.layer_norm(input=x, normalized_shape=[4], weight=V4, bias=V4),
    "torch.layer_norm, keywords": lambda x: torch.layer_norm(x, normalized_shape=[4], weight=V4, bias=V4, eps=1e-3),
    "softmax, keywords": lambda x: torch.softmax(input=x, dim=-1) * x,
    "add, keywords": lambda x: torch.add(input=x, other=V4, alpha=3),
    "sub, alpha": lambda x: torch.sub(x, V4, alpha=2) + torch.rsub(x, V4, alpha=2) * 3,
    "number minus tensor": lambda x: 2.5 - x * 3,
    "cat, keywords": lambda x: torch.cat(tensors=[x, x.new_ones(2, 1, 4)], dim=1),
    "where, keywords": lambda x: torch.where(condition=x > 0, input=x, other=V4),
    "division of a tensor by itself": lambda x: x / x * x,
    "division, rounded": lambda x: torch.div(x, 0.3, rounding_mode="floor").relu() + x,
    "number over tensor": lambda x: x * (2 / (x.abs() + 1)),
    "powers": lambda x: x**3 + 2**x * x + torch.pow(x.abs() + 1, V4) + x * (x.abs() + 1) ** -0.5,
    "addmm": lambda x: torch.addmm(V4, x[:, 0], W44, beta=0.5, alpha=2),
    "baddbmm of three": lambda x: torch.baddbmm(x @ W44 @ x.transpose(1, 2), x, x.transpose(1, 2), beta=0.3),
    "einsum, operand list": lambda x: torch.einsum("bij,jk->bik", [x, W44]) + V4,
    "einsum of three": lambda x: torch.einsum("bij,bik,kl->bjl", x, x.sigmoid(), W44) + V4,
    "square by product": lambda x: x * x + 1,
    "product with a gate of itself": lambda x: x * x.sigmoid() * x.norm(dim=-1, keepdim=True),
    "dynamic filters": lambda x: F.linear(x[:1], x[0] @ W44.sigmoid(), x[0, :, 0]).expand(2, 3, 3),
    "maximum of two": lambda x: torch.maximum(x, x.flip(-1) * 0.5) + torch.max(x, V4) + x.max(),
    "clamp, keywords": lambda x: x.clamp(min=-0.2, max=0.4),
    "mean of all": lambda x: x - x.mean() + x.std(unbiased=False) * x,
    "tensor operators": lambda x: (-x).abs().sqrt() + (x @ W44.T).T.mT.reshape(2, 3, 4),
    "views by getter": lambda x: x.mT.contiguous().mT + x.data,
    "cosine": lambda x: F.cosine_similarity(x, V4.expand_as(x), dim=-1),
    "addcdiv and lerp": lambda x: torch.addcdiv(x, x, x.abs() + 1, value=0.5) + torch.lerp(x, V4.expand_as(x), 0.3),
    "gumbel-free gating": lambda x: F.glu(torch.cat([x, x * 2], -1), -1) + F.tanhshrink(x) + F.softsign(x),
    "local response": lambda x: F.local_response_norm(x, 2),
    "instance norm": lambda x: F.instance_norm(x, weight=V4[:3], bias=V4[:3]) * V4,
    "types taken from the input": lambda x: x @ W44.float().type_as(x) + V4.float().to(x) * torch.ones_like(x),
    "mask that depends on the input": lambda x: F.scaled_dot_product_attention(x, x * 2, x, attn_mask=x @ x.mT),
    "clamp between the input and a constant": lambda x: torch.clamp(x, min=x.flip(-1) - 0.1, max=V4 * 0.2),
    "exp of a mask": lambda x: x.masked_fill(x > 0.5, float("-inf")).exp() + x,
    "einsum, ellipsis": lambda x: torch.einsum("...j,jk->...k", x, W44) + V4,
    "cosine, broadcast": lambda x: F.cosine_similarity(x1=x, x2=V4, dim=-1),
    "attention, causal, three axes": lambda x: F.scaled_dot_product_attention(x, x, value=x, is_causal=True),
    "indices where": lambda x: x[torch.where(x > -9)[0]] + 1,
    "mean that ignores": lambda x: x.masked_fill(x > 0.5, float("nan")).nanmean(-1),
    "max unpooling": lambda x: F.max_unpool2d(*F.max_pool2d(x.unsqueeze(1), (1, 2), return_indices=True), (1, 2)) + 1,
    "order statistics": lambda x: torch.quantile(x, 0.3, dim=-1) + x.median(-1).values + x.kthvalue(2, -1).values,
    "hypotenuse": lambda x: torch.hypot(x, x.flip(-1) * 2),
    "sampling at learned places": lambda x: F.grid_sample(
        x.unsqueeze(1), F.affine_grid(x[:, :2, :3].tanh(), (2, 1, 3, 4), align_corners=False), align_corners=False
    ),
    "regions of learned places": lambda x: _roi_align(x.unsqueeze(1), x[:, 0].sigmoid().cumsum(-1)),
    "in double and single": lambda x: (x.float() * 2).double().to(torch.float64),
}  # fmt: skip


def _roi_align(features, boxes):
    ops = pytest.importorskip("torchvision.ops")
    return ops.roi_align(features, torch.cat([torch.arange(2.0).double()[:, None], boxes], 1), 2)


@pytest.mark.parametrize("form", CALL_FORMS)
@pytest.mark.parametrize("rules", ["hilrp", "attnlrp", "epsilon"])
def test_call_forms(form, rules):
    """Exact value and closed books, at every operation, for one input of shape ``[2, 3, 4]`` taken as one sample."""
    model, weights = Apply(lambda x: CALL_FORMS[form](x[0]).flatten().unsqueeze(0)).eval(), torch.randn(1000).double()
    x = torch.randn(1, 2, 3, 4).double()
    found = hilrp.explain(model, x, lambda out: out @ weights[: out.shape[1]] + 1, rules=rules, itemised=True)
    assert torch.equal(found.output, model(x))
    limit = 1e-6 if "single" in form else 1e-10
    assert float(found.ledger.residual) < limit
    assert float(found.ledger.leak) < limit
