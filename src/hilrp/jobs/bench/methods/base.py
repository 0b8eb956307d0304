"""What an attribution method is to the benchmark: a function from a model, inputs and classes to maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.jobs.bench.batches import with_graph
from hilrp.util.errors import HilrpError
from hilrp.util.memory import in_parts

#: From a model in evaluation mode, inputs ``[B,3,H,W]`` and a class for each, ``[B]``, to maps ``[B,H,W]``; perhaps
#: with options.
Function = Callable[..., Tensor]


class Undefined(HilrpError):
    """The method has no meaning on this model: the benchmark shows a dash instead of inventing something."""


@dataclass(frozen=True)
class Method:
    """A method of the benchmark.

    Attributes:
        name: Its name on the command line.
        title: Its name in tables.
        kind: ``"cam"``, ``"attention"``, ``"gradient"``, ``"perturbation"``, ``"relevance"`` or ``"control"``.
        function: What it does.
        rules: The preset, of a relevance method.
        options: What is not as it is by default.
        signed: Whether negative values speak against the class; else only the order of the values counts.
        needs_background: Whether it compares an input with other pictures, which `with_background` gives.
        background: These pictures, ``[n,3,H,W]``. They are the same for every input, so that the map of an image does
            not depend on what else is in its batch.
    """

    name: str
    title: str
    kind: str
    function: Function
    signed: bool = True
    rules: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    needs_background: bool = False
    background: Tensor | None = field(default=None, compare=False, repr=False)

    def with_background(self, pictures: Tensor) -> Method:
        """The method with pictures as its background, if it needs one; else as it is."""
        return replace(self, background=pictures) if self.needs_background else self

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        """The maps ``[B,H,W]`` of the classes ``target`` of the inputs ``x``.

        Raises `Undefined` where it has no meaning.
        """
        options = dict(self.options)
        if self.needs_background:
            if self.background is None:
                raise Undefined("it needs a background of pictures")
            options["background"] = self.background

        def run(part: slice) -> Tensor:
            return self.function(model, x[part], target[part], **options).detach()

        maps, _ = in_parts(run, len(x), with_graph(x.device) // 2)
        return torch.cat(maps)
