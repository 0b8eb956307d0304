"""Recurrent networks, which torch runs as one operation, unrolled into steps in time.

As in `composite`, the engine runs each step under the rules of what it is made of; the value stays that of the original
call. Packed sequences have, step by step, as many rows as there are sequences that haven't ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

State = tuple[Tensor, ...]
Cell = Callable[[Tensor, Tensor, State], State]
"""From what enters, the recurrent projection and the state, the next state; its first part is the output."""


def recurrent(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    """A recurrent network of that cell, unrolled: the output sequence, and the last states."""

    def unrolled(x: Tensor, *given: Any) -> tuple[Tensor, ...]:
        packed = isinstance(given[0], Tensor) and not given[0].is_floating_point()
        if packed:  # of sequences that end at different steps, the rows of each step one after the other
            counts, states, weights, has_biases, layers, _, _, bidirectional = given
            rows = counts.tolist()
        else:
            states, weights, has_biases, layers, _, _, bidirectional, batch_first = given
            x = x.transpose(0, 1) if batch_first else x
            rows = [x.shape[1]] * len(x)
        states = (states,) if isinstance(states, Tensor) else states
        directions = 2 if bidirectional else 1
        per_cell = len(weights) // (layers * directions)
        last: list[State] = []
        for layer in range(layers):
            outputs = []
            for direction in range(directions):
                number = layer * directions + direction
                w_in, w_state, *others = weights[number * per_cell : (number + 1) * per_cell]
                b_in, b_state = others[:2] if has_biases else (None, None)
                projection = others[-1] if len(others) % 2 else None  # an LSTM's, of its output
                entering = torch.nn.functional.linear(x, w_in, b_in)
                first = tuple(each[number] for each in states)
                steps = list(zip(entering.split(rows) if packed else entering, rows, strict=True))
                hidden, state = _run(cell, steps[::-1] if direction else steps, first, w_state, b_state, projection)
                outputs.append((torch.cat if packed else torch.stack)(hidden[::-1] if direction else hidden))
                last.append(state)
            x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        out = x if packed or not batch_first else x.transpose(0, 1)
        return out, *(torch.stack(parts) for parts in zip(*last, strict=True))

    return unrolled


def _run(
    cell: Cell,
    steps: list[tuple[Tensor, int]],
    first: State,
    weight: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
) -> tuple[list[Tensor], State]:
    """The outputs of some steps, and the last states; each step has the first so many of the sequences.

    Those that begin later than others begin with the first state itself, which is a constant.
    """
    state, hidden, begun = first, [], 0
    for entering, count in steps:
        parts = []
        for before, at, to in ((state, 0, min(begun, count)), (first, begun, count)):
            if at < to:
                own = tuple(_rows(each, at, to) for each in before)
                recurring = torch.nn.functional.linear(own[0], weight, bias)
                output, *rest = cell(_rows(entering, at, to), recurring, own)
                output = output if projection is None else torch.nn.functional.linear(output, projection)
                parts.append((output, *rest))
        following = tuple(map(_joined, zip(*parts, strict=True)))
        hidden.append(following[0])
        ended = [each[count:] for each in state if count < len(each)]
        state = tuple(map(_joined, zip(following, ended, strict=True))) if ended else following
        begun = max(begun, count)
    return hidden, state


def _rows(t: Tensor, first: int, end: int) -> Tensor:
    return t if (first, end) == (0, len(t)) else t[first:end]


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def lstm_cell(entering: Tensor, recurring: Tensor, state: State) -> State:
    """``c = f c + i tanh(g)``, ``h = o tanh(c)`` with the sigmoids i, f, o as gates."""
    i, f, g, o = (entering + recurring).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * squash(g)
    return o.sigmoid() * squash(c), c


def gru_cell(entering: Tensor, recurring: Tensor, state: State) -> State:
    """``h = (1 - z) tanh(n + r m) + z h`` with the sigmoids r and z as gates."""
    (r, z, n), (r_state, z_state, m) = entering.chunk(3, -1), recurring.chunk(3, -1)
    z = (z + z_state).sigmoid()
    return ((1 - z) * squash(n + (r + r_state).sigmoid() * m) + z * state[0],)


def tanh_cell(entering: Tensor, recurring: Tensor, state: State) -> State:
    """``h = tanh(W x + V h)``."""
    return (squash(entering + recurring),)


def relu_cell(entering: Tensor, recurring: Tensor, state: State) -> State:
    """``h = relu(W x + V h)``."""
    return ((entering + recurring).relu(),)


def squash(x: Tensor) -> Tensor:
    """Tanh as a signal: elsewhere it counts as a gate, but here it is what the gates are applied to."""
    if has_torch_function_unary(x):
        return handle_torch_function(squash, (x,), x)
    return x.tanh()
