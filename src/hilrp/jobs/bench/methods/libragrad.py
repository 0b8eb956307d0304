"""LibraGrad (Mehri, Baghshah and Pilehvar, CVPR 2025): FullGrad+ with corrected gradients.

A gradient is corrected where an operation isn't locally affine, so that inputs and biases, each times its gradient, sum
to the score (the paper's "FG-complete"): attention weights, the denominators of norms and the gates of activations are
constants in the backward pass, and a product of two branches is halved. These are the rules of hilrp's preset
``epsilon``, whose backward pass is used here.

FullGrad+ sums input times gradient over the inputs of all layers, and adds bias times gradient for all biases::

    sum over l of x_l grad_l  +  sum over biases b of b grad_b

Ours differs from the paper where it says nothing, or speaks of plain transformers alone:

- Layers are the model's repeated blocks, in any architecture; of a model without, there is one, the model itself.
- Maps of all resolutions are enlarged to the picture so that each keeps its sum.
- Biases count from the first layer on, and where their outputs lie on the picture's grid. Those of attention within
  windows (Swin, MaxViT, TinyViT) do not, nor do those behind the pooling. The paper finds that leaving out all biases
  changes its figures by 0.4 % at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.attribution.explainer import Explainer
from hilrp.attribution.stages import channels_last, to_features
from hilrp.engine.recompute import find_recomputed
from hilrp.util.errors import InputError
from hilrp.util.nested import tensors

#: Modules whose outputs have their channels on the second axis, whatever their shape.
_CHANNELS_FIRST = (nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)


def libragrad(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """FullGrad+ with corrected gradients: input times gradient of all blocks, and bias times gradient."""
    layers = _layers(model)
    found = _Terms(len(x), bool(layers))
    with found.watched(model, layers):
        explained = Explainer(model, "epsilon", audit="off", stages=None, compile=False).explain(x, target)
    maps = found.maps(x.shape[-2:])
    return torch.stack([_enlarged(each, x) for each in maps] + ([] if layers else [explained.map])).sum(0)


def _layers(model: nn.Module) -> list[nn.Module]:
    """The blocks of the classes that a model has several of in a row, also where such a block stands alone."""
    try:
        repeated = find_recomputed(model, "auto")
    except InputError:
        return []
    kinds = {type(module) for module in model.modules() if id(module) in repeated} - {nn.Sequential, nn.ModuleList}
    return [module for module in model.modules() if type(module) in kinds]


class _Terms:
    """Collects the terms of the sum while a model runs forward and backward.

    Args:
        batch: How many samples there are.
        layered: Whether there are layers: biases before the first one are part of its input.
    """

    def __init__(self, batch: int, layered: bool) -> None:
        self._batch, self._begun = batch, not layered
        self._inputs: list[Tensor] = []
        self._biases: list[Tensor] = []

    @contextmanager
    def watched(self, model: nn.Module, layers: list[nn.Module]) -> Iterator[None]:
        """Within, the inputs of layers and the outputs of modules with a bias are watched."""
        hooks = [layer.register_forward_pre_hook(self._input) for layer in layers]
        biased = [module for module in model.modules() if isinstance(getattr(module, "bias", None), Tensor)]
        hooks += [module.register_forward_hook(self._output) for module in biased]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _input(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._begun = True
        for features in tensors(args):
            if features.requires_grad and features.ndim in (3, 4) and len(features) == self._batch:
                self._keep(features, partial(torch.mul, features.detach()), self._inputs)

    def _output(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        is_map = isinstance(output, Tensor) and output.requires_grad and output.ndim in (3, 4)
        if not is_map or not self._begun:
            return
        constant = _constant(module)
        axis = _channel_axis(module, output.shape, len(constant))
        if axis is not None and len(output) == self._batch:
            self._keep(output, partial(_bias_times_gradient, constant, axis), self._biases)

    @staticmethod
    def _keep(features: Tensor, term: Callable[[Tensor], Tensor], terms: list[Tensor]) -> None:
        def read(gradient: Tensor | None) -> None:
            if gradient is not None:
                terms.append(term(gradient).detach())

        features.register_hook(read)

    def maps(self, image: torch.Size) -> list[Tensor]:
        """The terms as maps ``[B,h,w]``; those that lie on no grid of the image's proportions are left out."""
        order = [channels_last(each.shape, image) for each in self._inputs if each.ndim == 4]
        # A model keeps to one order: features whose shape doesn't tell it go by the others.
        last = next((each for each in order if each is not None), None)
        found = [to_features(each, image, last) for each in self._inputs]
        # Their channels are summed: maps, or one number for each token.
        found += [each[:, None] if each.ndim == 3 else to_features(each[..., None], image) for each in self._biases]
        return [each.sum(1) for each in found if each is not None and each.shape[-1] > 1]


def _constant(module: nn.Module) -> Tensor:
    """What a module adds to each channel."""
    bias: Tensor = module.bias.detach()  # type: ignore[operator]
    if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
        return bias - module.running_mean * module.weight.detach() / (module.running_var + module.eps).sqrt()
    return bias


def _channel_axis(module: nn.Module, shape: torch.Size, channels: int) -> int | None:
    """The axis of a module's output that a bias of so many channels belongs to."""
    first, last = len(shape) == 4 and shape[1] == channels, shape[-1] == channels
    if first and last:
        return 1 if isinstance(module, _CHANNELS_FIRST) or "2d" in type(module).__name__ else -1
    return 1 if first else -1 if last else None


def _bias_times_gradient(constant: Tensor, axis: int, gradient: Tensor) -> Tensor:
    """Bias times gradient, the channels summed."""
    return torch.tensordot(gradient, constant.to(gradient), dims=([axis], [0]))


def _enlarged(maps: Tensor, x: Tensor) -> Tensor:
    """Maps ``[B,h,w]`` at the size of the picture, with the same sum (up to its border)."""
    height, width = x.shape[-2:]
    large = F.interpolate(maps[:, None].to(x), size=(height, width), mode="bilinear", align_corners=False)[:, 0]
    return large * (maps.shape[1] * maps.shape[2] / (height * width))
