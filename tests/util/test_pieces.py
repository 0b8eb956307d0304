"""Tensors piece by piece."""

from __future__ import annotations

import pytest
import torch

from hilrp.util import pieces
from hilrp.util.pieces import in_pieces

BATCH = torch.arange(2 * 3 * 40 * 50.0).reshape(2, 3, 40, 50)
FORMS = {
    "dense": lambda: (BATCH, torch.empty_like(BATCH)),
    "channels last": lambda: tuple(t.to(memory_format=torch.channels_last) for t in (BATCH, torch.empty_like(BATCH))),
    "one sample for all": lambda: (BATCH[:1].expand_as(BATCH), torch.empty_like(BATCH)),
    "part of larger rows": lambda: (BATCH[..., 5:30], torch.empty(2, 3, 40, 25)),
    "no sample of a fair size": lambda: (BATCH.reshape(-1, 2)[:, :1], torch.empty(BATCH.numel() // 2, 1)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_value_is_in_one_piece(form, monkeypatch):
    monkeypatch.setattr(pieces, "_ON_PROCESSOR", 1000)
    values, counts = FORMS[form]()
    counts.zero_()
    seen = []
    for part, count in in_pieces(values, counts):
        count += 1
        seen.append(part.reshape(-1))
    assert torch.equal(counts, torch.ones_like(counts))  # what is written to a piece is in the whole
    assert torch.equal(torch.cat(seen).sort().values, values.reshape(-1).sort().values)
    assert (len(seen) > 1) == (form != "no sample of a fair size")
    assert max(map(len, seen)) <= 1000 or len(seen) == 1
