"""More passes: chains from the reference to the input, which add up at every number, up to Shapley values."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from captum.attr import ShapleyValueSampling
from torch import nn

import hilrp
from helpers.models import small_swin, small_vit
from hilrp import Chains, InputError
from hilrp.attribution.chains import BUDGETS
from hilrp.attribution.references import Mean


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    return small_vit().double()


@pytest.fixture(scope="module")
def pictures():
    torch.manual_seed(1)
    return torch.randn(3, 3, 32, 32, dtype=torch.float64)


def states_of(chains: Chains, x, reference, draw: int):
    return list(chains.chain(x, reference, reference, len(x), draw))


def mean_colour(x):
    return x.mean((2, 3), keepdim=True).expand_as(x)


# What the map is -------------------------------------------------------------------------------------------------


def test_one_pass_is_the_plain_map(vit, pictures):
    plain = hilrp.explain(vit, pictures, rules="secant")
    for passes in (1, Chains(steps=1, draws=1), Chains(steps=1, draws=2)):
        found = hilrp.explain(vit, pictures, rules="secant", passes=passes)
        torch.testing.assert_close(found.relevance, plain.relevance, rtol=0, atol=1e-14)
    assert plain.passes == 1
    assert plain.stderr is None


@pytest.mark.parametrize("steps", [2, 3])
def test_the_map_is_the_mean_over_chains_of_plain_maps(vit, pictures, steps):
    """Each step explained on its own, with the state before it as the reference, and added up by hand."""
    chains, reference, labels = Chains(steps, draws=4, cells=3), mean_colour(pictures), [0, 1, 2]
    expected = 0
    for draw in range(4):
        states = states_of(chains, pictures, reference, draw)
        assert torch.equal(states[0], reference)
        assert torch.equal(states[-1], pictures)
        for before, state in pairwise(states):
            expected = expected + hilrp.explain(vit, state, labels, "secant", before).relevance / 4
    found = hilrp.explain(vit, pictures, labels, "secant", passes=chains)
    torch.testing.assert_close(found.relevance, expected, rtol=0, atol=1e-12)
    assert found.passes == 4 * steps


@pytest.mark.parametrize(
    ("passes", "rules"), [(2, "secant"), (4, "secant"), (4, "epsilon"), (4, "hilrp"), (Chains(4, 2), "secant")], ids=str
)
def test_it_adds_up_at_every_number_of_passes(passes, rules):
    """In float32, with the bounds of one pass; stages too."""
    torch.manual_seed(2)
    model, x = small_swin(), torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        difference = (model(x) - model(mean_colour(x)))[range(2), [3, 4]].double()
    found = hilrp.explain(model, x, [3, 4], rules, "mean", passes=passes)
    scale = found.score.abs().double()
    torch.testing.assert_close(found.map.double().sum((1, 2)), difference, rtol=0, atol=1e-4 * float(scale.max()))
    assert bool((found.ledger.residual < 1e-5).all())
    assert found.verdicts == [hilrp.Verdict.VALID] * 2
    assert len(found.stages) > 1
    for name, sums in found.trace.items():
        torch.testing.assert_close((sums * found.ledger.explained).double(), difference, rtol=1e-4, atol=1e-4, msg=name)
    for relevance in found.stages.values():
        assert relevance.shape[0] == 2


def test_itemised_books_of_chains_close(vit, pictures):
    found = hilrp.explain(vit, pictures, rules="secant", itemised=True, passes=4)
    assert found.ledger.itemised
    assert bool((found.ledger.leak < 1e-10).all())


# Shapley values --------------------------------------------------------------------------------------------------


class Interacting(nn.Module):
    """Cells that matter together: products, maxima and a softmax."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 5, stride=2)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        z = self.conv(x).relu()
        weights = z.sum(1, keepdim=True).flatten(2).softmax(-1)
        return self.head((z.flatten(2) * weights).sum(-1) * z.amax((2, 3)))


def test_with_as_many_steps_as_cells_they_are_shapley_values(monkeypatch):
    """Of the same orders, by captum, cell by cell."""
    monkeypatch.setattr(torch, "float", torch.float64)  # captum adds up in torch.float, whatever the model's type
    torch.manual_seed(3)
    model, x = Interacting().double().eval(), torch.randn(2, 3, 12, 12, dtype=torch.float64)
    reference, labels = mean_colour(x), torch.tensor([1, 3])
    cells = (torch.arange(12)[:, None] // 4 * 3 + torch.arange(12) // 4).long()  # 9 squares
    cells[:4, :4] = cells[8, 8]  # one of them in two places
    cells = torch.unique(cells, return_inverse=True)[1]
    count, draws = int(cells.max()) + 1, 4
    chains = Chains(steps=count, draws=draws, cells=cells, seed=5)
    found = hilrp.explain(model, x, labels, "secant", passes=chains)
    for sample in range(2):
        one, zero = x[sample : sample + 1], reference[sample : sample + 1]
        orders = []
        for draw in range(draws):
            states = states_of(chains, one, zero, draw)
            added = [(a != b).any(1)[0] for a, b in pairwise(states)]
            orders.append([int(cells[where].unique()) for where in added])
        assert orders[1] == orders[0][::-1]
        assert orders[0] != orders[2]
        captum = ShapleyValueSampling(model)
        captum.permutation_generator = lambda features, samples, orders=orders: iter(orders)
        expected = captum.attribute(one, zero, int(labels[sample]), feature_mask=cells[None, None], n_samples=draws)
        for cell in range(count):
            value = expected[0, 0][cells == cell][0]
            ours = found[sample].region(cells == cell).relevance[0]
            assert abs(float(ours - value)) < 1e-9


# How they are drawn ----------------------------------------------------------------------------------------------


def test_a_sample_has_the_same_chains_in_every_batch(vit, pictures):
    whole = hilrp.explain(vit, pictures, 0, "secant", passes=8)
    parts = hilrp.explain(vit, pictures, 0, "secant", passes=8, batch=1)
    turned = hilrp.explain(vit, pictures.flip(0), 0, "secant", passes=8)
    for other in (parts, turned[2], turned[1], turned[0]):
        own = (
            whole
            if len(other) == 3
            else whole[[2, 1, 0].index(turned.input[:, 0, 0, 0].tolist().index(other.input[0, 0, 0, 0].item()))]
        )
        torch.testing.assert_close(other.relevance, own.relevance, rtol=0, atol=1e-12)
        torch.testing.assert_close(other.stderr, own.stderr, rtol=0, atol=1e-12)


def test_seeds_and_samples_differ(vit, pictures):
    a, b = (hilrp.explain(vit, pictures, 0, "secant", passes=Chains(seed=seed)) for seed in (0, 1))
    assert not torch.allclose(a.map, b.map)
    again = hilrp.explain(vit, pictures, 0, "secant", passes=Chains(seed=1))
    assert torch.equal(b.relevance, again.relevance)
    masks = [(states_of(Chains(), x[None], x[None] * 0, 0)[1] / x[None]).mean(1) for x in pictures]
    assert not torch.allclose(masks[0], masks[1])


@pytest.mark.parametrize("steps", [2, 3, 5])
@pytest.mark.parametrize("shape", [(40, 40), (24, 56), (9, 9), (1, 7), (1, 1)])
def test_states(steps, shape):
    """Each step adds its part of the area; nothing is taken away; the partner adds the same in the opposite order."""
    torch.manual_seed(4)
    x, zero = torch.ones(2, 3, *shape), torch.zeros(2, 3, *shape)
    for draw in (0, 2):
        states = states_of(Chains(steps, 4), x, zero, draw)
        partner = states_of(Chains(steps, 4), x, zero, draw + 1)
        for before, after in pairwise(states):
            assert bool((after >= before).all())
            if x[0, 0].numel() > 50:
                torch.testing.assert_close((after - before).mean(), torch.tensor(1 / steps), rtol=0.2, atol=0)
        for state, other in zip(states, reversed(partner), strict=True):
            torch.testing.assert_close(state, 1 - other, rtol=0, atol=1e-6)


def test_masks_have_no_borders():
    """Neighbouring pixels join at nearly the same time, unlike those of hard cells."""
    x = torch.ones(1, 3, 112, 112)
    soft = states_of(Chains(2, 2, cells=7), x, x * 0, 0)[1]
    hard = states_of(Chains(2, 2, cells=torch.arange(112)[:, None] // 16 * 7 + torch.arange(112) // 16), x, x * 0, 0)[1]
    assert float(soft.diff(dim=-1).abs().max()) < 0.35
    assert float(hard.diff(dim=-1).abs().max()) == 1


def test_what_hidden_parts_are_filled_with(vit, pictures):
    """Another fill changes the states between, and not what the map sums to."""
    plain = hilrp.explain(vit, pictures, 0, "secant", passes=4)
    filled = hilrp.explain(vit, pictures, 0, "secant", passes=Chains(draws=2, fill="blurred"))
    assert not torch.allclose(plain.map, filled.map)
    torch.testing.assert_close(plain.ledger.pixels, filled.ledger.pixels, rtol=0, atol=1e-12)


def test_several_references(vit, pictures):
    found = hilrp.explain(vit, pictures, 0, "secant", ["mean", 0.0], passes=8)
    parts = [hilrp.explain(vit, pictures, 0, "secant", each, passes=8) for each in ("mean", 0.0)]
    torch.testing.assert_close(found.map, (parts[0].map + parts[1].map) / 2, rtol=0, atol=1e-13)
    assert found.pairs.shape == (3, 2, 32, 32)


# Other inputs and targets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 6), (2, 5, 6), (2, 3, 4, 6, 6)], ids=["table", "tokens", "volume"])
def test_other_inputs(shape):
    torch.manual_seed(6)
    x = torch.randn(shape, dtype=torch.float64)
    features = x[0].numel()
    model = nn.Sequential(nn.Flatten(), nn.Linear(features, 8), nn.GELU(), nn.Linear(8, 3)).double().eval()
    found = hilrp.explain(model, x, 1, "secant", 0.0, passes=8)
    difference = (model(x) - model(x * 0))[:, 1].detach()
    torch.testing.assert_close(found.relevance.flatten(1).sum(1), difference, rtol=0, atol=1e-12)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.table = nn.Conv2d(3, 4, 3), nn.Linear(5, 4)

    def forward(self, image, table, scale):
        return self.image(image).relu().mean((2, 3)) * self.table(table).sigmoid() * scale


def test_several_inputs_one_of_them_held_fixed():
    torch.manual_seed(7)
    model, x = (
        Two().double().eval(),
        (torch.randn(2, 3, 9, 9).double(), torch.randn(2, 5).double(), torch.ones(1).double()),
    )
    found = hilrp.explain(model, x, 1, "secant", 0.5, passes=8)
    assert found.pairs[0].shape == (2, 2, 9, 9)
    assert found.stderr.shape == (2, 9, 9)
    assert bool((found.ledger.residual < 1e-12).all())
    assert set(found.ledger.inputs) == {"pixels", "input 1"}


def test_the_class_of_the_input_is_asked_of_every_state(vit, pictures):
    found = hilrp.explain(vit, pictures, rules="secant", passes=4)
    assert torch.equal(found.target, vit(pictures).argmax(1))
    contrast = hilrp.explain(vit, pictures, hilrp.targets.Contrast([0, 1, 2], 4), "secant", passes=4)
    assert contrast.against.tolist() == [4] * 3
    assert bool((contrast.ledger.residual < 1e-10).all())


def test_a_function_as_the_target(vit, pictures):
    found = hilrp.explain(vit, pictures, lambda z: z[:, 0] * z[:, 1], "secant", passes=4)
    z, z0 = vit(pictures), vit(mean_colour(pictures))
    difference = (z[:, 0] * z[:, 1] - z0[:, 0] * z0[:, 1]).detach()
    torch.testing.assert_close(found.map.sum((1, 2)), difference, rtol=0, atol=1e-11)


def test_a_target_that_chooses_by_the_input_is_told_of(vit, pictures):
    """Of a state between it would ask something else than of the input."""

    class Switch(nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0].mean((1, 2)), 2 * x[:, 0].square().mean((1, 2)) - 0.5], 1)

    def largest(z):
        return z[:, int(z[0].argmax())]

    x = torch.full((1, 1, 8, 8), 0.1, dtype=torch.float64)
    x[..., :2] += 1.5
    assert Switch()(x).argmax() != Switch()(mean_colour(x)).argmax()
    assert bool((hilrp.explain(Switch().eval(), x, 1, "secant", passes=4).ledger.residual < 1e-12).all())
    with pytest.raises(InputError, match="The target chooses"):
        hilrp.explain(Switch().eval(), x, largest, "secant", passes=4, audit="off")


# Errors and telling ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [0, -2, 3, 6, 1.0, True, "8", None])
def test_numbers_that_can_not_be(vit, pictures, passes):
    with pytest.raises(InputError, match="passes="):
        hilrp.explain(vit, pictures, rules="secant", passes=passes)


def test_without_a_reference_there_are_no_chains(vit, pictures):
    with pytest.raises(InputError, match="chains go from a reference"):
        hilrp.explain(vit, pictures, rules="hilrp", passes=8)


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"draws": 3},
        {"draws": 2.0},
        {"cells": 0},
        {"cells": "squares"},
        {"seed": -1},
        {"cells": torch.zeros(4, 4)},
        {"cells": torch.zeros(4, dtype=torch.long)},
        {"cells": torch.full((4, 4), -1)},
        {"cells": torch.zeros(4, 4, dtype=torch.long), "steps": 2},
    ],
    ids=str,
)
def test_chains_that_can_not_be(options):
    with pytest.raises(InputError, match=r"Chains\("):
        Chains(**options)


def test_cells_of_another_shape(vit, pictures):
    cells = torch.arange(4).repeat(4, 1)
    with pytest.raises(InputError, match=r"cells=.*\(4, 4\)"):
        hilrp.explain(vit, pictures, 0, "secant", passes=Chains(2, 2, cells=cells))
    with pytest.raises(InputError, match="fill"):
        hilrp.explain(vit, pictures, 0, "secant", passes=Chains(2, 2, fill=[0.0, 1.0]))


def test_budgets():
    for passes in (2, 4, 8, 16, 32, 64, 128):
        assert Chains.of(passes).passes == passes
    assert [least for least, _, _ in BUDGETS] == sorted(least for least, _, _ in BUDGETS)
    assert repr(Chains(seed=3, cells=torch.zeros(4, 4, dtype=torch.long), steps=1)) == (
        "Chains(steps=1, draws=4, cells=(4, 4), seed=3)"
    )


def test_progress_is_told(vit, pictures):
    told = []
    hilrp.explain(vit, pictures, 0, "secant", [Mean(), 0.0], passes=4, progress=lambda *done: told.append(done))
    assert told == [(i, 8) for i in range(1, 9)]


def test_a_leak_in_a_chain_is_named(vit, pictures, monkeypatch):
    """The books of a chain are checked as a whole, and the operation is looked for in its worst step."""

    class Leaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = vit

        def forward(self, x):
            return self.inner(x + _Half.apply(x))

    with pytest.raises(hilrp.AuditError, match="_Half"):
        hilrp.explain(Leaky(), pictures, 0, "secant", passes=4)


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, g):
        return g / 3


# Inputs beside a picture ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 4), (1, 2)], ids=str)
@pytest.mark.parametrize("passes", [8, Chains(16, 8)], ids=str)
def test_a_number_beside_a_picture_joins_at_any_time(shape, passes):
    """Of a product of the two, each has half: not more for what always joins last."""

    class Product(nn.Module):
        def forward(self, pixels, age):
            return torch.stack(
                [pixels.mean((1, 2, 3)) * age.flatten(1).mean(1) if age.ndim > 1 else pixels.mean((1, 2, 3)) * age] * 2,
                1,
            )

    copies = 24
    torch.manual_seed(8)
    x = {"pixels": torch.ones(copies, 1, 8, 8), "age": torch.ones(copies, *shape[1:])}
    x = {name: t + 1e-6 * torch.randn_like(t) for name, t in x.items()}  # runs of one sample
    zero = {name: t * 0 for name, t in x.items()}
    found = hilrp.explain(Product().eval(), x, 0, "secant", zero, passes=passes, audit="off")
    assert float(found.ledger.inputs["age"].mean()) == pytest.approx(0.5, abs=0.06)
    assert not any("without relevance" in note for note in found.notes)
    assert found.pairs["age"].shape[:2] == (copies, found.pairs["pixels"].shape[1])


def test_errors_are_of_the_picture_and_not_of_tokens():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.image = nn.Linear(8, 4), nn.Conv2d(3, 4, 3)

        def forward(self, tokens, image):
            return self.tokens(tokens).tanh().mean(1) * self.image(image).tanh().mean((2, 3))

    torch.manual_seed(9)
    x = torch.randn(2, 8, 8), torch.randn(2, 3, 8, 8)
    found = hilrp.explain(Both().eval(), x, 1, "secant", passes=8)
    torch.testing.assert_close(found.stderr, found.pairs[1].std(1) / 2**0.5)
    assert found.region(torch.ones(8, 8)).stderr.shape == (2,)


def test_the_trace_where_a_state_between_has_the_score_zero():
    class Threshold(nn.Module):
        def forward(self, x):
            v = x.mean((1, 2, 3))
            return torch.stack([(v - 0.9).relu(), v], 1)

    found = hilrp.explain(Threshold().eval(), torch.ones(1, 3, 8, 8), 0, "secant", 0.0, passes=4)
    torch.testing.assert_close(found.trace["input"], torch.ones(1, dtype=torch.float64), rtol=1e-5, atol=0)


def test_frames_of_a_video_have_masks_of_their_own():
    x = torch.ones(1, 8, 3, 12, 12)
    state = states_of(Chains(2, 2), x, x * 0, 0)[1]
    assert torch.equal(state[:, :, 0], state[:, :, 2])
    assert not torch.allclose(state[:, 0], state[:, 7])


@pytest.mark.parametrize("given", [lambda q: [q.x[:, :, :4]], lambda q: [(q.x, q.x)], lambda q: [0.0]])
@pytest.mark.parametrize("passes", [1, 4])
def test_references_of_another_form(vit, pictures, given, passes):
    with pytest.raises(InputError, match="where the model is given"):
        hilrp.explain(vit, pictures, 0, "secant", given, passes=passes)


def test_forms_of_cells_and_fills(vit, pictures):
    cells = torch.arange(32, dtype=torch.uint8).repeat(32, 1) // 8
    found = hilrp.explain(vit, pictures, 0, "secant", passes=Chains(3, 2, cells=cells, fill=pictures * 0.5))
    assert bool((found.ledger.residual < 1e-10).all())
    assert "fill=(3, 3, 32, 32)" in repr(Chains(fill=pictures))


@pytest.mark.parametrize("strides", [(90, 30, 5, 1), (90, 1, 15, 3), (1, 2, 6, 36)])
@pytest.mark.parametrize("cells", [3, torch.arange(30).reshape(6, 5)])
def test_states_lie_in_memory_as_the_input_does(strides, cells):
    """A model may view its input, whatever order its axes have in memory."""
    x = torch.empty_strided((2, 3, 6, 5), strides).copy_(torch.randn(2, 3, 6, 5))
    for reference in (torch.zeros(2, 3, 6, 5), x.mean().expand(x.shape)):
        states = list(Chains(steps=3, draws=2, cells=cells).chain(x, reference, reference, len(x), 0))
        assert [state.stride() for state in states[1:]] == [strides] * 3
