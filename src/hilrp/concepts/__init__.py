"""Concepts: what a score comes from, not only where; with a ledger.

found = Concepts(model, at="layer4").relevance(x)  # [B, concepts], and what passes beside the layer
Concepts(model, at="layer4").maps(x, concepts=found.strongest(5)).maps  # where each comes from, [B,5,H,W]
"""

from hilrp.concepts.ablation import Ablation, AtLayer
from hilrp.concepts.asking import Concepts
from hilrp.concepts.basis import Directions, Groups
from hilrp.concepts.graphs import ConceptGraph, Step, graph
from hilrp.concepts.results import ConceptMaps, ConceptRelevance

__all__ = [
    "Ablation",
    "AtLayer",
    "ConceptGraph",
    "ConceptMaps",
    "ConceptRelevance",
    "Concepts",
    "Directions",
    "Groups",
    "Step",
    "graph",
]
