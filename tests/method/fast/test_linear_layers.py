"""Counting layers: what is known of a model that has run before, and what is saved by that."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hilrp
from hilrp.method.rules import Rules


class _Ways(nn.Module):
    """A model whose number of layers depends on a switch."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(layers))
        self.used = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: self.used]:
            x = torch.tanh(layer(x))
        return x


@pytest.mark.parametrize("reference", [None, 0.0])
def test_that_a_model_has_run_before_changes_nothing(reference: float | None) -> None:
    """From the second pass on it is known how deep a layer is, and what won't be needed isn't computed.

    A model that takes another way is run again.
    """
    torch.manual_seed(0)
    model, x = _Ways(8).eval(), torch.randn(3, 6)
    explainer = hilrp.Explainer(model, Rules(linear="bounded"), reference)
    for used in (8, 8, 4, 8, 5, 5):
        model.used = used
        fresh = hilrp.explain(model, x, 2, Rules(linear="bounded"), reference)
        again = explainer.explain(x, 2)
        assert torch.equal(again.relevance, fresh.relevance)
        assert torch.equal(again.ledger.pixels, fresh.ledger.pixels)
        assert float(again.ledger.residual.max()) < 1e-5


def test_what_is_not_needed_is_not_computed() -> None:
    """Half of the layers need no second product."""
    model, x = _Ways(8).eval(), torch.randn(3, 6)
    explainer = hilrp.Explainer(model, "secant", 0.0, "off", None)
    counts = []
    for _ in range(2):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            explainer.explain(x, 2)
        counts.append(sum(e.count for e in profile.key_averages() if e.key == "aten::linear"))
    # Two passes and sizes: three products for each layer; then two for those from the middle on.
    assert counts == [24, 20]
