"""What the books say of a map, and parts of an explanation."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

import hilrp
from hilrp.attribution.verdicts import Verdict, verdict
from hilrp.scenes import Scenes


@pytest.mark.parametrize(
    ("share", "residual", "word"),
    [
        (0.9, 1e-7, "valid"),
        (0.5, 1e-7, "valid"),
        (2.0, 1e-7, "valid"),
        (0.49, 1e-7, "absorbed"),
        (-1.1, 1e-7, "absorbed"),
        (-3.0, 1e-7, "inflated"),
        (2.1, 1e-7, "inflated"),
        (0.9, 1e-3, "degenerate"),
        (0.9, float("nan"), "degenerate"),
    ],
)
def test_words(share, residual, word):
    found = verdict(share, residual, 1e-4)
    assert found == word
    assert found.meaning.endswith(".")
    assert found.colour.startswith("#")


def test_of_explanations():
    """Of ``x + 3`` the pixel holds a quarter, three quarters, minus the whole, or many times the score."""
    model = torch.nn.Linear(1, 1).eval()
    torch.nn.init.ones_(model.weight)
    torch.nn.init.constant_(model.bias, 3.0)
    found = hilrp.explain(model, torch.tensor([[1.0], [9.0], [-1.5], [-2.9]]), 0, "hilrp")
    assert found.verdicts == ["absorbed", "valid", "absorbed", "inflated"]
    assert found.facts()["verdict"] == ["absorbed", "valid", "absorbed", "inflated"]


def test_the_naive_extension_is_degenerate():
    """The paper's central observation, on a trained hierarchical model."""
    loaded = hilrp.load("zoo/tinyvit")
    x = loaded.batch([Image.fromarray(scene.image) for scene in Scenes(seed=1)[:4]])
    assert set(hilrp.explain(loaded.model, x, rules="naive").verdicts) == {Verdict.DEGENERATE}
    assert Verdict.DEGENERATE not in hilrp.explain(loaded.model, x, rules="hilrp").verdicts


def test_a_part_of_an_explanation(swin, x):
    whole = hilrp.explain(swin, x, target=[0, 1, 2])
    part = whole[1:]
    alone = hilrp.explain(swin, x[1:], target=[1, 2])
    assert len(part) == 2
    assert part.target.tolist() == [1, 2]
    torch.testing.assert_close(part.relevance, alone.relevance, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(part.ledger.pixels, alone.ledger.pixels, rtol=1e-4, atol=1e-6)
    assert part.stages.keys() == alone.stages.keys()
    for name, stage in part.stages.items():
        torch.testing.assert_close(stage, alone.stages[name], rtol=1e-4, atol=1e-6)
    assert torch.equal(whole[-1].relevance, whole.relevance[2:])
    assert len(whole[0]) == 1
    with pytest.raises(IndexError):
        whole[3]


def test_a_part_of_a_contrast_with_named_inputs(swin, x):
    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = swin

        def forward(self, pixel_values):
            return {"logits": self.inner(pixel_values)}

    part = hilrp.explain(Named().eval(), {"pixel_values": x}, hilrp.targets.Contrast(2, 0))[:2]
    assert part.against.tolist() == [0, 0]
    assert part.relevance["pixel_values"].shape[0] == part.output["logits"].shape[0] == 2
