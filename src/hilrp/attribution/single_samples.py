"""Each score propagated alone through a pass that has several, so that nothing has to be told apart.

Those of the samples of a batch, where it can't be followed; those of one sample, of which several are explained.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hilrp.method.ledger import OTHERS, Ledger
from hilrp.util.nested import map_tensors, tensors

if TYPE_CHECKING:
    from hilrp.attribution.forward_backward import Outcome, Pass


def one_by_one(run: Pass, found: Outcome) -> Outcome:
    """An outcome with relevance, ledger and stages of samples that were propagated one by one.

    Args:
        run: The same pass once more, with the ledger of one sample.
        found: The outcome of the whole batch.
    """
    batch = len(found.score)
    rows: list[list[Tensor]] = [[] for _ in tensors(found.relevance)]
    ledgers, sums, maps = [], defaultdict(list), defaultdict(list)
    layers = dict(run.layers)
    for i in range(batch):
        relevance, ledger = of_sample(run, i)
        ledgers.append(ledger)
        for row, t in zip(rows, tensors(relevance), strict=True):
            row.append(t[i : i + 1])
        for name, total in run.sums.items():
            sums[name].append(total.sum().reshape(1))  # what is on its way to other samples is on its way, too
        for name, each in run.layers.items():
            count = found.layer_rows[name]
            own = slice(i * count, (i + 1) * count) if count else slice(None)  # without rows of its own: all of them
            layers[name] = layers[name].clone()
            layers[name][own] += each[own]
        for name, each in run.maps.items():
            maps[name].append(each[i : i + 1])
    run.close()
    whole = {
        id(t): torch.cat(row) if t.shape[:1] == (batch,) else t
        for t, row in zip(tensors(found.relevance), rows, strict=True)
    }
    return replace(
        found,
        relevance=map_tensors(lambda t: whole[id(t)], found.relevance),
        ledger=replace(Ledger.joined(ledgers), floor=found.ledger.floor),
        sums={name: torch.cat(each) for name, each in sums.items()},
        maps={name: torch.cat(each) for name, each in maps.items() if len(each) == batch},
        layers=layers,
    )


def each_score(run: Pass) -> tuple[Any, Ledger]:
    """The relevance of several scores of one sample, a row for each, and their ledger: one backward pass for each."""
    rows: list[list[Tensor]] = []
    ledgers: list[Ledger] = []
    kept = run.maps, run.sums, run.layers
    several: list[dict[str, list[Tensor]]] = [defaultdict(list) for _ in kept]
    for i in range(len(run.score)):
        relevance, ledger = of_sample(run, i)
        rows.append(tensors(relevance))
        ledgers.append(ledger)
        for found, held in zip(several, kept, strict=True):
            for name, value in held.items():
                found[name].append(value)
    for found, held in zip(several, kept, strict=True):
        # What no relevance of some score reaches has no map of it, nor of the others.
        held.update({name: torch.cat(each) for name, each in found.items() if len(each) == len(ledgers)})
    columns = zip(rows[-1], zip(*rows, strict=True), strict=True)
    whole = {id(t): torch.cat(column) if t.shape[:1] == (1,) else t for t, column in columns}  # others are held fixed
    return map_tensors(lambda t: whole[id(t)], relevance), Ledger.joined(ledgers)


def of_sample(run: Pass, sample: int) -> tuple[Any, Ledger]:
    """The relevance of one sample's score, and its ledger; what lies on other samples is an entry of its own.

    Of several scores of a single sample, that of one of them.
    """
    for held in (run.books, run.sums, run.maps, run.layers):
        held.clear()
    relevance, arrived = run.backward(sample)
    own = {name: value[sample : sample + 1] if len(value) > 1 else value for name, value in arrived.items()}
    before = None if run.reference_score is None else run.reference_score[sample : sample + 1]
    ledger = Ledger.close(run.books, run.score[sample : sample + 1], own, before)
    others = sum(
        (value.sum().reshape(1) - own[name] for name, value in arrived.items()), torch.zeros_like(ledger.score)
    )
    if bool((others != 0).any()):
        ledger = replace(ledger, entries=ledger.entries | {OTHERS: others})
    return relevance, ledger
