"""Each sample's score propagated alone through a pass of the whole batch, so that nothing has to be told apart."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hilrp.attribution.forward_backward import Outcome, Pass
from hilrp.method.ledger import OTHERS, Ledger
from hilrp.util.nested import map_tensors, tensors


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
        ledger=Ledger.joined(ledgers),
        sums={name: torch.cat(each) for name, each in sums.items()},
        maps={name: torch.cat(each) for name, each in maps.items() if len(each) == batch},
        layers=layers,
    )


def of_sample(run: Pass, sample: int) -> tuple[Any, Ledger]:
    """The relevance of one sample's score, and its ledger; what lies on other samples is an entry of its own."""
    for held in (run.books, run.sums, run.maps, run.layers):
        held.clear()
    relevance, arrived = run.backward(sample)
    own = {name: value[sample : sample + 1] for name, value in arrived.items()}
    before = None if run.reference_score is None else run.reference_score[sample : sample + 1]
    ledger = Ledger.close(run.books, run.score[sample : sample + 1], own, before)
    others = sum(
        (value.sum().reshape(1) - own[name] for name, value in arrived.items()), torch.zeros_like(ledger.score)
    )
    if bool((others != 0).any()):
        ledger = replace(ledger, entries=ledger.entries | {OTHERS: others})
    return relevance, ledger
