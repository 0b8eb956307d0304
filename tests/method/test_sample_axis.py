"""Where the samples of a batch are, followed through operations: compared with where numbered samples went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hilrp
from hilrp.method.sample_axis import Layout, split_samples
from hilrp.method.table import TABLE

# Operation by operation -----------------------------------------------------------------------------------------------

BATCH = 3


def numbered(shape: tuple[int, ...], layout: Layout) -> Tensor:
    """A tensor in which each value is the number of its sample: ``(i // inner) % batch`` along the axis."""
    along = torch.arange(shape[layout.axis]) // layout.inner % BATCH
    return along.reshape([-1 if axis == layout.axis else 1 for axis in range(len(shape))]).expand(shape).double()


Case = tuple[str, Callable[..., Any], tuple[int, ...], Layout, tuple[Any, ...], dict[str, Any]]
FIRST = Layout(0, 1)
#: A name of the table, the function, the form of its operand, where the samples are in it, and the other arguments.
#: Each function makes of values that are alike the same value.
FOLLOWED: list[Case] = [
    ("flip", torch.flip, (3, 4), FIRST, ([1],), {}),
    ("clone", torch.clone, (4, 6, 2), Layout(1, 2), (), {}),
    ("expand", Tensor.expand, (3, 4), FIRST, (5, 3, 4), {}),
    ("avg_pool2d", F.avg_pool2d, (6, 2, 4, 4), Layout(0, 2), (2,), {}),
    ("narrow", torch.narrow, (3, 4), FIRST, (1, 0, 2), {}),
    ("gather", torch.gather, (3, 2), FIRST, (1, torch.zeros(3, 5, dtype=torch.long)), {}),
    ("view", Tensor.view, (3, 4, 6), FIRST, (12, 6), {}),
    ("view", Tensor.view, (12, 6), Layout(0, 4), (3, 4, 6), {}),
    ("reshape", torch.reshape, (2, 3, 4), Layout(1, 1), ((6, 4),), {}),
    ("reshape", torch.reshape, (2, 3, 4), Layout(1, 1), ((24,),), {}),
    ("flatten", torch.flatten, (3, 2, 4), FIRST, (), {}),
    ("squeeze", torch.squeeze, (1, 3, 4), Layout(1, 1), (0,), {}),
    ("permute", torch.permute, (6, 2, 4), Layout(0, 2), ((2, 1, 0),), {}),
    ("transpose", torch.transpose, (3, 3, 3), Layout(2, 1), (0, 2), {}),
    ("select", torch.select, (4, 3, 2), Layout(1, 1), (0, 1), {}),
    ("mean", torch.mean, (4, 3, 2), Layout(1, 1), (), {"dim": (0, 2)}),
    ("amax", torch.amax, (4, 3, 2), Layout(1, 1), (), {"dim": 0, "keepdim": True}),
    ("max", torch.max, (3, 4), FIRST, (1,), {}),
    ("topk", torch.topk, (2, 3), Layout(1, 1), (1, 0), {}),
    ("getitem", Tensor.__getitem__, (3, 4, 2), FIRST, ((slice(None), [1, 0]),), {}),
    ("getitem", Tensor.__getitem__, (4, 3, 2), Layout(1, 1), (1,), {}),
    ("getitem", Tensor.__getitem__, (4, 3, 2), Layout(1, 1), ((..., 0),), {}),
    ("unfold", Tensor.unfold, (3, 8), FIRST, (1, 4, 2), {}),
    ("repeat", Tensor.repeat, (3, 4), FIRST, (2, 1), {}),
    ("repeat_interleave", torch.repeat_interleave, (3, 4), FIRST, (2, 0), {}),
    ("rot90", torch.rot90, (3, 4), FIRST, (1, (0, 1)), {}),
]


def follow(name: str, function: Callable[..., Any], x: Tensor, layout: Layout | None, args: Any, kwargs: Any) -> Any:
    """The first result of an operation, and where its row of the table says that the samples are."""
    out = function(x, *args, **kwargs)
    out = out if isinstance(out, Tensor) else out[0]
    return out, TABLE[name].follow([(x, layout)], out, BATCH, ((x, *args), kwargs), function)


@pytest.mark.parametrize("case", FOLLOWED, ids=lambda case: f"{case[0]} {case[2]}")
def test_samples_are_where_they_went(case):
    name, function, shape, layout, args, kwargs = case
    out, found = follow(name, function, numbered(shape, layout), layout, args, kwargs)
    assert found is not None
    assert torch.equal(out, numbered(tuple(out.shape), found))


@pytest.mark.parametrize("case", FOLLOWED, ids=lambda case: f"{case[0]} {case[2]}")
def test_what_is_lost_stays_lost(case):
    name, function, shape, _, args, kwargs = case
    assert follow(name, function, torch.zeros(shape), None, args, kwargs)[1] is None


@pytest.mark.parametrize(
    ("name", "function", "shape", "args"),
    [
        ("mean", torch.mean, (3, 4), ((0,),)),  # over the samples
        ("select", torch.select, (3, 4), (0, 1)),  # one of them
        ("getitem", Tensor.__getitem__, (3, 4), ([2, 0, 1],)),  # in another order
        ("rot90", torch.rot90, (3, 4), (3, (0, 1))),  # in reverse
        ("view", Tensor.view, (4, 3), (6, 2)),  # samples on the last axis, torn apart
    ],
)
def test_samples_that_can_not_be_followed(name, function, shape, args):
    layout = FIRST if shape[0] == BATCH else Layout(1, 1)
    assert follow(name, function, numbered(shape, layout), layout, args, {})[1] is None


@pytest.mark.parametrize(
    ("equation", "layout", "expected"),
    [
        ("bij,jk->bik", FIRST, FIRST),
        ("bij,jk->kib", FIRST, Layout(2, 1)),
        ("ibj,jk->kb", Layout(1, 1), Layout(1, 1)),
        ("...j,jk->...k", FIRST, FIRST),
        ("bij,jk->ik", FIRST, None),  # summed over
        ("bij,jk", FIRST, None),  # without a name for the output
    ],
)
def test_letters_of_einsum(equation, layout, expected):
    x, w = numbered((3, 3, 3), layout), torch.full((3, 3), 1 / 3, dtype=torch.float64)
    out = torch.einsum(equation, x, w)
    args = ((equation, x, w), {})
    assert TABLE["einsum"].follow([(x, layout)], out, BATCH, args, torch.einsum) == expected


@pytest.mark.parametrize(
    ("first", "second", "layout", "sampled", "expected"),
    [
        ((3, 4, 5), (5, 2), FIRST, 0, FIRST),
        ((4, 5), (3, 5, 2), FIRST, 1, FIRST),
        ((6, 5), (5, 2), Layout(0, 2), 0, Layout(0, 2)),
        ((4, 5), (5, 3), Layout(1, 1), 1, Layout(1, 1)),
        ((3, 5), (5,), FIRST, 0, FIRST),
        ((5,), (3, 5, 2), FIRST, 1, FIRST),
        ((4, 3), (3, 2), Layout(1, 1), 0, None),  # summed over
        ((3,), (3,), FIRST, 1, None),
    ],
)
def test_factors_of_products(first, second, layout, sampled, expected):
    factors = [torch.ones(first, dtype=torch.float64), torch.ones(second, dtype=torch.float64)]
    factors[sampled] = numbered((first, second)[sampled], layout)
    out = torch.matmul(*factors)
    found = TABLE["matmul"].follow([(factors[sampled], layout)], out, BATCH, (tuple(factors), {}), torch.matmul)
    assert found == expected
    if found is not None:
        assert torch.equal(out / 5, numbered(tuple(out.shape), found))  # five terms are summed


@pytest.mark.parametrize(("dim", "expected"), [(0, Layout(1, 1)), (1, FIRST), (-1, FIRST)])
def test_a_new_axis(dim, expected):
    x = numbered((3, 4), FIRST)
    out = torch.stack([x, x], dim)
    assert (
        TABLE["stack"].follow([(x, FIRST), (x, FIRST)], out, BATCH, (([x, x],), {"dim": dim}), torch.stack) == expected
    )
    assert torch.equal(out, numbered(tuple(out.shape), expected))


def test_attention_follows_its_values():
    q, v = torch.zeros(3, 2, 4), torch.zeros(3, 2, 4)
    follows, placed = TABLE["scaled_dot_product_attention"].follow, [(q, Layout(1, 1)), (v, FIRST)]
    assert follows(placed, v, BATCH, ((q, q.clone(), v), {}), F.scaled_dot_product_attention) == FIRST


def test_splitting_an_axis():
    assert split_samples((5, 24, 2), Layout(1, 2), 3) == (5, 4, 3, 2, 2)


# Whole models ---------------------------------------------------------------------------------------------------------

REINDEXING = {
    "windows": lambda x: x.view(2, 3, 2, 2, 2).permute(0, 2, 1, 3, 4).reshape(-1, 3, 4) + torch.arange(4.0),
    "roll": lambda x: torch.roll(x, (1, -1), (1, 2)) + torch.arange(8.0),
    "unfold": lambda x: F.unfold(x.reshape(2, 3, 4, 4), 3, padding=1) + 0.5,
    "pixel shuffle": lambda x: F.pixel_unshuffle(x.reshape(2, 3, 4, 4), 2) + 1,
    "gather": lambda x: x.gather(1, torch.tensor([0, 2, 1, 0]).expand(2, 1, 4)) + 1,
    "advanced indexing": lambda x: x[:, [2, 0, 1], :][..., torch.tensor([3, 1])] + 1,
    "sequence first": lambda x: x.transpose(0, 1) + torch.arange(8.0),
    "heads": lambda x: x.reshape(2, 12, 2, 2).permute(2, 0, 3, 1).flatten(1, 2) + 0.7,
    "batch folded inside": lambda x: x.permute(1, 0, 2).reshape(6, 8, -1) + torch.arange(8.0)[:, None],
    "cat and split": lambda x: torch.cat([x, torch.ones(2, 1, 8), *x.split(1, 1)], 1) + 0.1,
    "stack and unbind": lambda x: torch.stack(x.unbind(1), 2) + 0.1,
    "pad": lambda x: F.pad(x, (1, 1), value=0.5),
    "reflection": lambda x: F.pad(x, (1, 1), mode="reflect") + 1,
    "interpolate": lambda x: F.interpolate(x.reshape(2, 3, 4, 4), scale_factor=2, mode="bilinear") + 1,
    "bicubic": lambda x: F.interpolate(x.reshape(2, 3, 4, 4), size=(7, 5), mode="bicubic", antialias=True) + 1,
    "where": lambda x: torch.where(x > 0, x, torch.tensor(0.5)),
    "einsum": lambda x: (
        torch.einsum("bij,kj->kbi", x, torch.randn(3, 8, generator=torch.Generator().manual_seed(0))) + 1
    ),
    "repeat": lambda x: x.repeat(1, 2, 1) + 1,
    "fourier": lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * (1 + 0.5j)) + 1,
    "cumsum": lambda x: x.cumsum(1) + 1,
    "max over an axis": lambda x: x.max(1).values + 1,
    "topk": lambda x: x.topk(2, dim=1).values + 1,
    "mean pooling": lambda x: F.adaptive_avg_pool2d(x.reshape(2, 3, 4, 4), 2) + 1,
    "max pooling": lambda x: F.max_pool2d(x.reshape(2, 3, 4, 4), 2) + 1,
}  # fmt: skip


#: Forms that see the input as an image of 4 x 4.
_IMAGES = ("unfold", "pixel shuffle", "interpolate", "bicubic", "mean pooling", "max pooling", "heads")


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("form", REINDEXING)
def test_reindexing_conserves_for_each_sample(form):
    """Constants enter wherever the samples have been moved to; the books are still kept per sample."""
    function, x = REINDEXING[form], torch.randn(2, 3, 16 if form in _IMAGES else 8)
    weights = torch.randn(1000)

    class Model(nn.Module):
        def forward(self, x):
            y = function(x)
            if form == "batch folded inside":
                y = y.reshape(3, 2, -1).transpose(0, 1)
            elif form in ("sequence first", "einsum"):
                y = y.transpose(0, 1)
            elif form == "heads":
                y = y.reshape(2, 2, 2, 12).transpose(0, 1)
            y = y.reshape(2, -1)
            return y @ weights[: y.shape[1]]

    model = Model().eval()
    found = hilrp.explain(model, x, lambda out: out, stages=None, itemised=True, rules="hilrp")
    assert torch.equal(found.output, model(x))
    assert float(found.ledger.leak.max()) < 1e-10
    assert float(found.ledger.residual.max()) < 1e-10
    assert not found.notes, "the samples could not be told apart in one pass"


def test_where_the_batch_cannot_be_followed_the_samples_are_explained_one_by_one():
    class Loop(nn.Module):
        def forward(self, x):
            return torch.stack([t * 2 + 0.5 for t in x]).sum((1, 2))

    model = Loop().eval()
    x = torch.randn(3, 2, 4).double()
    found = hilrp.explain(model, x, lambda out: out, rules="hilrp")
    assert float(found.ledger.residual.max()) < 1e-10
    torch.testing.assert_close(found.ledger.entries["constant"], torch.full((3,), 4.0).double())
    assert any("backward pass per sample" in note for note in found.notes)


@pytest.fixture
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
