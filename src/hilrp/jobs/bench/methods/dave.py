"""DAVE (Wróbel et al., 2026): the effective linear transformation of a model, averaged over small changes of a picture.

The gradient of a layer ``L(x) x`` has two parts: the effective transformation ``L(x)``, and how the operator itself
varies with the input. DAVE keeps the first (attention weights, norms' denominators and gates are constants; the rules
of hilrp's preset ``epsilon``). What is left of the grid of patches is averaged out, over small spatial changes t and
noise e, in an equivariant way (Eq. 6 to 8)::

    A(x) = x * E over t and e of t^-1 W(t x + e)

As in the authors' code a change is a mirror, a rotation, a scale and a shift, and ``t^-1`` the transpose of its
interpolation. The noise grows from none in the first sample, the picture fading as much: ``(1 - s) x + sqrt(1 - (1 -
s)^2) e``. Of the values of each pixel those count that lie within 2.5 robust standard deviations of their median. The
map, its channels summed, is mixed evenly with itself after a Gaussian filter.

Ours differs: 24 samples (50 in the paper); one strength of the noise for all models (the authors tune it for each, and
print 0.9 for DeiT-III), chosen on scenes and photographs that no report uses; and neither the cut at zero nor the
bilateral filter of their pictures, since a benchmark looks at signs and values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.attribution.explainer import Explainer
from hilrp.jobs.bench.batches import with_graph
from hilrp.targets import logits_of

#: The largest rotation in degrees, shift as a part of the picture, and change of scale.
_DEGREES, _SHIFT, _SCALE = 20.0, 0.1, 0.1
#: The filter at the end: how far it reaches to each side, and its width, as parts of the picture's side.
_REACH, _SIGMA = 5 / 224, 7 / 224
#: Values further from the median than this many robust standard deviations don't count.
_OUTLIERS = 2.5


def dave(model: nn.Module, x: Tensor, target: Tensor, samples: int = 24, noise: float = 0.02) -> Tensor:
    """The effective linear transformation times the input, averaged over small spatial changes and noise.

    Args:
        model: The model.
        x: Images.
        target: Their classes.
        samples: How many changed pictures of each image.
        noise: The noise of the last sample, from 0 to 1.
    """
    changed = Changed(model, *draws(samples, x.shape[1:], noise)).to(x.device)
    # Not recorded: the changes are others from call to call.
    explainer = Explainer(changed, "epsilon", audit="off", stages=None, compile=False)
    found = []
    numbers = torch.arange(samples, device=x.device)
    for part in numbers.split(max(1, with_graph(x.device) // (2 * len(x)))):
        changed.numbers = part.repeat(len(x))
        relevance = explainer.attribute(x.repeat_interleave(len(part), 0), target.repeat_interleave(len(part)))
        found.append(relevance.detach().unflatten(0, (len(x), len(part))))
    return smoothed(trimmed_mean(torch.cat(found, 1)).sum(1))


def draws(samples: int, shape: torch.Size, noise: float) -> tuple[Tensor, Tensor, Tensor]:
    """What is drawn for the samples, the same on every device.

    Returns:
        Affine maps ``[samples,2,3]`` as `torch.nn.functional.affine_grid` takes them, noise ``[samples,*shape]``, and
        its strength ``[samples]``.
    """
    chance = torch.Generator().manual_seed(0)
    angle, scale, right, down = (2 * torch.rand(4, samples, generator=chance, dtype=torch.float64) - 1).unbind()
    mirror = torch.randint(2, (samples,), generator=chance) * 2.0 - 1
    turn, factor = angle * math.radians(_DEGREES), 1 / (1 + _SCALE * scale)
    height, width = shape[-2:]
    # From the place in the changed picture to that in the image, both from -1 to 1 along each axis.
    rows = [
        [mirror * factor * turn.cos(), mirror * factor * turn.sin() * height / width, 2 * _SHIFT * right],
        [-factor * turn.sin() * width / height, factor * turn.cos(), 2 * _SHIFT * down],
    ]
    affine = torch.stack([torch.stack(row, 1) for row in rows], 1)
    drawn = torch.randn(samples, *shape, generator=chance)
    return affine, drawn, torch.linspace(0, noise, samples)


class Changed(nn.Module):
    """A model of changed pictures: it turns, shifts and scales its input, adds noise, and runs the model.

    Args:
        model: The model.
        affine: Affine maps, one for each change.
        noise: Noise for each change.
        strength: How strong it is in each.

    Attributes:
        numbers: Which change each sample of the next input gets.
    """

    affine: Tensor
    noise: Tensor
    strength: Tensor

    def __init__(self, model: nn.Module, affine: Tensor, noise: Tensor, strength: Tensor) -> None:
        super().__init__()
        self.model = model
        self.numbers = torch.arange(len(affine))
        self.register_buffer("affine", affine)
        self.register_buffer("noise", noise)
        self.register_buffer("strength", strength)
        self.training = False  # as the model is

    def forward(self, x: Tensor) -> Tensor:
        """``[B, classes]``."""
        affine, noise = self.affine[self.numbers].to(x), self.noise[self.numbers].to(x)
        kept = 1 - self.strength[self.numbers].to(x)[:, None, None, None]
        grid = F.affine_grid(affine, list(x.shape), align_corners=False)
        moved = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        return logits_of(self.model(kept * moved + (1 - kept.square()).sqrt() * noise))


def trimmed_mean(values: Tensor) -> Tensor:
    """The mean over the second axis of those values that lie near their median.

    Near is within 2.5 times 1.4826 of the median distance to it, which for a normal distribution are 2.5 standard
    deviations.

    Example:
        >>> trimmed_mean(torch.tensor([[1.0, 2.0, 3.0, 99.0]])).item()
        2.0
    """
    centre = values.median(1, keepdim=True).values
    apart = (values - centre).abs()
    near = apart <= _OUTLIERS * 1.4826 * apart.median(1, keepdim=True).values
    return (values * near).sum(1) / near.sum(1)


def smoothed(maps: Tensor) -> Tensor:
    """Maps ``[B,H,W]``, mixed evenly with themselves after a Gaussian filter; beyond the border there is nothing."""
    side = min(maps.shape[-2:])
    reach = max(1, round(_REACH * side))
    bell = torch.exp(-(torch.arange(-reach, reach + 1, device=maps.device) ** 2) / (2 * (_SIGMA * side) ** 2)).to(maps)
    kernel = torch.outer(bell, bell)
    low = F.conv2d(maps[:, None], (kernel / kernel.sum())[None, None], padding=reach)[:, 0]
    return (maps + low) / 2
