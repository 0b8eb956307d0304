"""Layers that hand back to the features that relevance comes back to, and no others.

What is multiplied, and that nothing is lost by it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import hilrp
from helpers.demand_models import F64, FORMS, NARROW, RULES, WIDE, B, C, N, attend, attend_written, explained, pair
from hilrp.method.fast.linear_layers import Demand
from hilrp.method.rules import Rules

# What is multiplied --------------------------------------------------------------------------------------------------


class Products(TorchDispatchMode):
    """Notes the sizes of matrices that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[set[int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__.strip("_") in ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear"):
            self.found.append({size for t in args if isinstance(t, Tensor) for size in t.shape})
        return func(*args, **(kwargs or {}))

    def with_size(self, size: int) -> int:
        return sum(size in sizes for sizes in self.found)


def products(model: nn.Module, rules: str | Rules, **options) -> Products:
    mode = Products()
    x = torch.randn(B, N, 6, dtype=F64)
    with mode:
        explained(model, x, rules, audit="off", **options)
    return mode


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mix", [attend, attend_written])
@pytest.mark.parametrize(
    ("rules", "width", "forward", "backward"),
    # The layer itself, and sizes by sizes; then sizes by sizes, and two products for the gradient, or one.
    [("gamma", WIDE, 1, 3), ("gamma", NARROW, 2, 2), ("epsilon", WIDE, 1, 1), ("epsilon", NARROW, 1, 1)],
)
def test_values_alone_are_multiplied(form, mix, rules, width, forward, backward):
    model = pair(lambda y: mix(*FORMS[form](y)), width)[0]
    found = products(model, RULES[rules])
    assert found.with_size(3 * C) == forward
    assert found.with_size(C) == backward


def test_what_else_gets_relevance_is_multiplied_as_well():
    """Queries next to the values would be a third more.

    Here they are at the other end, and the interval is all of it.
    """
    forms = {"q": lambda q, k, v: attend(q, k, v) + q.transpose(1, 2).flatten(2), "v": attend}
    for name, size in (("q", 3 * C), ("v", C)):
        model = pair(lambda y, name=name: forms[name](*FORMS["chunk"](y)))[0]
        assert products(model, RULES["epsilon"]).found[-2] >= {size, WIDE}

    beside = pair(lambda y: attend(*FORMS["chunk"](y)) + y[..., C : 2 * C])[0]
    assert products(beside, RULES["epsilon"]).with_size(2 * C) == 1
    assert products(pair(lambda y: attend(*FORMS["chunk"](y)))[0], RULES["attnlrp"]).with_size(3 * C) == 4


def test_a_score_that_is_a_part_of_the_output():
    """The score is a view of what a layer returns, of which other features are used for what nobody asks."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 9).to(F64)

        def forward(self, x):
            y = self.layer(x)
            return y, torch.sin(y[:, 4:6]), y[:, 7].exp()

    model, x = Head().eval(), torch.randn(3, 6, dtype=F64)
    weight, bias = model.layer.weight.detach(), model.layer.bias.detach()
    for columns in (0, 3, 8):
        mode = Products()
        with mode:
            found = hilrp.explain(model, x, lambda out, i=columns: out[0][:, i], "epsilon", audit="off", stages=None)
        assert mode.found[-1] == {3, 1, 6}
        torch.testing.assert_close(found.relevance, x * weight[columns])
        torch.testing.assert_close(found.ledger.entries["bias"], bias[columns].expand(3))


# The interval --------------------------------------------------------------------------------------------------------


def random_view(t: Tensor, draw: Callable[[int, int], int]) -> Tensor:
    """A view of a view of a view."""
    for _ in range(draw(1, 5)):
        axis = draw(0, t.ndim)
        size = t.shape[axis]
        match draw(0, 8):
            case 0 if t.ndim > 1:
                t = t.transpose(axis, draw(0, t.ndim))
            case 1:
                t = t.narrow(axis, start := draw(0, size), draw(1, size - start + 1))
            case 2 if t.ndim > 1:
                t = t.select(axis, draw(0, size))
            case 3:
                parts = next((n for n in (2, 3) if size % n == 0), 1)
                t = t.unflatten(axis, (parts, size // parts))
            case 4:
                t = t[(slice(None),) * axis + (slice(draw(0, size), None, draw(1, 4)),)]
            case 5:
                t = t.unfold(axis, length := draw(1, size + 1), draw(1, length + 1))
            case 6 if t.ndim > 1:
                t = t.diagonal(dim1=axis, dim2=(axis + 1) % t.ndim)
            case 7 if t.ndim < 6:
                t = t.unsqueeze(axis).expand(*t.shape[:axis], 2, *t.shape[axis:])
    return t


@pytest.mark.parametrize("seed", range(150))
def test_the_interval_holds_all_that_gets_a_gradient(seed):
    """Of random views, by torch's own backward pass."""
    generator = torch.Generator().manual_seed(seed)
    features = (12, 7, 1, 24)[seed % 4]
    root = torch.zeros((3, 4, features)[seed % 2 :], requires_grad=True).clone()
    demand, parts = Demand(features), []
    for _ in range(1 + seed % 3):
        part = random_view(root, lambda low, high: int(torch.randint(low, high, (), generator=generator)))
        assert part.numel() == 0 or part is root or part._base is root
        demand.watch(part, root)
        parts.append(part)
    assert demand.interval == (0, features)
    (g,) = torch.autograd.grad(sum((part * 1.0).sum() for part in parts), root)
    asked = g.reshape(-1, features).any(0).nonzero().flatten()
    first, last = demand.interval
    assert 0 <= first < last <= features
    assert first <= int(asked.min())
    assert int(asked.max()) < last


def test_the_interval_is_no_wider_than_it_must_be():
    root = torch.zeros(2, 5, 12, requires_grad=True).clone()
    for part, interval in [
        (root, (0, 12)),
        (root[..., 3:7], (3, 7)),
        (root[1:, 2:, 3:7].transpose(0, 2), (3, 7)),
        (root.view(2, 5, 3, 4)[:, :, 1].permute(2, 1, 0), (4, 8)),
        (root.view(10, 3, 4)[:, 1:, 2], (6, 11)),
        (root[..., 11].expand(4, 2, 5), (11, 12)),
        (root[:, :, 4:10:3], (4, 8)),
        (root[0, 0, 2:4], (2, 4)),
    ]:
        demand = Demand(12)
        demand.watch(part, root)
        torch.autograd.grad((part * 1.0).sum(), root, retain_graph=True)
        assert demand.interval == interval


def test_who_gets_no_relevance_asks_for_nothing():
    root = torch.zeros(2, 6, requires_grad=True).clone()
    demand = Demand(6)
    for part in root.chunk(3, -1):
        demand.watch(part, root)
    first, second, _ = root.chunk(3, -1)
    demand.watch(second, root)
    torch.autograd.grad((second * 2).sum() + first.detach().sum(), root, retain_graph=True)
    assert demand.interval == (2, 4)
    torch.autograd.grad((second * 2).sum(), root)
    assert demand.interval == (2, 4)


@pytest.mark.parametrize(
    "between", [Tensor.contiguous, lambda y: F.dropout(y, 0.5, False)], ids=["contiguous", "dropout"]
)
def test_what_returns_its_operand_takes_nothing(between):
    """Neither a copy that isn't needed nor dropout in evaluation is a use of the whole output."""
    layer, seen = nn.Linear(8, 24).eval(), []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = layer

        def forward(self, x: Tensor) -> Tensor:
            y = between(self.qkv(x))
            seen.append(y.grad_fn.demand)
            q, k, v = y[:, None].chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v).sum((1, 2))[:, :3]

    hilrp.explain(Model().eval(), torch.randn(2, 5, 8), 1, "hilrp", stages=None)
    assert seen[0].interval == (16, 24)


def test_a_layer_without_outputs():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.empty, self.head = nn.Linear(8, 0), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x) + self.empty(x).sum(-1, keepdim=True)

    model, x = Model().eval(), torch.randn(2, 8)
    assert torch.allclose(hilrp.explain(model, x, 1, stages=None).score, model(x)[:, 1])
