"""Each form relative to a reference against its textbook version in float64: the relevance of every input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hilrp
from helpers.layers import LAYERS
from helpers.nets import Apply
from hilrp.method.rules import Rules
from hilrp.verify import textbook_secant as textbook
from hilrp.verify.textbook import matrix_of

F64 = torch.float64
EXACT = Rules(linear="epsilon", constants="reference")


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


def pairs(count: int, *shape: int) -> list[tuple[Tensor, Tensor]]:
    """Operands on the input and on the reference."""
    return [(numbers(*shape), numbers(*shape)) for _ in range(count)]


def explained(
    function: Callable[..., Tensor], operands: Sequence[tuple[Tensor, Tensor]], gradient: Tensor, rules: Rules = EXACT
) -> list[Tensor]:
    """The relevance of each operand of a model that is one function, for a score with that gradient."""
    model = function if isinstance(function, nn.Module) else Apply(function)
    x, x0 = (tuple(pair[i][None] for pair in operands) for i in (0, 1))
    if len(operands) == 1:
        (x,), (x0,) = x, x0
    found = hilrp.explain(
        model.eval(), x, lambda y: (y.reshape(1, -1) * gradient.flatten()).sum(1), rules, reference=x0, stages=None
    )
    kept = {name: value for name, value in found.ledger.entries.items() if name != "reference"}
    assert all(float(value.abs().max()) < 1e-12 for value in kept.values()), kept
    return [t[0] for t in (found.relevance if len(operands) > 1 else [found.relevance])]


def same(ours: Tensor, theirs: Tensor) -> None:
    assert float(theirs.abs().sum()) > 1e-6
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def check(
    function: Callable[..., Tensor],
    operands: Sequence[tuple[Tensor, Tensor]],
    slopes: Sequence[Tensor],
    **options: Rules,
) -> None:
    """The engine's relevance is the textbook's, whose slopes carry all of the difference."""
    y, y0 = (function(*(pair[i][None] for pair in operands))[0].detach().flatten() for i in (0, 1))
    moved = sum(m @ (a - a0).flatten() for m, (a, a0) in zip(slopes, operands, strict=True))
    torch.testing.assert_close(moved, y - y0, rtol=1e-10, atol=1e-10)
    gradient = numbers(len(y))
    for ours, m, (a, a0) in zip(explained(function, operands, gradient, **options), slopes, operands, strict=True):
        same(ours, textbook.relevance(gradient, m, a, a0))


# Weighted sums --------------------------------------------------------------------------------------------------------

GAMMAS = {
    "epsilon": (EXACT, 0.0),
    "gamma": (Rules(gamma=0.25, constants="reference"), 0.25),
    "large gamma": (Rules(gamma=3.0, constants="reference"), 3.0),
    "bounded": (Rules(linear="bounded", bound=1.2, constants="reference"), textbook.bounded(1.2)),
    "loosely bounded": (Rules(linear="bounded", bound=4.0, constants="reference"), textbook.bounded(4.0)),
}


@pytest.mark.parametrize("rule", GAMMAS)
@pytest.mark.parametrize("name", LAYERS)
def test_weighted_sums(name, rule):
    make, shape = LAYERS[name]
    layer, (rules, gamma) = make().double().eval(), GAMMAS[rule]
    (operand,) = pairs(1, *shape)
    at_zero = layer(torch.zeros(1, *shape, dtype=F64))
    with torch.no_grad():
        matrix = matrix_of(lambda t: layer(t) - at_zero, shape)
    check(layer, [operand], [textbook.weighted(matrix, *operand, gamma)], rules=rules)


@pytest.mark.parametrize("rule", GAMMAS)
def test_products_with_a_constant(rule):
    (rules, gamma), constant, ((x, x0),) = GAMMAS[rule], numbers(5, 4), pairs(1, 3, 4)
    matrix = matrix_of(lambda t: t @ constant.T, (3, 4))
    check(lambda t: t @ constant.T, [(x, x0)], [textbook.weighted(matrix, x, x0, gamma)], rules=rules)


# Products and quotients -----------------------------------------------------------------------------------------------


def test_products():
    u, v = pairs(2, 7)
    check(torch.mul, [u, v], textbook.product(*u, *v))


@pytest.mark.parametrize("function", [torch.matmul, lambda u, v: torch.einsum("bik,bkj->bij", u, v)])
def test_matrix_products(function):
    (u,), (v,) = pairs(1, 3, 4), pairs(1, 4, 2)
    check(function, [u, v], textbook.matrix_product(*u, *v))


def test_convolutions_with_weights_that_vary():
    """A filter of three values slides over six: each output is a sum of products."""
    (x,), (w,) = pairs(1, 1, 6), pairs(1, 1, 3)
    of_x, of_w = torch.zeros(4, 6, dtype=F64), torch.zeros(4, 3, dtype=F64)
    for i in range(4):
        for k in range(3):
            of_x[i, i + k] = (w[0][0, k] + w[1][0, k]) / 2
            of_w[i, k] = (x[0][0, i + k] + x[1][0, i + k]) / 2
    check(F.conv1d, [x, w], [of_x, of_w])


def test_squares():
    ((x, x0),) = pairs(1, 7)
    check(torch.square, [(x, x0)], [torch.diag(x + x0)])


@pytest.mark.parametrize("sign", [1, -1])
def test_quotients(sign):
    """Of divisors that keep their sign, and of those that change it."""
    (a, a0), (b, b0) = pairs(2, 7)
    b, b0 = b.abs() + 0.1, sign * (b0.abs() + 0.1)
    check(torch.div, [(a, a0), (b, b0)], textbook.quotient(a, a0, b, b0))


def test_a_constant_divided():
    ((b, b0),) = pairs(1, 7)
    b, b0, one = b.abs() + 0.1, b0.abs() + 0.1, torch.ones(7, dtype=F64)
    check(lambda t: 1 / t, [(b, b0)], textbook.quotient(one, one, b, b0)[1:])


@pytest.mark.parametrize("reciprocal", [torch.rsqrt, lambda s: s**-0.5, lambda s: 1 / s.sqrt()])
def test_products_with_a_reciprocal(reciprocal):
    """``a * rsqrt(s)`` is ``a / sqrt(s)``, with the slope of the square root."""
    (a, a0), (s, s0) = pairs(2, 7)
    s, s0 = s.abs() + 0.1, s0.abs() + 0.01
    of_a, of_root = textbook.quotient(a, a0, s.sqrt(), s0.sqrt())
    of_s = textbook.elementwise(torch.sqrt, lambda t: 0.5 / t.sqrt(), s, s0)
    check(lambda a, s: a * reciprocal(s), [(a, a0), (s, s0)], [of_a, of_root @ of_s])


# Functions of single values, norms ------------------------------------------------------------------------------------


def density(t: Tensor) -> Tensor:
    return (-t.square() / 2).exp() / math.sqrt(2 * math.pi)


def cumulative(t: Tensor) -> Tensor:
    return (1 + torch.erf(t / math.sqrt(2))) / 2


def logistic(t: Tensor) -> Tensor:
    return 1 / (1 + (-t).exp())


#: Functions as torch has them, as the textbook writes them, and their derivatives.
FUNCTIONS = {
    "relu": (F.relu, lambda t: t * (t > 0), lambda t: (t > 0).double()),
    "abs": (torch.abs, lambda t: (t * t).sqrt(), torch.sign),
    "gelu": (F.gelu, lambda t: t * cumulative(t), lambda t: cumulative(t) + t * density(t)),
    "silu": (F.silu, lambda t: t * logistic(t), lambda t: logistic(t) * (1 + t * (1 - logistic(t)))),
    "sigmoid": (torch.sigmoid, logistic, lambda t: logistic(t) * (1 - logistic(t))),
    "tanh": (torch.tanh, lambda t: 2 * logistic(2 * t) - 1, lambda t: 1 / torch.cosh(t) ** 2),
    "exp": (torch.exp, lambda t: math.e**t, lambda t: math.e**t),
    "cube": (lambda t: t**3, lambda t: t * t * t, lambda t: 3 * t * t),
    "clamp": (
        lambda t: t.clamp(-0.5, 0.5),
        lambda t: ((t + 0.5).abs() - (t - 0.5).abs()) / 2,
        lambda t: 1.0 * (t.abs() < 0.5),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_single_values(name):
    """Behind a layer, whose inputs differ also where its outputs agree: there the derivative counts."""
    function, written, slope = FUNCTIONS[name]
    layer = nn.Linear(5, 6).double()
    x, x0 = torch.tensor([[1, 2, -1, 0, 1], [0, 0, 1, 1, 1]], dtype=F64)
    with torch.no_grad():  # whole numbers, so that the first two units have the very same value on both
        layer.weight[:2] = torch.tensor([[2, -1, 0, 0, 3], [0, 1, 2, -2, 1]])
        layer.bias[:2] = torch.tensor([-2.75, 0.75])
        a, a0 = layer(x), layer(x0)
        slopes = textbook.elementwise(written, slope, a, a0) @ layer.weight
    assert torch.equal(a[:2], a0[:2])
    check(lambda t: function(layer(t)), [(x, x0)], [slopes.detach()])


@pytest.mark.parametrize("function", [lambda t: t.norm(dim=-1), lambda t: torch.linalg.vector_norm(t, dim=-1)])
def test_euclidean_norms(function):
    ((x, x0),) = pairs(1, 6)
    check(function, [(x, x0)], [textbook.norm(x, x0)])


@pytest.mark.parametrize("spread", [1.0, 1e-6, 0.0])
def test_layer_norm(spread):
    """Also where the reference is nearly or wholly of one value."""
    scale, shift = numbers(6), numbers(6)
    ((x, x0),) = pairs(1, 6)
    x0 = 0.3 + spread * x0
    check(
        lambda t: F.layer_norm(t, (6,), scale, shift, 1e-5), [(x, x0)], [textbook.normalised(x, x0, 1e-5, scale=scale)]
    )


def test_rms_norm():
    scale, ((x, x0),) = numbers(6), pairs(1, 6)
    slopes = textbook.normalised(x, x0, 1e-3, centre=False, scale=scale)
    check(lambda t: F.rms_norm(t, (6,), scale, 1e-3), [(x, x0)], [slopes])


def test_norms_of_groups():
    """Six channels of two values in three groups, a scale for each channel; and each channel for itself."""
    scale, ((x, x0),) = numbers(6), pairs(1, 6, 2)
    for groups, function in (
        (3, lambda t: F.group_norm(t, 3, scale, eps=1e-5)),
        (6, lambda t: F.instance_norm(t, weight=scale, eps=1e-5)),
    ):
        rows = zip(
            x.reshape(groups, -1), x0.reshape(groups, -1), scale.repeat_interleave(2).reshape(groups, -1), strict=True
        )
        check(function, [(x, x0)], [torch.block_diag(*(textbook.normalised(*r[:2], 1e-5, scale=r[2]) for r in rows))])


# Softmax and attention ------------------------------------------------------------------------------------------------


def test_softmax():
    rows = pairs(3, 5)
    x, x0 = (torch.stack(part) for part in zip(*rows, strict=True))
    check(lambda t: t.softmax(-1), [(x, x0)], [torch.block_diag(*(textbook.softmax(*row) for row in rows))])


def test_softmax_where_scores_agree():
    s = numbers(5)
    s0 = torch.cat([s[:3], numbers(2)])
    check(lambda t: t.softmax(-1), [(s, s0)], [textbook.softmax(s, s0)])


@pytest.mark.parametrize("fused", [True, False])
def test_attention(fused):
    q, k, v = pairs(3, 4, 3)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if fused:
            return F.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(-2, -1) * 3**-0.5).softmax(-1) @ v

    gradient = numbers(4, 3)
    for ours, theirs in zip(explained(attend, [q, k, v], gradient), textbook.attention(q, k, v, gradient), strict=True):
        same(ours, theirs)


# Selections -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [lambda t: t.amax(-1), lambda t: t.max(-1).values, lambda t: -(-t).amin(-1)])
def test_maxima(function):
    for _ in range(5):
        ((x, x0),) = pairs(1, 6)
        check(function, [(x, x0)], [textbook.selected(x, x0)])


@pytest.mark.parametrize("rank", range(4))
def test_places_in_an_order(rank):
    """What the two places can't carry goes to all along the axis."""
    for _ in range(5):
        ((x, x0),) = pairs(1, 4)
        slopes = textbook.selected(x, x0, rank)
        check(lambda t: t.sort(-1, descending=True).values[..., rank], [(x, x0)], [slopes])
        check(lambda t: t.topk(4, -1).values[..., rank], [(x, x0)], [slopes])


def test_max_pooling():
    """Windows of two by two with a step of one overlap."""
    ((x, x0),) = pairs(1, 1, 4, 4)
    windows = [[4 * (i + k) + j + l for k in range(2) for l in range(2)] for i in range(3) for j in range(3)]
    check(lambda t: F.max_pool2d(t, 2, stride=1), [(x, x0)], [textbook.pooled(x, x0, windows)])


# Together -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.25])
def test_operations_one_after_the_other(gamma):
    """A layer, an activation, a norm and a layer: the slopes of the whole are the product of theirs."""
    first, second, layer_norm = nn.Linear(5, 7).double(), nn.Linear(7, 3).double(), nn.LayerNorm(7).double()
    nn.init.normal_(layer_norm.weight)
    model = nn.Sequential(first, nn.GELU(), layer_norm, second)
    ((x, x0),) = pairs(1, 5)
    with torch.no_grad():
        h, h0 = first(x), first(x0)
        a, a0 = F.gelu(h), F.gelu(h0)
        n, n0 = layer_norm(a), layer_norm(a0)
        _, written, slope = FUNCTIONS["gelu"]
        slopes = textbook.weighted(second.weight, n, n0, gamma)
        slopes = slopes @ textbook.normalised(a, a0, layer_norm.eps, scale=layer_norm.weight)
        slopes = slopes @ textbook.elementwise(written, slope, h, h0)
        slopes = slopes @ textbook.weighted(first.weight, x, x0, gamma)
    check(model, [(x, x0)], [slopes], rules=Rules(gamma=gamma, constants="reference"))
