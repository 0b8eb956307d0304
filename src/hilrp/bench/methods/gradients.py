"""Methods that read gradients, by captum."""

from __future__ import annotations

from typing import Any

from captum import attr
from torch import Tensor, nn

from hilrp.bench.methods.base import one_by_one

#: The noise of SmoothGrad and its kin, as a part of the input's range: what their paper proposes.
NOISE = 0.15
#: At most this many images go through the model at once.
_BATCH = 96


def saliency(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The size of the gradient."""
    return attr.Saliency(model).attribute(_leaf(x), target).sum(1)


def input_x_gradient(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The gradient times the input."""
    return attr.InputXGradient(model).attribute(_leaf(x), target).sum(1)


@one_by_one
def integrated_gradients(model: nn.Module, x: Tensor, target: Tensor, steps: int = 24) -> Tensor:
    """Gradients along the way from the image's darkest colour, times the difference to it."""
    method = attr.IntegratedGradients(model)
    return method.attribute(x, _dark(x), target, n_steps=steps, internal_batch_size=_BATCH).sum(1)


@one_by_one
def smooth_grad(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24) -> Tensor:
    """The size of the mean gradient under noise (Smilkov et al., 2017)."""
    return _under_noise(model, x, target, "smoothgrad", samples).abs().sum(1)


@one_by_one
def var_grad(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24) -> Tensor:
    """The variance of the gradient under noise (Adebayo et al., 2018)."""
    return _under_noise(model, x, target, "vargrad", samples).sum(1)


@one_by_one
def gradient_shap(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24) -> Tensor:
    """Expected gradients between noisy inputs and the image's darkest colour."""
    method = attr.GradientShap(model)
    return method.attribute(x, _dark(x), n_samples=samples, stdevs=_spread(x), target=target).sum(1)


def _under_noise(model: nn.Module, x: Tensor, target: Tensor, kind: str, samples: int) -> Tensor:
    tunnel: Any = attr.NoiseTunnel(attr.Saliency(model))
    found: Tensor = tunnel.attribute(
        x, nt_type=kind, nt_samples=samples, nt_samples_batch_size=_BATCH, stdevs=_spread(x), target=target, abs=False
    )
    return found


def _leaf(x: Tensor) -> Tensor:
    """What captum would make of it with a warning."""
    return x.detach().clone().requires_grad_()


def _spread(x: Tensor) -> float:
    return NOISE * float(x.max() - x.min())


def _dark(x: Tensor) -> Tensor:
    """The darkest value of each channel."""
    return x.amin((2, 3), keepdim=True).expand_as(x)
