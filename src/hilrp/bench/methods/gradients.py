"""Methods that read gradients, by captum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from captum import attr
from torch import Tensor, nn

#: The noise of SmoothGrad and its kin, as a part of the input's range: what their paper proposes.
NOISE = 0.15
#: At most this many images go through the model at once.
_BATCH = 96


def saliency(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The size of the gradient."""
    return _map(attr.Saliency(model).attribute(_leaf(x), target))


def input_x_gradient(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The gradient times the input."""
    return _map(attr.InputXGradient(model).attribute(_leaf(x), target))


def integrated_gradients(model: nn.Module, x: Tensor, target: Tensor, steps: int = 24) -> Tensor:
    """Gradients along the way from black, times the input's difference to it."""
    method = attr.IntegratedGradients(model)
    found = method.attribute(x, _black(x), target, n_steps=steps, internal_batch_size=_BATCH)
    return _map(found)


def smooth_grad(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24) -> Tensor:
    """The mean size of the gradient under noise."""
    return _under_noise(model, x, target, "smoothgrad", samples)


def var_grad(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24) -> Tensor:
    """The variance of the gradient under noise."""
    return _under_noise(model, x, target, "vargrad", samples)


def gradient_shap(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24) -> Tensor:
    """Expected gradients between noisy inputs and black."""
    with _seeded(x):
        black = _black(x)[:1]
        found = attr.GradientShap(model).attribute(x, black, n_samples=samples, stdevs=_spread(x), target=target)
    return _map(found)


def _under_noise(model: nn.Module, x: Tensor, target: Tensor, kind: str, samples: int) -> Tensor:
    with _seeded(x):
        tunnel: Any = attr.NoiseTunnel(attr.Saliency(model))
        at_once = max(1, _BATCH // len(x))
        found = tunnel.attribute(
            x, nt_type=kind, nt_samples=samples, nt_samples_batch_size=at_once, stdevs=_spread(x), target=target
        )
    return _map(found)


@contextmanager
def _seeded(x: Tensor) -> Iterator[None]:
    """Noise that is the same in every run, and leaves the caller's chance alone."""
    # captum draws from numpy's global generator too.
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        with torch.random.fork_rng([x.device] if x.device.type == "cuda" else []):
            torch.manual_seed(0)
            yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def _leaf(x: Tensor) -> Tensor:
    """What captum would make of it with a warning."""
    return x.detach().clone().requires_grad_()


def _spread(x: Tensor) -> float:
    return NOISE * float(x.max() - x.min())


def _black(x: Tensor) -> Tensor:
    """The darkest value of each channel: black, whatever the normalisation is."""
    return x.amin((0, 2, 3), keepdim=True).expand_as(x)


def _map(found: Tensor) -> Tensor:
    return found.sum(1)
