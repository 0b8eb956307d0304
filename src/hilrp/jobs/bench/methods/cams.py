"""Class activation maps, by pytorch-grad-cam."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pytorch_grad_cam import GradCAM, GradCAMPlusPlus
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

from hilrp.attribution.stages import channels_last, find_stages, first_map, streams, to_features
from hilrp.jobs.bench.methods.base import Function, Undefined


def cam(kind: Any) -> Function:
    """A method of pytorch-grad-cam, at the last stage."""

    def function(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        layer, reshape = _layer(model, x)
        # It reads gradients of the layer's output: parameters needn't have any, the input has to.
        with _gradients_restored(model), torch.enable_grad():
            with kind(model, [layer], reshape_transform=reshape) as method:
                targets = [ClassifierOutputTarget(int(c)) for c in target]
                found = method(input_tensor=x.detach().requires_grad_(), targets=targets)
        return torch.from_numpy(found).to(x)

    return function


@contextmanager
def _gradients_restored(model: nn.Module) -> Iterator[None]:
    """The library leaves gradients on the parameters; they are put back as they were."""
    before = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


grad_cam, grad_cam_plus_plus = cam(GradCAM), cam(GradCAMPlusPlus)


def _layer(model: nn.Module, x: Tensor) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The last stage.

    Where a class token is read, the norm before the last block's attention, behind which patches have no part in the
    score.
    """
    modules = dict(model.named_modules())
    outputs: dict[str, Any] = {}
    stages = find_stages(model, "auto")
    hooks = [
        modules[name].register_forward_hook(lambda m, i, output, name=name: outputs.__setitem__(name, output))
        for name in stages
    ]
    try:
        with torch.enable_grad():
            model(x[:1].detach().requires_grad_())
    finally:
        for hook in hooks:
            hook.remove()
    if stages and len(streams(outputs.get(stages[-1]))) > 1:
        raise Undefined("its last stage has several streams")
    features = {name: first_map(output) for name, output in outputs.items() if isinstance(output, Tensor)}
    last = next((name for name in reversed(stages) if features.get(name) is not None), None)
    image = x.shape[-2:]
    order = [channels_last(f.shape, image) for f in features.values() if f is not None and f.ndim == 4]
    known = next((o for o in order if o is not None), None)

    def reshape(tensor: Tensor) -> Tensor:
        found = to_features(tensor, image, known)
        if found is None:
            raise Undefined("its features are on no grid")
        return found

    if last is None:
        raise Undefined("it has no last feature map")
    feature = features[last]
    assert feature is not None
    layer = modules[last]
    if feature.ndim == 3 and getattr(model, "global_pool", "token") != "avg":
        if not hasattr(layer, "norm1"):
            raise Undefined("its tokens come from no block that is known")
        layer = layer.norm1
    reshape(feature)
    return layer, reshape
