"""What concepts hold sums to the score, and their maps with the rest to the whole map."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import hilrp
from hilrp.concepts import Concepts, Directions
from hilrp.models.libraries import zoo
from hilrp.models.random_models import randomise_constants

#: Layers of small models: a stage, one that a skip passes by, what a module is given, heads, windows.
PLACES = {
    "resnet18": ["bn1", "layer2", "layer2.0.conv1", "layer3:input"],
    "vit_tiny_patch16_224": ["blocks.6", "blocks.2.attn.proj:input", "blocks.4.mlp.fc1"],
    "swin_tiny_patch4_window7_224": ["layers.1.blocks.0", "layers.1.blocks.0.attn"],
    "convnext_atto": ["stages.1", "stages.2.blocks.1.mlp"],
}
OPTIONS = {"swin_tiny_patch4_window7_224": {"window_size": 2, "embed_dim": 24, "depths": (1, 1, 2, 1)}}
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-10}


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    size = {"img_size": 64} if name.startswith(("vit", "swin")) else {}
    return randomise_constants(timm.create_model(name, num_classes=5, **size, **OPTIONS.get(name, {}))).eval()


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize(("name", "at"), [(name, at) for name, places in PLACES.items() for at in places])
def test_concepts_and_maps_add_up(name, at, rules, dtype):
    model, x = model_of(name).to(dtype), torch.randn(2, 3, 64, 64, dtype=dtype)
    concepts = Concepts(model, at, rules=rules)
    found = concepts.relevance(x, target=1)
    limit = LIMITS[dtype]
    assert found.relevance.shape[0] == 2
    assert float(found.ledger.residual.max()) < limit
    made = concepts.maps(x, target=1, concepts=found.strongest(5))
    assert made.one_by_one is None
    assert made.maps.shape == (2, 5, 64, 64)
    assert float(made.residual.max()) < limit
    assert float((made.difference.abs() / made.ledger.scale[:, None]).max()) < limit
    assert torch.equal(made.relevance, found.relevance)
    if dtype == torch.float64:  # the check can fail: half of the maps is missed
        halved = replace(made, maps=made.maps / 2)
        assert float(halved.residual.min()) > 1e-5
        assert float(halved.difference.abs().max()) > 1e-5


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize("name", sorted(zoo.names()))
def test_many_at_once_are_those_one_by_one(name, rules):
    """Batched forms of all that the zoo's twelve families are made of."""
    model, x = zoo.model(name).eval(), torch.randn(1, 3, 128, 128)
    stage = hilrp.Explainer(model).stages[2] + "[0]" * (name == "crossvit")
    concepts = Concepts(model, stage, rules=rules)
    chosen = concepts.relevance(x, 0).strongest(3)
    together, single = (concepts.maps(x, 0, chosen, at_once=n) for n in (3, 1))
    assert together.one_by_one is None
    scale = single.maps.abs().sum((2, 3))
    assert float(((together.maps - single.maps).abs().sum((2, 3)) / scale).max()) < 2e-5
    for name, kept in single.kept.items():
        assert torch.allclose(together.kept[name], kept, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize(("name", "at"), [("resnet", "layer3"), ("vit", "blocks.3"), ("swin", "layers.2")])
def test_many_at_once_on_a_gpu(name, at, rules):
    model, x = zoo.model(name).eval().cuda(), torch.randn(2, 3, 128, 128).cuda()
    concepts = Concepts(model, at, rules=rules)
    together, single = (concepts.maps(x, 0, range(12), at_once=n) for n in (12, 1))
    assert together.one_by_one is None
    assert float(together.residual.max()) < 1e-5
    scale = single.maps.abs().sum((2, 3)).clamp(min=1e-6)
    assert float(((together.maps - single.maps).abs().sum((2, 3)) / scale).max()) < 1e-4


def small(inplace: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    relu = nn.ReLU(inplace=inplace)
    return nn.Sequential(nn.Conv2d(3, 4, 3), relu, nn.Conv2d(4, 4, 3), relu, nn.Flatten(), nn.Linear(64, 3)).eval()


X = torch.randn(2, 3, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(3))


def test_without_a_reference_maps_are_gradients_through_one_channel():
    """Epsilon rules on a ReLU network: the gradient of the score that comes through a channel, times the input."""
    model = small().double()
    made = Concepts(model, "1#1", rules="epsilon", axis=1).maps(X, target=2)
    for k in range(4):
        x = X.clone().requires_grad_()
        h = model[:2](x)
        masked = h.detach().clone()
        masked[:, k] = h[:, k]
        own = torch.autograd.grad(model[2:](masked)[:, 2].sum(), x)[0]
        assert torch.allclose(made.maps[:, k], (own * X).sum(1), atol=1e-9)
        h = h.detach().requires_grad_()
        g = torch.autograd.grad(model[2:](h)[:, 2].sum(), h)[0]
        assert torch.allclose(made.relevance[:, k], (g * h)[:, k].sum((1, 2)), atol=1e-9)
    assert float(made.rest.abs().max()) < 1e-12  # one way through, and all of its channels


def test_relative_to_a_reference_maps_follow_the_formula():
    """One hidden layer: each unit's slope is ``D relu / D h``, written out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)).double().eval()
    x, x0 = torch.randn(3, 3, 2, 2).double(), torch.randn(3, 3, 2, 2).double()
    made = Concepts(model, "2", rules="epsilon", reference=x0).maps(x, target=1)
    (w, b), v = (model[1].weight, model[1].bias), model[3].weight[1]
    with torch.no_grad():
        h, h0 = (t.flatten(1) @ w.T + b for t in (x, x0))
        change = h.relu() - h0.relu()
        relevance = change * v
        slope = change / (h - h0)
        maps = torch.einsum("bk,kc->bkc", slope * v, w) * (x - x0).flatten(1)[:, None]
    assert torch.allclose(made.relevance, relevance, atol=1e-12)
    assert torch.allclose(made.maps, maps.unflatten(2, (3, 2, 2)).sum(2), atol=1e-12)
    assert torch.allclose(made.ledger.score - made.ledger.entries["reference"], relevance.sum(1))


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize("inplace", [False, True])
def test_in_place_writes_after_a_layer_change_nothing(inplace, rules):
    made = Concepts(small(inplace).double(), "0", rules=rules, axis=1).maps(X, 1)
    plain = Concepts(small().double(), "0", rules=rules, axis=1).maps(X, 1)
    assert torch.equal(made.maps, plain.maps)
    assert float(made.residual.max()) < 1e-12


def test_a_layer_that_runs_twice_has_to_be_named():
    model = small()
    with pytest.raises(hilrp.InputError, match='"1#1", "1#2"'):
        Concepts(model, "1", axis=1).relevance(X.float(), 0)
    first, second = (Concepts(model, f"1#{i}", axis=1).maps(X.float(), 0) for i in (1, 2))
    assert float((first.maps - second.maps).abs().max()) > 1e-4
    with pytest.raises(hilrp.ModelError, match="has 2 runs"):
        Concepts(model, "1#3", axis=1).relevance(X.float(), 0)


class Two(nn.Module):
    """A module that returns two tensors, one that has nothing to do with the score, one that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.idle, self.unused = nn.Identity(), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both((x * 2, x * 3))
        self.idle(a)
        return a + b + x


def test_several_tensors_and_layers_off_the_way():
    model, x = Two().eval(), torch.randn(2, 3)
    with pytest.raises(hilrp.InputError, match=r'"both\[0\]" \(2, 3\), "both\[1\]" \(2, 3\)'):
        Concepts(model, "both").relevance(x, 0)
    found = {at: Concepts(model, at).maps(x, 0) for at in ("both[0]", "both[1]")}
    assert torch.allclose(found["both[0]"].relevance * 1.5, found["both[1]"].relevance)
    assert torch.allclose(found["both[0]"].ledger.inputs["beside both[0]"], 4 * x[:, 0].double())
    with pytest.raises(hilrp.InputError, match="2 tensors that carry relevance"):
        Concepts(model, "both[2]").relevance(x, 0)
    with pytest.raises(hilrp.ModelError, match="no relevance of this score comes to `idle`"):
        Concepts(model, "idle").relevance(x, 0)
    with pytest.raises(hilrp.ModelError, match="`unused` is not on the way"):
        Concepts(model, "unused").relevance(x, 0)
    with pytest.raises(hilrp.InputError, match="no module named 'other'"):
        Concepts(model, "other")


def test_a_batch_of_one_and_an_input_that_is_its_reference():
    model = small().double()
    both, one = (Concepts(model, "2", axis=1).maps(x, 1) for x in (X, X[:1]))
    assert torch.allclose(both.maps[:1], one.maps, atol=1e-14)
    flat = Concepts(model, "2", axis=1, reference=X).maps(X, 1)
    assert not flat.relevance.any()
    assert not flat.maps.any()
    assert not flat.residual.any()


class Words(nn.Module):
    """Two inputs, of which one has a map."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.read, self.join = nn.Linear(12, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, pixels: Tensor, facts: Tensor) -> Tensor:
        return self.join((self.look(pixels.flatten(1)) + self.read(facts)).relu())


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
def test_what_comes_of_another_input_is_kept_beside_the_map(rules):
    torch.manual_seed(0)
    x = {"pixels": torch.randn(2, 3, 2, 2).double(), "facts": torch.randn(2, 3).double()}
    made = Concepts(Words().double().eval(), "join:input", rules=rules).maps(x, 1)
    assert float(made.difference.abs().max()) < 1e-12
    assert float(made.kept["facts"].abs().max()) > 1e-3
    assert float(made.residual.max()) < 1e-12


class Centred(nn.Module):
    """Samples that see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last(x - x.mean(0, keepdim=True) / 2)


@pytest.mark.filterwarnings("ignore")
def test_bad_input_is_told():
    model, x = small().double(), X
    for wrong, told in ((["a"], "from 0 to 3"), ([4], "from 0 to 3"), ([], "at least one"), ([1, 1], "named twice")):
        with pytest.raises(hilrp.InputError, match=told):
            Concepts(model, "2", axis=1).maps(x, 0, concepts=wrong)
    with pytest.raises(hilrp.InputError, match="at_once=0"):
        Concepts(model, "2", axis=1).maps(x, 0, at_once=0)
    with pytest.raises(hilrp.InputError, match="Give axis=1"):
        Concepts(model, "2").relevance(x, 0)
    with pytest.raises(hilrp.InputError, match="axis=4"):
        Concepts(model, "2", axis=4).relevance(x, 0)
    with pytest.raises(hilrp.InputError, match="one reference"):
        Concepts(model, "2", axis=1, reference=[0.0, 1.0]).relevance(x, 0)
    with pytest.raises(hilrp.ModelError, match="see each other"):
        Concepts(Centred().eval(), "first").relevance(torch.randn(3, 3), 0)
    with pytest.raises(hilrp.InputError, match=r"finite|NaN"):
        Concepts(model, "2", axis=1).relevance(x * float("nan"), 0)
    with pytest.raises(hilrp.ModelError, match="training"):
        Concepts(nn.Sequential(nn.Dropout(), *small()).train().double(), "2", axis=1).relevance(x, 0)
    with pytest.raises(hilrp.InputError, match="num_heads"):
        Concepts(model, "2", basis="heads")
    with pytest.raises(hilrp.InputError, match="the path of a module"):
        Concepts(model, "2#0")


def test_heads_are_groups_of_what_the_projection_is_given():
    model, x = model_of("vit_tiny_patch16_224").double(), torch.randn(1, 3, 64, 64).double()
    heads = Concepts(model, "blocks.3.attn", basis="heads").relevance(x, 0)
    channels = Concepts(model, "blocks.3.attn.proj:input").relevance(x, 0)
    assert heads.relevance.shape == (1, 3)
    assert torch.allclose(heads.relevance, channels.relevance.unflatten(1, (3, -1)).sum(2))
    assert heads.at == "blocks.3.attn.proj:input"


def test_nothing_about_the_model_is_changed():
    model = small()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    flags = [p.requires_grad for p in model.parameters()]
    Concepts(model, "2", axis=1).maps(X.float(), 0)
    Concepts(model, "2", axis=1).without(1, X.float(), 0)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_several_threads_do_not_mix():
    models = [small().double() for _ in range(2)]
    with torch.no_grad():
        models[1][5].weight *= 2
    alone = [Concepts(model, "2", axis=1).maps(X, 0).maps for model in models]
    found: dict[int, Tensor] = {}

    def run(i: int) -> None:
        found[i] = Concepts(models[i], "2", axis=1).maps(X, 0).maps

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[i], alone[i]) for i in range(2))


def test_progress_and_tables_say_what_is_done():
    told: list[tuple[int, int]] = []
    concepts = Concepts(small().double(), "2", axis=1)
    made = concepts.maps(X, 0, at_once=3, progress=lambda done, count: told.append((done, count)))
    assert told == [(3, 4), (4, 4)]
    text = made.table(0, rows=2)
    assert "concepts of 2" in text
    assert f"concept {made.strongest(1)[0]}" in text
    assert "beside 2" in text


def test_a_sparse_autoencoder_on_the_residual_stream():
    torch.manual_seed(0)
    model, x = model_of("vit_tiny_patch16_224").double(), torch.randn(1, 3, 64, 64).double()
    encoder = nn.Sequential(nn.Linear(192, 40), nn.ReLU()).double().eval()
    basis = Directions(torch.randn(40, 192).double() / 14, encoder)
    for rules in ("secant", "hilrp"):
        made = Concepts(model, "blocks.5", basis, rules).maps(x, 1, concepts=[3, 7, 11])
        assert made.one_by_one is None
        assert "outside the basis" in made.ledger.inputs
        assert float(made.ledger.residual) < 1e-10
        assert float(made.residual) < 1e-10
        assert float(made.difference.abs().max()) < 1e-10 * float(made.ledger.scale)
    assert float(made.kept["bias of the encoder"].abs().max()) > 0


def test_channels_of_a_sequence_are_not_guessed():
    """Of sound, a convolution returns [B,C,L] and a transformer [B,L,C]."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30, 2)).eval()
    x = torch.randn(2, 1, 32)
    with pytest.raises(hilrp.InputError, match="axis=1 if they come first"):
        Concepts(model, "1").relevance(x, 1)
    assert Concepts(model, "1", axis=1).relevance(x, 1).relevance.shape == (2, 4)


def test_numbers_of_concepts_are_whole_numbers_of_any_kind():
    concepts = Concepts(small().double(), "2", axis=1)
    own = concepts.without(1, X, 1).ablated
    for same in (np.int64(1), torch.tensor(1), np.array([1]), [np.int64(1)], torch.tensor([1])):
        assert torch.equal(concepts.without(same, X, 1).ablated, own)
    for wrong in (1.5, True, "1", [1.0], np.array([0.5])):
        with pytest.raises(hilrp.InputError, match="from 0 to 3"):
            concepts.without(wrong, X, 1)
