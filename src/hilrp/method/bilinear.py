"""Bilinear mixing (Definition 2): products of factors that all depend on the input.

``cp`` (conservation-preserving): the factor of the lowest gate level carries the relevance, the others are held
fixed. ``uniform``: each of the n factors gets ``1/n``. Factors of equal level always share evenly. Written
for n factors, since einsum has them; the products that attention uses have two.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hilrp.method import linear
from hilrp.method.autograd import linearised, scale_gradient
from hilrp.method.call import Call, Level
from hilrp.method.normalisation import stop
from hilrp.util.nested import map_tensors
from hilrp.util.replaceable import Replaceable


def mix(call: Call) -> Tensor:
    """matmul, einsum and kin: a linear map if one factor depends on the input, else bilinear mixing."""
    if sum(map(call.varies, call.operands)) == 1:
        return linear.weighted(call)
    return product(call)


def mixed_level(call: Call) -> Level | None:
    """Attention weights make mixed values of a signal.

    ``q (softmax(k)^T v)`` is ``(q softmax(k)^T) v`` in another order: the values carry, and the query is part of the
    weights.
    """
    levels = [call.level(t) for t in call.operands if call.varies(t)]
    mixed = len(levels) > 1 and max(levels) is Level.ATTENTION and min(levels) <= Level.SIGNAL
    return Level.VALUE if mixed else None


def ranked(levels: list[Level], elementwise: bool) -> list[Level]:
    """Levels as a product compares them. Queries meet mixed values in a contraction; elementwise, both are signals."""
    return [max(level, Level.SIGNAL) for level in levels] if elementwise else levels


def layer(call: Call) -> Tensor:
    """Linear layers and convolutions; bilinear where the weight itself depends on the input (dynamic filters)."""
    x, weight, bias = (call.argument(i, name) for i, name in enumerate(("input", "weight", "bias")))
    if not call.varies(weight) and (bias is None or not call.varies(bias)):
        return linear.weighted(call)
    options = {name: value for name, value in call.kwargs.items() if name not in ("input", "weight", "bias")}
    y = product(replace(call, args=(x, weight, None, *call.args[3:]), kwargs=options))
    if bias is None:
        return y
    y = linearised(y + linear.along_channels(call, bias), call.value())
    if not bias.requires_grad:
        call.book(y, linear.along_channels(call, bias), call.kind([bias], "bias"))
    return y


def multiply(call: Call) -> Tensor:
    """Elementwise product. With a constant it has one contribution per output: the native backward is exact."""
    if sum(map(call.varies, call.operands)) == 1:
        y: Tensor = call.run()
        return y
    return product(call)


def product(call: Call) -> Tensor:
    """``y = u v``: ``R_u = R_v = R_y / 2`` (uniform), or all of it to the factor of the lower level (cp)."""
    carriers = call.carriers
    if not carriers:
        return stop(call)
    if call.rules.attention == "cp":
        levels = ranked([call.level(t) for t in carriers], elementwise=call.name == "mul")
        carriers = [t for t, level in zip(carriers, levels, strict=True) if level == min(levels)]
    chosen = {id(t) for t in carriers}
    y: Tensor = call.run(lambda t: t if id(t) in chosen or not t.requires_grad else t.detach())
    if call.rules.attention == "uniform":
        return _even_split(call, y, len(carriers))
    return scale_gradient(y, 1 / len(carriers))


def _even_split(call: Call, y: Tensor, carriers: int) -> Tensor:
    # Attention weights have no graph: their part stays with them and is booked as such. Other gates without a graph
    # are statistics (the divisor of a norm), which have no part.
    weights = sum(not t.requires_grad and call.level(t) is Level.ATTENTION for t in call.operands)
    out = scale_gradient(y, 1 / (carriers + weights))
    if weights:
        call.book(out, y.detach() * (weights / (carriers + weights)), "gate")
    return out


def attention(call: Call) -> Tensor:
    """``softmax(q k^T) v`` in one fused call: the weights are the gate, the values the signal.

    cp: ``q`` and ``k`` are held fixed. uniform: the weights keep their half. attnlrp: half to the values, and
    the other half through the softmax to ``q`` and ``k``, a quarter each. The kernel stays fused throughout.
    """
    q, k, v = operands = [call.argument(i, name) for i, name in enumerate(("query", "key", "value"))]
    scored = [t for t in (q, k) if call.varies(t)]
    if call.rules.attention == "attnlrp":
        part_v = 0.5 if scored and call.varies(v) else float(call.varies(v))
        part_qk = (1 - part_v) / max(len(scored), 1)
        y = attend(call, scale_gradient(q, part_qk), scale_gradient(k, part_qk), scale_gradient(v, part_v))
        constant = _taylor_term(call, operands, part_v * v.requires_grad, part_qk * (q.requires_grad + k.requires_grad))
        call.book(y, constant, "softmax Taylor term")
        return y
    y = attend_fixed(call, q.detach(), k.detach(), v)
    if call.rules.attention == "uniform" and scored:
        y = scale_gradient(y, 0.5)
        call.book(y, y.detach() / 2, "gate")
    return y


@Replaceable
def attend_fixed(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to values under fixed weights."""
    return attend(call, q, k, v)


def attend(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The call's own kernel on other queries, keys and values."""
    options = {name: value for name, value in call.kwargs.items() if name not in ("query", "key", "value")}
    # A mask that depends on the input belongs to the weights.
    rest, options = map_tensors(Tensor.detach, (call.args[3:], options))
    y: Tensor = call.func(q, k, v, *rest, **options)
    return y


def _taylor_term(call: Call, operands: list[Tensor], part_v: float, part_qk: float) -> Tensor:
    # The values carry on their part of y = A v; q and k each carry theirs of the first-order term J s, where
    # (J s)_i = sum_j A_ij (s_ij - sum_k A_ik s_ik) v_j. What remains of y is the constant term of the expansion.
    q, k, v = (t.detach() for t in operands)
    if call.kwargs.get("enable_gqa"):
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scale = call.argument(6, "scale")
    logits = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ k.transpose(-2, -1))
    masked = logits
    if call.argument(5, "is_causal", False):
        masked = masked.masked_fill(~torch.ones_like(logits, dtype=torch.bool).tril(), float("-inf"))
    mask = call.argument(3, "attn_mask")
    if mask is not None:
        masked = masked.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else masked + mask.detach()
    weights = masked.softmax(-1)
    first_order = weights * (logits - (weights * logits).sum(-1, keepdim=True)) @ v
    return (1 - part_v) * (weights @ v) - part_qk * first_order


def softmax(call: Call) -> Tensor:
    """Attention weights. A gate that keeps what reaches it (cp, uniform), or passes it on by its Taylor expansion."""
    if call.rules.attention != "attnlrp":
        return stop(call)
    y: Tensor = call.run()
    dim = call.argument(1, "dim", -1)
    # A masked logit is -inf and its weight 0: it has no part in the expansion.
    s, a = call.argument(0, "input").detach().nan_to_num(neginf=0.0), y.detach()
    # The first-order term is the Jacobian times the logits; what remains of y is the constant term.
    call.book(y, a - a * (s - (a * s).sum(dim, keepdim=True)), "softmax Taylor term")
    return y


def sample(call: Call) -> Tensor:
    """grid_sample: bilinear sampling is linear in the sampled tensor; the sampling grid is the gate."""
    grid = call.argument(1, "grid")
    y: Tensor = call.run(lambda t: t.detach() if t is grid else t)
    return y


def pooled_regions(call: Call) -> Tensor:
    """roi_align: linear in the feature map; the boxes say where to read, and are held fixed."""
    y: Tensor = call.func(call.args[0], call.args[1].detach(), *call.args[2:], **call.kwargs)
    return y


def deformable(call: Call) -> Tensor:
    """Deformable convolution: a weighted sum at learned offsets, which are held fixed with their mask."""
    # torchvision::deform_conv2d(input, weight, offset, mask, bias, ...)
    x, weight, offset, mask, bias, *geometry = call.args

    def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y: Tensor = call.func(x, weight, offset.detach(), mask.detach(), bias, *geometry)
        return y

    return linear.weighted(replace(call, func=convolve, name="conv_deformable", args=(x, weight, bias), kwargs={}))
