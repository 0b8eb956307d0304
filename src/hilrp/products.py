"""What a product holds fixed: the notes on gates and even splits that an audit shows."""

from __future__ import annotations

from hilrp.primitives import bilinear, normalisation
from hilrp.primitives.call import Level
from hilrp.table import Row

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
    if row.rule not in (bilinear.mix, bilinear.multiply):
        return None
    elementwise = row.rule is bilinear.multiply
    factors, carriers = bilinear.ranked(factors, elementwise), bilinear.ranked(carriers, elementwise)
    lowest = min(carriers)
    if carriers.count(lowest) > 1:
        return ""
    return " and ".join(_BY_LEVEL[level] for level in sorted(set(factors) - {lowest}, reverse=True)) or "gate"
