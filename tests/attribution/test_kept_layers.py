"""The relevance at modules that are named, kept whole: on every cut of a network it sums to the difference."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import hilrp

#: Cuts of small models, each before the next.
CUTS = {
    "resnet18": ["bn1", "act1:input", "layer1", "layer2:input", "layer2", "layer4", "global_pool"],
    "vit_tiny_patch16_224": ["patch_embed", "blocks.0:input", "blocks.3", "blocks.11", "norm"],
    "swin_tiny_patch4_window7_224": ["patch_embed", "layers.0", "layers.2.downsample", "norm"],
    "convnext_atto": ["stem", "stages.0", "stages.3"],
}
OPTIONS = {"swin_tiny_patch4_window7_224": {"window_size": 2, "embed_dim": 24, "depths": (1, 1, 2, 1)}}
SIZED = ("vit", "swin")


def model_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    size = {"img_size": 64} if name.startswith(SIZED) else {}
    return timm.create_model(name, num_classes=5, **size, **OPTIONS.get(name, {})).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CUTS)
def test_every_cut_holds_the_whole_difference(name, dtype):
    model, x = model_of(name).to(dtype), torch.randn(2, 3, 64, 64, dtype=dtype)
    found = hilrp.Explainer(model, keep=CUTS[name]).explain(x, target=1)
    assert list(found.layers) == CUTS[name]
    limit = 1e-5 if dtype == torch.float32 else 1e-10
    for cut, relevance in found.layers.items():
        assert relevance.dtype == dtype
        sums = relevance.flatten(1).double().sum(1)
        assert torch.allclose(sums, found.ledger.explained, rtol=limit, atol=limit), cut


def small() -> nn.Sequential:
    torch.manual_seed(0)
    relu = nn.ReLU(inplace=True)
    return nn.Sequential(nn.Conv2d(3, 4, 3), relu, nn.Conv2d(4, 4, 3), relu, nn.Flatten(), nn.Linear(64, 3)).eval()


def test_without_a_reference_a_layer_holds_what_reaches_it():
    """Gradient times value under the epsilon rule, which on ReLU networks is gradient times input."""
    model, x = small().double(), torch.randn(2, 3, 8, 8, dtype=torch.double)
    found = hilrp.Explainer(model, rules="epsilon", keep=["0", "2"]).explain(x, target=2)
    for i in (1, 3):
        features = model[:i](x).detach().clone().requires_grad_()
        # In-place layers may not write to a leaf.
        model[i:](features.clone())[:, 2].sum().backward()
        assert torch.allclose(found.layers[str(i - 1)], features.grad * features.detach(), atol=1e-9)


def test_a_module_that_runs_twice_has_both_runs():
    model, x = small().double(), torch.randn(2, 3, 8, 8, dtype=torch.double)
    found = hilrp.Explainer(model, keep=["1"]).explain(x, target=0)
    assert {name: tuple(t.shape) for name, t in found.layers.items()} == {"1": (2, 4, 6, 6), "1#2": (2, 4, 4, 4)}
    for t in found.layers.values():
        assert torch.allclose(t.flatten(1).sum(1), found.ledger.explained, rtol=1e-10)


def test_in_parts_along_chains_and_of_some_samples():
    model, x = small(), torch.randn(4, 3, 8, 8)
    explainer = hilrp.Explainer(model, keep=["0", "5:input"])
    whole, parts = explainer.explain(x, target=0), explainer.explain(x, target=0, batch=3)
    for name, t in whole.layers.items():
        assert torch.allclose(parts.layers[name], t, atol=1e-6)
        assert torch.equal(whole[1].layers[name], t[1:2])
    chained = explainer.explain(x, target=0, passes=4)
    assert float((chained.layers["0"] - whole.layers["0"]).abs().max()) > 1e-4
    for t in chained.layers.values():
        assert torch.allclose(t.flatten(1).sum(1).double(), chained.ledger.explained, rtol=1e-4, atol=1e-5)
    several = hilrp.Explainer(model, reference=[0.0, 1.0], keep=["0"]).explain(x, target=0)
    each = [hilrp.Explainer(model, reference=at, keep=["0"]).explain(x, target=0).layers["0"] for at in (0.0, 1.0)]
    assert torch.allclose(several.layers["0"], sum(each) / 2, atol=1e-6)


class Centred(nn.Module):
    """Samples that see each other: each score is propagated alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return self.last(x - x.mean(0, keepdim=True) / 2)


def test_samples_that_see_each_other():
    """Rows hold each sample's own score alone, as the relevance of the input does."""
    torch.manual_seed(0)
    x = torch.randn(3, 3, dtype=torch.double)
    found = hilrp.Explainer(Centred().double().eval(), keep=["first"]).explain(x, target=0)
    assert any("samples see each other" in note for note in found.notes)
    own = found.layers["first"].sum(1)
    assert own.abs().min() > 1e-4
    assert torch.allclose(own, found.relevance.sum(1), rtol=1e-9)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both, self.idle, self.unused = nn.Identity(), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.both((x * 2, x * 3))
        return a + b, self.idle(a)


def test_blocks_beside_those_that_run_again():
    model, x = model_of("resnet18"), torch.randn(1, 3, 64, 64)
    keep = ["layer2", "layer3", "layer3.1.conv1:input"]
    plain = hilrp.Explainer(model, keep=keep).explain(x, 1).layers
    again = hilrp.Explainer(model, recompute=["layer3.0"], keep=keep).explain(x, 1).layers
    assert plain.keys() == again.keys() == {*keep}
    assert all(torch.allclose(plain[name], again[name], atol=1e-6) for name in keep)
    for inside in ("layer3.0", "layer3.0.conv1:input"):
        with pytest.raises(hilrp.InputError, match=f"'{inside}' runs again in the backward pass"):
            hilrp.Explainer(model, recompute=["layer3.0"], keep=[inside])


def test_several_tensors_and_layers_that_nothing_reaches(tmp_path):
    x = torch.randn(2, 3)
    found = hilrp.Explainer(Two().eval(), keep=["both", "idle", "unused"]).explain(x, target=0)
    assert {*found.layers} == {"both", "both[1]", "idle"}
    assert torch.allclose(found.layers["both"] * 1.5, found.layers["both[1]"])
    assert not found.layers["idle"].any()
    assert {"layer/both", "layer/both[1]"} <= {*found.arrays()}


class Searching(nn.Module):
    """One that looks first where something is, without gradients, and then reads it there."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.words, self.head = nn.Linear(3, 4), nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.features(torch.ones_like(x))
        return self.head(self.features(x) + self.words(torch.tensor([1])))


def test_runs_that_have_nothing_to_do_with_what_is_explained_are_none():
    """The first run has no relevance, so that the other is not called the second; a module without any is named."""
    model, x = Searching().double().eval(), torch.randn(2, 3, dtype=torch.double)
    found = hilrp.Explainer(model, keep=["features", "words"]).explain(x, target=0)
    assert {*found.layers} == {"features"}
    assert torch.allclose(found.layers["features"].sum(1), found.ledger.explained, rtol=1e-10)
    assert [note for note in found.notes if note.startswith("keep: what is at `words` does not depend")]
    assert not [note for note in found.notes if "`features`" in note]


def test_what_can_not_be_kept():
    model = small()
    with pytest.raises(hilrp.InputError, match=r"keep: the model has no module named 'layer9'.*name:input"):
        hilrp.Explainer(model, keep=["0", "layer9"])
    with pytest.raises(hilrp.InputError, match="give a list of module paths"):
        hilrp.Explainer(model, keep="0")

    class Turned(nn.Module):
        def forward(self, x):
            return x.transpose(0, 1)

    turned = nn.Sequential(nn.Linear(3, 4), Turned(), Turned(), nn.Linear(4, 2)).eval()
    explainer = hilrp.Explainer(turned, keep=["1"])
    assert explainer.explain(torch.randn(4, 3), target=0).layers["1"].shape == (4, 4)
    with pytest.raises(hilrp.InputError, match=r"what is at `1` has no rows for each sample"):
        explainer.explain(torch.randn(5, 3), target=0, batch=2)


class Writing(nn.Module):
    """Writes in one way, or does the same out of place."""

    def __init__(self, way) -> None:
        super().__init__()
        self.a, self.b, self.c, self.m = (nn.Conv2d(3, 3, 1) for _ in range(4))
        self.r, self.f, self.last = nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.f(self.way(self, x)))


def added(model, x):
    h, g = model.a(x), model.b(x)
    h.add_(g)
    return model.m(h)


def added_out_of_place(model, x):
    return model.m(model.a(x) + model.b(x))


def twice(model, x):
    h = model.a(x)
    model.r(h)
    h.add_(model.b(x))
    model.r(h)
    return model.m(h)


def twice_out_of_place(model, x):
    h = model.a(x).relu() + model.b(x)
    return model.m(h.relu())


def a_part(model, x):
    h = model.a(x)
    h[:, :2] = model.b(x)[:, :2]
    return model.m(h)


def a_part_out_of_place(model, x):
    return model.m(torch.cat([model.b(x)[:, :2], model.a(x)[:, 2:]], 1))


def a_buffer(model, x):
    h = torch.zeros(len(x), 3, 2, 2, dtype=x.dtype)
    h.copy_(model.b(x))
    return model.m(h)


def a_buffer_out_of_place(model, x):
    return model.m(model.b(x))


@pytest.mark.parametrize("way", [added, twice, a_part, a_buffer])
def test_what_a_module_is_given_after_writes(way):
    torch.manual_seed(0)
    model, x = Writing(way).double().eval(), torch.randn(2, 3, 2, 2, dtype=torch.double)
    found = hilrp.Explainer(model, keep=["m:input"]).explain(x, 0).layers["m:input"]
    model.way = globals()[f"{way.__name__}_out_of_place"]
    twin = hilrp.Explainer(model, keep=["m:input"]).explain(x, 0).layers["m:input"]
    assert twin.abs().max() > 1e-3
    assert torch.allclose(found, twin, rtol=1e-10)


@pytest.mark.parametrize("kept", ["r", "f"])
def test_views_of_memory_that_is_written_to_are_errors(kept):
    def part(model, x):
        h = model.a(x)
        model.r(h[:, :2])
        v = model.f(h)
        h.mul_(2).add_(0.3)
        return model.c(v.view(h.shape))

    torch.manual_seed(0)
    model, x = Writing(part).double().eval(), torch.randn(2, 3, 2, 2, dtype=torch.double)
    with pytest.raises(hilrp.InputError, match=f"what is at `{kept}` is a view of memory that the model writes to"):
        hilrp.Explainer(model, keep=[kept]).explain(x, 0)


def test_samples_of_what_is_kept():
    """Windows are several rows of a sample; what has no rows for samples is left out of a part."""
    model, x = model_of("swin_tiny_patch4_window7_224"), torch.randn(2, 3, 64, 64)
    found = hilrp.Explainer(model, keep=["layers.0.blocks.0.attn"]).explain(x, 1)
    alone = hilrp.Explainer(model, keep=["layers.0.blocks.0.attn"]).explain(x[1:], 1)
    (name,) = found.layers
    assert found[1].layers[name].shape == alone.layers[name].shape
    assert torch.allclose(found[1].layers[name], alone.layers[name], atol=1e-6)

    class Turned(nn.Module):
        def forward(self, x):
            return x.transpose(0, 1)

    turned = nn.Sequential(nn.Linear(3, 4), Turned(), Turned(), nn.Flatten(), nn.Linear(8, 2)).eval()
    whole = hilrp.Explainer(turned, keep=["0", "1"]).explain(torch.randn(2, 2, 3), 0)
    assert {*whole.layers} == {"0", "1"}
    assert {*whole[0].layers} == {"0"}
