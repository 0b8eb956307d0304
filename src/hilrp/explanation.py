"""The result of an explanation: it knows how to show, save and check itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hilrp.errors import InputError
from hilrp.ledger import Ledger
from hilrp.rules import Rules
from hilrp.tree import tensors

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Explanation:
    """A decomposition of a score.

    Attributes:
        relevance: Relevance of each input value, in the form of the input (a mapping or tuple if the model has
            several inputs).
        input: What was explained, in the same form.
        score: The explained scalar of each sample, ``[B]``.
        target: The explained class of each sample, ``[B]``, where the target is a class.
        against: The classes that they are contrasted with, ``[B]``, where the target is a contrast.
        output: The model's own output.
        stages: Name -> relevance map of that stage, ``[B,h,w]``.
        trace: Name -> sum of relevance at that stage / score, ``[B]``, from the input to the last stage.
        ledger: Where every unit of relevance went.
        rules: The rules that were used.
        notes: What the engine found worth saying, with counts (for instance even splits).
    """

    relevance: Any
    input: Any
    score: Tensor
    target: Tensor | None
    against: Tensor | None
    output: Any
    stages: dict[str, Tensor]
    trace: dict[str, Tensor]
    ledger: Ledger
    rules: Rules
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def map(self) -> Tensor:
        """The relevance of each pixel, ``[B,H,W]``: channels summed."""
        return self._image(self.relevance).sum(1)

    @staticmethod
    def _image(tree: Any) -> Tensor:
        image = next((t for t in tensors(tree) if t.ndim == 4), None)
        if image is None:
            raise InputError("This explanation has no image input [B,C,H,W], hence no map; use .relevance.")
        return image

    def __len__(self) -> int:
        return self.score.shape[0]

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors(self.relevance))
        share, residual = float(self.ledger.share.median()), float(self.ledger.residual.max())
        return f"Explanation({len(self)} samples, relevance {shapes}, pixels' share {share:.3f}, largest residual {residual:.1e})"

    def facts(self) -> dict[str, Any]:
        """The figures of the explanation as plain numbers, per sample, for JSON."""
        return {
            "score": self.score.tolist(),
            "target": None if self.target is None else self.target.tolist(),
            "against": None if self.against is None else self.against.tolist(),
            "pixels": self.ledger.pixels.tolist(),
            "pixel_share": self.ledger.share.tolist(),
            "entries": {name: value.tolist() for name, value in self.ledger.entries.items()},
            "residual": self.ledger.residual.tolist(),
            "leak": self.ledger.leak.tolist(),
            "trace": {name: value.tolist() for name, value in self.trace.items()},
            "notes": self.notes,
            "rules": {name: getattr(self.rules, name) for name in self.rules.__dataclass_fields__},
        }

    def plot(self, classes: list[str] | None = None, samples: Sequence[int] | None = None) -> Figure:
        """A figure: input, overlay, signed map, stage maps and the books, one row per sample.

        Args:
            classes: Names of the classes, for the titles.
            samples: Which samples to draw; by default the first eight.
        """
        from matplotlib.figure import Figure

        from hilrp.plotting import draw

        return draw(self, classes, samples, Figure())

    def show(self, classes: list[str] | None = None, samples: Sequence[int] | None = None) -> None:
        """Shows `plot` in a window or notebook."""
        import matplotlib.pyplot as plt

        from hilrp.plotting import draw

        draw(self, classes, samples, plt.figure())
        plt.show()

    def save(self, path: str | Path, classes: list[str] | None = None) -> list[Path]:
        """Writes ``path.npz`` (arrays), ``path.json`` (figures) and, of images, ``path.png`` (`plot`).

        With several inputs the arrays are named by them (``relevance/0`` or ``relevance/pixel_values``). Each file appears
        whole or not at all. Returns their paths.
        """
        import numpy as np

        base = Path(path)
        base = base.with_suffix("") if base.suffix in (".npz", ".json", ".png") else base
        if not base.name:
            raise InputError(f"save({str(path)!r}): give a file name; .npz, .json and .png are added to it.")
        base.parent.mkdir(parents=True, exist_ok=True)
        plain = {name: _array(value) for name, value in self._arrays().items()}
        writers: dict[str, Any] = {
            ".npz": lambda file: np.savez_compressed(file, **plain),
            ".json": lambda file: file.write(json.dumps(self.facts(), indent=1).encode()),
        }
        if "map" in plain:
            writers[".png"] = lambda file: self.plot(classes).savefig(file, format="png")
        written = []
        for suffix, write in writers.items():
            final, partial = base.with_name(base.name + suffix), base.with_name(base.name + suffix + ".part")
            try:
                with partial.open("wb") as file:
                    write(file)
                partial.replace(final)
            finally:
                partial.unlink(missing_ok=True)
            written.append(final)
        return written

    def _arrays(self) -> dict[str, Tensor]:
        arrays = {f"stage/{name}": value for name, value in self.stages.items()} | {"score": self.score}
        for kind, tree in (("relevance", self.relevance), ("input", self.input)):
            if isinstance(tree, Tensor):
                arrays[kind] = tree
            else:
                parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
                arrays |= {f"{kind}/{name}": value for name, value in parts if isinstance(value, Tensor)}
        if any(t.ndim == 4 for t in tensors(self.relevance)):
            arrays["map"] = self.map
        return arrays | ({} if self.target is None else {"target": self.target})


def _array(value: Tensor) -> Any:
    return value.detach().cpu().to(torch.float32 if value.dtype == torch.bfloat16 else value.dtype).numpy()
