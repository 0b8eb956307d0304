"""captum's contract, with relevance: ``attribute(inputs, baselines, target)``, and a convergence delta of zero.

Change ``from captum.attr import IntegratedGradients`` to ``from hilrp.compat.captum import Relevance as
IntegratedGradients``; for classes that attribute to a layer it is ``LayerRelevance``. Both are captum attributions:
``NoiseTunnel``, ``captum.metrics`` and ``captum.attr.visualization`` take them.

What differs: one pass is exact, so that ``n_steps`` changes nothing, and a warning says so; and without ``baselines``
relevance is relative to each picture's mean colour (tables: to zero), where captum's methods take zero for both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hilrp.attribution.explainer import Audit, Explainer, unwrap
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.references import DEFAULT, Given, Reference, find
from hilrp.attribution.stages import OF_INPUT
from hilrp.compat.asking import at_layer, layer_paths, relative_to
from hilrp.compat.captum_forms import as_baseline, checked_arguments, checked_inputs, flat_target
from hilrp.compat.functions import LAYER, Function, as_held, held_name, input_name, outputs_of, shown_path
from hilrp.compat.peers import peer
from hilrp.method.rules import AnyRules, Rules
from hilrp.targets import logits_of
from hilrp.util.errors import AuditWarning, InputError, ModelError, TargetError
from hilrp.util.nested import map_tensors, tensors

_attr, _log = peer("captum.attr"), peer("captum.log")
_GradientAttribution = peer("captum.attr._utils.attribution").GradientAttribution
_LayerAttribution = _attr.LayerAttribution

#: Arguments of captum's methods that have no meaning here, and what to use instead.
_OTHERS = {
    "n_samples": "use Relevance(..., passes=8) for means over random chains",
    "stdevs": "wrap it: captum.attr.NoiseTunnel(Relevance(model)).attribute(inputs, stdevs=...)",
    "custom_attribution_func": "relevance is the difference of the input, times its multiplier; take it as it is",
    "grad_kwargs": "there is no gradient of the model in it",
    "feature_mask": "sum the attributions over the mask",
    "sliding_window_shapes": "relevance is that of every value; average it over windows",
    "abs": "take attributions.abs()",
}
#: Arguments that say how well, or in how many parts, a path is followed: nothing is lost by leaving them out.
_OF_PATHS = {
    "n_steps": "one pass is exact. For a truer map spend more on Relevance(..., passes=8)",
    "method": "there is no path to integrate along. Other maps come of rules=",
    "internal_batch_size": "no steps are run at once. Relevance(..., batch=) says how many samples are",
}


class Relevance(_GradientAttribution):  # type: ignore[misc, valid-type]
    """Relevance of the inputs, which sums to the difference between the outputs on them and on the baselines.

    Args:
        forward_func: A module in evaluation mode, or a function or method that runs one: the modules that it uses are
            found in its object, closure, arguments and globals.
        rules: The rules, by name or as `hilrp.Rules`.
        passes: How many passes to spend: see `hilrp.explain`.
        audit: ``"strict"`` raises where relevance could be lost, ``"warn"`` warns, ``"off"`` does neither.
        batch: How many samples run at once: see `hilrp.explain`.
        multiply_by_inputs: Relevance is a share of the output, and always multiplied by the inputs: only true.

    Attributes:
        explanation: The last `hilrp.Explanation`: its ledger, its reference, its notes.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).eval()
        >>> attributions, delta = Relevance(model).attribute(torch.randn(4, 3), target=1, return_convergence_delta=True)
        >>> attributions.shape, bool(delta.abs().max() < 1e-5)
        (torch.Size([4, 3]), True)
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        rules: AnyRules = "secant",
        *,
        passes: int = 1,
        audit: Audit = "strict",
        batch: int | Literal["auto"] | None = None,
        multiply_by_inputs: bool = True,
    ) -> None:
        if not callable(forward_func):
            raise InputError(f"forward_func is a {type(forward_func).__name__}: give a module or a function.")
        if not multiply_by_inputs:
            raise InputError(
                "multiply_by_inputs=False: relevance is a share of the output, and no slope. For slopes use "
                "captum.attr.Saliency, or divide the attributions by inputs - baselines."
            )
        super().__init__(forward_func)
        self.rules, self._passes, self._audit, self._batch = Rules.named(rules), passes, audit, batch
        self.explanation: Explanation | None = None
        self._explainers: dict[tuple[Any, ...], Explainer] = {}
        self._wrapped: Function | None = None
        self._layers: list[nn.Module] = []
        self._replaced: dict[int, Tensor] = {}
        self._x: Any = None

    #: Whether whole numbers may be among the inputs: at a layer what comes of them has relevance.
    _at_layers = False

    @property
    def multiplies_by_inputs(self) -> bool:
        """Whether attributions are shares of the output: always."""
        return True

    def has_convergence_delta(self) -> bool:
        """Whether attributions can be compared with the output: captum's own comparison is used."""
        return True

    @_log.log_usage()  # captum's NoiseTunnel looks for what it leaves (``__wrapped__``)
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        baselines: Tensor | float | tuple[Tensor | float, ...] | None = None,
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        **others: Any,
    ) -> Any:
        """The relevance of inputs, in their form.

        Args:
            inputs: A tensor whose first axis holds the samples, or a tuple of several.
            baselines: What relevance is relative to: numbers, or tensors like the inputs or of one sample. By default
                each picture's mean colour, and zero for inputs that are no pictures. Also hilrp's names and references.
            target: Which output: a class, one for each sample, or for outputs of more axes a tuple of indices, or a
                list of such tuples. None only where the model returns one number for each sample.
            additional_forward_args: What the model is given after the inputs. It is held fixed; tensors are arguments
                of their own, since of those with a row for each sample the rows go with their samples.
            return_convergence_delta: Return also by how much the sum of each sample's attributions is off, by plain
                passes of the model.
            others: Arguments of captum's other methods. ``n_steps``, ``method`` and ``internal_batch_size`` have
                nothing to change here, and a warning says so; each other is an error that says what to use instead.
        """
        explanation, _ = self._explained(inputs, baselines, target, additional_forward_args, others)
        found = self._like_inputs(inputs, explanation.relevance)
        if not return_convergence_delta:
            return found
        return found, self._delta(found, inputs, explanation, additional_forward_args)

    def _explained(
        self,
        inputs: Any,
        baselines: Any,
        target: Any,
        arguments: Any,
        others: Mapping[str, Any],
        of_input: bool = False,
    ) -> tuple[Explanation, nn.Module]:
        """The explanation that attributions are taken from, and the model that it is of."""
        for name, value in others.items():
            if name not in _OF_PATHS:
                raise InputError(
                    f"{name}= is no argument of {type(self).__name__}.attribute: "
                    f"{_OTHERS.get(name, 'it takes inputs, baselines, target, additional_forward_args')}."
                )
            warnings.warn(f"{name}={value!r} changes nothing: {_OF_PATHS[name]}.", stacklevel=4)
        parts, given = checked_inputs(inputs, self._at_layers), checked_arguments(arguments)
        plain = self._plain(parts, given)
        chosen = flat_target(target, tuple(plain.shape), len(parts[0]))
        self._replaced = self._to_replace(parts, given)
        wrapped = bool(given) or bool(self._replaced) or plain.ndim > 2 or not isinstance(self.forward_func, nn.Module)
        x = self._input(inputs, parts, given, wrapped)
        explainer = self._explainer(wrapped, self._reference(baselines, inputs, x, parts, given), of_input)
        self._x = x
        self.explanation = explainer.explain(x, chosen, self._batch, self._passes)
        if self._audit != "off":
            self._compare(plain.reshape(len(parts[0]), -1), chosen, self.explanation)
        return self.explanation, explainer.model

    def _compare(self, plain: Tensor, chosen: Tensor, found: Explanation) -> None:
        """Raises, or warns, where what was explained has other scores than the function run on all samples at once."""
        score = plain.gather(1, chosen.to(plain.device)[:, None])[:, 0].double().to(found.score.device)
        scale = torch.maximum(score.abs(), found.ledger.scale)  # that of a score near zero is by the others
        apart = (score - found.score.double()).abs() > found.tolerance * scale
        if not bool(apart.any()):
            return
        sample = int(apart.nonzero()[0])
        message = (
            f"forward_func returns {float(score[sample]):.6g} for sample {sample}, and what was explained is "
            f"{float(found.score[sample]):.6g}. Either it isn't deterministic, or it depends on how many samples are "
            "run at once. A tensor in additional_forward_args whose first axis is as long as the inputs' is cut with "
            "them: give batch=None, or let the function hold what all samples share."
        )
        if self._audit == "strict":
            raise ModelError(message)
        warnings.warn(message, AuditWarning, stacklevel=4)

    def _plain(self, parts: tuple[Tensor, ...], arguments: tuple[Any, ...]) -> Tensor:
        """The scores that the function itself gives to all samples at once, in its own shape."""
        with torch.no_grad():
            output = self.forward_func(*(t.detach().clone() for t in parts), *map_tensors(Tensor.clone, arguments))
        scores = logits_of(output).detach()
        shape = tuple(scores.shape)
        if shape[:1] != (len(parts[0]),):
            raise TargetError(
                f"forward_func returns the shape {shape} for {len(parts[0])} samples: let it return one row for each."
            )
        return scores

    def _model(self, wrapped: bool) -> nn.Module:
        """The model, or the module that it has to run within: with further arguments, or as a function."""
        return self._within() if wrapped else self.forward_func

    def _within(self) -> Function:
        if self._wrapped is None:
            self._wrapped = Function(self.forward_func)
        return self._wrapped

    def _input(self, inputs: Any, parts: tuple[Tensor, ...], arguments: tuple[Any, ...], wrapped: bool) -> Any:
        """The input as hilrp takes it, with further tensors as inputs that are held fixed."""
        if wrapped:
            self._within().arguments = ()
        if not wrapped or not (arguments or self._replaced):
            return parts if isinstance(inputs, tuple) else parts[0]
        model = self._within()
        model.places, model.layers = {}, {}
        whole = (*parts, *arguments)
        model.arguments = tuple(None if isinstance(each, Tensor) else each for each in whole)
        x: dict[str, Tensor] = {}
        for i, each in enumerate(whole):
            explained = i < len(parts) and each.is_floating_point()
            if isinstance(each, Tensor):
                name = input_name(i, len(parts)) if explained else held_name(i, each)
                x[name] = each if explained else as_held(each)
                model.places[name] = i, None if explained else each.dtype
        for i, output in self._replaced.items():
            model.layers[f"{LAYER}{i}"] = [self._layers[i]]
            x[f"{LAYER}{i}"] = output
        return x

    def _to_replace(self, parts: tuple[Tensor, ...], arguments: tuple[Any, ...]) -> dict[int, Tensor]:
        """The outputs of layers that are explained as inputs of their own, by the layers' numbers: for inputs none."""
        return {}

    def _reference(
        self, baselines: Any, inputs: Any, x: Any, parts: tuple[Tensor, ...], arguments: tuple[Any, ...]
    ) -> Reference | None:
        """What relevance is relative to, in the form of the input."""
        if baselines is None:
            return DEFAULT if self.rules.constants == "reference" else None
        if isinstance(baselines, str) or (callable(baselines) and not isinstance(baselines, Tensor)):
            return find(baselines)
        several = baselines if isinstance(baselines, tuple) else (baselines,)
        if len(several) != len(parts):
            raise InputError(f"baselines has {len(several)} parts for {len(parts)} inputs: give one for each.")
        values = tuple(as_baseline(i, one, t) for i, (one, t) in enumerate(zip(several, parts, strict=True)))
        if isinstance(x, Mapping):
            named = {input_name(i, len(parts)): value for i, value in enumerate(values)}
            if self._replaced:
                named |= {f"{LAYER}{i}": t for i, t in self._to_replace(values, arguments).items()}
            return Given({name: named.get(name, t) for name, t in x.items()}, "the baseline")
        return Given(values if isinstance(inputs, tuple) else values[0], "the baseline")

    def _explainer(self, wrapped: bool, reference: Reference | None, of_input: bool) -> Explainer:
        key = wrapped, reference is not None, of_input, tuple(self._replaced)
        if key not in self._explainers:
            model = self._model(wrapped)
            keep = self._kept(unwrap(model), of_input)
            self._explainers[key] = Explainer(model, self.rules, reference, self._audit, None, keep=keep)
        held = self._explainers[key]
        return held if reference is None else relative_to(held, reference)

    def _kept(self, model: nn.Module, of_input: bool) -> list[str]:
        """The modules of a model whose relevance is kept: for inputs none."""
        return []

    @staticmethod
    def _like_inputs(inputs: Any, relevance: Any) -> Any:
        """Relevance in the form of the inputs, without what was held fixed."""
        if isinstance(relevance, Mapping):
            count = len(inputs) if isinstance(inputs, tuple) else 1
            found = tuple(relevance[input_name(i, count)] for i in range(count))
            return found if isinstance(inputs, tuple) else found[0]
        return relevance

    def _delta(self, found: Any, inputs: Any, explanation: Explanation, arguments: Any) -> Tensor:
        """By how much sums are off, as captum compares them with plain passes."""
        if explanation.reference is None:
            raise InputError(
                f"return_convergence_delta: {self.rules} decompose the output itself, of which constants keep a share; "
                'there is no difference to converge to. Give baselines=, or use rules="secant".'
            )

        def rows(*given: Any) -> Tensor:
            return _as_rows(logits_of(self.forward_func(*map_tensors(Tensor.clone, given))))  # it may write to them

        if self._replaced:  # of whole numbers there is no difference: what comes of them is compared
            chosen = explanation.target
            assert isinstance(chosen, Tensor)
            with torch.no_grad():
                scores = [self._within()(**map_tensors(Tensor.clone, t)) for t in (self._x, explanation.reference)]
            after, before = (t.gather(1, chosen.to(t.device)[:, None])[:, 0] for t in map(_as_rows, scores))
            return sum(t.flatten(1).sum(1) for t in found) - (after - before)
        start = self._like_inputs(inputs, explanation.reference)
        compared = _GradientAttribution(rows)  # captum's own comparison, of outputs that may be no tensors
        return compared.compute_convergence_delta(
            found, start, inputs, additional_forward_args=arguments, target=explanation.target
        )


class LayerRelevance(Relevance, _LayerAttribution):  # type: ignore[misc, valid-type]
    """Relevance at a layer: of its output, or of what it is given, whole and with its channels.

    Where all ways from the input to the output lead through the layer, it sums to the same difference as the inputs'.

    Inputs may be whole numbers (words): a layer that is given them (an embedding) is explained as an input of its own,
    relative to what it makes of their ``baselines`` (without these, to zero). What else depends on them is held fixed.

    Args:
        forward_func: As for `Relevance`.
        layer: A module of the model, or a list of several.
        device_ids: Not used: the model runs where it is.
        rules: As for `Relevance`.
        options: As for `Relevance`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
        >>> LayerRelevance(model, model[1]).attribute(torch.randn(2, 3, 8, 8), target=0).shape
        torch.Size([2, 4, 6, 6])
    """

    def __init__(
        self,
        forward_func: Callable[..., Any],
        layer: nn.Module | list[nn.Module],
        device_ids: None = None,
        rules: AnyRules = "secant",
        **options: Any,
    ) -> None:
        if device_ids is not None:
            raise InputError("device_ids is for DataParallel. Leave it out: the model inside of it is explained.")
        Relevance.__init__(self, forward_func, rules, **options)
        self.layer, self.device_ids = layer, None
        layers = layer if isinstance(layer, list) else [layer]
        wrong = [each for each in layers if not isinstance(each, nn.Module)]
        if wrong or not layers:
            raise InputError(f"layer={layer!r}: give a module of the model, model.layer4, or a list of modules.")
        self._layers = layers

    _at_layers = True

    @_log.log_usage()
    def attribute(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        baselines: Tensor | float | tuple[Tensor | float, ...] | None = None,
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        attribute_to_layer_input: bool = False,
        **others: Any,
    ) -> Any:
        """The relevance at the layer, in the form of its output; of a list of layers, a list.

        Args:
            inputs: As for `Relevance.attribute`.
            baselines: As for `Relevance.attribute`.
            target: As for `Relevance.attribute`.
            additional_forward_args: As for `Relevance.attribute`.
            return_convergence_delta: As for `Relevance.attribute`; of a list of layers, of the sum over all of them.
            attribute_to_layer_input: Attribute to what the layer is given, by position, instead of to its output.
            others: As for `Relevance.attribute`.
        """
        of_input = attribute_to_layer_input
        if of_input and any(not t.is_floating_point() for t in checked_inputs(inputs, at_layers=True)):
            raise InputError(
                "attribute_to_layer_input=True: inputs hold whole numbers, and layers that are given these have "
                "relevance at their outputs alone. Leave it out, or give the embeddings in inputs."
            )
        explanation, model = self._explained(inputs, baselines, target, additional_forward_args, others, of_input)
        held = "additional_forward_args are held fixed: give what is explained in inputs"
        kept = iter(self._kept(model, of_input))
        found = [
            explanation.relevance[f"{LAYER}{i}"]
            if i in self._replaced
            else at_layer(name := next(kept), explanation, shown_path(model, name), held)
            for i in range(len(self._layers))
        ]
        attributions = found if isinstance(self.layer, list) else found[0]
        if not return_convergence_delta:
            return attributions
        return attributions, self._delta(tuple(tensors(found)), inputs, explanation, additional_forward_args)

    def _kept(self, model: nn.Module, of_input: bool) -> list[str]:
        """The paths of the layers, but for those that are inputs."""
        layers = [each for i, each in enumerate(self._layers) if i not in self._replaced]
        return [path + OF_INPUT if of_input else path for path in layer_paths(model, layers, "layer")]

    def _to_replace(self, parts: tuple[Tensor, ...], arguments: tuple[Any, ...]) -> dict[int, Tensor]:
        """The outputs of layers that are given whole numbers alone; of all layers, if that is all that there is."""
        if all(t.is_floating_point() for t in parts):
            return {}
        runs: dict[int, list[tuple[Any, Any]]] = {id(layer): [] for layer in self._layers}
        with outputs_of(runs, lambda layer, given, output: runs[layer].append((given, output))):
            self._plain(parts, arguments)
        none = not any(t.is_floating_point() for t in parts)
        found = {}
        for i, layer in enumerate(self._layers):
            seen = runs[id(layer)]
            if none and not seen:
                raise ModelError(f"layer: {layer!r} does not run, and so has no relevance. Give another module.")
            if not none and (not seen or any(t.is_floating_point() for t in tensors(seen[0][0]))):
                continue  # its relevance is that of the inputs with quantities
            output = seen[0][1]
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            if len(seen) > 1 or not isinstance(output, Tensor) or shape[:1] != (len(parts[0]),):
                raise ModelError(
                    f"layer: {layer!r} is given whole numbers, {len(seen)} times in a pass, and returns {shape}. Of "
                    f"such layers, give one that runs once and returns a tensor with a row for each of the "
                    f"{len(parts[0])} samples."
                )
            found[i] = output.detach()
        return found


def _as_rows(scores: Tensor) -> Tensor:
    return scores.flatten(1) if scores.ndim > 1 else scores.unsqueeze(1)
