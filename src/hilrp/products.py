"""What a product holds fixed: the notes on gates and even splits that an audit shows."""

from __future__ import annotations

from hilrp.primitives import bilinear, normalisation
from hilrp.primitives.call import Level
from hilrp.table import Primitive, Row

#: What products hold fixed by their nature, not by the levels of their factors.
_BY_NATURE = {
    bilinear.attention: "attention weights",
    bilinear.sample: "positions",
    bilinear.deformable: "offsets",
    bilinear.pooled_regions: "regions",
    normalisation.divide: "divisor",
}
#: What they hold fixed by the levels of their factors. A signal beside values that attention has mixed is their query.
_BY_LEVEL = {
    Level.ATTENTION: "attention weights",
    Level.GATE: "gate",
    Level.FEATURE: "non-negative features",
    Level.SIGNAL: "query",
}


def held_fixed(row: Row, factors: list[Level], carriers: list[Level]) -> str | None:
    """The gate of a product under the rule ``cp``.

    Args:
        row: The operation.
        factors: The levels of all factors that depend on the input.
        carriers: The levels of those through which relevance can flow.

    Returns:
        What is held fixed; an empty string if the factors share evenly; ``None`` if this is no product.
    """
    if len(factors) < 2 or not carriers:
        return None
    if row.rule in _BY_NATURE:
        return _BY_NATURE[row.rule]
    if row.rule not in (bilinear.mix, bilinear.multiply, bilinear.layer):
        return None
    elementwise = row.rule is bilinear.multiply
    factors, carriers = bilinear.ranked(factors, elementwise), bilinear.ranked(carriers, elementwise)
    lowest = min(carriers)
    if carriers.count(lowest) > 1:
        return ""
    return " and ".join(_BY_LEVEL[level] for level in sorted(set(factors) - {lowest}, reverse=True)) or "gate"


def keeps_mixed_values(row: Row, levels: list[Level]) -> bool:
    """Whether what attention has mixed is still just that: moved, or scaled by constants and gates."""
    if row.rule in (bilinear.multiply, normalisation.divide):
        return sorted(levels)[1:2] != [Level.SIGNAL] and levels.count(Level.VALUE) == 1
    return row.primitive is Primitive.REINDEXING and set(levels) == {Level.VALUE}
