"""Inputs larger than a model's window: what is stitched is what others stitch, and the ledger of the whole closes."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.models import randomised
from hilrp import InputError, TargetError, Tiles
from hilrp.attribution.tiles import Stitched
from hilrp.targets import Contrast, Region
from hilrp.util.errors import BooksError, ModelError

#: How far the ledger of the whole may be from closing.
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-10}


class SmallUNet(nn.Module):
    """A skip connection, pooling and a transposed convolution, for pictures or volumes of three channels."""

    def __init__(self, axes: int = 2, classes: int = 4) -> None:
        super().__init__()
        conv, pool, up, norm = {
            2: (nn.Conv2d, nn.MaxPool2d, nn.ConvTranspose2d, nn.BatchNorm2d),
            3: (nn.Conv3d, nn.MaxPool3d, nn.ConvTranspose3d, nn.BatchNorm3d),
        }[axes]
        self.first, self.norm, self.down = conv(3, 4, 3, padding=1), norm(4), pool(2)
        self.inner, self.up, self.head = conv(4, 8, 3, padding=1), up(8, 4, 2, 2), conv(8, classes, 3, padding=1)

    def forward(self, x):
        fine = torch.relu(self.norm(self.first(x)))
        coarse = torch.relu(self.inner(self.down(fine)))
        return self.head(torch.cat([fine, torch.relu(self.up(coarse))], 1))


class Classifier(nn.Module):
    """Five logits of a tile of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(torch.relu(self.first(x)).mean((2, 3)))


def made(model: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return randomised(model).to(dtype)


def given(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


def in_one_go(model: nn.Module, x: torch.Tensor, target, tiles: Tiles, **options) -> hilrp.Explanation:
    """The stitched model with the graph of all tiles: they run at once, since the rules go by the depth of layers."""
    settings = {**vars(tiles), "batch": 10_000}
    return hilrp.explain(Stitched(model, Tiles(**settings)), x, target, stages=None, **options)


CASES = [
    ((2, 3, 20, 28), Tiles((8, 12), 0.5), Region(1)),
    ((1, 3, 20, 28), Tiles(8, 0.25, "gaussian", batch=3), Region(None, box=(3, 2, 20, 9))),
    ((1, 3, 6, 28), Tiles(8, 0.5, padding="reflect"), Region(2)),
    ((1, 3, 5, 6), Tiles(8, padding="replicate"), Region(2)),
    ((1, 3, 6, 12), Tiles((8, 0), padding="circular"), Region(2)),
    ((1, 3, 6, 12), Tiles(8, value=0.5), Region(2)),
    ((1, 3, 10, 12, 8), Tiles((4, 8, 8), 0.5, "gaussian"), Region(3, box=(2, 1, 0, 7, 9, 8))),
    ((2, 3, 16, 16), Tiles(8), lambda output: output.softmax(1)[:, 1].square().mean((1, 2))),
]


@pytest.mark.parametrize("rules", ["secant", "hilrp", "epsilon"])
@pytest.mark.parametrize(("shape", "tiles", "target"), CASES)
def test_tiles_add_up_to_the_whole_explained_in_one_go(shape, tiles, target, rules):
    model, x = made(SmallUNet(len(shape) - 2)), given(*shape)
    if callable(target) and rules != "secant":
        target = lambda output: output[:, 1].mean((1, 2))  # noqa: E731 (a softmax is a gate without a reference)
    found = hilrp.explain(model, x, target, rules, tiles=tiles)
    whole = in_one_go(model, x, target, tiles, rules=rules)
    assert float(found.ledger.residual.max()) < LIMITS[x.dtype]
    assert torch.allclose(found.relevance, whole.relevance, rtol=1e-9, atol=1e-12)
    assert torch.allclose(found.score, whole.score)
    assert torch.allclose(found.output, whole.output)
    for name, entry in whole.ledger.entries.items():
        if name not in ("padding", "constant"):
            assert torch.allclose(found.ledger.entries[name], entry), name
    assert torch.allclose(found.ledger.constants, whole.ledger.constants)
    assert found.map.shape == (shape[0], *shape[2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("itemised", [False, True])
def test_the_ledger_of_the_whole_closes(dtype, itemised):
    model, x = made(SmallUNet(), dtype), given(1, 3, 70, 90, dtype=dtype)
    found = hilrp.explain(model, x, Region(1), tiles=Tiles(16, 0.5), itemised=itemised)
    assert float(found.ledger.residual) < LIMITS[dtype]
    assert float(found.ledger.leak) < 10 * LIMITS[dtype]
    pixels = found.map.double().sum()
    assert (
        float((pixels - (found.ledger.score - found.ledger.entries["reference"])).abs() / found.score) < LIMITS[dtype]
    )
    assert found.verdicts == ["valid"]
    assert found.relative_to == "the picture's mean colour"


@pytest.mark.parametrize("blend", ["mean", "gaussian"])
def test_stitched_is_what_torch_folds(blend):
    """Where tiles fit, stitching is `torch.nn.functional.fold` of weighed outputs, by that of the weights."""
    model, x, side, step = made(SmallUNet()), given(2, 3, 20, 28), 8, 4
    tiles = F.unfold(x, side, stride=step).transpose(1, 2).reshape(-1, 3, side, side)
    bell = (
        torch.exp(-((torch.arange(side) - 3.5) ** 2) / 2).double() if blend == "gaussian" else torch.ones(side).double()
    )
    weights = (bell[:, None] * bell).clamp_min(max(float(bell.min()) ** 2, 1e-3))
    weighed = model(tiles) * weights
    columns = weighed.reshape(2, -1, 4 * side * side).transpose(1, 2)
    count = weights.expand_as(weighed).reshape(2, -1, 4 * side * side).transpose(1, 2)
    expected = F.fold(columns, (20, 28), side, stride=step) / F.fold(count, (20, 28), side, stride=step)
    found = Stitched(model, Tiles(side, 0.5, blend, batch=5))(x)
    assert torch.allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["constant", "gaussian"])
@pytest.mark.parametrize(
    ("shape", "window", "overlap", "padding"),
    [
        ((2, 3, 23, 30), (8, 12), 0.25, "constant"),
        ((1, 3, 6, 30), (8, 8), 0.6, "reflect"),
        ((1, 3, 5, 7), (8, 8), 0.0, "replicate"),
        ((1, 3, 13, 9, 17), (8, 4, 8), (0.5, 0.25, 0.1), "constant"),
    ],
)
@pytest.mark.parametrize("scale", [1, 2])
def test_stitched_is_what_monai_stitches(shape, window, overlap, padding, mode, scale):
    inferers = pytest.importorskip("monai.inferers")
    unet, pool = made(SmallUNet(len(shape) - 2)), (F.avg_pool2d, F.avg_pool3d)[len(shape) - 4]
    model = (lambda x: pool(unet(x), scale)) if scale > 1 else unet
    x = given(*shape)

    class Scaled(nn.Module):
        def forward(self, x):
            return model(x)

    expected = inferers.sliding_window_inference(x, window, 3, model, overlap, mode, padding_mode=padding)
    found = Stitched(Scaled().eval(), Tiles(window, overlap, mode, batch=3, padding=padding))(x)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize("blend", ["mean", "max", lambda logits: logits.topk(2, dim=1).values.mean(1)])
def test_classes_of_tiles_are_pooled(blend, rules):
    model, x, tiles = made(Classifier()), given(2, 3, 20, 28), Tiles(8, 0.5, blend)
    logits = torch.stack([model(x[:, :, i : i + 8, j : j + 8]) for i in range(0, 13, 4) for j in range(0, 21, 4)], 1)
    expected = blend(logits) if callable(blend) else logits.amax(1) if blend == "max" else logits.mean(1)
    found = hilrp.explain(model, x, None, rules, tiles=tiles)
    assert torch.allclose(found.output, expected)
    assert found.target.tolist() == expected.argmax(1).tolist()
    assert float(found.ledger.residual.max()) < 1e-10
    whole = in_one_go(model, x, found.target, tiles, rules=rules)
    assert torch.allclose(found.relevance, whole.relevance, rtol=1e-9, atol=1e-12)
    against = hilrp.explain(model, x, Contrast(1, [0, 2]), rules, tiles=tiles)
    assert against.against.tolist() == [0, 2]


def test_tiles_that_count_nothing_do_not_run():
    model, x, seen = made(SmallUNet()), given(1, 3, 40, 40), []
    explainer = hilrp.TiledExplainer(model, Tiles(8, 0.0, batch=1))
    inner = explainer.of_tiles._explain
    explainer.of_tiles._explain = lambda *args, **named: seen.append(0) or inner(*args, **named)
    found = explainer.explain(x, Region(1, box=(9, 9, 14, 22)))
    assert len(seen) == 2
    assert float(found.map[:, :8].abs().max()) == 0 < float(found.map[:, 8:24, 8:16].abs().max())
    assert float(found.ledger.residual) < 1e-10


def test_a_plain_reference_runs_as_one_tile_or_not_and_is_the_same():
    model, x = made(SmallUNet()), given(2, 3, 24, 24)
    plain = hilrp.explain(model, x, Region(1), tiles=Tiles(8))
    laid_out = plain.reference.contiguous()
    again = hilrp.explain(model, x, Region(1), reference=laid_out, tiles=Tiles(8))
    assert torch.allclose(plain.relevance, again.relevance, rtol=1e-9, atol=1e-13)


def test_chains_batches_references_and_states_are_those_of_the_whole():
    model, x, tiles = made(SmallUNet()), given(3, 3, 16, 20), Tiles(8, 0.5)
    chains = hilrp.explain(model, x, Region(1), passes=8, tiles=tiles)
    assert float(chains.ledger.residual.max()) < 1e-10
    assert chains.stderr.shape == (3, 16, 20)
    whole = hilrp.explain(model, x, Region(1), tiles=tiles)
    batched = hilrp.explain(model, x, Region(1), tiles=tiles, batch=1)
    assert torch.allclose(whole.relevance, batched.relevance)
    assert torch.allclose(whole.ledger.explained, chains.ledger.explained)
    for reference in ("blurred", "mean", 0.0, ["mean", 0.0], x.flip(0)):
        found = hilrp.explain(model, x, Region(1), reference=reference, tiles=tiles)
        assert float(found.ledger.residual.max()) < 1e-10
    steps = hilrp.TiledExplainer(model, tiles).explain_chain([x * 0, x / 2, x], Region(1))
    total = sum(each.ledger.pixels for each in steps)
    assert torch.allclose(total, steps[-1].score - steps[0].ledger.entries["reference"])


def test_other_inputs_go_to_every_tile_and_their_relevance_adds_up():
    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.words = nn.Conv2d(3, 2, 3, padding=1), nn.Linear(5, 2)

        def forward(self, pixels, words):
            return torch.relu(self.conv(pixels)) * self.words(words).exp()[:, :, None, None]

    model, x = made(Told()), {"pixels": given(2, 3, 12, 12), "words": given(2, 5)}
    tiles, target = Tiles(8, 0.5), Region(1)
    found = hilrp.explain(model, x, target, tiles=tiles)
    whole = in_one_go(model, x, target, tiles)
    assert set(found.ledger.inputs) == {"pixels", "words"}
    assert float(found.ledger.residual.max()) < 1e-10
    assert torch.allclose(found.relevance["words"], whole.relevance["words"])
    assert torch.allclose(found.relevance["pixels"], whole.relevance["pixels"])


def test_signals_are_cut_in_time_and_the_models_of_a_dictionary_too():
    class Signal(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 3, 5, padding=2)

        def forward(self, x):
            return {"out": torch.tanh(self.conv(x))}

    found = hilrp.explain(made(Signal()), given(1, 1, 50), lambda y: y[:, 1].mean(1), kind="sound", tiles=Tiles(16))
    assert found.map.shape == (1, 50)
    assert float(found.ledger.residual) < 1e-10


def test_padding_of_a_plain_explanation_is_an_entry():
    model, x = made(SmallUNet()), given(1, 3, 6, 20)
    found = hilrp.explain(model, x, Region(1), "epsilon", tiles=Tiles(8, value=2.0))
    assert float(found.ledger.entries["padding"].abs()) > 0
    assert float(found.ledger.residual) < 1e-10
    assert "padding" not in hilrp.explain(model, x, Region(1), tiles=Tiles(8, value=2.0)).ledger.entries


class Around(nn.Module):
    """A model with something done around it."""

    def __init__(self, model: nn.Module, forward) -> None:
        super().__init__()
        self.model, self.around = model, forward

    def forward(self, x):
        return self.around(self.model, x)


@pytest.mark.parametrize("layer", ["norm", "dropout"])
def test_layers_in_training_stay_in_it_and_are_an_error(layer):
    model, x = made(SmallUNet()), given(1, 3, 16, 16)
    model.dropout = nn.Dropout(0.5).eval()
    getattr(model, layer).train()
    with pytest.raises(ModelError, match=f"training mode.*{layer}"):
        hilrp.explain(model, x, Region(1), tiles=Tiles(8))
    assert getattr(model, layer).training
    assert not model.training


def test_a_wrapper_in_training_does_not_take_the_model_along():
    model = Around(made(SmallUNet()), lambda model, x: model(x)).train()
    model.model.eval()
    assert hilrp.explain(model, given(1, 3, 16, 16), Region(1), tiles=Tiles(8)).verdicts == ["valid"]
    assert model.training
    assert not any(module.training for module in model.model.modules())


@pytest.mark.parametrize("around", [lambda m, x: m(x) * len(x), lambda m, x: m(x - x.mean(0, keepdim=True))])
def test_tiles_that_see_each_other_are_told(around):
    model, x = Around(made(SmallUNet()), around).eval(), given(1, 3, 16, 16)
    said = "tiles see each other, or how many there are"
    assert any(said in note for note in hilrp.explain(model, x, Region(1), tiles=Tiles(8)).notes)
    with pytest.raises(BooksError, match="whichever others are beside it"):  # of a part of the tiles
        hilrp.explain(model, x, Region(1, box=(1, 1, 5, 15)), tiles=Tiles(8))
    alone = hilrp.explain(made(SmallUNet()), x, Region(1), tiles=Tiles(8))
    assert not any(said in note for note in alone.notes)


def test_of_several_outputs_it_is_told_which_tiles_are_put_together_of():
    x = given(1, 3, 16, 16)
    model = Around(made(SmallUNet()), lambda model, x: (model(x), model.first(x))).eval()
    found = hilrp.explain(model, x, Region(1), tiles=Tiles(8))
    assert any("returns several tensors" in note and "(4, 8, 8)" in note for note in found.notes)
    model = Around(made(SmallUNet()), lambda model, x: {"out": model(x), "aux": model.first(x)}).eval()
    assert not hilrp.explain(model, x, Region(1), tiles=Tiles(8)).notes


@pytest.mark.parametrize("rules", ["secant", "epsilon"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_inputs_that_are_as_many_as_tiles_run_at_once_are_not_taken_for_theirs(length, rules):
    """Nine tiles, four at a time: groups of four, four and one."""

    class Prompted(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.words = nn.Conv2d(3, 2, 3, padding=1), nn.Linear(5, 2)

        def forward(self, pixels, prompts):
            return torch.relu(self.conv(pixels)) * self.words(prompts).exp().mean(0)[None, :, None, None]

    model, tiles = made(Prompted()), Tiles(6, 0.5)
    x = {"pixels": given(1 if length > 1 else 2, 3, 12, 12), "prompts": given(length, 5)}
    found, whole = (explain(model, x, Region(1), tiles=tiles, rules=rules) for explain in (hilrp.explain, _in_one_go))
    assert float(found.ledger.residual.max()) < 1e-10
    assert torch.allclose(found.relevance["pixels"], whole.relevance["pixels"], rtol=1e-9, atol=1e-13)
    assert not found.notes


def _in_one_go(model, x, target, tiles, rules):
    return in_one_go(model, x, target, tiles, rules=rules)


@pytest.mark.parametrize("rules", ["epsilon", "hilrp"])
def test_tiles_whose_score_is_zero_are_no_error(rules):
    model, x, tiles = made(nn.Sequential(nn.Conv2d(3, 2, 3, bias=False), nn.ReLU())), given(1, 3, 16, 16), Tiles(8, 0.0)
    x[..., 8:] = 0
    found = hilrp.explain(model, x, Region(1), rules, tiles=tiles)
    assert float(found.ledger.residual) < 1e-10
    assert torch.allclose(found.relevance, in_one_go(model, x, Region(1), tiles, rules=rules).relevance, atol=1e-13)
    with pytest.raises(ModelError, match="score of sample 0 is zero"):
        hilrp.explain(model, x * 0, Region(1), rules, tiles=tiles)


def test_rules_of_modules_are_found_by_their_own_paths():
    model, x = made(SmallUNet()), given(1, 3, 12, 12)
    own = {"inner": "zplus", "*": "epsilon"}
    found = hilrp.explain(model, x, Region(1), own, tiles=Tiles(8))
    other = hilrp.explain(model, x, Region(1), "epsilon", tiles=Tiles(8))
    assert not torch.allclose(found.relevance, other.relevance)
    assert float(found.ledger.residual) < 1e-10


def test_graphs_of_tiles_do_not_pile_up():
    """What a tile leaves is freed before the next one runs: at any time a single group's outputs are alive."""
    alive, most = weakref.WeakSet(), []

    class Seen(SmallUNet):
        def forward(self, x):
            found = super().forward(x)
            if found.requires_grad:
                alive.add(found)
                most.append(len(alive))
            return found

    gc.disable()
    try:
        hilrp.explain(made(Seen()), given(1, 3, 64, 64), Region(1), tiles=Tiles(8, 0.0), audit="off")
    finally:
        gc.enable()
    assert len(most) >= 16
    assert max(most) <= 2


def test_a_model_that_gives_other_outputs_at_each_call_does_not_close():
    class Counting(SmallUNet):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * (1 + self.calls)

    with pytest.raises(BooksError, match="ledger of the tiles doesn't close"):
        hilrp.TiledExplainer(made(Counting()), Tiles(8), audit="strict").explain(given(1, 3, 16, 16), Region(1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 0.5}, "give the side of a tile"),
        ({"window": ()}, "give the side of a tile"),
        ({"window": True}, "give the side of a tile"),
        ({"window": 8, "overlap": 1.0}, "from 0 to below 1"),
        ({"window": 8, "overlap": -0.1}, "from 0 to below 1"),
        ({"window": 8, "blend": "median"}, "use 'mean'"),
        ({"window": 8, "batch": 0}, "1 or more"),
        ({"window": 8, "padding": "zeros"}, "use one of 'constant'"),
        ({"window": 8, "value": float("nan")}, "finite"),
        ({"window": 8, "sigma": 0.0}, "above 0"),
    ],
)
def test_settings_that_make_no_sense_are_errors(options, said):
    with pytest.raises(InputError, match=said):
        Tiles(**options)


@pytest.mark.parametrize(
    ("model", "shape", "options", "said"),
    [
        (SmallUNet(), (1, 3, 16, 16), {"tiles": 8}, r"hilrp.Tiles\(window"),
        (SmallUNet(), (1, 3, 16, 16), {"tiles": Tiles((8, 8, 8))}, "2 axes of places"),
        (SmallUNet(), (1, 3, 16, 16), {"tiles": Tiles(8, (0.1, 0.2, 0.3))}, "2 axes of places"),
        (SmallUNet(), (1, 3, 3, 16), {"tiles": Tiles(16, padding="reflect")}, "has no reflection"),
        (SmallUNet(), (1, 3, 16, 16), {"tiles": Tiles(8, blend="max")}, "an output for each place"),
        (Classifier(), (1, 3, 16, 16), {"tiles": Tiles(8, blend="gaussian"), "target": 0}, "one score for each class"),
        (Classifier(), (1, 3, 16, 16), {"tiles": Tiles(8, blend=lambda y: y[:, 0, 0]), "target": 0}, "must return"),
        (nn.Flatten(2), (1, 3, 16, 16), {"tiles": Tiles(8)}, r"output of shape \(4, 3, 64\)"),
        (nn.Flatten(), (1, 7), {"tiles": Tiles(8), "target": 0}, "has no places"),
        (SmallUNet(), (1, 3, 16, 16), {"tiles": Tiles(8), "stages": ["first"]}, "no maps of stages"),
    ],
)
def test_what_tiles_cannot_do_is_said(model, shape, options, said):
    with pytest.raises(InputError, match=said):
        hilrp.explain(made(model), given(*shape), **({"target": Region(1)} | options))


def test_several_scores_and_a_constant_one_are_errors():
    model, x = made(SmallUNet()), given(1, 3, 16, 16)
    several = hilrp.targets.classes.Several(lambda y: y[0, :, 0, 0])
    with pytest.raises(TargetError, match="ask for one at a time"):
        hilrp.explain(model, x, several, tiles=Tiles(8))
    with pytest.raises((TargetError, ModelError)):
        hilrp.explain(model, x, lambda y: torch.ones(1, dtype=y.dtype), tiles=Tiles(8))
    with pytest.raises(TargetError, match="Region"):
        hilrp.explain(model, x, 1, tiles=Tiles(8))
    x[0, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match="NaN"):
        hilrp.explain(model, x, Region(1), tiles=Tiles(8))


def test_the_input_and_the_model_stay_as_they_are():
    model, x = made(SmallUNet()), given(1, 3, 12, 12)
    before, state = x.clone(), {name: t.clone() for name, t in model.state_dict().items()}
    found = hilrp.explain(model, x, Region(1), tiles=Tiles(8))
    assert torch.equal(x, before)
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    assert not any(t.requires_grad for t in (found.relevance, found.output, found.score))


class Writing(SmallUNet):
    """A model that writes to what it is given, or does the same to a copy."""

    def __init__(self, write, copy):
        super().__init__()
        self.write, self.copy = write, copy

    def forward(self, x):
        x = x.clone() if self.copy else x
        self.write(x)
        return super().forward(x)


@pytest.mark.parametrize("window", [8, (16, 20)])
@pytest.mark.parametrize("write", [lambda x: x[:, :, 0].zero_(), lambda x: x.sub_(0.5)])
def test_what_a_model_writes_to_a_tile_stays_there(write, window):
    # A plain reference is one number in memory for all places: written to, the map was relative to something else.
    x, tiles = given(1, 3, 16, 20) + 3, Tiles(window)
    colour = x.mean((0, 2, 3), keepdim=True)
    model = made(Writing(write, copy=False))
    for reference in ({}, {"reference": colour.expand_as(x)}):
        model.copy = False
        found = hilrp.explain(model, x, Region(1), tiles=tiles, **reference)
        model.copy = True
        expected = hilrp.explain(model, x, Region(1), tiles=tiles, **reference)
        torch.testing.assert_close(found.relevance, expected.relevance)
        assert float(found.ledger.residual) < LIMITS[x.dtype]
    assert torch.equal(colour, x.mean((0, 2, 3), keepdim=True))


def test_a_model_that_takes_other_tiles_is_named():
    with pytest.raises(ModelError, match=r"raised RuntimeError in the model itself .* shape \(4, 2, 8, 8\)"):
        hilrp.explain(made(SmallUNet()), given(1, 2, 16, 16), Region(1), tiles=Tiles(8))


def test_figures_and_files_of_a_tiled_explanation(tmp_path):
    found = hilrp.explain(made(SmallUNet()), given(1, 3, 40, 48), Region(1), tiles=Tiles(16))
    found.save(tmp_path / "whole")
    assert all((tmp_path / f"whole.{ending}").stat().st_size for ending in ("png", "npz", "json"))
    assert "nothing is missing" in found.sentence()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rules", ["secant", "hilrp"])
def test_the_input_may_stay_in_main_memory(rules):
    """Tiles go to the model's device by themselves, and the map comes back."""
    model, x, tiles = made(SmallUNet()), given(2, 3, 24, 28), Tiles(8, 0.5)
    here = hilrp.explain(model, x, Region(1), rules, tiles=tiles)
    model.cuda()
    for there in (x, x.cuda()):
        found = hilrp.explain(model, there, Region(1), rules, tiles=tiles)
        assert found.relevance.device == there.device
        assert torch.allclose(found.relevance.cpu(), here.relevance, rtol=1e-6, atol=1e-10)
        assert float(found.ledger.residual.max()) < 1e-10
