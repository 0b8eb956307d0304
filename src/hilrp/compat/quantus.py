"""Quantus' contract, with relevance: arrays and classes in, attributions as an array out.

Change ``explain_func=quantus.explain`` to ``explain_func=hilrp.compat.quantus.explain_func``. Quantus' metrics call it
with the model at hand, also with one whose weights they made random, and with inputs that they changed. Nothing is kept
from one call to the next.

What differs: ``explain_func_kwargs`` are hilrp's (``rules``, ``reference``, ``passes``). Those of Quantus' own methods
are errors that say what to use instead; ``reduce_axes``, ``keepdims`` and ``device`` mean what they mean there. Quantus
itself is not imported: who calls its metrics has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hilrp.attribution.batches import Batch
from hilrp.attribution.chains import Chains
from hilrp.attribution.explainer import Audit, Explainer
from hilrp.compat.arrays import as_tensor
from hilrp.compat.asking import evaluated, place_of
from hilrp.method.rules import DEFAULT_RULES, AnyRules
from hilrp.targets import Target
from hilrp.util.errors import InputError

#: Arguments of Quantus' own ``explain`` that have no meaning here, and what to use instead.
_OTHERS = {
    **dict.fromkeys(("xai_lib", "xai_lib_kwargs"), "there is one method; choose rules="),
    **dict.fromkeys(("attributor", "attributor_kwargs"), "there is one method; choose rules="),
    **dict.fromkeys(("composite", "composite_kwargs"), 'choose rules=, for instance "epsilon", or rules by module'),
    **dict.fromkeys(("canonizer", "canonizer_kwargs"), "nothing has to be merged: normalisation has a rule"),
    "softmax": "relevance is that of the model's output; for probabilities give a model that ends in a softmax",
    "baseline": "use reference=, a number, a name or an array like the inputs",
    "channel_first": "inputs are explained as they come, and Quantus hands them on with their channels first",
    "window": "relevance is that of every value; average it over windows",
    **dict.fromkeys(("constant_value", "return_shape"), "they are of a control, which has no model"),
    **dict.fromkeys(
        ("gc_layer", "layer", "interpolate", "interpolate_mode"),
        "relevance is that of the input; for a layer use hilrp.compat.captum.LayerRelevance",
    ),
    **dict.fromkeys(("abs", "normalise", "normalise_func"), "give it to the metric itself"),
}
#: The names of Quantus' own methods: as ``method`` they would be left unheard.
_THEIR_METHODS = frozenset(
    "Control Var. Constant, Control Var. Random Uniform, Control Var. Sobel Filter, Deconvolution, DeepLift, "
    "DeepLiftShap, FeatureAblation, FeaturePermutation, GradCam, Gradient, GradientShap, GuidedGradCam, "
    "InputXGradient, IntegratedGradients, InternalInfluence, KernelShap, LRP, LayerActivation, LayerConductance, "
    "LayerGradCam, LayerGradientXActivation, Lime, Occlusion, Saliency".split(", ")
)
#: What SmoothMPRT hands on beside the arguments: data of the metric.
_HANDED_ON = frozenset(("s_batch", "custom_batch"))


def explain_func(
    model: nn.Module,
    inputs: Any,
    targets: Any,
    *,
    rules: AnyRules = DEFAULT_RULES,
    reference: Any = None,
    passes: int | Chains = 1,
    audit: Audit = "strict",
    batch: Batch = None,
    reduce_axes: Iterable[int] = (1,),
    keepdims: bool = True,
    device: Any = None,
    method: str | None = None,
    **others: Any,
) -> np.ndarray[Any, Any]:
    """The relevance of inputs, as a metric of Quantus takes it: ``[B,1,H,W]`` of pictures, ``[B,F]`` of tables.

    The model is set to evaluation mode, as Quantus' own ``explain`` sets it.

    Args:
        model: The model.
        inputs: An array whose first axis holds the samples, or a tensor.
        targets: The class of each sample, or one for all.
        rules: The rules, by name or as `hilrp.Rules`.
        reference: What relevance is relative to: see `hilrp.explain`. Arrays are taken, too.
        passes: How many passes to spend: see `hilrp.explain`.
        audit: ``"strict"`` raises where relevance could be lost, ``"warn"`` warns, ``"off"`` does neither.
        batch: How many samples run at once: see `hilrp.explain`.
        reduce_axes: Axes over which relevance is summed; with ``()`` it is kept in the form of the inputs. Samples
            without places, as rows of tables, are always kept.
        keepdims: Whether these axes stay, with the length one.
        device: Where the model is. Quantus hands on what a metric is given. The model isn't moved.
        method: What ``quantus.evaluate`` calls this function. A name of Quantus' own methods is an error.
        others: Arguments of Quantus' own ``explain``: each is an error that says what to use instead.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
        >>> x = np.random.default_rng(0).normal(size=(2, 3, 8, 8))
        >>> explain_func(model, x, np.array([0, 1])).shape
        (2, 1, 8, 8)
        >>> explain_func(model, x, np.array([0, 1]), method="Saliency")
        Traceback (most recent call last):
        hilrp.util.errors.InputError: method='Saliency' is a method of Quantus' own: leave it out, and choose rules=; in
        quantus.evaluate call this function something else.
    """
    known = "rules, reference, passes, audit, batch, reduce_axes, keepdims and device"
    x = _asked(model, inputs, device, method, others, known)
    axes = _checked_axes(reduce_axes, x.ndim)
    explainer = Explainer(model, rules, _as_reference(reference, x), audit, stages=None)
    relevance = explainer.explain(x, _as_target(targets), batch, passes).relevance
    return _as_array(relevance.sum(axes, keepdim=keepdims) if axes else relevance)


def explain_func_of(function: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Callable[..., np.ndarray[Any, Any]]:
    """Another method as Quantus takes it, for instance one of the benchmark: ``explain_func_of(find("rise"))``.

    Args:
        function: From a model, inputs ``[B,C,H,W]`` and a class for each, ``[B]``, to maps ``[B,H,W]``.

    Example:
        >>> from hilrp.jobs.bench.methods import find
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
        >>> explain_func_of(find("saliency"))(model, np.ones((2, 3, 8, 8)), np.array([0, 1])).shape
        (2, 1, 8, 8)
    """

    def explain(
        model: nn.Module, inputs: Any, targets: Any, device: Any = None, method: str | None = None, **others: Any
    ) -> np.ndarray[Any, Any]:
        x = _asked(model, inputs, device, method, others, "device")
        maps = function(model, x, torch.as_tensor(targets, device=x.device).long().expand(len(x)))
        if maps.shape != (len(x), *x.shape[2:]):
            raise InputError(
                f"{function!r} returned {tuple(maps.shape)} for inputs {tuple(x.shape)}: give a function that returns "
                "a map of each, with channels summed."
            )
        return _as_array(maps.unsqueeze(1))

    return explain


def _asked(model: Any, inputs: Any, device: Any, method: Any, others: Mapping[str, Any], known: str) -> Tensor:
    """The inputs on the model's device, in evaluation mode; raises at what can't be heeded."""
    for name in others:
        if name not in _HANDED_ON:
            raise InputError(f"{name}= is no argument of explain_func: {_OTHERS.get(name, f'it takes {known}')}.")
    if method in _THEIR_METHODS:
        raise InputError(
            f"method={method!r} is a method of Quantus' own: leave it out, and choose rules=; in quantus.evaluate call "
            "this function something else."
        )
    place = place_of(evaluated(model))
    _check_device(device, place.device)
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biu":
        inputs = inputs.astype(np.float64)  # Quantus gives them to the model as numbers, too
    return as_tensor("inputs", inputs, place)


def _check_device(device: Any, own: torch.device) -> None:
    """Raises where a device is named that the model isn't on."""
    if device is None:
        return
    try:
        named = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f'device={device!r} is no device of torch: give "cpu", "cuda" or "cuda:1", or leave it out.'
        ) from error
    if named.type != own.type or (named.index is not None and named.index != own.index):
        raise InputError(
            f"device={device!r}, and the model is on {own}: move it before, model.to({str(named)!r}). Quantus' own "
            "explain would move it."
        )


def _as_target(targets: Any) -> Target:
    """Classes as hilrp takes them; what are none it refuses itself."""
    return torch.as_tensor(targets) if isinstance(targets, np.ndarray) and targets.dtype.kind in "biuf" else targets


def _as_reference(reference: Any, x: Tensor) -> Any:
    """A reference, or a list of them, with tensors in the place of arrays."""
    if isinstance(reference, list):
        return [_as_reference(each, x) for each in reference]
    return as_tensor("reference", reference, x) if isinstance(reference, np.ndarray) else reference


def _checked_axes(axes: Any, count: int) -> tuple[int, ...]:
    """The axes of inputs over which relevance is summed; as in Quantus' own ``explain`` none, where there are two."""
    chosen = tuple(axes) if isinstance(axes, Iterable) and not isinstance(axes, str) else (axes,)
    whole = all(isinstance(axis, (int, np.integer)) and -count <= axis < count for axis in chosen)
    places = {axis % count for axis in chosen} if whole else {0}
    if 0 in places or len(places) < len(chosen):
        raise InputError(
            f"reduce_axes={axes!r}: give different axes of inputs that have {count}, from 1 to {count - 1}, since the "
            "first holds the samples; () keeps them all."
        )
    return chosen if count > 2 else ()


def _as_array(found: Tensor) -> np.ndarray[Any, Any]:
    """A tensor as an array, in a type that numpy has."""
    found = found.detach().cpu()
    return (found if found.dtype in (torch.float32, torch.float64) else found.float()).numpy()
