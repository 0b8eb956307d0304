"""Explanations put together: of several references, of chains, and of the parts of a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hilrp.attribution.explanation import Explanation
from hilrp.method.ledger import Ledger
from hilrp.util.errors import InputError
from hilrp.util.nested import concatenated, map_tensors, tensors


def mean_of(explanations: Sequence[Explanation]) -> Explanation:
    """The mean of explanations of the same inputs, relative to several references."""
    return weighted(explanations, [1 / len(explanations)] * len(explanations))


def weighted(explanations: Sequence[Explanation], weights: Sequence[float]) -> Explanation:
    """The weighted sum of explanations of the same inputs; what can't be added up is the first's."""
    first = explanations[0]

    def total(parts: Sequence[Tensor]) -> Tensor:
        if not parts[0].is_floating_point():
            return parts[0]
        exact = parts[0].dtype if parts[0].dtype == torch.float64 else torch.float32
        sums = sum(
            (w * t.to(exact) for w, t in zip(weights, parts, strict=True)), torch.zeros_like(parts[0], dtype=exact)
        )
        return sums.to(parts[0].dtype)

    def like_input(name: str) -> Any:
        trees = [getattr(each, name) for each in explanations]
        if trees[0] is None:
            return None
        sums = {id(own[0]): total(own) for own in zip(*map(tensors, trees), strict=True)}
        return map_tensors(lambda t: sums[id(t)], trees[0])

    def by_name(name: str) -> dict[str, Tensor]:
        parts: list[dict[str, Tensor]] = [getattr(each, name) for each in explanations]
        known = {key: t for part in parts for key, t in part.items()}
        # A stage that no relevance reaches in some of them has none there.
        return {key: total([part.get(key, torch.zeros_like(t)) for part in parts]) for key, t in known.items()}

    return replace(
        first,
        relevance=like_input("relevance"),
        reference=like_input("reference"),
        pairs=like_input("pairs"),
        stages=by_name("stages"),
        trace=by_name("trace"),
        layers=by_name("layers"),
        ledger=Ledger.weighted([each.ledger for each in explanations], weights),
        tolerance=max(each.tolerance for each in explanations),
        notes={note: count for each in explanations for note, count in each.notes.items()},
        unchecked=_unchecked(explanations),
    )


def _unchecked(explanations: Sequence[Explanation]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reason for each in explanations for reason in each.unchecked))


def joined(explanations: Sequence[Explanation], x: Any) -> Explanation:
    """The explanations of the parts of an input ``x``, in order, as one of the whole."""
    sizes = [len(each) for each in explanations]

    first = explanations[0].layer_rows
    mixed = [name for name, rows in first.items() if not rows or any(e.layer_rows[name] != rows for e in explanations)]
    if mixed:
        raise InputError(
            f"keep: what is at `{mixed[0]}` has no rows for each sample, one after the other, and can't be put "
            "together of parts. Explain all at once (batch=None), or keep the relevance at another module."
        )

    def every(name: str) -> list[Any]:
        return [getattr(each, name) for each in explanations]

    def cat(parts: list[Any]) -> Any:
        return None if parts[0] is None else torch.cat(parts)

    def like_input(trees: list[Any]) -> Any:
        # Which of its tensors are held fixed can be told of the whole input alone: a part may have their length.
        columns = zip(tensors(x), *map(tensors, trees), strict=True) if trees[0] is not None else ()
        whole = {id(first): torch.cat([first, *rest]) for t, first, *rest in columns if t.shape[:1] == (sum(sizes),)}
        return map_tensors(lambda t: whole.get(id(t), t), trees[0])

    def by_name(parts: list[dict[str, Tensor]]) -> Any:
        known = {name: value for part in parts for name, value in part.items()}
        # A stage that no relevance reaches in some part has none there.
        none = [{name: t.new_zeros(size, *t.shape[1:]) for name, t in known.items()} for size in sizes]
        filled = [zeros | part for zeros, part in zip(none, parts, strict=True)]
        return {name: torch.cat([part[name] for part in filled]) for name in known}

    return replace(
        explanations[0],
        **{name: like_input(every(name)) for name in ("relevance", "reference", "pairs")},
        **{name: cat(every(name)) for name in ("score", "target", "against")},
        **{name: by_name(every(name)) for name in ("stages", "trace", "layers")},
        input=map_tensors(Tensor.detach, x),
        output=concatenated(every("output"), sizes),
        ledger=Ledger.joined(every("ledger")),
        tolerance=max(every("tolerance")),
        notes=dict(sum(map(Counter, every("notes")), Counter())),
        unchecked=_unchecked(explanations),
    )
