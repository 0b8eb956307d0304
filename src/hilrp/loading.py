"""Models by name: ``timm/...``, ``torchvision/...``, ``transformers/...``, ``open_clip/...``, or ``module:factory``."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.errors import InputError, UnavailableError
from hilrp.libraries.recipe import Recipe, strongest
from hilrp.passes import call_model
from hilrp.tree import map_tensors, tensors

#: Library -> the extra that installs it.
LIBRARIES = {"timm": None, "torchvision": None, "transformers": "hf", "open_clip": "clip"}


@dataclass(frozen=True)
class Built:
    """A model, ready to be audited.

    Attributes:
        name: The full name, with its library.
        model: The model, in evaluation mode.
        inputs: Random inputs of the form that it takes.
        target: What of its output is explained.
        pretrained: Whether it has published weights; else they are random.
    """

    name: str
    model: nn.Module
    inputs: Any
    target: Any
    pretrained: bool

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())


def build(
    name: str,
    *,
    pretrained: bool = False,
    dtype: torch.dtype | None = None,
    device: str | torch.device = "cpu",
    batch: int = 1,
    size: int | None = None,
    seed: int = 0,
) -> Built:
    """Builds a model by name, with random weights unless ``pretrained``, and inputs for it.

    Args:
        name: ``library/model``; a model's name alone, which is looked for in each library in turn; or
            ``module:factory``, a function of yours that returns a model, or a model and its inputs, or a model, its
            inputs and a target.
        pretrained: Load the published weights (needs a connection, or the library's cache).
        dtype: Of the weights and of the inputs; by default float32, or what a factory returns.
        device: Where the model is built.
        batch: Number of samples.
        size: Side of the images, where the model's default isn't wanted.
        seed: Of the weights and of the inputs.

    Example:
        >>> built = build("timm/test_vit", batch=2)
        >>> built.name, tuple(built.inputs.shape)
        ('timm/test_vit', (2, 3, 160, 160))
    """
    on_device = torch.device(device)
    dtype = torch.float32 if dtype is None and ":" not in name else dtype
    with torch.random.fork_rng([on_device] if on_device.type == "cuda" else []):  # the caller's chance is the caller's
        torch.manual_seed(seed)
        with on_device:
            full, recipe = _recipe(name, pretrained, size)
        model = recipe.model.to(on_device, dtype).eval()

        def inputs_for(count: int) -> Any:
            torch.manual_seed(seed)
            return map_tensors(
                lambda t: t.to(on_device, dtype if t.is_floating_point() else None), recipe.inputs(count)
            )

        batch = batch if recipe.max_batch is None else min(batch, recipe.max_batch)
        if not pretrained and ":" not in full:
            _warm_up(full, model, inputs_for(max(batch, 2)))
        return Built(full, model, inputs_for(batch), recipe.target, pretrained)


def _warm_up(name: str, model: nn.Module, inputs: Any) -> None:
    """Readies a fresh model for an audit; its first forward pass is here, so that inputs that don't fit are noticed here."""
    try:
        calibrate(randomise_constants(model), inputs)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # models complain in many ways
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors(inputs))
        raise InputError(
            f"{name} raised {type(error).__name__} on an input of shape {shapes}: {str(error).rstrip('.')}. If it takes images of another size, give it (size=, --size)."
        ) from error


def randomise_constants(model: nn.Module) -> nn.Module:
    """Gives random values to parameters that a fresh model has all alike.

    A fresh model has biases of zero, scales of one, branches and heads that start at zero. Audited like that, most of
    it would carry no relevance at all and most constants would have nothing to keep, so that errors there would
    not show.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            first = parameter.flatten()[:1]
            if parameter.numel() == 0 or not bool((parameter == first).all()):
                continue
            value, noise = float(first), torch.randn_like(parameter)
            parameter.copy_(0.05 * noise if abs(value) < 0.1 else value * (1 + 0.1 * noise))
    return model


def calibrate(model: nn.Module, inputs: Any) -> nn.Module:
    """Scales a fresh model by one pass: layers to outputs of sane size, batch normalisations to the batch's statistics.

    As they are initialised, many models let signals fade or explode within a few layers, since training would mend
    that; the pixels would then have no part in the score. Layers whose outputs are far from unit variance are scaled as
    in Mishkin and Matas, *All you need is a good init* (2016).
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    scaled: set[int] = set()

    def scale(layer: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        spread = float(output.std()) if output.numel() > 1 else 1.0
        if 0.1 < spread < 10 or id(layer.weight) in scaled or not 0 < spread < float("inf"):
            return None
        scaled.add(id(layer.weight))
        for parameter in layer.parameters():
            parameter.div_(spread)
        return output / spread

    hooks = [m.register_forward_hook(scale) for m in model.modules() if type(m) in _LAYERS]
    try:
        for norm in norms:
            norm.train()
            norm.momentum = 1.0
        with torch.no_grad():
            call_model(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.eval()
            norm.momentum = momentum
    return model


_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


def library(name: str) -> ModuleType:
    """The part of hilrp that knows a model library; an error that says what to install if that isn't there."""
    try:
        return importlib.import_module(f"hilrp.libraries.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("hilrp"):
            raise
        extra = LIBRARIES[name]
        remedy = f"pip install 'hilrp[{extra}]'" if extra else f"pip install {name}"
        raise UnavailableError(f"{name} is not installed. Install it with: {remedy}") from error


def installed() -> list[str]:
    """The libraries that can be imported."""
    found = []
    for name in LIBRARIES:
        try:
            library(name)
        except UnavailableError:
            continue
        found.append(name)
    return found


def _recipe(name: str, pretrained: bool, size: int | None) -> tuple[str, Recipe]:
    if ":" in name:
        return name, _from_factory(name)
    prefix, _, rest = name.partition("/")
    wanted, rest = ([prefix], rest) if prefix in LIBRARIES else (installed(), name)
    if "/" in rest and prefix not in LIBRARIES and not os.path.isdir(rest):
        raise UnavailableError(
            f"{name}: {prefix} is none of the libraries {', '.join(LIBRARIES)}. For a model of the hub, write transformers/{name}."
        )
    for each in wanted:
        found = library(each).find(rest)
        if found is not None:
            return f"{each}/{found}", library(each).recipe(found, pretrained, size)
    known = [known for each in wanted for known in library(each).names()]
    close = get_close_matches(rest, known, 4, 0.5)
    hint = f" Did you mean {', '.join(close)}?" if close else ""
    raise UnavailableError(f"{name}: no model of that name in {', '.join(wanted)}.{hint}")


def _from_factory(name: str) -> Recipe:
    """Calls a function of the user's."""
    module_name, _, factory_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), factory_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"{name}: {error}. Give the name of an importable module (from the current folder, too), a colon, and the name of a function in it."
        ) from error
    made = factory()
    model, *rest = made if isinstance(made, tuple) else (made,)
    if not isinstance(model, nn.Module) or len(rest) > 2:
        raise InputError(
            f"{name} returned {type(made).__name__}; expected a torch.nn.Module, or (model, inputs), or (model, inputs, target)."
        )
    if rest and not tensors(rest[0]):
        raise InputError(f"{name}: the inputs that it returns hold no tensor.")
    kind = next((p.dtype for p in model.parameters()), torch.float32)
    shape = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
    return Recipe(
        model,
        lambda batch: rest[0] if rest else torch.randn(batch, *shape).to(kind),
        rest[1] if len(rest) > 1 else strongest,
    )
