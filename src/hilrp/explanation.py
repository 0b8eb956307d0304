"""The result of an explanation: it knows how to show, save and check itself."""

from __future__ import annotations

import json
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


@dataclass(frozen=True)
class Explanation:
    """A decomposition of a score.

    Attributes:
        relevance: Relevance of each input value, in the form of the input (a mapping or tuple if the model has
            several inputs).
        input: What was explained, in the same form.
        score: The explained scalar of each sample, ``[B]``.
        target: The explained class of each sample, ``[B]``, where the target is a class.
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

    def facts(self) -> dict[str, Any]:
        """The figures of the explanation as plain numbers, per sample, for JSON."""
        return {
            "score": self.score.tolist(),
            "target": None if self.target is None else self.target.tolist(),
            "pixels": self.ledger.pixels.tolist(),
            "pixel_share": self.ledger.share.tolist(),
            "entries": {name: value.tolist() for name, value in self.ledger.entries.items()},
            "residual": self.ledger.residual.tolist(),
            "leak": self.ledger.leak.tolist(),
            "trace": {name: value.tolist() for name, value in self.trace.items()},
            "rules": {name: getattr(self.rules, name) for name in self.rules.__dataclass_fields__},
        }

    def plot(self, classes: list[str] | None = None) -> Figure:
        """A figure: input, overlay, signed map, stage maps and the books, one row per sample.

        Args:
            classes: Names of the classes, for the titles.
        """
        from hilrp.plotting import figure

        return figure(self, classes)

    def show(self, classes: list[str] | None = None) -> None:
        """Shows `plot` in a window or notebook."""
        import matplotlib.pyplot as plt

        self.plot(classes)
        plt.show()

    def save(self, path: str | Path, classes: list[str] | None = None) -> list[Path]:
        """Writes ``path.npz`` (arrays), ``path.json`` (figures) and ``path.png`` (`plot`).

        The files appear whole or not at all. Returns their paths.
        """
        import numpy as np

        base = Path(path)
        base = base.with_suffix("") if base.suffix in (".npz", ".json", ".png") else base
        base.parent.mkdir(parents=True, exist_ok=True)
        arrays = {f"stage/{name}": value for name, value in self.stages.items()}
        arrays |= {"relevance": self._image(self.relevance), "map": self.map, "score": self.score}
        plain = {
            name: value.detach().cpu().to(torch.float32 if value.dtype == torch.bfloat16 else value.dtype).numpy()
            for name, value in arrays.items()
        }
        writers = {
            ".npz": lambda file: np.savez_compressed(file, **plain),  # type: ignore[arg-type]
            ".json": lambda file: file.write(json.dumps(self.facts(), indent=1).encode()),
            ".png": lambda file: self.plot(classes).savefig(file, format="png"),
        }
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
