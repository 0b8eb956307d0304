"""Methods that read gradients: by captum, and those under noise for many images at once, which captum is slow at."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from captum import attr
from torch import Tensor, nn

from hilrp.jobs.bench.batches import gradients, with_graph

#: The noise of SmoothGrad and its kin, as a part of the input's range: what their paper proposes.
NOISE = 0.15


def saliency(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The size of the gradient."""
    return attr.Saliency(model).attribute(_leaf(x), target).sum(1)


def input_x_gradient(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The gradient times the input."""
    return attr.InputXGradient(model).attribute(_leaf(x), target).sum(1)


def integrated_gradients(model: nn.Module, x: Tensor, target: Tensor, steps: int = 24) -> Tensor:
    """Gradients along the way from the image's darkest colour, times the difference to it."""
    size = max(len(x), with_graph(x.device))
    method = attr.IntegratedGradients(model)
    return method.attribute(x, _dark(x), target, n_steps=steps, internal_batch_size=size).sum(1)


def smooth_grad(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24) -> Tensor:
    """The size of the mean gradient under noise (Smilkov et al., 2017)."""
    found = torch.zeros_like(x)
    for noisy, _ in _noisy(x, samples):
        found += _each(model, noisy, target).sum(1)
    return (found / samples).abs().sum(1)


def var_grad(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24) -> Tensor:
    """The variance of the gradient under noise (Adebayo et al., 2018)."""
    first, second = torch.zeros_like(x).double(), torch.zeros_like(x).double()
    for noisy, _ in _noisy(x, samples):
        each = _each(model, noisy, target).double()
        first, second = first + each.sum(1), second + each.square().sum(1)
    return (second / samples - (first / samples).square()).sum(1).to(x)


def gradient_shap(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24) -> Tensor:
    """Expected gradients between noisy inputs and the image's darkest colour (Lundberg and Lee, 2017)."""
    dark = _dark(x)[:, None]
    found = torch.zeros_like(x)
    for noisy, part in _noisy(x, samples):
        way = noisy - dark
        found += (_each(model, dark + part * way, target) * way).sum(1)
    return (found / samples).sum(1)


def expected_gradients(model: nn.Module, x: Tensor, target: Tensor, background: Tensor, samples: int = 24) -> Tensor:
    """Gradients on the way from other pictures, times the difference to them, in the mean (Erion et al., 2021).

    Each sample takes the next picture of the background as its reference, and a random place on the straight way from
    there to the image; all images have the same ones::

        E over x' and a of (x - x') grad f(x' + a (x - x'))

    Args:
        model: The model.
        x: Images.
        target: Their classes.
        background: Pictures to draw references from, ``[n,3,H,W]``, in a random order.
        samples: How many.
    """
    references = background.to(x)[torch.arange(samples, device=x.device) % len(background)]
    parts = torch.rand(samples, 1, 1, 1, generator=torch.Generator().manual_seed(0)).to(x)
    found = torch.zeros_like(x)
    size = max(1, with_graph(x.device) // len(x))
    for reference, part in zip(references.split(size), parts.split(size), strict=True):
        way = x[:, None] - reference
        found += (_each(model, reference + part * way, target) * way).sum(1)
    return (found / samples).sum(1)


def _noisy(x: Tensor, samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Each image under the same noise ``[B,samples,3,H,W]`` and a random part per sample, as many at once as fit."""
    chance = torch.Generator().manual_seed(0)
    noise = torch.randn(samples, *x.shape[1:], generator=chance).to(x)
    parts = torch.rand(samples, 1, 1, 1, generator=chance).to(x)
    spread = NOISE * (x.amax((1, 2, 3)) - x.amin((1, 2, 3)))[:, None, None, None, None]
    size = max(1, with_graph(x.device) // len(x))
    for n, part in zip(noise.split(size), parts.split(size), strict=True):
        yield x[:, None] + spread * n, part


def _each(model: nn.Module, pictures: Tensor, target: Tensor) -> Tensor:
    """The gradients of several pictures ``[B,n,3,H,W]`` of each image."""
    labels = target.repeat_interleave(pictures.shape[1])
    return gradients(model, pictures.flatten(0, 1), labels).unflatten(0, pictures.shape[:2])


def _leaf(x: Tensor) -> Tensor:
    """What captum would make of it with a warning."""
    return x.detach().clone().requires_grad_()


def _dark(x: Tensor) -> Tensor:
    """The darkest value of each channel."""
    return x.amin(tuple(range(2, x.ndim)), keepdim=True).expand_as(x)
