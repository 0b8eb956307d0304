"""Random programs.

A list of steps over registers, from which a model that writes in place and its functional twin are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fuzz.parts import Part, Shape
from fuzz.steps import COMPUTE
from fuzz.writes import WRITES

CLASSES = 3


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        kind: ``"compute"`` makes a register, ``"view"`` makes one that shares its memory, ``"write"`` changes one.
        name: Which of the steps of its kind.
        registers: The operands; of a write, the first is what is written to.
        result: The register that it makes, or -1.
        seed: Of its constants.
        part: Of a view.
    """

    kind: str
    name: str
    registers: tuple[int, ...]
    result: int
    seed: int
    part: Part | None = None

    def __str__(self) -> str:
        first, *others = (f"r{i}" for i in self.registers)
        if self.part is not None:
            return f"r{self.result} = {first}{self.part.text}"
        if self.kind == "write":
            return f"{first} {self.name} {', '.join(others)}".strip()
        return f"r{self.result} = {self.name}({', '.join((first, *others))})"


@dataclass(frozen=True)
class Program:
    """Steps from the input (register 0) to the register that the classes are computed from."""

    shape: Shape
    steps: tuple[Step, ...]
    output: int
    shapes: dict[int, Shape]
    batch: int
    seed: int
    head: str
    channels_last: bool

    @property
    def homogeneous(self) -> bool:
        """Whether epsilon relevance must be gradient x input."""
        if any(s.part is not None and s.part.detaches for s in self.steps):
            return False
        names = {s.name for s in self.steps}
        if names & {"maximum", "where of two"} and names & {
            "fill_",
            "zero_",
            "copy_(constant)",
            "masked_fill_",
            "index_fill_",
        }:
            return False  # beside a constant they have an offset
        return all(s.kind == "view" or (COMPUTE | WRITES)[s.name].homogeneous for s in self.steps)

    @property
    def chooses(self) -> bool:
        """Whether a mask depends on the input."""
        return any(s.kind != "view" and (COMPUTE | WRITES)[s.name].chooses for s in self.steps)

    @property
    def writes(self) -> bool:
        """Whether anything is written in place."""
        return any(s.kind == "write" for s in self.steps) or self.head != "linear"

    def input(self) -> Tensor:
        """The input of the program."""
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(self.batch, *self.shape, dtype=torch.float64, generator=generator)
        return x.to(memory_format=torch.channels_last) if self.channels_last else x

    def __str__(self) -> str:
        lines = [
            f"r0: {(self.batch, *self.shape)}{' channels-last' if self.channels_last else ''}",
            *map(str, self.steps),
        ]
        return "\n".join([*lines, f"logits of r{self.output}, head: {self.head}"])


class Model(nn.Module):
    """A program as torch would run it (``in_place``), or with every write out of place."""

    def __init__(self, program: Program, in_place: bool = True) -> None:
        super().__init__()
        self.program, self.in_place = program, in_place
        self.constants = [self._constants(step) for step in program.steps]
        rand = _source(program.seed + 1)
        self.head, self.bias = nn.Parameter(rand(CLASSES, *program.shapes[program.output])), nn.Parameter(rand(CLASSES))

    def _constants(self, step: Step) -> list[Tensor]:
        if step.kind == "view":
            return []
        make = (COMPUTE | WRITES)[step.name].make
        return make(_source(step.seed), self.program.shapes[step.registers[0]])

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the classes."""
        registers = InPlace(x) if self.in_place else Functional(x)
        for step, constants in zip(self.program.steps, self.constants, strict=True):
            registers.step(step, constants)
        y = registers.read(self.program.output)
        logits = (y.unsqueeze(1) * self.head).flatten(2).sum(2) if self.program.head == "product" else None
        if logits is None:
            logits = y.flatten(1) @ self.head.flatten(1).T
        if not self.in_place or self.program.head in ("linear", "product"):
            return self._finished(logits)
        if self.program.head == "+=":
            logits += self.bias.detach()
        elif self.program.head == "[:, 0] =":
            logits[:, 0] = logits[:, 1] - self.bias[0].detach()
        else:
            logits.mul_(-1.5)
        return logits

    def _finished(self, logits: Tensor) -> Tensor:
        if self.program.head in ("linear", "product", "+="):
            return logits + self.bias
        if self.program.head == "[:, 0] =":
            return torch.cat([logits[:, 1:2] - self.bias[0], logits[:, 1:]], 1)
        return logits * -1.5


def _source(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator) * 0.7


class InPlace:
    """Registers as torch has them: views share memory, writes are in place."""

    def __init__(self, x: Tensor) -> None:
        self._values = {0: x}

    def read(self, register: int) -> Tensor:
        """What a register holds."""
        return self._values[register]

    def step(self, step: Step, constants: list[Tensor]) -> None:
        """Runs a step."""
        operands = [self._values[i] for i in step.registers]
        if step.part is not None:
            self._values[step.result] = step.part.get(operands[0])
        elif step.kind == "write":
            WRITES[step.name].in_place(operands[0], constants, *operands[1:])
        else:
            self._values[step.result] = COMPUTE[step.name].run(constants, *operands)


class Functional:
    """The same registers without writing to anything.

    Memory that is written to is kept in pieces: what was there, and each thing that was written. A register is put
    together from the pieces that it shows, so that a part which nobody wrote to is just what it was.
    """

    def __init__(self, x: Tensor) -> None:
        self._values: dict[int, Tensor] = {0: x}
        self._views: dict[int, tuple[int, Part]] = {}
        self._memory: dict[int, Memory] = {}
        self._shapes: dict[int, tuple[int, ...]] = {0: tuple(x.shape[1:])}

    def read(self, register: int) -> Tensor:
        """What a register holds."""
        if register not in self._values:
            root = self._root(register)
            if root in self._memory:
                held = self._memory[root].read(self._elements(register))
                self._values[register] = held.detach() if self._is_detached(register) else held
            else:
                base, part = self._views[register]
                held = self.read(base)
                self._values[register] = part.get(held if held.is_contiguous() else held.contiguous())
        return self._values[register]

    def step(self, step: Step, constants: list[Tensor]) -> None:
        """Runs a step."""
        if step.part is not None:
            self._views[step.result] = (step.registers[0], step.part)
            return
        operands = [self.read(i) for i in step.registers]
        if step.kind == "write":
            write = WRITES[step.name]
            new = write.functional(operands[0], constants, *operands[1:])
            self._write(step.registers[0], write.part(new), write.part)
        else:
            self._values[step.result] = made = COMPUTE[step.name].run(constants, *operands)
            self._shapes[step.result] = tuple(made.shape[1:])

    def _write(self, register: int, new: Tensor, part: Callable[[Tensor], Tensor]) -> None:
        root = self._root(register)
        if root not in self._memory:
            self._memory[root] = Memory(self.read(root))
        self._memory[root].write(part(self._elements(register)), new)
        for each in [each for each in self._values if self._root(each) == root]:
            del self._values[each]

    def _elements(self, register: int) -> Tensor:
        """Which elements of its memory a register shows, in the register's shape."""
        if register in self._views:
            base, part = self._views[register]
            return part.get(self._elements(base).contiguous())
        shape = self._shapes[register]
        return torch.arange(math.prod(shape)).reshape(1, *shape)

    def _is_detached(self, register: int) -> bool:
        if register not in self._views:
            return False
        base, part = self._views[register]
        return part.detaches or self._is_detached(base)

    def _root(self, register: int) -> int:
        while register in self._views:
            register = self._views[register][0]
        return register


class Memory:
    """The memory of a tensor in pieces: for each element, which piece it is from, and where in it."""

    def __init__(self, value: Tensor) -> None:
        count = value[0].numel()
        self._pieces = [value.flatten(1)]
        self._piece, self._place = torch.zeros(count, dtype=torch.long), torch.arange(count)

    def write(self, elements: Tensor, new: Tensor) -> None:
        """A new piece, where those elements are."""
        self._piece[elements.flatten()] = len(self._pieces)
        self._place[elements.flatten()] = torch.arange(elements.numel())
        self._pieces.append(new.expand(len(self._pieces[0]), *elements.shape[1:]).flatten(1))

    def read(self, elements: Tensor) -> Tensor:
        """Those elements, put together."""
        piece, place = self._piece[elements.flatten()], self._place[elements.flatten()]
        parts = []
        for number in piece.unique().tolist():
            here = piece == number
            held = self._pieces[number]
            parts.append((here, held[:, torch.where(here, place, 0)]))
        result = parts[0][1]
        for here, held in parts[1:]:
            result = torch.where(here, held, result)
        return result.reshape(-1, *elements.shape[1:])
