"""Parity with AttnLRP (arXiv 2402.05602): its rules for language models, written out as gradient times input.

Written from the paper's equations, in plain torch: the epsilon rule in its limit (Eq. 8) for linear layers, sums and
rotations is the gradient itself; the identity rule (Eq. 9) for activations hands on ``f(x) / x``; the uniform rule for
products of two parts that both depend on the input (Prop. 3.3) gives each a half; softmax has its Taylor expansion
(Prop. 3.1), of which the part that flows on is the gradient; a norm's divisor is held fixed (Prop. 3.4).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.answer_models import text_model

IDS = torch.tensor([[5, 9, 17, 22, 30]])
ANSWER = [11, 33, 8]
RULES = hilrp.Rules(linear="epsilon", attention="attnlrp")


class Half(torch.autograd.Function):
    """The same value, and half of the gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g / 2


half = Half.apply


def matmul(a, b):
    return half(a) @ half(b)


def identity(f, x):
    """An activation under the identity rule: a factor that is held fixed."""
    return x * (f(x) / x).detach()


def attention(q, k, v, heads):
    def split(x):
        return x.unflatten(1, (heads, -1)).transpose(0, 1)

    q, k, v = split(q), split(k), split(v)
    mask = torch.full((q.shape[1], q.shape[1]), -torch.inf, dtype=q.dtype).triu(1)
    weights = (matmul(q, k.mT) / q.shape[-1] ** 0.5 + mask).softmax(-1)
    return matmul(weights, v).transpose(0, 1).flatten(1)


def gpt2(model, x):
    """Logits ``[tokens, vocabulary]`` of embeddings ``[tokens, features]``."""

    def norm(x, layer):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + layer.eps).rsqrt().detach()
        return centred * scale * layer.weight + layer.bias

    x = x + model.transformer.wpe.weight[: len(x)]
    for block in model.transformer.h:
        a = norm(x, block.ln_1) @ block.attn.c_attn.weight + block.attn.c_attn.bias
        x = x + attention(*a.chunk(3, -1), 4) @ block.attn.c_proj.weight + block.attn.c_proj.bias
        a = norm(x, block.ln_2) @ block.mlp.c_fc.weight + block.mlp.c_fc.bias
        x = x + identity(block.mlp.act, a) @ block.mlp.c_proj.weight + block.mlp.c_proj.bias
    return norm(x, model.transformer.ln_f) @ model.lm_head.weight.T


def llama(model, x):
    def norm(x, layer):
        return x * (x.square().mean(-1, keepdim=True) + layer.eps).rsqrt().detach() * layer.weight

    angles = torch.arange(len(x)).double()[:, None] * model.model.rotary_emb.inv_freq.double()
    turn = torch.cat([angles, angles], 1)

    def rotated(x):
        x = x.unflatten(1, (-1, 8))
        swapped = torch.cat([-x[..., 4:], x[..., :4]], -1)
        return (x * turn.float().cos().double()[:, None] + swapped * turn.float().sin().double()[:, None]).flatten(1)

    def repeated(x):
        return x.unflatten(1, (2, 1, 8)).expand(-1, 2, 2, 8).flatten(1)

    for layer in model.model.layers:
        a, own = norm(x, layer.input_layernorm), layer.self_attn
        q, k, v = (a @ w.weight.T for w in (own.q_proj, own.k_proj, own.v_proj))
        x = x + attention(rotated(q), repeated(rotated(k)), repeated(v), 4) @ own.o_proj.weight.T
        a, own = norm(x, layer.post_attention_layernorm), layer.mlp
        gated = half(identity(F.silu, a @ own.gate_proj.weight.T)) * half(a @ own.up_proj.weight.T)
        x = x + gated @ own.down_proj.weight.T
    return norm(x, model.model.norm) @ model.lm_head.weight.T


def model_of(name):
    """GPT-2's activation is written out in transformers, and then a product like any other: torch's is one."""
    model = text_model(name)
    for block in model.transformer.h if name == "gpt2" else ():
        block.mlp.act = nn.GELU("tanh")
    return model


@pytest.mark.parametrize(("name", "written"), [("gpt2", gpt2), ("llama", llama)])
def test_relevance_of_words_is_that_of_attnlrp(name, written):
    model = model_of(name)
    found = hilrp.explain_answer(
        model, inputs={"input_ids": IDS}, answer=ANSWER, rules=RULES, against="runner-up", audit="warn"
    )
    ids = torch.cat([IDS[0], torch.tensor(ANSWER[:-1])])
    x = model.get_input_embeddings().weight[ids].detach().requires_grad_()
    logits = written(model, x)[4:]
    torch.testing.assert_close(logits, found.explanation.output, rtol=1e-6, atol=1e-6)
    for i, word in enumerate(found.words):
        others = logits[i].detach().clone()
        others[ANSWER[i]] = -torch.inf
        score = logits[i, ANSWER[i]] - logits[i, others.argmax()]
        (gradient,) = torch.autograd.grad(score, x, retain_graph=True)
        theirs = (x * gradient).sum(1).detach()
        ours = torch.cat([word.prompt, word.earlier])
        torch.testing.assert_close(ours, theirs[: len(ours)], rtol=1e-5, atol=1e-7)
        assert float(theirs.abs().max()) > 1e-3
