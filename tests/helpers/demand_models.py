"""One layer that makes queries, keys and values, and three that do: models of which relevance is compared."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hilrp
from hilrp.method.rules import Rules

F64 = torch.float64
#: Samples, tokens, heads, features of a head, features.
B, N, H, D = 2, 8, 3, 4
C = H * D
#: A layer that is wider than its input runs its second product in the backward pass, and one that isn't, in the forward
#: pass.
WIDE, NARROW = 10, 40
RULES = {
    "gamma": Rules(),
    "epsilon": Rules(linear="epsilon"),
    "uniform": Rules(attention="uniform"),
    "attnlrp": Rules(attention="attnlrp"),
}


def heads(t: Tensor) -> Tensor:
    return t.unflatten(-1, (-1, D)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def attend_written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * D**-0.5) @ k.transpose(-2, -1)).softmax(-1).matmul(v).transpose(1, 2).flatten(2)


#: How models take queries, keys and values ``[B, H, N, D]`` from one output ``[B, N, 3 C]``.
FORMS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "chunk": lambda y: tuple(map(heads, y.chunk(3, -1))),
    "split": lambda y: tuple(map(heads, y.split([C, C, C], dim=-1))),
    "slices": lambda y: (heads(y[..., :C]), heads(y[..., C : 2 * C]), heads(y[..., 2 * C :])),
    "narrow": lambda y: tuple(heads(y.narrow(2, i * C, C)) for i in range(3)),
    "reshape, permute, unbind": lambda y: y.reshape(*y.shape[:2], 3, H, D).permute(2, 0, 3, 1, 4).unbind(0),
    "view, select": lambda y: tuple(y.view(*y.shape[:2], 3, H, D).select(2, i).transpose(1, 2) for i in range(3)),
    "unflatten, movedim, index": lambda y: tuple(
        heads(y.unflatten(-1, (3, C)).movedim(2, 0).unsqueeze(0)[:, i].squeeze(0)) for i in range(3)
    ),
}


def interleaved(y: Tensor) -> tuple[Tensor, ...]:
    """``[H, 3, D]``: the values are not next to each other."""
    return y.view(*y.shape[:2], H, 3, D).transpose(1, 2).unbind(3)


class Projection(nn.Module):
    """A layer of ``3 C`` features, one or made of three, after another layer, and what is made of it."""

    def __init__(self, use: Callable[[Tensor], Tensor], width: int, bias: bool, windows: bool = False) -> None:
        super().__init__()
        self.use, self.windows = use, windows
        self.stem = nn.Linear(6, width)
        self.parts = nn.ModuleList([nn.Linear(width, 3 * C, bias)])

    def apart(self) -> Projection:
        """The same with three layers."""
        found = Projection(self.use, self.stem.out_features, False, self.windows)
        found.stem = self.stem
        (whole,) = self.parts
        found.parts = nn.ModuleList(nn.Linear(whole.in_features, C, whole.bias is not None) for _ in range(3))
        for i, part in enumerate(found.parts):
            part.weight = nn.Parameter(whole.weight[i * C : (i + 1) * C].detach().clone())
            if whole.bias is not None:
                part.bias = nn.Parameter(whole.bias[i * C : (i + 1) * C].detach().clone())
        return found.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        if self.windows:
            x = x.unflatten(1, (2, N // 2)).flatten(0, 1)
        found = [part(x) for part in self.parts]
        y = self.use(found[0] if len(found) == 1 else torch.cat(found, -1))
        return y.unflatten(0, (B, 2)).flatten(1, 2) if self.windows else y


def pair(use: Callable[[Tensor], Tensor], width: int = WIDE, bias: bool = True, windows: bool = False):
    model = Projection(use, width, bias, windows).to(F64).eval()
    return model, model.apart().to(F64)


def weighted(out: Tensor) -> Tensor:
    """A score that tells all values of the output apart."""
    flat = out.flatten(1)
    return (flat * torch.linspace(-1, 2, flat.shape[1], dtype=flat.dtype)).sum(1)


def explained(model: nn.Module, x: Tensor, rules: str | Rules = "hilrp", **options):
    return hilrp.explain(model, x, options.pop("target", weighted), rules, stages=None, **options)


def check(use: Callable[[Tensor], Tensor], rules: Rules, width: int, bias: bool = True, **options) -> None:
    """One layer and three give the same relevance and the same books, which close."""
    models = pair(use, width, bias, options.pop("windows", False))
    x = torch.randn(B, N, 6, dtype=F64)
    one, three = (explained(model, x, rules, **options) for model in models)
    torch.testing.assert_close(one.output, three.output, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.relevance, three.relevance, rtol=1e-11, atol=1e-12)
    assert one.relevance.abs().sum() > 0.1
    assert float(one.ledger.residual.max()) <= 1e-12
    torch.testing.assert_close(one.ledger.constants, three.ledger.constants, rtol=1e-11, atol=1e-12)
