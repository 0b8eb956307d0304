"""Every step of a graph of concepts adds up, and its edges are what a formula says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hilrp
from helpers.models import small_swin, small_vit
from hilrp.concepts import Concepts, Directions, graph
from hilrp.models.random_models import randomise_constants


def resnet() -> nn.Module:
    torchvision = pytest.importorskip("torchvision")
    return randomise_constants(torchvision.models.resnet18(num_classes=5)).eval()


MODELS = {
    "resnet": (resnet, ["layer4", "layer3.1.conv1", "layer2"]),
    "swin": (small_swin, ["layers.1.blocks.1", "layers.0.blocks.1.mlp"]),
    "vit": (small_vit, ["blocks.2", "blocks.1.attn.proj:input", "blocks.0"]),
}
SIZES = {"vit": 32}


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize("name", MODELS)
def test_every_step_adds_up(name, rules):
    torch.manual_seed(0)
    make, layers = MODELS[name]
    model, side = make().double(), SIZES.get(name, 64)
    x = torch.randn(2, 3, side, side).double()
    found = graph(model, layers, x, 1, count=3, rules=rules)
    for step in found.steps:
        assert float(step.difference.abs().max()) < 1e-10 * float(found.explanation.ledger.scale.max())
        alone = Concepts(model, step.upper, rules=rules).relevance(x, 1)
        assert torch.allclose(step.relevance, alone.relevance[:, step.concepts], atol=1e-12)


def test_a_lower_concept_is_what_it_carries_of_all_above():
    """Nothing passes beside a block of the residual stream."""
    model, x = small_vit().double(), torch.randn(2, 3, 32, 32).double()
    step = graph(model, ["blocks.2", "blocks.1"], x, 1, count=24, at_once=24).steps[0]
    assert not step.beside.any()
    assert torch.allclose(step.edges.sum(1), Concepts(model, "blocks.1").relevance(x, 1).relevance, atol=1e-12)


def test_edges_of_two_layers_follow_the_formula():
    """Relative to a reference: ``v_k s_k w_kj D a_j``, written out."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)]
    model = nn.Sequential(*layers).double().eval()
    x, x0 = torch.randn(3, 3, 2, 2).double(), torch.randn(3, 3, 2, 2).double()
    found = graph(model, ["4", "2"], x, 1, count=4, rules="epsilon", reference=x0)
    with torch.no_grad():
        (a, a0), (h, h0) = ([model[:i](t) for t in (x, x0)] for i in (3, 4))
        slope = (h.relu() - h0.relu()) / (h - h0)
        edges = torch.einsum("k,bk,kj,bj->bkj", model[5].weight[1], slope, model[3].weight, a - a0)
    (step,) = found.steps
    assert torch.allclose(step.edges, edges[:, step.concepts], atol=1e-12)
    assert not step.beside.any()


def test_other_bases_in_each_layer():
    torch.manual_seed(0)
    model, x = small_vit().double(), torch.randn(1, 3, 32, 32).double()
    encoder = nn.Sequential(nn.Linear(24, 10), nn.ReLU()).double().eval()
    bases = {"blocks.2": Directions(torch.randn(10, 24).double(), encoder), "blocks.1": torch.randn(3, 24).double()}
    for rules in ("secant", "hilrp"):
        found = graph(model, ["blocks.2", "blocks.1"], x, 1, 2, bases, rules)
        assert found.steps[0].edges.shape == (1, 2, 3)
        assert float(found.steps[0].outside.abs().max()) > 0
        assert float(found.steps[0].difference.abs().max()) < 1e-10


def test_what_is_said_of_a_graph():
    model, x = small_vit(), torch.randn(1, 3, 32, 32)
    found = graph(model, ["blocks.2", "blocks.1"], x, 1, count=2)
    text, drawn = found.table(), found.dot()
    for at in found.layers:
        for k in found.concepts[at]:
            assert f'"{at} {k}" [label' in drawn
            assert f"{at} {k}" in text
    assert drawn.count("->") == 4
    assert "other concepts" in text


def test_bad_input_is_told():
    model, x = small_vit(), torch.randn(1, 3, 32, 32)
    for at, told in (("blocks.2", "two layers"), (["blocks.2"], "two layers"), (["blocks.2"] * 2, "named twice")):
        with pytest.raises(hilrp.InputError, match=told):
            graph(model, at, x, 1)
    with pytest.raises(hilrp.InputError, match="does not come before"):
        graph(model, ["blocks.1", "blocks.2"], x, 1)
    with pytest.raises(hilrp.InputError, match="count=0"):
        graph(model, ["blocks.2", "blocks.1"], x, 1, count=0)
    with pytest.raises(hilrp.InputError, match="no module named 'nothing'"):
        graph(model, ["blocks.2", "nothing"], x, 1)
    with pytest.raises(hilrp.InputError, match=r"there is none for \['blocks.1'\]"):
        graph(model, ["blocks.2", "blocks.1"], x, 1, basis={"blocks.2": 4})
