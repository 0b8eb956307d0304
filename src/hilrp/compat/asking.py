"""What the drop-ins share: plain passes, inputs as tensors, and explainers relative to something else."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.explainer import Explainer
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.question import Question
from hilrp.attribution.references import Reference
from hilrp.attribution.stages import OF_INPUT
from hilrp.engine import messages
from hilrp.targets import logits_of
from hilrp.util.errors import InputError, ModelError, TargetError


def relative_to(explainer: Explainer, reference: Reference) -> Explainer:
    """The same explainer relative to something else; what it recorded and what it knows of the model is shared."""
    other = copy(explainer)
    other.reference = reference
    return other


def plain_scores(model: nn.Module, inputs: Any, count: int) -> Tensor:
    """The scores ``[B]`` or ``[B,K]`` that a model itself gives to some samples, without a graph."""
    found = logits_of(Question(model, inputs, None, count).output(inputs))
    if found.ndim not in (1, 2) or len(found) != count or not found.is_floating_point():
        raise TargetError(
            f"The model's output has the shape {tuple(found.shape)} ({found.dtype}) for {count} samples, where [{count}"
            ", outputs] is needed: give a module that returns one row of scores for each sample, or use hilrp.explain "
            "with a function as its target."
        )
    return found


def evaluated(model: Any) -> nn.Module:
    """A model in evaluation mode: it is set to it, as the package whose place is taken sets it.

    Raises:
        InputError: Where it is no module.
        ModelError: Where it is scripted.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("model is TorchScript, which can't be looked into. Give the Python model it was made of.")
    return model.eval()


def place_of(model: nn.Module) -> Tensor:
    """An empty tensor of the type and on the device that a model computes with."""
    first = next((t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), torch.empty(0))
    return first.new_empty(0)


def checked_size(name: str, parts: Sequence[Tensor]) -> int:
    """The number of samples in the inputs of a model, which all of them must have."""
    sizes = {t.shape[0] if t.ndim else 0 for t in parts}
    if len(sizes) != 1 or 0 in sizes:
        shapes = ", ".join(str(tuple(t.shape)) for t in parts)
        raise InputError(f"{name} has the shapes {shapes}: the first axis of each holds the samples, one or more.")
    return sizes.pop()


def layer_paths(model: nn.Module, layers: Sequence[nn.Module], name: str) -> list[str]:
    """The paths of a model's layers; ``name`` is what they are called in errors."""
    paths = {id(module): path for path, module in model.named_modules()}
    for layer in layers:
        if not isinstance(layer, nn.Module):
            raise InputError(f"{name}={layer!r} is a {type(layer).__name__}: give a module of the model, model.layer4.")
        if id(layer) not in paths:
            raise InputError(f"{name}={layer!r} is no module of the model: give one of its own, model.layer4.")
    return [paths[id(layer)] for layer in layers]


def at_layer(name: str, explanation: Explanation, shown: str, held: str) -> Any:
    """The relevance at a layer that was kept: a tensor, or a tuple of several.

    Args:
        name: What it is called in the explanation.
        explanation: The explanation.
        shown: What it is called in errors: its path in the user's model.
        held: What is held fixed, and so has no relevance.
    """
    of_input = name.endswith(OF_INPUT)
    if f"{name}#2" in explanation.layers:
        raise ModelError(
            f"layer: `{shown}` runs more than once in a pass, and has relevance each time. Give a module that runs "
            "once, as the block that it is in; explanation.layers has them all."
        )
    if name not in explanation.layers:
        reason = "does not run"
        if messages.carries_nothing(name) in explanation.notes:
            what = "is given nothing by position" if of_input else "runs on nothing"
            reason = f"{what} that depends on what is explained ({held})"
        raise ModelError(f"layer: `{shown}` {reason}, and so has no relevance. Give another module.")
    found = [t for key, t in explanation.layers.items() if key == name or key.startswith(f"{name}[")]
    return found[0] if len(found) == 1 else tuple(found)
