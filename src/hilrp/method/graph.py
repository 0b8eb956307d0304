"""Walks through torch's graph: which nodes a tensor depends on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

#: A result of a node: the node, and the number of the result among its results.
Edge = tuple[Any, int]
#: The key under which a node says where a result stems from.
_SOURCES = "hilrp sources"


def graph_nodes(tensor: Tensor) -> Iterator[Any]:
    """The nodes of torch's graph that a tensor leads to, once for each of their results."""
    met, queue = set(), [edge_of(tensor)]
    while queue:
        edge = node, output = queue.pop()
        if node is not None and edge not in met:
            met.add(edge)
            yield node
            queue += node.metadata.get(_SOURCES, {}).get(output, node.next_functions)


def edge_of(tensor: Tensor) -> Edge:
    """Where a tensor is in torch's graph."""
    return tensor.grad_fn, tensor.output_nr


def stems_from(tensor: Tensor, edges: Sequence[Edge]) -> None:
    """Says what a tensor depends on, where torch's graph leads to more.

    A view of a tensor that was written to in parts leads to all of these parts.
    """
    node: Any = tensor.grad_fn
    if node is not None:
        node.metadata.setdefault(_SOURCES, {})[tensor.output_nr] = edges
