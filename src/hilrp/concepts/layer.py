"""Which tensor of a model is meant by a name, and where its channels are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from hilrp.attribution.forward_backward import Kept
from hilrp.attribution.stages import OF_INPUT, channels_last
from hilrp.util.errors import InputError, ModelError

_FORM = re.compile(rf"(?P<path>[^#\[]*?)(?P<input>{OF_INPUT})?(?:#(?P<run>\d+))?(?:\[(?P<index>\d+)\])?")


@dataclass(frozen=True)
class Layer:
    """A tensor of a model, by name.

    Attributes:
        path: The module's path.
        of_input: Whether what it is given is meant, not what it returns.
        run: Which of its runs, counted from one.
        index: Which of several tensors.
        axis: Where the channels are, if that was said.

    Example:
        >>> Layer.named("blocks.3:input#2[1]")
        Layer(path='blocks.3', of_input=True, run=2, index=1, axis=None)
    """

    path: str
    of_input: bool = False
    run: int | None = None
    index: int | None = None
    axis: int | None = None

    @classmethod
    def named(cls, at: str, axis: int | None = None) -> Layer:
        """The layer of a name."""
        found = _FORM.fullmatch(at) if isinstance(at, str) else None
        if found is None or found["run"] == "0":
            raise InputError(
                f'at={at!r}: give the path of a module, "layer3"; "layer3:input" for what it is given, "layer3#2" for '
                'its second run, "layer3[1]" for the second of several tensors.'
            )
        run, index = (None if found[name] is None else int(found[name]) for name in ("run", "index"))
        return cls(found["path"], found["input"] is not None, run, index, axis)

    @classmethod
    def heads_of(cls, model: nn.Module, at: str) -> tuple[Layer, int]:
        """Where the heads of an attention lie side by side, and how many there are."""
        modules = dict(model.named_modules())
        attention = modules.get(at)
        count = getattr(attention, "num_heads", None)
        mixes = next((name for name in ("proj", "out_proj") if f"{at}.{name}" in modules), None)
        if (
            attention is None
            or not isinstance(count, int)
            or mixes is None
            or isinstance(attention, nn.MultiheadAttention)
        ):
            raise InputError(
                f'basis="heads": `{at}` is no attention with `num_heads` and a module `proj` that is given its heads. '
                'Name what they go into: Concepts(model, at="....proj:input", basis=NUMBER_OF_HEADS).'
            )
        return cls(f"{at}.{mixes}", of_input=True), count

    @property
    def keep(self) -> str:
        """What a pass keeps it by."""
        return self.path + OF_INPUT * self.of_input

    def __str__(self) -> str:
        run = f"#{self.run}" if self.run is not None else ""
        return self.keep + run + (f"[{self.index}]" if self.index is not None else "")

    def tensor_of(self, kept: Mapping[str, Kept]) -> Kept:
        """The tensor, among those that a pass has kept."""
        if self.run is None and f"{self.keep}#2" in kept:
            raise InputError(
                f'at: `{self.keep}` runs more than once in a pass. Say which run: at="{self.keep}#1", '
                f'"{self.keep}#2", ...'
            )
        name = self.keep if self.run in (None, 1) else f"{self.keep}#{self.run}"
        several = {key: each for key, each in kept.items() if key == name or key.startswith(f"{name}[")}
        if not several:
            runs = sum(key.partition("[")[0].partition("#")[0] == self.keep for key in kept)
            told = f"has {runs} runs" if runs else "is not on the way from the input to this score"
            raise ModelError(f"at: `{self}` {told}, and so has no relevance there. Name another module or run.")
        if self.index is None:
            if len(several) > 1:
                shapes = ", ".join(
                    f'"{name}[{i}]" {tuple(each.tensor.shape)}' for i, each in enumerate(several.values())
                )
                raise InputError(f"at: `{self}` has several tensors. Say which: {shapes}.")
            return next(iter(several.values()))
        key = f"{name}[{self.index}]" if self.index else name
        if key not in several:
            raise InputError(f"at: `{name}` has {len(several)} tensors that carry relevance; there is no {self}.")
        return several[key]

    def channels(self, t: Tensor, image: Sequence[int] | None) -> int:
        """The axis of the channels, counted from the first."""
        if self.axis is not None:
            if not -t.ndim < self.axis < t.ndim or self.axis == 0:
                raise InputError(
                    f"axis={self.axis}: `{self}` has the shape {tuple(t.shape)}, and its first axis holds the samples."
                )
            return self.axis % t.ndim
        if t.ndim == 2:
            return 1
        if t.ndim == 3 and image is not None:  # tokens of a picture; of sound, channels may come first
            return 2
        last = channels_last(t.shape, image) if t.ndim == 4 and image is not None else None
        if last is None:
            raise InputError(
                f"at: `{self}` has the shape {tuple(t.shape)}, and which axis holds the channels can't be told from "
                "that. Give axis=1 if they come first, axis=-1 if last."
            )
        return t.ndim - 1 if last else 1
