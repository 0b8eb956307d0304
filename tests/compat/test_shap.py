"""SHAP's DeepExplainer by one changed import: equal where SHAP is right, and adding up where it is not.

What shap does is run, not assumed: each test of an issue fails if shap no longer does.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.models import randomised
from helpers.nets import Leaking, cancelling
from hilrp.attribution.checks import TOLERANCE
from hilrp.compat import shap as ours
from hilrp.compat.peers import MissingPeerError
from hilrp.references import Average
from hilrp.util.errors import AuditWarning

matplotlib.use("Agg")
theirs = pytest.importorskip("shap")
theirs_warn = pytest.mark.filterwarnings("ignore:unrecognized nn.Module", "ignore:.*full backward hook")
pytestmark = theirs_warn


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def table_model(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs)).eval()


def picture_model() -> nn.Sequential:
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(8, 3)).eval()


class Both(nn.Module):
    """A table beside a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.picture, self.last = table_model(4), picture_model(), nn.Linear(7, 2)

    def forward(self, rows, pictures):
        return self.last(torch.cat([self.table(rows), self.picture(pictures)], 1))


# Where SHAP is right --------------------------------------------------------------------------------------------

CASES = {
    "table": (table_model, lambda n: torch.randn(n, 6)),
    "one output": (lambda: table_model(1), lambda n: torch.randn(n, 6)),
    "pictures": (picture_model, lambda n: torch.randn(n, 3, 8, 8)),
    "two inputs": (lambda: Both().eval(), lambda n: [torch.randn(n, 6), torch.randn(n, 3, 8, 8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_epsilon_gives_the_values_of_shap(name):
    make, draw = CASES[name]
    model, background, x = make(), draw(7), draw(3)
    a, b = theirs.DeepExplainer(model, background), ours.DeepExplainer(model, background, rules="epsilon")
    assert type(a.expected_value) is type(b.expected_value)
    assert np.allclose(a.expected_value, b.expected_value, atol=1e-6)
    for options in ({}, {"ranked_outputs": 2}, {"ranked_outputs": 1, "output_rank_order": "max_abs"}):
        # shap compares the ranked values with other outputs' (its check has no ranks).
        wanted = a.shap_values(x, check_additivity=not options, **options)
        found = b.shap_values(x, **options)
        if options:
            (wanted, ranks), (found, own) = wanted, found
            assert torch.equal(ranks, own)
            assert (type(ranks), ranks.dtype) == (type(own), own.dtype)
        assert type(wanted) is type(found)
        pairs = zip(wanted, found, strict=True) if isinstance(wanted, list) else [(wanted, found)]
        for one, other in pairs:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert np.abs(one - other).max() <= 1e-5


def test_the_default_has_the_same_sums_and_other_values():
    model, background, x = table_model(), torch.randn(5, 6), torch.randn(3, 6)
    found = ours.DeepExplainer(model, background).shap_values(x)
    wanted = theirs.DeepExplainer(model, background).shap_values(x)
    assert np.abs(found.sum(1) - wanted.sum(1)).max() < 1e-5
    assert np.abs(found - wanted).max() > 1e-3


def test_a_background_is_the_mean_over_references():
    model, background, x = picture_model().double(), torch.randn(3, 3, 8, 8).double(), torch.randn(2, 3, 8, 8).double()
    found = ours.DeepExplainer(model, background).shap_values(x)
    for batch in (1, 2, 5, None):
        assert np.allclose(ours.DeepExplainer(model, background, batch=batch).shap_values(x), found, atol=1e-12)
    references = list(background)
    wanted = hilrp.explain(model, x, target=1, reference=references)
    assert np.allclose(found[..., 1], wanted.relevance.numpy(), atol=1e-12)


# The issues -----------------------------------------------------------------------------------------------------


class Digits(nn.Module):
    """Issue 3938: a plain network for digits, whose activations and pooling are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2)).view(-1, 320)
        return self.fc2(F.relu(self.fc1(x)))


class Rows(nn.Module):
    """Issue 4251: a transformer on the features of a table (FT-Transformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(6, 16)), nn.Parameter(torch.randn(6, 16))
        self.start = nn.Parameter(torch.randn(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        tokens = x[:, :, None] * self.weight + self.bias
        return self.head(self.encoder(torch.cat([self.start.expand(len(x), -1, -1), tokens], 1))[:, 0])


class ScaleNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.scale * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


def scaled() -> nn.Module:
    """Issue 3505, which names its modules: Residual, Identity, GELU, ScaleNorm."""

    def block() -> nn.Module:
        return Residual(nn.Sequential(ScaleNorm(), nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 6), nn.Identity()))

    return nn.Sequential(block(), block(), ScaleNorm(), nn.Linear(6, 2))


class Rotary(nn.Module):
    """Issue 3881: a time series classified by attention with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.qkv, self.leave = nn.Linear(3, 16), nn.Linear(16, 48), nn.Linear(16, 2)
        self.norm, self.mlp = nn.LayerNorm(16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        x = self.enter(x)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        angles = torch.arange(x.shape[1])[:, None] / 100 ** (torch.arange(8) / 8)
        q, k = (torch.cat([t[..., :8] * angles.cos() - t[..., 8:] * angles.sin(),
                           t[..., 8:] * angles.cos() + t[..., :8] * angles.sin()], -1) for t in (q, k))  # fmt: skip
        x = x + F.scaled_dot_product_attention(q, k, v)
        return self.leave((x + self.mlp(x)).mean(1))


class Reused(nn.Module):
    """Issue 3725: one activation that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last, self.relu = nn.Linear(6, 8), nn.Linear(8, 12), nn.Linear(12, 2), nn.ReLU()

    def forward(self, x):
        return self.last(self.relu(self.second(self.relu(self.first(x)))))


class Pooled(nn.Module):
    """Issue 2511: one pooling that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(1, 4, 5), nn.MaxPool2d(2, 2), nn.Conv2d(4, 8, 5)
        self.fc = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        return self.fc(self.pool(F.relu(self.conv2(x))).flatten(1))


def mobile():
    """The MobileNet of the README: operations in place."""
    return randomised(timm.create_model("mobilenetv2_050", num_classes=3))


def deit():
    """The DeiT of the README, smaller."""
    return randomised(timm.create_model("deit_tiny_patch16_224", img_size=32, num_classes=3, depth=2))


def vit():
    """Issue 3438: a vision transformer, with GELU, Identity and LayerNorm."""
    return randomised(timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=3, depth=2))


def in_place():
    """Issues 3466 and 3565: operations in place."""
    return randomised(timm.create_model("resnet10t", num_classes=3))


#: Issue, or model -> model, shape of a sample, and what shap 0.51 says.
NOT_ADDITIVE = (AssertionError, "SHAP explanations do not sum up to the model's output")
IN_PLACE = (RuntimeError, "is a view and is being modified inplace")
SIZES = (RuntimeError, "The size of tensor a .* must match the size of tensor b")
ISSUES = {
    3938: (Digits, (1, 28, 28), NOT_ADDITIVE),
    4251: (Rows, (6,), NOT_ADDITIVE),
    3505: (scaled, (6,), NOT_ADDITIVE),
    3881: (Rotary, (5, 3), NOT_ADDITIVE),
    3438: (vit, (3, 32, 32), NOT_ADDITIVE),
    3466: (in_place, (3, 64, 64), IN_PLACE),
    3725: (Reused, (6,), SIZES),
    2511: (Pooled, (1, 28, 28), SIZES),
    "MobileNet": (mobile, (3, 32, 32), IN_PLACE),
    "DeiT": (deit, (3, 32, 32), NOT_ADDITIVE),
}


@pytest.mark.parametrize("issue", ISSUES)
def test_what_shap_fails_at_adds_up(issue):
    make, shape, (error, said) = ISSUES[issue]
    model = make().eval()
    background, x = 2 * torch.randn(3, *shape), 2 * torch.randn(2, *shape)
    with pytest.raises(error, match=said):
        theirs.DeepExplainer(make().eval() if error is RuntimeError else model, background).shap_values(x)
    explainer = ours.DeepExplainer(model, background)
    values = explainer.shap_values(x)
    with torch.no_grad():
        difference = (model(x) - model(background).mean(0)).numpy()
    assert np.allclose(explainer.expected_value, model(background).mean(0).detach(), atol=1e-5)
    assert np.abs(values.sum(tuple(range(1, values.ndim - 1))) - difference).max() <= 1e-4 * np.abs(difference).max()


# Explanations and plots -----------------------------------------------------------------------------------------


def test_shaps_plots_draw_tables():
    pandas = pytest.importorskip("pandas")
    from matplotlib import pyplot as plt

    names = ["age", "height", "weight", "pulse", "sleep", "steps"]
    model, rows = table_model(1), pandas.DataFrame(np.random.default_rng(0).normal(size=(12, 6)), columns=names)
    explanation = ours.DeepExplainer(model, rows[:5])(rows)
    assert isinstance(explanation, theirs.Explanation)
    assert explanation.values.shape == explanation.data.shape == (12, 6)
    assert explanation.base_values.shape == (12,)
    assert list(explanation.feature_names) == names
    outputs = model(torch.tensor(rows.to_numpy(), dtype=torch.float32)).detach().numpy()[:, 0]
    assert np.allclose(explanation.base_values + explanation.values.sum(1), outputs, atol=1e-5)
    for draw in (theirs.plots.bar, theirs.plots.beeswarm):
        draw(explanation, show=False)
        assert {"age", "steps"} <= {label.get_text() for label in plt.gca().get_yticklabels()}
        plt.close("all")
    nameless = ours.DeepExplainer(model, rows[:5].to_numpy())(rows.to_numpy())
    for draw, shown in ((theirs.plots.heatmap, nameless), (theirs.plots.scatter, nameless[:, 0])):
        draw(shown, show=False)  # neither takes features without names
        plt.close("all")
    theirs.plots.waterfall(explanation[3], show=False)
    texts = {text.get_text() for text in plt.gcf().findobj(matplotlib.text.Text)}
    assert any(f"{outputs[3]:.3f}" in text.replace("−", "-") for text in texts)
    plt.close("all")


def test_shaps_image_plot_draws_pictures():
    from matplotlib import pyplot as plt

    model, x = picture_model(), torch.rand(2, 3, 8, 8)
    explanation = ours.DeepExplainer(model, "mean")(x)
    assert explanation.values.shape == (2, 8, 8, 3, 3)
    assert explanation.base_values.shape == (2, 3)
    assert np.array_equal(explanation.data, x.permute(0, 2, 3, 1).numpy())
    reference = x.mean((2, 3), keepdim=True).expand_as(x)
    assert np.allclose(explanation.base_values, model(reference).detach(), atol=1e-6)
    ours.image_plot(explanation, show=False)  # shap's own, by the same import
    assert len(plt.gcf().axes) >= 2 * 4
    plt.close("all")
    assert explanation[..., 1].values.shape == (2, 8, 8, 3)


def test_several_inputs_have_an_explanation_each():
    background, x = [torch.randn(3, 6), torch.randn(3, 3, 8, 8)], [torch.randn(2, 6), torch.randn(2, 3, 8, 8)]
    rows, pictures = ours.DeepExplainer(Both().eval(), background)(x)
    assert rows.values.shape == (2, 6, 2)
    assert pictures.values.shape == (2, 8, 8, 3, 2)


# References by name, and other forms ---------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["mean", "blurred", 0.0, Average(("mean", 0.0))], ids=str)
def test_references_by_name(data):
    model, x = picture_model(), torch.randn(2, 3, 8, 8)
    explainer = ours.DeepExplainer(model, data)
    values = explainer.shap_values(x, ranked_outputs=1)[0]
    wanted = hilrp.explain(model, x, reference=data).relevance
    assert np.allclose(values[..., 0], wanted, atol=1e-6)
    with pytest.raises(hilrp.InputError, match=r"explainer\(X\).base_values"):
        _ = explainer.expected_value


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = table_model(1)

    def forward(self, x):
        return self.inner(x)[:, 0], x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_number_for_each_sample_and_models_that_return_more(dtype):
    model, background, x = Flat().to(dtype), torch.randn(3, 6, dtype=dtype), torch.randn(1, 6, dtype=dtype)
    explainer = ours.DeepExplainer(model, background)
    assert explainer.shap_values(x).shape == (1, 6)
    assert explainer.expected_value.shape == (1,)
    explanation = explainer(x)
    limit = 1e-5 if dtype == torch.float32 else 1e-12
    assert abs(explanation.values.sum() + explanation.base_values[0] - float(model(x)[0].detach())) < limit


def test_arrays_and_types():
    model, background, x = table_model(), torch.randn(3, 6), torch.randn(2, 6)
    found = ours.DeepExplainer(model, background.numpy()).shap_values(x.double().numpy())
    assert np.allclose(found, ours.DeepExplainer(model, background).shap_values(x), atol=1e-6)
    with pytest.raises(hilrp.ModelError, match="shape, type and device"):
        ours.DeepExplainer(model.double(), background)


class Doubling(nn.Module):
    """Writes to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x.mul_(2))


def test_samples_stay_as_they_are():
    background, x = torch.randn(3, 6), torch.randn(2, 6)
    before = background.clone(), x.clone()
    explainer = ours.DeepExplainer(Doubling(), background)
    first, second = explainer.shap_values(x), explainer.shap_values(x)
    assert torch.equal(background, before[0])
    assert torch.equal(x, before[1])
    assert np.array_equal(first, second)


def test_the_background_is_that_of_when_the_explainer_was_made():
    model, background, x = table_model(), torch.randn(3, 6), torch.randn(2, 6)
    explainer = ours.DeepExplainer(model, background)
    before = explainer.shap_values(x)
    background += 1
    assert np.array_equal(explainer.shap_values(x), before)


def test_columns_in_another_order_are_refused():
    pandas = pytest.importorskip("pandas")
    model, rows = table_model(), pandas.DataFrame(np.random.default_rng(0).normal(size=(4, 6)), columns=list("abcdef"))
    explainer = ours.DeepExplainer(model, rows)
    values = explainer.shap_values(rows)
    turned = rows[list("fedcba")]
    for ask in (explainer, explainer.shap_values):
        with pytest.raises(hilrp.InputError, match=r"X has the columns f, e, d, c, b, a, and data a, b, c"):
            ask(turned)
    assert np.array_equal(explainer.shap_values(turned[rows.columns]), values)
    assert np.allclose(explainer.shap_values(rows.to_numpy()), values)


def test_ranked_outputs_may_be_numpys():
    explainer, x = ours.DeepExplainer(table_model(), torch.randn(3, 6)), torch.randn(2, 6)
    values, ranks = explainer.shap_values(x, np.int64(2))
    assert values.shape == (2, 6, 2)
    assert torch.equal(ranks, explainer.shap_values(x, 2)[1])


def test_the_model_is_set_to_evaluation_mode():
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2)).train()
    ours.DeepExplainer(model, torch.randn(4, 6)).shap_values(torch.randn(2, 6))
    assert not model.training


# What is wrong is said ------------------------------------------------------------------------------------------


class Untruthful(nn.Module):
    """A part of it leaves torch."""

    def forward(self, x):
        aside = torch.from_numpy(x.detach().numpy() ** 2).sum(1)
        return torch.stack([x.sum(1) + aside, x.sum(1)], 1)


def test_what_hilrp_finds_wrong_is_a_warning_without_the_check():
    explainer = ours.DeepExplainer(Untruthful(), torch.zeros(1, 6))
    with pytest.raises(hilrp.AuditError, match="by numpy or another library"):
        explainer.shap_values(torch.ones(2, 6))
    with pytest.warns(AuditWarning) as warned:
        values = explainer.shap_values(torch.ones(2, 6), check_additivity=False)
    assert values.shape == (2, 6, 2)
    said = [str(each.message) for each in warned]
    assert not any("weights may have changed" in each for each in said)
    assert any("The values of sample 0 for output 0 sum to 6, and not to" in each and "12" in each for each in said)


def test_sums_are_compared_with_the_model_itself():
    """The background's outputs are those from when the explainer was made: then the model was trained on."""
    model, background, x = table_model(), torch.randn(4, 6), torch.randn(2, 6)
    explainer = ours.DeepExplainer(model, background)
    explainer.shap_values(x)
    with torch.no_grad():
        model[-1].bias[1] += 5
    said = r"of sample \d for output 1 sum to .*: 5 is missing.* weights may have changed since"
    with pytest.raises(ours.AdditivityError, match=said) as raised:
        explainer.shap_values(x)
    assert isinstance(raised.value, AssertionError)  # what scripts catch of shap
    assert isinstance(raised.value, hilrp.BooksError)  # and of hilrp
    with pytest.warns(AuditWarning, match="for output 1 sum to"):
        explainer.shap_values(x, check_additivity=False)


def scaled_by(part, monkeypatch):
    """Lets every explanation have so much more relevance than it has, behind the back of its ledger."""
    plain = hilrp.Explainer.explain

    def explain(self, *given):
        found = plain(self, *given)
        return replace(found, relevance=found.relevance * (1 + part))

    monkeypatch.setattr(hilrp.Explainer, "explain", explain)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-4), (torch.float64, 1e-10)])
def test_the_documented_tolerance_is_the_one_that_is_asked(dtype, limit, monkeypatch):
    model, x = nn.Linear(6, 3, bias=False).to(dtype), torch.randn(4, 6, dtype=dtype)
    explainer = ours.DeepExplainer(model, torch.zeros(1, 6, dtype=dtype))  # values sum to the output itself
    with monkeypatch.context() as patched:
        scaled_by(0.8 * limit, patched)
        explainer.shap_values(x)
    scaled_by(1.2 * limit, monkeypatch)
    with pytest.raises(ours.AdditivityError, match=r"for output . sum to"):
        explainer.shap_values(x)


@pytest.mark.parametrize(("dtype", "score"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_outputs_near_zero_on_sample_and_background_are_no_error(dtype, score, monkeypatch):
    """Among large ones they are rounded as these are; shap's own check has an absolute tolerance."""
    model, x = cancelling(score, dtype)
    explainer = ours.DeepExplainer(model, torch.zeros(1, 64, dtype=dtype))
    assert explainer.shap_values(x).shape == (1, 64, 100)
    assert explainer(x).values.shape == (1, 64, 100)
    assert explainer.expected_value.shape == (100,)
    if dtype == torch.float32:
        theirs.DeepExplainer(model, torch.zeros(1, 64)).shap_values(x)
    scaled_by(2 * TOLERANCE[dtype], monkeypatch)  # of the large ones it is an error all the same
    with pytest.raises(ours.AdditivityError, match=r"for output [4-9]\d sum to"):
        explainer.shap_values(x)


def test_whatever_finds_that_the_sum_is_off_it_is_an_additivity_error():
    model, x = cancelling(0.02, torch.float32)
    leaking = Leaking(model, 1e-2).eval()
    with hilrp.register(torch.special.i1, "reindexing"):
        explainer = ours.DeepExplainer(leaking, torch.zeros(1, 64))
        for ask in (explainer, explainer.shap_values):
            with pytest.raises(AssertionError, match=r"i1`.* check_additivity=False makes this a warning") as raised:
                ask(x)
            assert isinstance(raised.value, ours.AdditivityError)
        with pytest.warns(AuditWarning):
            explainer.shap_values(x, check_additivity=False)


def test_names_and_shapes_that_make_no_sense():
    model, x = table_model(), torch.randn(3, 6)
    for argument in ("session", "learning_phase_flags"):
        with pytest.raises(hilrp.InputError, match=f"{argument} is TensorFlow's"):
            ours.DeepExplainer(model, x, **{argument: 1})
    with pytest.raises(hilrp.InputError, match=r"a tuple of 3: give a module, or the pair \(model, layer\)"):
        ours.DeepExplainer((model, model[2], 1), x)
    for layer, said in ((nn.ReLU(), "is no module of the model"), ("2", "layer='2' is a str")):
        with pytest.raises(hilrp.InputError, match=said):
            ours.DeepExplainer((model, layer), x)
    with pytest.raises(hilrp.InputError, match=r"explainer\(X\): values at a layer.*shap_values"):
        ours.DeepExplainer((model, model[2]), x)(x)
    with pytest.raises(hilrp.InputError, match=r"not a torch.nn.Module"):
        ours.DeepExplainer(lambda x: x, x)
    with pytest.raises(hilrp.InputError, match="choose from neutral, black"):
        ours.DeepExplainer(model, "median")
    with pytest.raises(hilrp.InputError, match=r"data is a set"):
        ours.DeepExplainer(model, {1})
    with pytest.raises(hilrp.InputError, match=r"data holds torch.int64.*data.float\(\)"):
        ours.DeepExplainer(model, torch.ones(3, 6, dtype=torch.long))
    with pytest.raises(hilrp.TargetError, match=r"the shape \(3, 6, 6\)"):
        ours.DeepExplainer(Squared(), x)
    explainer = ours.DeepExplainer(model, x)
    with pytest.raises(hilrp.InputError, match="output_rank_order='largest'"):
        explainer.shap_values(x, 1, "largest")
    for ranked in (0, 1.5, True):
        with pytest.raises(hilrp.InputError, match="ranked_outputs"):
            explainer.shap_values(x, ranked)
    with pytest.raises(hilrp.InputError, match="a single tensor, not a list"):
        explainer.shap_values([x])
    with pytest.raises(hilrp.InputError, match=r"\[\(5,\)\], those of data \[\(6,\)\]"):
        explainer.shap_values(x[:, :5])
    with pytest.raises(hilrp.InputError, match="X has the shapes"):
        explainer.shap_values(x[:0])
    with pytest.raises(hilrp.InputError, match=r"X \(input 0\) is a single sample.*X\[None\]"):
        explainer.shap_values(x[0])
    with pytest.raises(hilrp.InputError, match=r"data holds <U1: give numbers"):
        ours.DeepExplainer(model, np.array([["a"] * 6]))
    with pytest.raises(hilrp.InputError, match=r"nsamples= is no argument of shap_values: nothing is drawn"):
        explainer.shap_values(x, nsamples=200)
    with pytest.raises(hilrp.InputError, match=r"max_evals= is no argument of a call of DeepExplainer: one pass"):
        explainer(x, max_evals=500)
    with pytest.raises(hilrp.InputError, match=r"masker= is no argument of DeepExplainer: give the background as data"):
        ours.DeepExplainer(model, x, masker=None)
    with pytest.raises(hilrp.InputError, match=r"colour= is no argument of shap_values: it takes X, ranked_outputs"):
        explainer.shap_values(x, colour=1)


def test_scripts_of_the_gradient_explainer():
    model, background, x = picture_model(), torch.randn(4, 3, 8, 8), torch.randn(2, 3, 8, 8)
    explainer = ours.GradientExplainer(model, background, batch_size=3)
    wanted = ours.DeepExplainer(model, background)
    with pytest.warns(UserWarning, match="nsamples=200 changes nothing"):
        values, indices = explainer.shap_values(x, nsamples=200, ranked_outputs=2)
    theirs_values, theirs_indices = theirs.GradientExplainer(model, background).shap_values(
        x, ranked_outputs=2, rseed=0
    )
    assert values.shape == theirs_values.shape
    assert torch.equal(torch.as_tensor(indices).long(), torch.as_tensor(theirs_indices).long())
    assert np.allclose(values, wanted.shap_values(x, 2)[0], atol=1e-6)
    assert np.allclose(explainer(x).values, wanted(x).values, atol=1e-6)
    with pytest.raises(hilrp.InputError, match=r"local_smoothing=0\.5"):
        ours.GradientExplainer(model, background, local_smoothing=0.5)
    with pytest.raises(hilrp.InputError, match="return_variances=True: nothing is drawn"):
        explainer.shap_values(x, return_variances=True)


@pytest.mark.parametrize("name", ["DeepExplainer", "GradientExplainer"])
def test_values_at_a_layer(name):
    """shap's notebook on VGG: they are those of what the layer is given, and add up as the pixels' do."""
    model, background, x = picture_model(), torch.randn(3, 3, 8, 8), torch.randn(2, 3, 8, 8)
    given = (model, model[3]), background
    values, ranks = getattr(ours, name)(*given, rules="epsilon").shap_values(x, ranked_outputs=2)
    unchecked = {"check_additivity": False} if name == "DeepExplainer" else {}
    drawn, known = getattr(theirs, name)(*given).shap_values(x, ranked_outputs=2, **unchecked)
    assert values.shape == drawn.shape == (2, 4, 3, 3, 2)
    assert torch.equal(ranks.long(), torch.as_tensor(known).long())
    if name == "DeepExplainer":
        assert np.abs(values - drawn).max() <= 1e-5
    with torch.no_grad():
        difference = (model(x).gather(1, ranks.long()) - model(background).mean(0)[ranks.long()]).numpy()
    assert np.abs(values.sum((1, 2, 3)) - difference).max() < 1e-5
    part = randomised(timm.create_model("resnet10t", num_classes=3))
    beside = ours.DeepExplainer((part, part.layer1[0].conv2), torch.zeros(1, 3, 32, 32))
    with pytest.raises(ours.AdditivityError):  # what goes around the layer is none of its
        beside.shap_values(torch.randn(1, 3, 32, 32))


class Squared(nn.Module):
    def forward(self, x):
        return x[:, :, None] * x[:, None]


def test_without_shap_the_error_names_the_extra(monkeypatch):
    model, x = table_model(), torch.randn(3, 6)
    explainer = ours.DeepExplainer(model, x)
    monkeypatch.setitem(__import__("sys").modules, "shap", None)
    assert explainer.shap_values(x).shape == (3, 6, 3)
    with pytest.raises(MissingPeerError, match=r"pip install 'hilrp\[compat\]'"):
        explainer(x)
    with pytest.raises(ImportError):
        _ = ours.image_plot


def test_nothing_is_said_where_nothing_is_wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.DeepExplainer(table_model(), torch.randn(3, 6)).shap_values(torch.randn(2, 6), check_additivity=False)


OWN = {"DeepExplainer", "GradientExplainer"}


def test_every_other_name_is_that_of_shap():
    names = [name for name in vars(theirs) if not name.startswith("_") and name not in OWN]
    assert {"Explainer", "image_plot", "plots"} <= {*names}
    assert all(getattr(ours, name) is getattr(theirs, name) for name in names)
