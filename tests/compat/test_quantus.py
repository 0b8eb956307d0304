"""Quantus' contract: arrays in the form of its own ``explain``, and metrics whose scores can be told by hand."""

from __future__ import annotations

import copy
import csv
import importlib
import sys

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from helpers.models import randomised, small_classifier
from helpers.paths import DOCS, SCRIPTS
from hilrp.compat.quantus import explain_func, explain_func_of
from hilrp.jobs.bench.methods import find
from hilrp.util.errors import InputError, ModelError, TargetError

quantus = pytest.importorskip("quantus")
sys.path.insert(0, str(SCRIPTS))
quantus_faults, quantus_metrics, quantus_runs = map(
    importlib.import_module, ("quantus_faults", "quantus_metrics", "quantus_runs")
)
QUIET = {"disable_warnings": True, "display_progressbar": False}


@pytest.fixture
def model():
    return randomised(small_classifier())


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)


Y = np.array([0, 4, 2, 1])


def test_maps_are_those_of_explain(model, x):
    found = explain_func(model, x, Y)
    expected = hilrp.explain(model, torch.from_numpy(x), torch.from_numpy(Y))
    assert found.shape == (4, 1, 8, 8)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[:, 0], expected.map.numpy())
    np.testing.assert_array_equal(explain_func(model, x, Y, reduce_axes=()), expected.relevance.numpy())
    np.testing.assert_array_equal(explain_func(model, x, Y, keepdims=False), expected.map.numpy())
    np.testing.assert_array_equal(explain_func(model, torch.from_numpy(x), torch.from_numpy(Y)), found)
    np.testing.assert_allclose(
        explain_func(model, x, Y, reduce_axes=[np.int64(1), -1]), found.sum(-1, keepdims=True), atol=1e-5
    )


def test_forms_are_those_of_quantus_own_explain(model, x):
    for options in ({}, {"keepdims": False}, {"reduce_axes": ()}, {"reduce_axes": (1, 2), "keepdims": False}):
        theirs = quantus.explain(model, x, Y, method="Saliency", **options)
        assert explain_func(model, x, Y, **options).shape == theirs.shape
    table, series = nn.Sequential(nn.Linear(6, 5)).eval(), nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).eval()
    for net, shape in ((table, (4, 6)), (series, (4, 3, 4))):
        rows = np.ones(shape, np.float32)
        assert explain_func(net, rows, Y).shape == quantus.explain(net, rows, Y, method="Saliency").shape


def test_arguments_are_hilrps(model, x):
    tensor, target = torch.from_numpy(x), torch.from_numpy(Y)
    for options in ({"rules": "epsilon"}, {"reference": 0.0}, {"passes": 4}, {"batch": 1}):
        expected = hilrp.explain(model, tensor, target, **options).map.numpy()
        np.testing.assert_array_equal(explain_func(model, x, Y, **options)[:, 0], expected)
    other = np.full((1, 3, 8, 8), 0.5)
    given = hilrp.explain(model, tensor, target, reference=[torch.full_like(tensor, 0.5), 0.0]).map.numpy()
    np.testing.assert_allclose(explain_func(model, x, Y, reference=[other, 0.0])[:, 0], given, atol=1e-5)
    one = explain_func(model, x, Y, reference=other)
    np.testing.assert_allclose((one + explain_func(model, x, Y, reference=0.0)) / 2, given[:, None], atol=1e-5)


def test_samples_are_explained_alike_in_batches_of_any_size(model, x):
    whole = explain_func(model, x, Y)
    for i in range(4):
        np.testing.assert_allclose(explain_func(model, x[i : i + 1], Y[i : i + 1]), whole[i : i + 1], atol=1e-5)
    np.testing.assert_array_equal(explain_func(model, x, 2), explain_func(model, x, np.full(4, 2, np.int32)))


def test_numbers_of_other_types_are_taken_as_the_model_takes_them(model, x):
    whole = np.round(x * 9).astype(np.int64)
    np.testing.assert_array_equal(explain_func(model, whole, Y), explain_func(model, whole.astype(np.float32), Y))
    np.testing.assert_array_equal(explain_func(model, x.astype(float), Y), explain_func(model, x, Y))
    assert explain_func(copy.deepcopy(model).double(), x, Y).dtype == np.float64
    assert explain_func(copy.deepcopy(model).bfloat16(), x, Y, audit="off").dtype == np.float32


def test_what_is_returned_may_be_written_to(model, x):
    before = x.copy()
    found = explain_func(model, x, Y, reduce_axes=())
    found += 1
    np.testing.assert_array_equal(x, before)
    np.testing.assert_allclose(explain_func(model, x, Y, reduce_axes=()), found - 1, atol=1e-5)


def test_weights_that_change_are_explained_as_they_are(model, x):
    """Nothing is kept from one call to the next: with other weights, maps are those of a model that is new."""
    before = explain_func(model, x, Y)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.5).add_(0.01)
    after = explain_func(model, x, Y)
    np.testing.assert_array_equal(after, explain_func(copy.deepcopy(model), x, Y))
    assert not np.allclose(before, after)


def test_a_model_in_training_is_set_to_evaluation_as_quantus_sets_it(model, x):
    expected = explain_func(model, x, Y)
    np.testing.assert_array_equal(explain_func(model.train(), x, Y), expected)
    assert not model.training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_arrays_go_to_where_the_model_is(model, x):
    expected = explain_func(model, x, Y)
    model.cuda()
    for device in (None, "cuda", "cuda:0", torch.device("cuda")):
        np.testing.assert_allclose(explain_func(model, x, Y, device=device), expected, atol=1e-4)
    np.testing.assert_allclose(explain_func(model, x, Y, reference=np.zeros((1, 3, 8, 8))).shape, expected.shape)
    with pytest.raises(InputError, match=r"the model is on cuda:0: move it before, model.to\('cpu'\)"):
        explain_func(model, x, Y, device="cpu")


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"softmax": True}, r"softmax= is no argument of explain_func: .*ends in a softmax"),
        ({"baseline": 0.0}, "use reference="),
        ({"xai_lib": "zennit"}, "choose rules="),
        ({"composite": "EpsilonPlus"}, "choose rules="),
        ({"gc_layer": "conv1"}, r"LayerRelevance"),
        ({"normalise": True}, "the metric itself"),
        ({"nonsense": 1}, r"nonsense= .*it takes rules, reference, passes, audit, batch, reduce_axes, keepdims and"),
        ({"method": "Saliency"}, "leave it out, and choose rules="),
        ({"reduce_axes": (0, 1)}, r"reduce_axes=\(0, 1\): .* from 1 to 3"),
        ({"reduce_axes": (1, -3)}, "different axes"),
        ({"reduce_axes": (4,)}, "from 1 to 3"),
        ({"reduce_axes": "1"}, "from 1 to 3"),
        ({"reduce_axes": 1.5}, "from 1 to 3"),
        ({"device": "gpu"}, 'no device of torch: give "cpu"'),
        ({"device": "cuda"}, r"the model is on cpu: move it before, model.to\('cuda'\)"),
        ({"reference": "nowhere"}, "nowhere"),
        ({"reference": np.zeros((2, 3, 8, 8))}, r"reference has the shape \(2, 3, 8, 8\)"),
        ({"passes": 2, "rules": "hilrp"}, "chains go from a reference"),
    ],
)
def test_what_can_not_be_heeded_is_an_error(model, x, options, said):
    with pytest.raises(InputError, match=said):
        explain_func(model, x, Y, **options)


def test_names_of_quantus_own_methods_are_errors(model, x):
    names = {*quantus.AVAILABLE_XAI_METHODS_CAPTUM, *quantus.DEPRECATED_XAI_METHODS_CAPTUM}
    assert len(names) > 20
    for name in names:
        with pytest.raises(InputError, match=r"choose rules="):
            explain_func(model, x, Y, method=name)
    np.testing.assert_array_equal(explain_func(model, x, Y, method="HiLRP"), explain_func(model, x, Y))


def test_inputs_models_and_classes_that_are_none(model, x):
    with pytest.raises(InputError, match="model is a function"):
        explain_func(lambda t: t, x, Y)
    with pytest.raises(ModelError, match="TorchScript"):
        explain_func(torch.jit.trace(model, torch.from_numpy(x)), x, Y)
    with pytest.raises(InputError, match="inputs is a dict"):
        explain_func(model, {"x": x}, Y)
    with pytest.raises(TargetError, match="out of range"):
        explain_func(model, x, np.array([0, 1, 2, 5]))
    for wrong in (np.array([0.5, 1, 2, 3]), np.array(["a", "b", "c", "d"]), np.array([True, False, True, True])):
        with pytest.raises(TargetError, match="is not a class"):
            explain_func(model, x, wrong)
    with pytest.raises(TargetError, match="2 classes for a batch of 4"):
        explain_func(model, x, Y[:2])


# Metrics ----------------------------------------------------------------------------------------------------------


def scored(metric, model, x, y=Y, explain=explain_func, options=None, **call):
    """What a metric returns."""
    found = metric(
        model=model, x_batch=x, y_batch=y, explain_func=explain, explain_func_kwargs=options or {}, device="cpu", **call
    )
    return found if isinstance(found, dict) else np.asarray(found)


def test_localisation_by_hand(model, x):
    masks = np.zeros((4, 1, 8, 8), bool)
    masks[:, :, 2:6, 1:5] = True
    maps = hilrp.explain(model, torch.from_numpy(x), torch.from_numpy(Y)).map.double().numpy()
    inside = np.where(masks[:, 0], maps, 0)
    plain = {"abs": False, "normalise": False, **QUIET}
    mass = scored(quantus.RelevanceMassAccuracy(**plain), model, x, s_batch=masks)
    np.testing.assert_allclose(mass, inside.sum((1, 2)) / maps.sum((1, 2)), rtol=1e-4)
    size = scored(quantus.AttributionLocalisation(**QUIET), model, x, s_batch=masks)
    np.testing.assert_allclose(size, np.abs(inside).sum((1, 2)) / np.abs(maps).sum((1, 2)), rtol=1e-4)
    strongest = maps.reshape(4, -1).argmax(1)
    pointed = scored(quantus.PointingGame(**plain), model, x, s_batch=masks)
    assert pointed.tolist() == masks.reshape(4, -1)[np.arange(4), strongest].tolist()


def test_complexity_by_hand(model, x):
    maps = np.abs(hilrp.explain(model, torch.from_numpy(x), torch.from_numpy(Y)).map.double().numpy()).reshape(4, -1)
    parts = maps / maps.sum(1, keepdims=True)
    found = scored(quantus.Complexity(**QUIET), model, x)
    np.testing.assert_allclose(found, -(parts * np.log(parts)).sum(1), rtol=1e-4)


def test_pixel_flipping_by_hand(x):
    """Of pictures with one channel, whose strongest pixels are taken away first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    x, step = x[:, :1].copy(), 16
    metric = quantus.PixelFlipping(features_in_step=step, perturb_baseline=0.0, abs=False, **QUIET)
    found = scored(metric, model, x, softmax=False)
    maps = hilrp.explain(model, torch.from_numpy(x), torch.from_numpy(Y)).map.flatten(1)
    order, changed = maps.argsort(1, descending=True), torch.from_numpy(x.copy()).flatten(1)
    for k in range(64 // step):
        changed.scatter_(1, order[:, k * step : (k + 1) * step], 0.0)
        with torch.no_grad():
            scores = model(changed.reshape(4, 1, 8, 8))[torch.arange(4), torch.from_numpy(Y)]
        np.testing.assert_allclose(found[:, k], scores, atol=1e-5)


def black(question):
    """Quantus' baseline "black": the least value of each picture."""
    return [question.x.flatten(1).amin(1).reshape(-1, 1, 1, 1).expand_as(question.x)]


class Rounded(np.ndarray):
    """Numbers that are equal to others within rounding: Completeness compares them with ``==``."""

    def __eq__(self, other):
        return np.isclose(np.asarray(self), np.asarray(other), rtol=1e-4, atol=1e-4)

    __hash__ = None


def test_completeness_holds_relative_to_the_metrics_baseline(model, x):
    options = {"reference": black, "reduce_axes": ()}
    plain = {"normalise": False, **QUIET}
    rounded = {"output_func": lambda difference: difference.view(Rounded), **plain}
    assert scored(quantus.Completeness(**rounded), model, x, options=options).all()
    assert scored(quantus.Completeness(perturb_baseline="mean", **rounded), model, x, options=options | {
        "reference": lambda question: [question.x.mean((1, 2, 3), keepdim=True).expand_as(question.x)]
    }).all()  # fmt: skip
    # Not relative to another reference, nor to what Quantus makes of maps without channels: one black channel.
    assert not scored(quantus.Completeness(**rounded), model, x, options={"reduce_axes": ()}).any()
    assert not scored(quantus.Completeness(**rounded), model, x, options={"reference": black}).any()


def test_completeness_holds_to_the_last_bit_where_nothing_is_rounded():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5)).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randint(-4, 5, parameter.shape))
    whole = np.random.default_rng(0).integers(0, 9, (4, 3, 8, 8)).astype(np.float32)
    metric = quantus.Completeness(normalise=False, **QUIET)
    assert scored(metric, net, whole, options={"reference": black, "reduce_axes": ()}).all()


def test_input_invariance_holds_relative_to_the_mean_colour():
    """A shifted picture, and a first bias that takes the shift back: the map is the same, unless the reference isn't.

    Quantus leaves the first value of each picture where it was (`perturb_batch`), so that it needs a function that
    shifts all of them.
    """
    case = quantus_runs.case("plain")
    whole = quantus.InputInvariance(perturb_func=quantus_runs.shifted, **QUIET)
    assert scored(whole, case.model, case.x, case.y, a_batch=None).all()
    assert not scored(whole, case.model, case.x, case.y, options={"reference": 0.0}, a_batch=None).any()
    assert not scored(quantus.InputInvariance(**QUIET), case.model, case.x, case.y, a_batch=None).all()


def test_randomised_weights_are_explained_anew(model, x):
    """MPRT hands on one copy of the model, whose layers it makes random one after the other."""
    before, seen = copy.deepcopy(model.state_dict()), []

    def explain(model, inputs, targets, **options):
        maps = explain_func(model, inputs, targets, **options)
        seen.append((copy.deepcopy(model), maps))
        return maps

    found = scored(quantus.MPRT(**QUIET), model, x, explain=explain)
    layers = [name for name, module in model.named_modules() if hasattr(module, "reset_parameters")]
    assert list(found) == ["original", *layers[::-1]]
    np.testing.assert_allclose(found["original"], 1)
    assert all(abs(each) < 0.99 for name in layers for each in found[name])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    for state, maps in seen:
        np.testing.assert_array_equal(maps, explain_func(state, x, Y))
    assert len({maps.tobytes() for _, maps in seen}) == 1 + len(layers)


def test_smoothed_maps_are_hilrps_where_quantus_asks_for_them(model, x, monkeypatch):
    """SmoothMPRT asks `quantus.explain`, whatever it is given, and hands on what else it was given."""
    asked = []

    def explain(*given, **options):
        asked.append(given)
        return explain_func(*given, **options)

    metric = quantus.SmoothMPRT(nr_samples=2, **QUIET)
    scored(metric, model, x, explain=explain, options={"method": "Saliency"})
    assert not asked
    monkeypatch.setattr(quantus, "explain", explain)
    found = scored(metric, model, x, explain=explain, options={"rules": "epsilon"}, s_batch=np.ones((4, 1, 8, 8)))
    assert len(asked) == 2 * (1 + len(found))
    assert np.isfinite([each for scores in found.values() for each in scores]).all()


def test_other_classes_and_changed_inputs_are_explained(model, x):
    asked = []

    def explain(model, inputs, targets, **options):
        asked.append((inputs.copy(), np.array(targets)))
        return explain_func(model, inputs, targets, **options)

    assert (scored(quantus.RandomLogit(num_classes=5, **QUIET), model, x, explain=explain) < 0.99).all()
    assert (asked[0][1] == Y).all()
    assert (asked[1][1] != Y).all()
    asked.clear()
    most = scored(quantus.MaxSensitivity(nr_samples=3, **QUIET), model, x, explain=explain)
    maps = [explain_func(model, inputs, Y).reshape(4, -1) for inputs, _ in asked]
    assert len(maps) == 4
    norm = np.linalg.norm(maps[0], axis=1)
    np.testing.assert_allclose(most, np.max([np.linalg.norm(maps[0] - t, axis=1) / norm for t in maps[1:]], 0), 1e-4)


def test_rows_of_tables():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).eval()
    rows, y = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32), np.arange(5) % 3
    maps = hilrp.explain(net, torch.from_numpy(rows), torch.from_numpy(y)).relevance.numpy()
    np.testing.assert_array_equal(explain_func(net, rows, y), maps)
    sparse = scored(quantus.EffectiveComplexity(eps=0.1, **QUIET), net, rows, y)
    assert sparse.tolist() == (np.abs(maps) / np.abs(maps).max() > 0.1).sum(1).tolist()
    rounded = {"output_func": lambda difference: difference.view(Rounded), "perturb_baseline": 0.0, "normalise": False}
    assert scored(quantus.Completeness(**rounded, **QUIET), net, rows, y).all()


def test_evaluate_takes_it_beside_quantus_own(model, x):
    metrics = {"Complexity": quantus.Complexity(**QUIET)}
    given = {"metrics": metrics, "model": model, "x_batch": x, "y_batch": Y}
    found = quantus.evaluate(xai_methods={"HiLRP": explain_func}, explain_func_kwargs={"rules": "epsilon"}, **given)
    expected = scored(quantus.Complexity(**QUIET), model, x, options={"rules": "epsilon"})
    np.testing.assert_allclose(found["HiLRP"]["Complexity"], expected)
    with pytest.raises(InputError, match=r"in\s+quantus.evaluate call this function something else"):
        quantus.evaluate(xai_methods={"Saliency": explain_func}, explain_func_kwargs={}, **given)


def test_methods_of_the_benchmark(model, x):
    method = find("input-x-gradient")
    found = explain_func_of(method)(model, x, Y, device="cpu")
    np.testing.assert_array_equal(found[:, 0], method(model, torch.from_numpy(x), torch.from_numpy(Y)).numpy())
    masks = np.ones((4, 1, 8, 8), bool)
    metric = quantus.RelevanceMassAccuracy(**QUIET)
    np.testing.assert_allclose(scored(metric, model, x, explain=explain_func_of(method), s_batch=masks), 1, rtol=1e-5)
    with pytest.raises(InputError, match=r"rules= is no argument .* it takes device"):
        explain_func_of(method)(model, x, Y, rules="epsilon")
    with pytest.raises(InputError, match=r"returned \(4, 3, 8, 8\) for inputs"):
        explain_func_of(lambda model, x, target: x)(model, x, Y)


# The table of results ---------------------------------------------------------------------------------------------

RESULTS = DOCS / "results"


@pytest.fixture(scope="module")
def rows():
    with (RESULTS / "quantus.csv").open() as file:
        return {row["metric"]: row for row in csv.DictReader(file)}


def test_the_table_has_all_metrics_of_quantus(rows):
    known = {name: category for category, name, _ in quantus_metrics.metrics()}
    assert {name: row["category"] for name, row in rows.items()} == known
    assert set(quantus_metrics.SETTINGS) == set(known)
    assert {row["verdict"] for row in rows.values()} == {quantus_metrics.RUNS, quantus_metrics.THEIR_FAULT}
    page, running = (RESULTS / "quantus.md").read_text(), [row["verdict"] for row in rows.values()]
    said = f"{running.count(quantus_metrics.RUNS)} of Quantus' {len(rows)} metrics run"
    assert said in page
    assert said in (DOCS / "coming-from.md").read_text()
    for name, row in rows.items():
        assert f"| {row['category']} | {name} |" in page
        assert (row["score"] == "") == (row["verdict"] != quantus_metrics.RUNS) == bool(row["message"])


@pytest.mark.parametrize(
    "name", ["RelevanceMassAccuracy", "Complexity", "RandomLogit", "InputInvariance", "Completeness", "Monotonicity"]
)
def test_the_table_is_true(rows, name):
    category, _, metric = next(each for each in quantus_metrics.metrics() if each[1] == name)
    found = quantus_metrics.row(category, name, metric)
    assert (found.verdict, str(found.found.maps)) == (rows[name]["verdict"], rows[name]["maps"])
    assert found.cells()[2] == rows[name]["needs"]
    assert found.found.message == rows[name]["message"]
    if found.found.score is not None and name != "Completeness":  # which depends on the last bits
        assert found.found.score == pytest.approx(float(rows[name]["score"]), rel=0.02)


def test_a_metric_that_does_not_depend_on_the_maps_does_not_run():
    case = quantus_runs.case("plain")

    class Same:
        def __call__(self, model, x_batch, y_batch, explain_func, explain_func_kwargs, **call):
            explain_func(model, x_batch, y_batch, **explain_func_kwargs)
            return [1.0]

    def run(metric):
        return quantus_runs.outcome(lambda: metric, case, quantus_runs.OURS, {})

    assert run(Same()).kind == "ignores the maps"
    assert run(lambda **call: [1.0]).kind == "ignores explain_func"
    assert run(lambda **call: [float("nan") * call["explain_func"](case.model, case.x, case.y).max()]).kind == (
        "is not finite"
    )
    assert run(quantus.Sparseness(**QUIET)).kind == "runs"


#: Faults that are shown in a second.
QUICK = ("InputInvariance", "SmoothMPRT", "Completeness", "Consistency", "PointingGame(weighted=True)")


@pytest.mark.parametrize(
    "fault", [each for each in quantus_faults.FAULTS if each.metrics in QUICK], ids=lambda f: f.metrics
)
def test_faults_are_quantus_own(fault):
    """They are there with hilrp's maps and with those of a method of Quantus' own, as the document says."""
    ours, theirs = fault.shown(quantus_runs.OURS), fault.shown(quantus_runs.THEIRS)
    assert quantus_metrics.alike(ours, theirs)
    page = (RESULTS / "quantus.md").read_text().splitlines()
    line = next(each for each in page if each.startswith(f"| {fault.metrics} | `{fault.file}`: {fault.reason} |"))
    assert quantus_metrics.alike(quantus_metrics.beginning(ours), line.split(" | ")[2])
