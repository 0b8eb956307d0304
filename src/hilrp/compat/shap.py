"""SHAP's ``DeepExplainer``, with the relevance of hilrp: values that add up on any architecture.

Change ``import shap`` to ``import hilrp.compat.shap as shap``. `DeepExplainer` and `GradientExplainer` are then those
below; every other name (``shap.image_plot``, ``shap.plots``) is shap's own.

SHAP's DeepExplainer gives each module a rule, for the few kinds that it knows; what runs outside of modules or twice in
one, and what it doesn't know (LayerNorm), it takes for linear, so that its values don't add up, or it crashes. Secant
relevance is what it promises: values that sum to ``f(x)`` minus the mean of ``f`` over the background, whatever the
operations are. On networks of linear layers and activations ``rules="epsilon"`` gives SHAP's values. The default,
``rules="secant"``, has the same sums and other values: it bounds what cancellation within a layer adds.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hilrp.attribution.explainer import Explainer as _Explainer  # shap has one, too, which scripts mean
from hilrp.attribution.explainer import unwrap
from hilrp.attribution.explanation import Explanation as _Explanation
from hilrp.attribution.references import Given, Question, Reference, asked, find
from hilrp.attribution.stages import OF_INPUT
from hilrp.compat.arrays import as_array, as_tensor, channels_last, column_names, repeated
from hilrp.compat.asking import (
    at_layer,
    checked_size,
    evaluated,
    layer_paths,
    place_of,
    plain_scores,
    relative_to,
)
from hilrp.compat.peers import peer
from hilrp.method.rules import AnyRules
from hilrp.util.errors import AuditWarning, BooksError, InputError
from hilrp.util.nested import map_tensors, tensors

Order = Literal["max", "min", "max_abs"]
_ORDERS = ("max", "min", "max_abs")
#: How many pairs of a sample and a background sample run at once on a processor: of pictures, and of short rows.
_PICTURES, _ROWS = 32, 1024
#: Arguments of shap's other explainers that have no meaning here, and what to use instead.
_OTHERS = {
    "masker": "give the background as data",
    "link": "explain a module that ends with it",
    "nsamples": "nothing is drawn: give as many background samples as you want to spend passes on",
    "max_evals": "one pass is exact for each background sample",
    "l1_reg": "every feature has its value",
    "algorithm": "choose rules=",
    "outputs": "use ranked_outputs=, or take a part of the result",
    "feature_names": "give data as a pandas DataFrame",
    "interactions": "relevance is of single features",
}
_AS_WARNING = "check_additivity=False makes this a warning; the values stay wrong."


class AdditivityError(BooksError, AssertionError):
    """Values don't sum to the difference of the model's outputs; where shap's check fails it raises AssertionError."""


@dataclass(frozen=True)
class _Values:
    """Values of some outputs of the model.

    Attributes:
        inputs: For each input of the model, the values of each output, ``[N,*features]``.
        base: What the model returns on the references in the mean, ``[N,outputs]``.
    """

    inputs: list[list[np.ndarray[Any, Any]]]
    base: Tensor


class DeepExplainer:
    """Values of every input feature that sum to ``f(x)`` minus the mean of ``f`` over a background.

    Each background sample costs one pass for each output that is explained: 10 to 100 are usual, and ``ranked_outputs``
    spares the outputs that nobody asks for. The model is set to evaluation mode, as SHAP sets it.

    Args:
        model: A module that returns ``[N,outputs]``, or ``[N]``; or the pair of it and of a module in it: values are
            then those of what that is given, ``[N,*its,outputs]``.
        data: The background: samples of each input, as a tensor or an array, a list of them if the model takes several,
            or a pandas DataFrame; or the name of a reference (``"mean"``: each picture's mean colour, ``"blurred"``),
            or one of `hilrp.references`.
        session: Not used: it is TensorFlow's.
        learning_phase_flags: Not used: it is TensorFlow's.
        rules: The rules, by name or as `hilrp.Rules`.
        passes: How many passes to spend on each background sample: see `hilrp.explain`.
        batch: How many samples run at once: see `hilrp.explain`.
        others: Arguments of shap's other explainers: each is an error that says what to use instead.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).eval()
        >>> background, x = torch.randn(10, 3), torch.randn(4, 3)
        >>> explainer = DeepExplainer(model, background)
        >>> values = explainer.shap_values(x)
        >>> values.shape, explainer.expected_value.shape
        ((4, 3, 2), (2,))
        >>> difference = model(x).detach().numpy() - explainer.expected_value
        >>> bool(abs(values.sum(1) - difference).max() < 1e-4)
        True
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        session: None = None,
        learning_phase_flags: None = None,
        *,
        rules: AnyRules = "secant",
        passes: int = 1,
        batch: int | Literal["auto"] | None = "auto",
        **others: Any,
    ) -> None:
        _refuse(others, "DeepExplainer", "model, data, rules, passes, batch")
        for name, given in (("session", session), ("learning_phase_flags", learning_phase_flags)):
            if given is not None:
                raise InputError(f"{name} is TensorFlow's. Leave it out, and give a PyTorch model.")
        model, *layers = model if isinstance(model, tuple) else (model,)
        if len(layers) > 1:
            raise InputError(f"model is a tuple of {1 + len(layers)}: give a module, or the pair (model, layer).")
        self.model = evaluated(model)
        self._kept = [path + OF_INPUT for path in layer_paths(unwrap(self.model), layers, "layer")]
        self.feature_names: list[str] | None = None
        self._passes, self._batch = passes, batch
        self._several = isinstance(data, list)
        self._background: list[Tensor] | None = None
        self._columns: list[list[str] | None] = []
        self._reference: Reference | None = None
        if isinstance(data, (str, int, float)) or (callable(data) and not isinstance(data, Tensor)):
            self._reference = find(data)
        else:
            # A copy: what is written to the given tensors later would be another background.
            self._background = [t.clone() for t in self._tensors("data", data)]
            self._columns = [column_names(each) for each in (data if self._several else [data])]
            self._count = checked_size("data", self._background)
        start = self._reference or Given(self._in_form(self._background or []))
        self._strict, self._warning = (
            _Explainer(self.model, rules, start, audit, None, keep=self._kept) for audit in ("strict", "warn")
        )
        self._on_background: Tensor | None = None
        if self._background is not None:
            self._on_background = plain_scores(self.model, self._in_form(self._background), self._count)

    @property
    def expected_value(self) -> Any:
        """The mean of the model's outputs over the background, ``[outputs]``, as a numpy array."""
        if self._on_background is None:
            raise InputError(
                "expected_value: the background is a reference that is made for each sample. Use "
                "explainer(X).base_values, which has one for each."
            )
        return np.atleast_1d(as_array(self._on_background.mean(0)))

    def shap_values(
        self,
        X: Any,
        ranked_outputs: int | None = None,
        output_rank_order: Order = "max",
        check_additivity: bool = True,
        **others: Any,
    ) -> Any:
        """The values of some samples, in the shapes that shap 0.51 gives for PyTorch models.

        Args:
            X: The samples, in the form of the background.
            ranked_outputs: Explain as many outputs of each sample, chosen by their rank; all, if it is None.
            output_rank_order: Rank the ``"max"``, the ``"min"`` or the ``"max_abs"`` first.
            check_additivity: Compare the sums with plain passes of the model, and raise where they differ. With
                ``False`` whatever hilrp finds wrong is a warning.
            others: Arguments of shap's other explainers: each is an error that says what to use instead.

        Returns:
            An array ``[N,*features,outputs]``, also for one output (of models that return ``[N]``, without that axis),
            or a list of one for each input of the model. With ``ranked_outputs`` the pair of it and of the outputs'
            indices ``[N,ranked]``.

        Raises:
            AdditivityError: Where values don't sum to the difference of the model's outputs, by more than rounding: in
                float32 1e-4 of the larger output (in float64 1e-10); of outputs near zero, 8 units in the last place of
                the sample's largest one.
        """
        _refuse(others, "shap_values", "X, ranked_outputs, output_rank_order, check_additivity")
        parts = self._samples(X)
        x, count = self._in_form(parts), checked_size("X", parts)
        score = plain_scores(self.model, x, count)
        ranks = self._ranks(score, ranked_outputs, output_rank_order)
        found = self._explained(x, score, ranks, check_additivity)
        stacked = [np.stack(each, -1) if score.ndim == 2 else each[0] for each in found.inputs]
        values = stacked if self._several and not self._kept else stacked[0]
        return values if ranked_outputs is None else (values, ranks)

    def __call__(self, X: Any, **others: Any) -> Any:
        """The values as a ``shap.Explanation``, which shap's plots take; of several inputs, a list of one for each.

        It has ``values``, ``base_values`` and ``data``. Pictures have their channels last, ``[N,H,W,C]``, since that is
        what ``shap.image_plot`` draws. A model with one output has no axis of outputs, so that ``waterfall`` and
        ``beeswarm`` take it as it is; of several, choose one: ``explanation[..., 1]``. Features have the names of a
        DataFrame's columns, or numbers.
        """
        _refuse(others, "a call of DeepExplainer", "X")
        if self._kept:
            raise InputError("explainer(X): values at a layer are none of X's features. Use explainer.shap_values(X).")
        shap = peer("shap")
        parts = self._samples(X)
        x, count = self._in_form(parts), checked_size("X", parts)
        score = plain_scores(self.model, x, count)
        found = self._explained(x, score, self._ranks(score, None, "max"), check=True)
        single = score.ndim == 1 or score.shape[1] == 1
        base = found.base.cpu().numpy()
        explanations = [
            shap.Explanation(
                values=channels_last(each[0] if single else np.stack(each, -1), part.ndim),
                base_values=base[:, 0] if single else base,
                data=channels_last(as_array(part), part.ndim),
                feature_names=_names(self.feature_names, part) if part.ndim == 2 else None,
            )
            for each, part in zip(found.inputs, parts, strict=True)
        ]
        return explanations if self._several else explanations[0]

    def _explained(self, x: Any, score: Tensor, ranks: Tensor, check: bool) -> _Values:
        """The values of the outputs that were chosen for each sample."""
        explainer = self._strict if check else self._warning
        several = self._several and not self._kept
        values: list[list[np.ndarray[Any, Any]]] = [[] for _ in (x if several else (x,))]
        bases = []
        rows = score if score.ndim == 2 else score.unsqueeze(1)
        for number in range(ranks.shape[1]):
            chosen = ranks[:, number].to(score.device, torch.long)
            base, total, references = torch.zeros(len(score), dtype=torch.double), None, 0
            limit, size, floor = 0.0, torch.zeros_like(base), torch.zeros_like(base)
            for inputs, reference, count, scores in self._references(x, chosen):
                try:
                    found = relative_to(explainer, reference).explain(
                        inputs, chosen.repeat(count), self._at_once(x), self._passes
                    )
                except BooksError as error:
                    raise AdditivityError(f"{error} {_AS_WARNING}") from error
                relevance = found.relevance if several else (self._read(found),)
                added = [t.double().reshape(count, len(score), *t.shape[1:]).sum(0).cpu().numpy() for t in relevance]
                total = added if total is None else [a + b for a, b in zip(total, added, strict=True)]
                base += scores.double().reshape(count, len(score)).sum(0).cpu()
                size += scores.double().abs().reshape(count, len(score)).sum(0).cpu()
                assert found.ledger.floor is not None  # a class has one
                floor += found.ledger.floor.reshape(count, len(score)).sum(0).cpu()
                references, limit = references + count, max(limit, found.tolerance)
            assert total is not None
            means = [each / references for each in total]
            bases.append(base / references)
            own = rows.gather(1, chosen.unsqueeze(1)).squeeze(1).double().cpu()
            scale = torch.stack([own.abs(), size / references, floor / references]).amax(0)
            self._check(means, own, bases[-1], limit * scale, chosen, check)
            for kept, each in zip(values, means, strict=True):
                kept.append(each)
        return _Values(values, torch.stack(bases, 1))

    def _read(self, found: _Explanation) -> Tensor:
        """The relevance of the input, or of what the layer is given."""
        if not self._kept:
            return found.relevance
        path = self._kept[0].removesuffix(OF_INPUT)
        at_it = at_layer(self._kept[0], found, path, "nothing is held fixed")
        if not isinstance(at_it, Tensor) or len(at_it) != len(found.score) or found.layer_rows.get(self._kept[0]) != 1:
            raise InputError(
                f"model is (model, layer), and the layer `{path}` is given several tensors, or none with a row for "
                "each sample. Give the block that it is in."
            )
        return at_it

    def _references(self, x: Any, chosen: Tensor) -> Iterator[tuple[Any, Reference, int, Tensor]]:
        """The references, some at once, with the samples for each of them one after the other.

        Yields:
            The samples, once for each reference; the references; their number; and what the model itself gives on each
            to the chosen output of each sample.
        """
        samples = len(chosen)
        if self._background is not None and self._on_background is not None:
            scores = self._on_background
            scores = scores if scores.ndim == 2 else scores.unsqueeze(1)
            size = max(1, self._pairs(x) // samples)
            for first in range(0, self._count, size):
                some = [t[first : first + size] for t in self._background]
                count = len(some[0])
                # One for all samples is run as one of them.
                each = some if count == 1 else [t.repeat_interleave(samples, 0) for t in some]
                inputs = x if count == 1 else map_tensors(partial(repeated, count), x)
                yield inputs, Given(self._in_form(each)), count, scores[first : first + size][:, chosen].flatten()
            return
        assert self._reference is not None
        for made in asked(self._reference, Question(self.model, x, chosen, samples)):
            scores = plain_scores(self.model, made, samples)
            scores = scores if scores.ndim == 2 else scores.unsqueeze(1)
            yield x, Given(made), 1, scores.gather(1, chosen.unsqueeze(1)).squeeze(1)

    def _pairs(self, x: Any) -> int:
        """How many pairs of a sample and a reference run at once."""
        if isinstance(self._batch, int):
            return self._batch
        numbers = sum(t[0].numel() for t in tensors(x))
        return max(_PICTURES, min(_ROWS, 64 * _ROWS // max(1, numbers)))

    def _at_once(self, x: Any) -> int | Literal["auto"] | None:
        """How many of them hilrp is to run at once: on a GPU as many as fit."""
        on_processor = all(t.device.type == "cpu" for t in tensors(x))
        return self._pairs(x) if on_processor and self._batch == "auto" else self._batch

    def _check(
        self,
        values: list[np.ndarray[Any, Any]],
        score: Tensor,
        base: Tensor,
        allowed: Tensor,
        chosen: Tensor,
        check: bool,
    ) -> None:
        """Compares sums with plain passes of the model; what is ``allowed`` is rounding, by the size of the scores."""
        rows = torch.from_numpy(np.concatenate([each.reshape(len(score), -1) for each in values], 1))
        sums = rows.sum(1)
        gap = (score - base - sums).abs()
        if bool((gap <= allowed).all()):
            return
        worst = int((gap - allowed).argmax())
        message = (
            f"The values of sample {worst} for output {int(chosen[worst])} sum to {float(sums[worst]):.6g}, and not to "
            f"the difference of the model's outputs, {float(score[worst] - base[worst]):.6g}: {float(gap[worst]):.2g} "
            "is missing."
        )
        if self._stale():
            message += (
                " The model returns something else on the background than when this explainer was made: its weights "
                "may have changed since. Make a new one."
            )
        if check:
            raise AdditivityError(f"{message} {_AS_WARNING}")
        warnings.warn(message, AuditWarning, stacklevel=4)

    def _stale(self) -> bool:
        """Whether the model gives other outputs to the background than when the explainer was made."""
        if self._background is None or self._on_background is None:
            return False
        now = plain_scores(self.model, self._in_form(self._background), self._count)
        return not torch.allclose(now, self._on_background, rtol=1e-4, atol=1e-6)

    @staticmethod
    def _ranks(score: Tensor, ranked_outputs: int | None, order: str) -> Tensor:
        """Which outputs are explained of each sample, ``[N,ranked]``, in the type that shap returns."""
        outputs = score.shape[1] if score.ndim == 2 else 1
        if order not in _ORDERS:
            raise InputError(f'output_rank_order={order!r}: use "max", "min" or "max_abs".')
        if ranked_outputs is None or outputs == 1:
            return torch.arange(outputs, dtype=torch.int32).expand(len(score), -1).clone()
        if isinstance(ranked_outputs, bool) or not isinstance(ranked_outputs, Integral) or ranked_outputs < 1:
            raise InputError(f"ranked_outputs={ranked_outputs!r}: give how many outputs to explain, from 1, or None.")
        size = score.abs() if order == "max_abs" else score
        return size.sort(descending=order != "min").indices[:, : int(ranked_outputs)]

    def _samples(self, X: Any) -> list[Tensor]:
        """The inputs of the model, in the form of the background."""
        if isinstance(X, list) != self._several and self._background is not None:
            form = "a list of tensors, one for each input" if self._several else "a single tensor, not a list"
            raise InputError(f"X: the background (data) is {form}; give X in the same form.")
        self._several = isinstance(X, list)
        for wanted, names in zip(self._columns, map(column_names, X if self._several else [X]), strict=False):
            if wanted is not None and names is not None and wanted != names:
                raise InputError(
                    f"X has the columns {', '.join(names)}, and data {', '.join(wanted)}: they are taken by their "
                    "place. Give X[data.columns]."
                )
        parts = self._tensors("X", X)
        for i, (part, own) in enumerate(zip(parts, self._background or parts, strict=False)):
            if part.shape == own.shape[1:] and part.ndim:
                raise InputError(f"X (input {i}) is a single sample: add an axis for samples, X[None].")
            if part.shape[1:] != own.shape[1:] or len(parts) != len(self._background or parts):
                shapes, known = ([tuple(t.shape[1:]) for t in all_] for all_ in (parts, self._background or parts))
                raise InputError(f"X (input {i}): its samples have the shapes {shapes}, those of data {known}.")
        return parts

    def _tensors(self, name: str, given: Any) -> list[Tensor]:
        """Inputs as tensors on the model's device; of a table the names of its columns are kept."""
        several = given if isinstance(given, list) else [given]
        self.feature_names = next(filter(None, map(column_names, several)), self.feature_names)
        place = place_of(self.model)
        return [as_tensor(name if len(several) == 1 else f"{name}[{i}]", each, place) for i, each in enumerate(several)]

    def _in_form(self, parts: list[Tensor]) -> Any:
        """Inputs as the model takes them: one tensor, or a tuple of several."""
        return tuple(parts) if self._several else parts[0] if parts else None


class GradientExplainer(DeepExplainer):
    """`DeepExplainer` for scripts that use shap's GradientExplainer: nothing is drawn, so that results don't change.

    Args:
        model: As for `DeepExplainer`.
        data: As for `DeepExplainer`. Each sample costs a pass: give 10 to 100.
        session: Not used: it is TensorFlow's.
        batch_size: How many pairs of a sample and a background sample run at once; by default as many as fit.
        local_smoothing: Only 0.
        options: As for `DeepExplainer`.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
        >>> explainer = GradientExplainer(model, torch.zeros(1, 3))
        >>> values, indices = explainer.shap_values(torch.randn(4, 3), ranked_outputs=1)
        >>> values.shape, indices.shape
        ((4, 3, 1), torch.Size([4, 1]))
    """

    def __init__(
        self,
        model: Any,
        data: Any,
        session: None = None,
        batch_size: int | None = None,
        local_smoothing: float = 0,
        **options: Any,
    ) -> None:
        if local_smoothing:
            raise InputError(
                f"local_smoothing={local_smoothing!r} adds noise to the samples. Leave it out; for a mean over random "
                "chains give passes=8."
            )
        super().__init__(model, data, session, batch=batch_size or "auto", **options)

    def shap_values(  # type: ignore[override]
        self,
        X: Any,
        nsamples: int | None = None,
        ranked_outputs: int | None = None,
        output_rank_order: Order = "max",
        rseed: int | None = None,
        return_variances: bool = False,
        **others: Any,
    ) -> Any:
        """The values of some samples, as `DeepExplainer.shap_values` gives them.

        Args:
            X: The samples, in the form of the background.
            nsamples: Not used, since nothing is drawn: a warning says so.
            ranked_outputs: As for `DeepExplainer.shap_values`.
            output_rank_order: As for `DeepExplainer.shap_values`.
            rseed: Not used, as ``nsamples``.
            return_variances: Only ``False``.
            others: Arguments of shap's other explainers: each is an error that says what to use instead.
        """
        if return_variances:
            raise InputError(
                "return_variances=True: nothing is drawn, so that there are none. For errors of a mean over random "
                "chains use hilrp.explain(..., passes=8).stderr."
            )
        for name, given in (("nsamples", nsamples), ("rseed", rseed)):
            if given is not None:
                warnings.warn(f"{name}={given!r} changes nothing: every background sample is taken once.", stacklevel=2)
        return super().shap_values(X, ranked_outputs, output_rank_order, **others)


def _refuse(others: dict[str, Any], where: str, taken: str) -> None:
    """An argument that makes no sense here is an error."""
    for name in others:
        raise InputError(f"{name}= is no argument of {where}: {_OTHERS.get(name, f'it takes {taken}')}.")


def _names(given: list[str] | None, rows: Tensor) -> list[str]:
    """The names of the features, which some of shap's plots can't do without."""
    return given or [f"Feature {i}" for i in range(rows.shape[1])]


def __getattr__(name: str) -> Any:
    """Every other name is shap's own."""
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(peer("shap"), name)
