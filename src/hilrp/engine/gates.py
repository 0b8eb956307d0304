"""Products: what they hold fixed, how much of a gate their result is, and which kernel torch takes for them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hilrp.engine.tensor_info import Tally
from hilrp.method import bilinear, normalisation
from hilrp.method.call import Call, Level
from hilrp.method.table import Primitive, Row
from hilrp.util.nested import tensors

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
    Level.CONSTANT: "constants",
    Level.ATTENTION: "attention weights",
    Level.GATE: "gate",
    Level.FEATURE: "non-negative features",
    Level.SIGNAL: "query",
}


def held_fixed(row: Row, call: Call, varying: list[Tensor]) -> str | None:
    """The gate of a product under the rule ``cp``.

    Args:
        row: The operation.
        call: The call.
        varying: Its operands that depend on the input.

    Returns:
        What is held fixed; an empty string if the factors share evenly; ``None`` if this is no product.
    """
    # A layer's bias may depend on the input, too; it is no factor.
    found = [t for t in call.operands[:2] if call.varies(t)] if row.rule is bilinear.layer else varying
    factors = [call.level(t) for t in found]
    carriers = [call.level(t) for t in found if t.requires_grad]
    if len(varying) < 2 or len(factors) < 2 or not carriers:
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


def note_product(
    tally: Tally, row: Row, call: Call, out: Tensor, varying: list[Tensor], path: str, itemised: bool
) -> None:
    """Notes, if relevance reaches a product, what it held fixed, or that its factors shared evenly."""
    held = held_fixed(row, call, varying)
    if held is None or not (out.requires_grad and (held == "" or itemised)):
        return
    notes, note = tally.gates, f"{call.name}: {held} held fixed"
    if held == "":
        notes, note = tally.notes, f"even split of {call.name} in {path or '(model)'}"

    # A hook must not hold the engine: it belongs to the graph, which the engine's tensors hold.
    def count(g: Tensor | None) -> None:
        notes[note] += 1

    out.register_hook(count)


def output_level(row: Row, call: Call, varying: list[Tensor]) -> Level:
    """How much of a gate the result of an operation is."""
    level = row.level(call) if callable(row.level) else row.level
    if level is not None:
        return level
    levels = [call.level(t) for t in [t for t in varying if t.requires_grad] or varying]
    lowest = min(levels)
    if lowest is Level.VALUE and not _keeps_mixed_values(row, [call.level(t) for t in varying]):
        lowest = Level.SIGNAL
    renewed = row.renews is not None and len(varying) == 1 and lowest <= row.renews
    return Level.SIGNAL if renewed else lowest


def _keeps_mixed_values(row: Row, levels: list[Level]) -> bool:
    """Whether what attention has mixed is still just that: moved, or scaled by constants and gates."""
    if row.rule in (bilinear.multiply, normalisation.divide):
        return sorted(levels)[1:2] != [Level.SIGNAL] and levels.count(Level.VALUE) == 1
    return row.primitive is Primitive.REINDEXING and set(levels) == {Level.VALUE}


def folds(name: str, varying: list[Tensor], args: Any, kwargs: Any) -> bool:
    """Whether torch would choose another kernel in a plain pass, where nothing but weights requires a gradient.

    torch.matmul folds the axes of a batched operand if that takes no copy, or if the other one, of one or two axes,
    requires a gradient, even where none is recorded; and the two kernels round differently. Here constants are
    detached, and what varies requires one.
    """
    if name not in ("linear", "matmul", "rmatmul"):
        return False
    operands = tensors((args, kwargs))
    if name == "linear":
        batched = any(t.ndim > 2 and not t.is_contiguous() for t in varying)
        return batched and any(t.requires_grad and t.is_leaf for t in operands)
    left, right = (kwargs["input"], kwargs["other"]) if len(kwargs) == 2 else operands
    left, right = (right, left) if name == "rmatmul" else (left, right)
    large, small = (left, right) if left.ndim >= right.ndim else (right, left)
    if large.ndim < 3 or small.ndim > 2 or (large is left and large.is_contiguous()):
        return False
    return small.requires_grad and (small.is_leaf or any(small is t for t in varying))
