"""A neutral reference: a plain colour whose score is about zero."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from hilrp.attribution.question import Question, is_image, normalisation
from hilrp.targets import Contrast, logits_of, score_of
from hilrp.util.memory import in_parts
from hilrp.util.nested import tensors

#: Mean and standard deviation of photographs, as most models take them.
_PHOTOGRAPHS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
#: Levels of each channel in the bank of colours, and how many greys there are besides.
_LEVELS, _GREYS = 4, 13
#: Colours that go through the model at once.
_BATCH = 16


@dataclass(frozen=True)
class Neutral:
    """A plain colour whose score is about zero: then the pixels hold the score itself.

    Of a bank of colours, whose scores are computed once for a model, the one nearest to the image's mean is taken among
    those whose score is small enough. If there is none, it is looked for between two colours whose scores have opposite
    signs; if all have the same, the colour with the smallest score is taken.

    Attributes:
        small: How small: as a part of the score that is explained.
        steps: How often the way between two colours is halved.
        mean, std: What the model's preprocessing subtracts and divides by; by default what timm says of the model, and
            else what is usual for photographs (ImageNet's).
    """

    small: float = 0.03
    steps: int = 8
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    _outputs: WeakKeyDictionary[nn.Module, dict[Any, Tensor]] = field(
        default_factory=WeakKeyDictionary, repr=False, compare=False, hash=False
    )

    def __call__(self, question: Question) -> list[Any]:
        """One colour for each sample."""
        image = next((t for t in tensors(question.x) if is_image(t)), None)
        if image is None:
            return [question.images(lambda t: t)]
        question = question.settled()
        colours = self._colours(question.model, image)
        score = question.score(question.x)
        found = self._scores(question, colours)
        means = image.detach().float().mean((2, 3))
        chosen = torch.stack([self._choose(colours, *each) for each in zip(found, score, means, strict=True)])
        needs = (found.gather(1, chosen[:, :1]).squeeze(1).abs() > self.small * score.abs()).tolist()
        picked = colours[chosen[:, 0]].clone()
        if any(needs):
            picked = self._between(question, colours[chosen[:, 0]], colours[chosen[:, 1]], found, chosen, score)
        return [question.coloured(picked)]

    def _choose(self, colours: Tensor, found: Tensor, score: Tensor, mean: Tensor) -> Tensor:
        """The nearest colour that is neutral; else the nearest of those that score above zero, and of those below."""
        far = (colours - mean).square().sum(1)
        good = found.abs() <= self.small * score.abs()
        if bool(good.any()):
            best = far.masked_fill(~good, float("inf")).argmin()
            return torch.stack([best, best])
        above, below = found > 0, found < 0
        if not (bool(above.any()) and bool(below.any())):
            best = found.abs().nan_to_num(nan=float("inf")).argmin()
            return torch.stack([best, best])
        return torch.stack([far.masked_fill(~side, float("inf")).argmin() for side in (above, below)])

    def _between(
        self, question: Question, high: Tensor, low: Tensor, found: Tensor, chosen: Tensor, score: Tensor
    ) -> Tensor:
        """Halves the way between a colour that scores above zero and one below, for all samples at once."""
        settled = chosen[:, 0] == chosen[:, 1]
        best, value = high.clone(), found.gather(1, chosen[:, :1]).squeeze(1)
        for _ in range(self.steps):
            middle = torch.where(settled[:, None], best, (high + low) / 2)
            got = question.score(question.coloured(middle))
            better = (got.abs() < value.abs()) & ~settled
            best, value = torch.where(better[:, None], middle, best), torch.where(better, got, value)
            high = torch.where((got > 0)[:, None], middle, high)
            low = torch.where((got <= 0)[:, None], middle, low)
            # Each sample stops for itself: its reference must not depend on what else is in the batch.
            settled = settled | (value.abs() <= self.small * score.abs())
            if bool(settled.all()):
                break
        return best

    def _colours(self, model: nn.Module, image: Tensor) -> Tensor:
        channels = image.shape[1]
        mean, std = normalisation(model, self.mean, self.std)
        if mean is None or std is None or len(mean) != channels:
            mean, std = (_PHOTOGRAPHS[0], _PHOTOGRAPHS[1]) if channels == 3 else ((0.5,) * channels, (0.25,) * channels)
        shift, scale = (image.new_tensor(v).float() for v in (mean, std))
        low, high = -shift / scale, (1 - shift) / scale
        steps = torch.linspace(0, 1, _LEVELS)
        greys = torch.linspace(0, 1, _GREYS)[:, None].expand(-1, channels)
        several = [torch.cartesian_prod(*[steps] * channels)] if channels in (2, 3) else []
        return low + torch.cat([*several, greys]).to(image.device) * (high - low)

    def _scores(self, question: Question, colours: Tensor) -> Tensor:
        """The score of each colour for each sample, ``[B,colours]``."""
        image = next(t for t in tensors(question.x) if is_image(t))
        plain = isinstance(question.x, Tensor) and not callable(question.target)
        if plain:
            outputs = self._kept(question.model, colours, image)
            if outputs.ndim == 2:
                return torch.stack([self._of(outputs, question.target, i) for i in range(question.batch)])
        scored = []
        for colour in colours[-_GREYS:]:
            scored.append(question.score(question.coloured(colour[None])))
        # The other colours have not been looked at: they must not be chosen.
        unknown = torch.full((question.batch, len(colours) - len(scored)), float("nan"), device=image.device)
        return torch.cat([unknown, torch.stack(scored, 1)], 1)

    def _of(self, outputs: Tensor, target: Any, i: int) -> Tensor:
        """The scores of the colours for the class of sample ``i``."""

        def one(classes: Any) -> Any:
            listed = torch.as_tensor(classes)
            return int(listed if listed.ndim == 0 else listed.reshape(-1)[i])

        if isinstance(target, Contrast):
            return score_of(outputs, Contrast(one(target.wanted), one(target.other)), len(outputs)).value
        return score_of(outputs, one(target), len(outputs)).value

    def _kept(self, model: nn.Module, colours: Tensor, image: Tensor) -> Tensor:
        weights = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
        check = sum(float(t.detach().double().sum()) + float(t.detach().double().abs().sum()) for t in weights)
        key = (tuple(image.shape[1:]), image.dtype, image.device, check, tuple(colours.flatten().tolist()))
        kept = self._outputs.get(model, {})
        if key not in kept:

            def run(part: slice) -> Tensor:
                plain = colours[part].to(image)[:, :, None, None].expand(-1, *image.shape[1:])
                return logits_of(model(plain.contiguous()))

            with torch.no_grad():
                parts, _ = in_parts(run, len(colours), _BATCH)
            kept = self._outputs[model] = {key: torch.cat(parts)}
        return kept[key]
