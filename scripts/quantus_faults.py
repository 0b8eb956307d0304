"""Quantus' own faults, each shown with hilrp's maps and with those of a method of Quantus' own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import quantus
import torch
from quantus_runs import OURS, THEIRS, Array, Case, called, case, said_by

#: What explains: a function, and the arguments that it is given.
By = tuple[Callable[..., Array], dict[str, Any]]


class Fault(NamedTuple):
    """A fault of Quantus.

    Attributes:
        metrics: What it concerns.
        file: Where in Quantus it is.
        reason: What is wrong there.
        shown: Runs it with an ``explain_func``, and says what happened.
    """

    metrics: str
    file: str
    reason: str
    shown: Callable[[By], str]


def error_of(name: str, of: str = "scenes", call: dict[str, Any] | None = None, **options: Any) -> Callable[[By], str]:
    """What a metric raises."""

    def shown(by: By) -> str:
        try:
            called(getattr(quantus, name)(disable_warnings=True, **options), case(of), by[0], by[1], **(call or {}))
        except Exception as error:
            return said_by(error)
        return "it runs"

    return shown


def scores_without_maps(by: By) -> str:
    """SmoothMPRT with a function that can't explain."""

    def explain(*given: Any, **options: Any) -> Array:
        raise RuntimeError("explain_func was called")

    metric = quantus.SmoothMPRT(nr_samples=1, skip_layers=True, disable_warnings=True)
    called(metric, case("scenes"), explain, by[1] if by is THEIRS else {})
    return "scores, with an explain_func that raises"


def of_first_batch(name: str, of: str, **options: Any) -> Callable[[By], str]:
    """Whether pictures behind the first batch count."""

    def shown(by: By) -> str:
        whole, metric = case(of), getattr(quantus, name)
        first = Case(whole.model, whole.x[:3], whole.y[:3])
        few, many = (
            called(metric(disable_warnings=True, **options), each, by[0], by[1], batch_size=3)
            for each in (first, whole)
        )
        same = list(few.values()) == list(many.values()) if isinstance(few, dict) else few == many
        return "six pictures in batches of three score as the first three" if same else "all pictures count"

    return shown


def equal_to_the_last_bit(by: By) -> str:
    """Completeness of a linear map, of which both methods give weight times input."""
    given = case("linear")
    options = {"reference": 0.0} if by is OURS else {"method": "InputXGradient"}
    maps = by[0](given.model, given.x, given.y, **options)
    with torch.no_grad():
        outputs = given.model(torch.from_numpy(given.x)).numpy()[np.arange(len(given.y)), given.y]
    assert np.allclose(maps.sum(1), outputs, rtol=0, atol=1e-6)
    metric = quantus.Completeness(normalise=False, perturb_baseline=0.0, disable_warnings=True)
    complete = sum(map(bool, called(metric, given, by[0], options)))
    return f"{complete} of 16 sums that are right to 1e-6 are complete"


def replaced_values(by: By) -> str:
    """How many values Completeness takes to the baseline, given maps with summed channels."""
    changed = []

    def perturb(arr: Array, indices: Array, **options: Any) -> Array:
        changed.append(indices.shape[1])
        return quantus.functions.perturb_func.batch_baseline_replacement_by_indices(arr, indices, **options)

    called(quantus.Completeness(perturb_func=perturb, disable_warnings=True), case("scenes"), by[0], by[1])
    return f"{changed[0]} of {case('scenes').x[0].size} values are replaced"


def unshifted_values(by: By) -> str:
    """Which values InputInvariance leaves as they were."""
    given, seen = case("plain"), []

    def explain(model: Any, inputs: Array, targets: Array, **options: Any) -> Array:
        seen.append(inputs.copy())
        return by[0](model, inputs, targets, **options)

    called(quantus.InputInvariance(disable_warnings=True), given, explain, by[1], a_batch=None)
    kept = np.argwhere((seen[1] == given.x).all(0)).tolist()
    return f"only the value at {kept[0]} of each picture is not shifted" if len(kept) == 1 else f"{len(kept)} are not"


def steps_of_monotonicity(by: By) -> str:
    """Whether what Monotonicity puts before the model changes from step to step."""
    seen = []

    def perturb(arr: Array, indices: Array, **options: Any) -> Array:
        seen.append(quantus.functions.perturb_func.batch_baseline_replacement_by_indices(arr, indices, **options))
        return seen[-1]

    called(
        quantus.Monotonicity(perturb_func=perturb, features_in_step=4096, disable_warnings=True),
        case("scenes"),
        by[0],
        by[1],
    )
    same = all(np.array_equal(each, seen[0]) for each in seen)
    return f"all {len(seen)} steps have the {'same' if same else 'right'} pictures"


def labels_of_consistency(by: By) -> str:
    """How many different labels Consistency gives to six maps."""
    labels = []

    def discretise(a: Array) -> int:
        labels.append(quantus.functions.discretise_func.top_n_sign(a))
        return labels[-1]

    called(quantus.Consistency(discretise_func=discretise, disable_warnings=True), case("scenes"), by[0], by[1])
    return f"labels of six maps: {len(set(labels))}"


def weight_of_everything(by: By) -> str:
    """The weight that AttributionLocalisation gives to a mask that covers everything."""
    whole = case("scenes")
    metric = quantus.AttributionLocalisation(weighted=True, disable_warnings=True)
    everything = np.ones((len(whole.x), 1, *whole.x.shape[2:]), bool)
    weights = called(metric, whole, by[0], by[1], s_batch=everything)
    return f"a mask of the whole picture weighs {float(weights[0]):.3f}, for six pictures"


METRICS, FUNCTIONS, HELPERS = "metrics/", "functions/", "helpers/"
FAULTS = (
    Fault(
        "IROF; the areas under curves of PixelFlipping, RegionPerturbation and Selectivity",
        HELPERS + "utils.py",
        "calculate_auc calls np.trapz, which numpy 2.4 doesn't have any more",
        error_of("PixelFlipping", features_in_step=4096, return_auc_per_sample=True),
    ),
    Fault(
        "IROF of pictures with several channels",
        METRICS + "faithfulness/irof.py",
        "the mask has one channel, and baseline_replacement_by_mask asks for the picture's shape",
        error_of("IROF"),
    ),
    Fault(
        "SmoothMPRT",
        METRICS + "randomisation/smooth_mprt.py",
        "explain_smooth_batch_numpy calls quantus.explain, whatever explain_func is given",
        scores_without_maps,
    ),
    Fault(
        "ROAD of pictures with several channels",
        METRICS + "faithfulness/road.py",
        "the map is repeated for each channel, so that its places are beyond the pixels that "
        "noisy_linear_imputation counts",
        error_of("ROAD", percentages=[50]),
    ),
    Fault(
        "ROAD",
        METRICS + "faithfulness/road.py",
        "custom_postprocess takes evaluation_scores[0]: the first batch alone",
        of_first_batch("ROAD", "grey", percentages=[10, 50], noise=0.0),
    ),
    Fault(
        "SensitivityN",
        METRICS + "faithfulness/sensitivity_n.py",
        "custom_postprocess takes evaluation_scores[0]: the first batch alone",
        of_first_batch("SensitivityN", "scenes", features_in_step=4096),
    ),
    Fault(
        "NonSensitivity(features_in_step=...)",
        METRICS + "axiomatic/non_sensitivity.py",
        "steps are compared with single values: only one value in a step has a result, a pass for each",
        error_of("NonSensitivity", features_in_step=4096),
    ),
    Fault(
        "Monotonicity",
        METRICS + "faithfulness/monotonicity.py",
        "it begins with the baseline and puts the baseline in, never the picture: all maps have the score 1",
        steps_of_monotonicity,
    ),
    Fault(
        "Consistency",
        METRICS + "robustness/consistency.py",
        "labels are the signs of the first five values (discretise_func.py, top_n_sign), and abs=True by default",
        labels_of_consistency,
    ),
    Fault(
        "MonotonicityCorrelation where some predictions are below eps",
        METRICS + "faithfulness/monotonicity_correlation.py",
        "the inverse of all predictions is written to the places of some",
        error_of("MonotonicityCorrelation", "mistaken", features_in_step=4096, nr_samples=1),
    ),
    Fault(
        "InputInvariance of most models",
        HELPERS + "model/pytorch_model.py",
        "add_mean_shift_to_first_layer takes the second entry of named_modules() for the first layer, and writes to "
        "its bias, which need not be there",
        error_of("InputInvariance", call={"a_batch": None}),
    ),
    Fault(
        "InputInvariance",
        FUNCTIONS + "perturb_func.py",
        "perturb_batch leaves out the first of the indices of each sample",
        unshifted_values,
    ),
    Fault(
        "Completeness",
        METRICS + "axiomatic/completeness.py",
        "sums of floats are compared with ==",
        equal_to_the_last_bit,
    ),
    Fault(
        "Completeness of maps without channels, which explain returns by default",
        METRICS + "axiomatic/completeness.py",
        "as many values go to the baseline as the map has: the first channel",
        replaced_values,
    ),
    Fault(
        "Continuity(return_nan_when_prediction_changes=True)",
        METRICS + "robustness/continuity.py",
        "np.NaN, which numpy 2 doesn't have any more",
        error_of("Continuity", nr_steps=4, return_nan_when_prediction_changes=True),
    ),
    Fault(
        "PointingGame(weighted=True)",
        METRICS + "localisation/pointing_game.py",
        "weights are written to an array of booleans, with an axis too many",
        error_of("PointingGame", "scenes", {"s_batch": np.ones((6, 1, 128, 128), bool)}, weighted=True),
    ),
    Fault(
        "AttributionLocalisation(weighted=True, max_size=...)",
        METRICS + "localisation/attribution_localisation.py",
        "the size of a picture is taken of x_batch[2:]: the pictures from the third on, with their channels",
        weight_of_everything,
    ),
)
