"""What is found of a layer's concepts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hilrp.attribution.explanation import Explanation
from hilrp.method.ledger import Ledger


@dataclass(frozen=True, repr=False)
class ConceptRelevance:
    """What each concept of a layer holds of a score, or of its difference to the reference's.

    Attributes:
        at: The layer.
        relevance: The relevance of each concept, ``[B,K]``.
        activations: The most that is found of each concept at a place of the layer, ``[B,K]``: the value of a channel,
            the length of a group of several, the code of a direction.
        ledger: ``score = concepts + outside the basis + beside the layer + constants``.
        explanation: The explanation of the score that was split.
    """

    at: str
    relevance: Tensor
    activations: Tensor
    ledger: Ledger
    explanation: Explanation

    def strongest(self, count: int = 10, sample: int = 0) -> list[int]:
        """The concepts that hold most, for or against the score, largest first."""
        return self.relevance[sample].abs().argsort(descending=True, stable=True)[:count].tolist()

    def table(self, sample: int = 0, rows: int = 12) -> str:
        """The ledger of one sample as text, with its strongest concepts by number."""
        own, whole = self.relevance[sample], float(self.ledger.explained[sample])
        lines = [
            f"  concept {k:<6d} {float(own[k]):>12.6g}  {float(own[k]) / whole if whole else float('nan'):>8.4f}"
            for k in self.strongest(rows, sample)
        ]
        return "\n".join([self.ledger.table(sample), f"strongest of {len(own)} at {self.at}", *lines])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.at!r}, {len(self.relevance)} x {self.relevance.shape[1]})"


@dataclass(frozen=True, repr=False)
class ConceptMaps(ConceptRelevance):
    """Where in the input the relevance of some concepts comes from.

    ``maps.sum(1) + rest`` is the whole map, `Explanation.map`. Each map and what was kept of it sum to the concept's
    relevance.

    Attributes:
        concepts: Which concepts have a map.
        maps: Their maps, ``[B,concepts,H,W]``.
        rest: The map of all else: other concepts, what the basis does not hold, what passes beside the layer.
        kept: What constants below the layer kept of each concept, and what went to other inputs, by name,
            ``[B,concepts]``. Relative to a reference, as a rule nothing.
        one_by_one: Why the maps were not computed many at once, if they weren't.
    """

    concepts: list[int]
    maps: Tensor
    rest: Tensor
    kept: dict[str, Tensor]
    one_by_one: str | None = None

    @property
    def residual(self) -> Tensor:
        """How far maps and rest together are from the whole map, relative to it (sums of sizes), ``[B]``."""
        whole = self.explanation.map.double()
        missing = (whole - self.maps.double().sum(1) - self.rest.double()).abs().flatten(1).sum(1)
        scale = whole.abs().flatten(1).sum(1)
        return missing / torch.where(scale > 0, scale, 1)

    @property
    def difference(self) -> Tensor:
        """What of each concept's relevance is neither in its map nor kept, ``[B,concepts]``: rounding."""
        kept = sum(self.kept.values(), torch.zeros_like(self.relevance[:, self.concepts]))
        return self.relevance[:, self.concepts] - self.maps.double().flatten(2).sum(2) - kept
