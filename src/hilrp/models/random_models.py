"""Models for an audit: with random weights made sane, and inputs of the form that they take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.forward_backward import call_model
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.libraries.recipe import Recipe, strongest
from hilrp.models.loading import load, with_preprocessing
from hilrp.models.resolve import ZOO, call_factory, is_factory, library, resolve
from hilrp.util.errors import InputError
from hilrp.util.nested import map_tensors, tensors


@dataclass(frozen=True)
class Built:
    """A model, ready to be audited.

    Attributes:
        name: The full name, with its library.
        model: The model, in evaluation mode.
        inputs: Random inputs of the form that it takes.
        target: What of its output is explained.
        pretrained: Whether it has published weights, or those of a file; else they are random.
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
    checkpoint: str | Path | None = None,
) -> Built:
    """Builds a model by name, with random weights unless ``pretrained``, and inputs for it.

    Args:
        name: ``library/model``; a model's name alone, which is looked for in each library in turn; or
            ``module:factory``, a function of yours that returns what `hilrp.load` takes, or a model alone, or a model
            and its inputs, or a model, its inputs and a target.
        pretrained: Load the published weights (needs a connection, or the library's cache).
        dtype: Of the weights and of the inputs; by default float32, or what a factory returns.
        device: Where the model is built.
        batch: Number of samples.
        size: Side of the images, where the model's default isn't wanted.
        seed: Of the weights and of the inputs.
        checkpoint: A file with weights for it, instead of random ones.

    Example:
        >>> built = build("timm/test_vit", batch=2)
        >>> built.name, tuple(built.inputs.shape)
        ('timm/test_vit', (2, 3, 160, 160))
    """
    on_device = torch.device(device)
    dtype = torch.float32 if dtype is None and not is_factory(name) else dtype
    with torch.random.fork_rng([on_device] if on_device.type == "cuda" else []):  # the caller's chance is the caller's
        torch.manual_seed(seed)
        with on_device:
            full, recipe = _recipe(name, pretrained, size) if checkpoint is None else _trained(name, checkpoint, size)
        model = recipe.model.to(on_device, dtype).eval()

        def inputs_for(count: int) -> Any:
            torch.manual_seed(seed)
            return map_tensors(
                lambda t: t.to(on_device, dtype if t.is_floating_point() else None), recipe.inputs(count)
            )

        batch = batch if recipe.max_batch is None else min(batch, recipe.max_batch)
        pretrained = pretrained or checkpoint is not None or full.startswith(f"{ZOO}/")
        if not pretrained and not is_factory(full):
            _warm_up(full, model, inputs_for(max(batch, 2)))
        return Built(full, model, inputs_for(batch), recipe.target, pretrained)


def _warm_up(name: str, model: nn.Module, inputs: Any) -> None:
    """Readies a fresh model for an audit.

    Its first forward pass is here, so that inputs that don't fit are noticed here.
    """
    try:
        calibrate(randomise_constants(model), inputs)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # models complain in many ways
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors(inputs))
        raise InputError(
            f"{name} raised {type(error).__name__} on an input of shape {shapes}: {str(error).rstrip('.')}. If it "
            "takes images of another size, give it (size=, --size)."
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


def _recipe(name: str, pretrained: bool, size: int | None) -> tuple[str, Recipe]:
    if is_factory(name):
        return name, _from_factory(name)
    place, found = resolve(name)
    return f"{place}/{found}", library(place).recipe(found, pretrained, size)


def _trained(name: str, checkpoint: str | Path, size: int | None) -> tuple[str, Recipe]:
    """A model with weights of a file, and pictures of noise as it takes them."""
    loaded = load(name, checkpoint)
    if size is not None and not loaded.name.startswith("timm/"):
        raise InputError(
            f"--size {size}: with a checkpoint only models of timm can be set to another size, and {loaded.name} is "
            "none."
        )
    loaded = loaded if size is None else library("timm").resized(loaded, size)
    return loaded.name, _of_loaded(loaded)


def _of_loaded(loaded: Loaded) -> Recipe:
    """A model whose preprocessing is known: its inputs are pictures of noise, as it would be given them."""

    def inputs(batch: int) -> Tensor:
        from PIL import Image

        # Noise in coarse patches: fine noise is lost when the preprocessing scales it.
        noise = (255 * torch.rand(batch, 32, 32, 3, device="cpu")).byte().numpy()
        with torch.device("cpu"):
            return torch.stack([loaded.preprocess(Image.fromarray(each).resize((256, 256))) for each in noise])

    return Recipe(loaded.model, inputs, strongest)


def _from_factory(name: str) -> Recipe:
    """What a function of the user's returns."""
    made = call_factory(name)
    model, *rest = made if isinstance(made, tuple) else (made,)
    if not isinstance(made, nn.Module) and (loaded := with_preprocessing(name, made)) is not None:
        return _of_loaded(loaded)
    if not isinstance(model, nn.Module) or len(rest) > 2:
        raise InputError(
            f"{name} returned {type(made).__name__}; expected a torch.nn.Module, or (model, preprocess), or (model, "
            "inputs), or (model, inputs, target)."
        )
    if rest and not tensors(rest[0]):
        raise InputError(f"{name}: the inputs that it returns hold no tensor.")
    kind = next((p.dtype for p in model.parameters()), torch.float32)
    shape = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
    side = library("timm").built_size(model)
    shape = shape if side is None else (shape[0], side, side)
    return Recipe(
        model,
        lambda batch: rest[0] if rest else torch.randn(batch, *shape).to(kind),
        rest[1] if len(rest) > 1 else strongest,
    )
