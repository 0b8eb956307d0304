"""What relevance may be relative to: names, given inputs, averages, neutral colours, and what is wrong with others."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn

import hilrp
from helpers.models import small_vit
from hilrp.attribution.references import Average, Blurred, Colour, Constant, Neutral
from hilrp.scenes import Scenes


@pytest.fixture(scope="module")
def vit():
    return small_vit().eval()


@pytest.fixture(scope="module")
def pictures():
    torch.manual_seed(8)
    return torch.randn(3, 3, 32, 32)


@pytest.mark.parametrize(
    "reference",
    [
        "mean",
        "blurred",
        0.5,
        Constant((0.1, 0.2, 0.3)),
        Colour(0.5, mean=(0.5,) * 3, std=(0.25,) * 3),
        Blurred(0.3),
        Neutral(steps=3),
    ],
)
def test_references(reference, vit, pictures):
    found = hilrp.explain(vit, pictures, [0, 1, 2], "epsilon", reference)
    assert found.reference.shape == pictures.shape
    with torch.no_grad():
        before = vit(found.reference)[range(3), range(3)]
    torch.testing.assert_close(found.ledger.entries["reference"].float(), before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.ledger.pixels, found.score.double() - before, rtol=1e-3, atol=1e-4)
    assert f"on {found.relative_to}" in found.ledger.table()


def test_a_reference_of_ones_own(vit, pictures):
    one = torch.randn(3, 32, 32)
    for given in (one, one[None], one.expand(3, -1, -1, -1)):
        assert torch.equal(hilrp.explain(vit, pictures, 0, reference=given).reference[2], one)
    with pytest.raises(hilrp.InputError, match=r"reference has the shape \(1, 3, 32, 33\)"):
        hilrp.explain(vit, pictures, reference=torch.zeros(1, 3, 32, 33))
    with pytest.raises(hilrp.InputError, match=r"reference has the shape \(3, 16, 16\)"):
        hilrp.explain(vit, pictures, 0, reference=one[:, :16, :16])
    with pytest.raises(hilrp.InputError, match="aren't finite"):
        hilrp.explain(vit, pictures, 0, reference=one * float("nan"))
    with pytest.raises(hilrp.InputError, match="choose from neutral"):
        hilrp.explain(vit, pictures, 0, reference="magic")
    with pytest.raises(hilrp.InputError, match="preprocessing isn't known"):
        hilrp.explain(vit, pictures, 0, reference=Colour(0.0))
    with pytest.raises(hilrp.InputError, match="no form relative to a reference"):
        hilrp.explain(vit, pictures, 0, rules="zplus", reference="mean")


def test_values_of_references(vit, pictures):
    """A picture's own mean; numbers of the input; and colours, which go through the preprocessing."""
    given = torch.tensor([0.1, 0.2, 0.3])[:, None, None]
    for reference, expected in (
        ("mean", pictures.mean((2, 3), keepdim=True)),
        (0.5, torch.tensor(0.5)),
        (Constant((0.1, 0.2, 0.3)), given),
        (
            Colour((0.1, 0.2, 0.3), mean=(0.1, 0.0, 0.2), std=(0.5, 0.25, 1.0)),
            torch.tensor([0.0, 0.8, 0.1])[:, None, None],
        ),
    ):
        found = hilrp.explain(vit, pictures, 0, "epsilon", reference)
        torch.testing.assert_close(found.reference, expected.expand_as(pictures))


@pytest.mark.parametrize("family", ["resnet", "swin", "efficientvit", "crossvit"])
def test_a_scene_without_its_object(family):
    """The true answer is known.

    Where the two pictures agree nothing can lie, and the object's pixels hold what the model gives for it.
    """
    loaded = hilrp.load(f"zoo/{family}")
    chosen = [scene for scene in Scenes(seed=31)[:12] if len(scene.things) > 1][:3]
    labels = [scene.things[0].label for scene in chosen]
    x = loaded.batch([Image.fromarray(scene.image) for scene in chosen])
    gone = loaded.batch([Image.fromarray(scene.without(label)) for scene, label in zip(chosen, labels, strict=True)])
    found = hilrp.explain(loaded.model, x, labels, "secant", reference=gone)
    with torch.no_grad():
        effect = (loaded.model(x) - loaded.model(gone))[range(3), labels]
    differs = (x != gone).any(1)
    masks = torch.stack([torch.from_numpy(s.mask(label)) for s, label in zip(chosen, labels, strict=True)])
    assert float(effect.min()) > 3
    assert float(found.map[~differs].abs().max()) == 0
    torch.testing.assert_close((found.map * differs).sum((1, 2)), effect, rtol=1e-4, atol=1e-4)
    # What is left of it lies on the object's smooth rim, which is not in its mask.
    assert float(((found.map * masks).sum((1, 2)) / effect).min()) > 0.85


def test_several_references_are_averaged(vit, pictures):
    both = hilrp.explain(vit, pictures, 0, reference=["mean", 0.0])
    one, other = (hilrp.explain(vit, pictures, 0, reference=r) for r in ("mean", 0.0))
    torch.testing.assert_close(both.relevance, (one.relevance + other.relevance) / 2)
    torch.testing.assert_close(both.ledger.pixels, (one.ledger.pixels + other.ledger.pixels) / 2)
    assert float(both.ledger.residual.max()) < 1e-4
    averaged = hilrp.explain(vit, pictures, 0, reference=Average(("mean", 0.0)))
    assert torch.equal(averaged.relevance, both.relevance)


class Colours(nn.Module):
    """The score of class 0 is the mean of the first channel less a number; that of class 1 is always positive."""

    def __init__(self, less):
        super().__init__()
        self.less, self.calls = less, 0
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        self.calls += len(x)
        first = self.scale * x[:, 0].mean((1, 2)) - self.less
        return torch.stack([first, first.square() + 1], 1)


def test_neutral_colours():
    x = torch.rand(2, 3, 8, 8) + torch.tensor([0.5, 0.0, 0.0])[:, None, None]
    rule = Neutral(mean=(0.0,) * 3, std=(1.0,) * 3)
    # Between the levels of the bank: a search is needed.
    model = Colours(0.456).eval()
    found = hilrp.explain(model, x, 0, "epsilon", rule)
    assert float(found.ledger.entries["reference"].abs().max()) <= 0.03 * float(found.score.abs().max())
    first = model.calls
    hilrp.explain(model, x, 0, "epsilon", rule)
    assert model.calls - first < first - 70, "the bank is run once for a model"
    with torch.no_grad():
        model.scale.mul_(0.9)
    before = model.calls
    hilrp.explain(model, x, 0, "epsilon", rule)
    assert model.calls - before > 70, "other weights, another bank"
    before = model.calls
    model.scale.data.mul_(0.9)
    hilrp.explain(model, x, 0, "epsilon", rule)
    assert model.calls - before > 70
    # A function of the output: greys alone are looked at.
    found = hilrp.explain(model, x, lambda y: 5 + y[:, 0], "epsilon", rule)
    assert float(found.ledger.entries["reference"].abs().max()) < 4.6
    # No colour is neutral: the smallest score is taken.
    found = hilrp.explain(model, x, 1, "epsilon", rule)
    assert float(found.ledger.entries["reference"].min()) >= 1


def test_the_prediction_is_that_of_the_input(vit, pictures):
    found = hilrp.explain(vit, pictures, None, reference="mean")
    assert torch.equal(found.target, vit(pictures).argmax(1))
    contrast = hilrp.explain(vit, pictures, hilrp.targets.Contrast(0, 1), reference="neutral")
    with torch.no_grad():
        before = vit(contrast.reference)
    torch.testing.assert_close(
        contrast.ledger.entries["reference"].float(), before[:, 0] - before[:, 1], rtol=1e-4, atol=1e-5
    )


def test_several_inputs(vit, pictures):
    class Two(nn.Module):
        def forward(self, a, b):
            return (a * 2).flatten(1) @ torch.ones(12, 1) + b.flatten(1).tanh().sum(1, keepdim=True)

    a, b, a0, b0 = (torch.randn(2, 3, 2, 2) for _ in range(4))
    by_name = hilrp.explain(Two(), {"a": a, "b": b}, 0, "epsilon", {"b": b0, "a": a0}, stages=None)
    torch.testing.assert_close(by_name.relevance["a"], 2 * (a - a0))
    in_order = hilrp.explain(Two(), (a, a), 0, "epsilon", (a0, b0), stages=None)
    torch.testing.assert_close(in_order.relevance[0], 2 * (a - a0))
    assert torch.equal(in_order.reference[1], b0)
    with pytest.raises(hilrp.InputError, match="names of the input, a, b"):
        hilrp.explain(Two(), {"a": a, "b": b}, 0, "epsilon", {"a": a0})
    with pytest.raises(hilrp.InputError, match="2 parts"):
        hilrp.explain(Two(), (a, b), 0, "epsilon", (a0,))
    number = hilrp.explain(nn.Linear(4, 2), torch.randn(3, 4), 0, "epsilon", 0.5, stages=None)
    assert float(number.reference.mean()) == 0.5
    for wrong, message in ((float("nan"), "finite"), ([], "empty list"), (True, "takes a name")):
        with pytest.raises(hilrp.InputError, match=message):
            hilrp.explain(vit, pictures, 0, reference=wrong)
    with pytest.raises(hilrp.InputError, match="above 0"):
        Blurred(0.0)
    with pytest.raises(hilrp.InputError, match="takes 3 channels"):
        hilrp.explain(vit, pictures, 0, reference=Colour((0.5, 0.5), mean=(0.5,) * 3, std=(0.5,) * 3))
    with pytest.raises(hilrp.ModelError):
        hilrp.explain(vit, torch.randn(1, 3, 30, 30), reference="neutral")


# What rules take that need a reference and are given none -------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 3, 6, 6), (2, 3)),
        ((2, 3, 4, 6, 6), (2, 3, 4)),
        ((2, 8, 3, 6, 6), (1, 3, 4)),
        ((2, 1, 4, 6, 6), (2, 3, 4)),
        ((2, 7, 5), ()),
        ((2, 9), ()),
    ],
    ids=str,
)
def test_without_one_it_is_what_fits_the_input(shape, axes):
    """The mean per channel where there are places, and zero elsewhere, which is said."""
    torch.manual_seed(9)
    x = torch.randn(shape)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 4), nn.GELU(), nn.Linear(4, 2)).eval()
    found = hilrp.explain(model, x, 1, "secant")
    expected = x.mean(axes, keepdim=True).expand_as(x) if axes else torch.zeros_like(x)
    torch.testing.assert_close(found.reference, expected)
    difference = (model(x) - model(expected))[:, 1].detach()
    torch.testing.assert_close(found.relevance.flatten(1).sum(1), difference, rtol=1e-4, atol=1e-5)
    assert any("relative to zero" in note for note in found.notes) == (not axes)


def test_inputs_that_are_held_fixed_have_none():
    class Scaled(nn.Module):
        def forward(self, x, table, scale):
            return x.mean((2, 3)) * table * scale

    x = torch.randn(2, 3, 4, 4), torch.randn(2, 3), torch.randn(1, 3)
    found = hilrp.explain(Scaled().eval(), x, 0, "secant")
    assert torch.equal(found.reference[2], x[2])
    assert not found.reference[1].any()
    assert any("[B,3] is no picture" in note for note in found.notes)
