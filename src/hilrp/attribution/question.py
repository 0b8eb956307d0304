"""What a reference is looked for: a model, its input, and what is explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.forward_backward import as_written, call_plainly
from hilrp.attribution.kinds import Kind, main_input, places
from hilrp.targets import Target, score_of
from hilrp.util.errors import InputError
from hilrp.util.nested import map_tensors, tensors


@dataclass(frozen=True)
class Question:
    """What a reference is looked for.

    Attributes:
        model: The model.
        x: Its input.
        target: What is explained.
        batch: How many samples there are.
        kind: What kind of thing the input is, where that was said.
    """

    model: nn.Module
    x: Any
    target: Target
    batch: int
    kind: Kind | None = None

    @property
    def main(self) -> tuple[Tensor, Kind] | None:
        """The input that the map is of, and its kind."""
        return main_input(self.x, self.kind, self.batch, self.model)

    def places(self, t: Tensor) -> tuple[int, ...]:
        """The axes along which one of the inputs has places."""
        main = self.main
        return main[1].axes(tuple(t.shape)) if main is not None and t is main[0] else places(t)

    def images(self, change: Callable[[Tensor], Tensor], deep: bool = False) -> Any:
        """The input with its images changed; whatever else the model is given stays.

        Args:
            change: What is done to each.
            deep: Whether volumes and videos are changed, too.
        """

        def has_places(t: Tensor) -> bool:
            return is_image(t) or (deep and t.ndim == 5 and t.is_floating_point())

        if not any(has_places(t) for t in tensors(self.x)):
            others = ", volumes or videos of five axes" if deep else ""
            raise InputError(
                f"The input holds no images [B,C,H,W]{others}, of which this reference could be made. Give a number, "
                "or an input like x, as the reference."
            )
        return map_tensors(lambda t: change(t.detach()).to(t) if has_places(t) else t, self.x)

    def coloured(self, colours: Tensor) -> Any:
        """The input with plain colours ``[B,C]`` for its images, or one ``[1,C]`` for all."""
        return self.images(lambda t: colours.to(t)[:, :, None, None].expand_as(t))

    def settled(self) -> Question:
        """The same with the predicted classes of the input for the target, where that is what is explained."""
        if self.target is not None:
            return self
        return replace(self, target=score_of(self.output(self.x), None, self.batch).classes)

    def output(self, x: Any) -> Any:
        """What the model makes of an input."""
        with torch.no_grad(), as_written():
            return call_plainly(self.model, x)

    def score(self, x: Any) -> Tensor:
        """The explained score of another input."""
        return score_of(self.output(x), self.target, self.batch).value


def is_image(t: Tensor) -> bool:
    """Whether a tensor holds images, ``[B,C,H,W]``."""
    return t.ndim == 4 and t.is_floating_point()


def normalisation(
    model: nn.Module, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """What a model's preprocessing subtracts and divides by: as given, or as timm says."""
    known = getattr(model, "pretrained_cfg", None) or {}
    return mean or known.get("mean"), std or known.get("std")
