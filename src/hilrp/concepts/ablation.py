"""Models from a layer on: references may begin there, and concepts be taken away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from hilrp.attribution.explainer import explain, unwrap
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.forward_backward import call_model
from hilrp.concepts.layer import Layer
from hilrp.method.rules import AnyRules
from hilrp.targets import Target, score_of
from hilrp.util.errors import InputError, ModelError
from hilrp.util.nested import map_tensors, tensors


class AtLayer(nn.Module):
    """A model as a function of what one of its layers has, with an input that stays as it is.

    What is explained relative to a reference there is told how much higher the score is because the *layer* has these
    values, and not others. The model is not changed.

    Args:
        model: The model.
        at: The layer: a module's path, as `Concepts` takes it.
        x: The input.

    Example:
        >>> import torch, hilrp
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
        >>> layer = AtLayer(model, "1", torch.randn(1, 3, 2, 2))
        >>> h = layer.values()
        >>> found = hilrp.explain(layer, h, target=1, reference=h * 0)
        >>> found.relevance.shape
        torch.Size([1, 4])
    """

    def __init__(self, model: nn.Module, at: str, x: Any) -> None:
        super().__init__()
        self.model = unwrap(model)
        self.training = self.model.training
        self._layer = Layer.named(at)
        modules = dict(self.model.named_modules())
        if self._layer.path not in modules:
            raise InputError(f"at={at!r}: the model has no module of that name. model.named_modules() lists them.")
        for i, t in enumerate(tensors(x)):  # the model's own, in a way: it did not come from elsewhere
            self.register_buffer(f"input_{i}", t.detach(), persistent=False)
        self._form = x

    def forward(self, h: Tensor) -> Any:
        """The model's output with these values at the layer."""
        given = iter([*self.buffers(recurse=False)])
        with self._at_layer(lambda own: h.reshape(own.shape).clone()) as seen:
            output = call_model(self.model, map_tensors(lambda _: next(given).clone(), self._form))
        if not seen:
            raise ModelError(f"at: `{self._layer}` does not run, or has no tensor of numbers.")
        return output

    def values(self, x: Any = None) -> Tensor:
        """What the layer has on an input of the same form, by default on the one that was given."""
        with torch.no_grad(), self._at_layer(lambda own: own) as seen:
            call_model(self.model, map_tensors(Tensor.clone, self._form if x is None else x))
        if not seen:
            raise ModelError(f"at: `{self._layer}` does not run, or has no tensor of numbers.")
        return seen[0]

    def goes_other_ways(self, target: Target, batch: int) -> bool:
        """Whether the score also depends on the layer's tensor otherwise than through what is replaced."""
        if any(t.is_inference() for t in (*self.model.parameters(), *self.model.buffers())):  # takes no gradients
            with torch.inference_mode(False):
                return AtLayer(deepcopy(self.model), str(self._layer), self._form).goes_other_ways(target, batch)
        found: list[tuple[Tensor, Tensor]] = []

        def through(own: Tensor) -> Tensor:
            found.append((own, own.clone()))
            return found[0][1].clone()  # which the model may write to

        with torch.inference_mode(False), torch.enable_grad(), self._at_layer(through):
            given = map_tensors(lambda t: t.clone().requires_grad_(t.is_floating_point()), self._form)
            score = score_of(call_model(self.model, given), target, batch).value.sum()
            all_ways, own_way = torch.autograd.grad(score, found[0], allow_unused=True, materialize_grads=True)
        return not torch.allclose(all_ways, own_way, rtol=0, atol=0, equal_nan=True)

    @contextmanager
    def _at_layer(self, change: Any) -> Iterator[list[Tensor]]:
        """Within, the layer's tensor is another one.

        torch has hooks for all modules of the process, so that none has to be put on the model; these mind one thread.
        """
        layer, thread = self._layer, threading.get_ident()
        module, runs, seen = self.model.get_submodule(layer.path), 0, list[Tensor]()

        def replaced(tree: Any) -> Any:
            nonlocal runs
            several = list({id(t): t for t in tensors(tree) if t.is_floating_point()}.values())
            if not several:
                return tree
            runs += 1
            if runs != (layer.run or 1) or (layer.index or 0) >= len(several):
                return tree
            own = several[layer.index or 0]
            seen.append(own.detach().clone())  # the model may write to it
            other = change(own)
            return map_tensors(lambda t: other if t is own else t, tree)

        def before(running: nn.Module, args: Any) -> Any:
            return replaced(args) if running is module and threading.get_ident() == thread else None

        def after(running: nn.Module, args: Any, output: Any) -> Any:
            return replaced(output) if running is module and threading.get_ident() == thread else None

        handle = register_module_forward_pre_hook(before) if layer.of_input else register_module_forward_hook(after)
        try:
            yield seen
        finally:
            handle.remove()
        if layer.run is None and runs > 1:
            raise InputError(
                f'at: `{layer}` runs more than once in a pass. Say which run: at="{layer.keep}#1", '
                f'"{layer.keep}#2", ...'
            )


@dataclass(frozen=True)
class Ablation:
    """A score with some concepts set to what they are on the reference.

    Attributes:
        score: The score, ``[B]``.
        ablated: The score without these concepts.
        relevance: What the concepts hold of the score, relative to the reference that was asked for.
        layer: The model from the layer on.
        values: What the layer has.
        ablated_values: What it has without the concepts.
        target: What was explained.
    """

    score: Tensor
    ablated: Tensor
    relevance: Tensor
    layer: AtLayer
    values: Tensor
    ablated_values: Tensor
    target: Target

    @property
    def change(self) -> Tensor:
        """How much higher the score is with the concepts than without."""
        return self.score - self.ablated

    def explain(self, rules: AnyRules = "secant") -> Explanation:
        """Says where at the layer that change comes from: its relevance there sums to exactly the change."""
        return explain(self.layer, self.values, self.target, rules, self.ablated_values, stages=None)

    def __repr__(self) -> str:
        rows = zip(self.score.tolist(), self.ablated.tolist(), self.relevance.tolist(), strict=True)
        said = "; ".join(f"{s:.4g}, without {a:.4g} ({r:.4g} of relevance)" for s, a, r in rows)
        return f"Ablation({said})"
