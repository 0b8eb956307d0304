"""Scores without a concept, and references that begin at a layer."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

import hilrp
from hilrp.concepts import AtLayer, Concepts, Directions
from hilrp.models.random_models import randomise_constants

X = torch.randn(2, 3, 64, 64, dtype=torch.double, generator=torch.Generator().manual_seed(3))
PLACES = {
    "resnet18": [("layer2", None), ("layer3.0.conv1", None), ("layer3:input", 4)],
    "vit_tiny_patch16_224": [("blocks.5", None), ("blocks.5.attn", "heads")],
    "swin_tiny_patch4_window7_224": [("layers.1.blocks.0.attn", "heads")],
}
OPTIONS = {
    "vit_tiny_patch16_224": {"img_size": 64},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "window_size": 2, "embed_dim": 24, "depths": (1, 1, 2, 1)},
}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    return randomise_constants(timm.create_model(name, num_classes=5, **OPTIONS.get(name, {}))).double().eval()


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize(("name", "at", "basis"), [(n, *place) for n, places in PLACES.items() for place in places])
def test_relative_to_the_ablated_state_the_relevance_is_the_change(name, at, basis, rules):
    """Exactly so: relative to the state without them, concepts hold what the score loses, and nothing else does."""
    model = model_of(name)
    concepts = Concepts(model, at, basis, rules)
    chosen = concepts.relevance(X, 1).strongest(2)
    ablation = concepts.without(chosen, X, 1)
    with torch.no_grad():
        assert torch.allclose(ablation.score, model(X)[:, 1])
    assert float(ablation.change.abs().min()) > 1e-6
    found = ablation.explain()
    held = found.relevance.flatten(1).sum(1)
    assert torch.allclose(held, ablation.change, rtol=1e-9, atol=1e-12)
    assert float(found.ledger.residual.max()) < 1e-10
    other = (ablation.values == ablation.ablated_values) & (found.relevance != 0)
    assert not other.any()


def test_a_channel_is_set_to_the_reference_or_to_zero():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)).double().eval()
    x, x0 = torch.randn(3, 3, 2, 2).double(), torch.randn(3, 3, 2, 2).double()
    for rules, reference in (("secant", x0), ("epsilon", None)):
        found = Concepts(model, "2", rules=rules, reference=reference).without(3, x, 1)
        with torch.no_grad():
            h = model[:3](x)
            h[:, 3] = 0 if reference is None else model[:3](x0)[:, 3]
            assert torch.allclose(found.ablated, model[3](h)[:, 1])
        # The head is linear: the relevance says the change, whatever it is relative to.
        assert torch.allclose(found.change, found.relevance)
        assert f"{float(found.ablated[0]):.4g}" in repr(found)


def test_a_direction_is_taken_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)).double().eval()
    x = torch.randn(3, 3, 2, 2).double()
    directions = torch.linalg.qr(torch.randn(5, 5).double())[0][:2]
    found = Concepts(model, "2", Directions(directions), "epsilon").without([0], x, 1)
    with torch.no_grad():
        h = model[:3](x)
        assert torch.allclose(found.ablated_values, h - (h @ directions[0])[:, None] * directions[0])
    assert torch.allclose(found.change, found.relevance)


def test_a_reference_may_begin_at_a_layer():
    """From the layer on, the difference is the model's own; what comes before it has no part."""
    model = model_of("resnet18")
    for at in ("layer2", "layer3:input", "bn1"):
        layer = AtLayer(model, at, X)
        now, before = layer.values(), layer.values(X * 0)
        found = hilrp.explain(layer, now, 2, reference=before)
        with torch.no_grad():
            if at == "bn1":  # an activation in place follows
                assert torch.equal(now, model.bn1(model.conv1(X)))
            assert torch.allclose(found.ledger.explained, (model(X) - layer(before))[:, 2])
            assert torch.equal(layer(now), model(X))
        assert torch.allclose(found.relevance.flatten(1).sum(1), found.ledger.explained, rtol=1e-10)
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


class Second(nn.Module):
    """One whose second tensor goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.head = nn.Identity(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, used = self.both((torch.ones_like(x), x * 3))
        return self.head(used * used)


def test_what_does_not_go_on_is_not_put_back_in_silence():
    """The one tensor that carries is the second of two that are returned: values in the place of the first would be
    another model's.
    """
    model, x = Second().double().eval(), torch.randn(2, 3).double()
    with pytest.raises(hilrp.ModelError, match="another tensor"):
        Concepts(model, "both").without(0, x, 0)


def test_bad_input_is_told():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    with pytest.raises(hilrp.InputError, match="no module of that name"):
        AtLayer(model, "5", torch.randn(1, 3))
    with pytest.raises(hilrp.ModelError, match="does not run"):
        AtLayer(model, "0#2", torch.randn(1, 3)).values()
    with pytest.raises(hilrp.InputError, match="from 0 to 3"):
        Concepts(model, "0").without(4, torch.randn(1, 3), 0)


class Skipped(nn.Module):
    """A skip that begins before `inner`, and a dropout that returns what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = nn.Linear(3, 4), nn.Dropout(0.5)
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.head(h + self.inner(self.drop(h)).tanh_())


@pytest.mark.parametrize("at", ["drop", "drop:input", "inner:input"])
def test_a_tensor_that_also_goes_on_beside_the_module_is_told(at):
    """Its concepts hold both ways' relevance; a run that changes one way alone would be compared with it."""
    torch.manual_seed(0)
    model, x = Skipped().eval(), torch.randn(2, 3)
    with pytest.raises(hilrp.ModelError, match="goes on other ways"):
        Concepts(model, at).without(0, x, 0)
    written = Concepts(model, "inner").without(0, x, 0)  # in place, which is no other way
    assert float(written.change.abs().max()) > 0
    assert all(p.grad is None for p in model.parameters())


def test_models_made_in_inference_mode():
    with torch.inference_mode():
        model, x = Skipped().eval(), torch.randn(2, 3)
        assert Concepts(model, "inner").without(0, x, 0).change.shape == (2,)
        with pytest.raises(hilrp.ModelError, match="goes on other ways"):
            Concepts(model, "drop").without(0, x, 0)


def test_of_a_layer_that_runs_twice_the_run_has_to_be_said():
    layer = nn.Linear(3, 3)
    model, x = nn.Sequential(layer, nn.ReLU(), layer).eval(), torch.randn(1, 3)
    with pytest.raises(hilrp.InputError, match="more than once"):
        AtLayer(model, "0", x).values()
    with pytest.raises(hilrp.InputError, match="more than once"):
        AtLayer(model, "0", x)(torch.zeros(1, 3))
    assert torch.equal(AtLayer(model, "0#2", x).values(), model(x))
