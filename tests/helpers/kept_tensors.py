"""What the graph of an explanation keeps between the passes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hilrp.attribution.forward_backward import Pass
from hilrp.method.ledger import Books
from hilrp.method.rules import Rules


def kept_by(model: nn.Module, x: Tensor, rules: Rules) -> tuple[int, Pass]:
    """How many bytes the graph keeps beside the model's own, each once."""
    found: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        found[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run = Pass(model, x, lambda out: out[:, 1], rules, Books(len(x)), lambda error: None, len(x))
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    return sum(size for at, size in found.items() if at not in own), run
