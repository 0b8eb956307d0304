"""Draws random programs, and makes them larger and smaller."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from fuzz.parts import PARTS, Part, Shape
from fuzz.programs import Program, Step
from fuzz.steps import COMPUTE
from fuzz.writes import WRITES


class _Writer:
    """Draws a program."""

    def __init__(self, rng: Random, shape: Shape, homogeneous: bool) -> None:
        self.rng, self.homogeneous = rng, homogeneous
        self.shapes: dict[int, Shape] = {0: shape}
        self.views: dict[int, tuple[int, Part]] = {}
        self.steps: list[Step] = []

    def root(self, register: int) -> int:
        while register in self.views:
            register = self.views[register][0]
        return register

    def writable(self, register: int) -> bool:
        while register in self.views:
            register, part = self.views[register]
            if not part.writable:
                return False
        return True

    def pick(self) -> int:
        """A register, the later the likelier."""
        return max(self.rng.choices(list(self.shapes), k=2))

    def draw(self) -> None:
        """One more step, or none if what was drawn doesn't fit."""
        ways = {self._compute: 5, self._view: 3, self._write: 4}
        if not self.homogeneous:
            ways |= {self._gate: 1, self._gated_half: 1}
        self.rng.choices(list(ways), list(ways.values()))[0]()

    def _new(self, kind: str, name: str, registers: tuple[int, ...], shape: Shape, part: Part | None = None) -> int:
        result = max(self.shapes) + 1
        self.shapes[result] = shape
        self.steps.append(Step(kind, name, registers, result, self.rng.randrange(1 << 30), part))
        if part is not None:
            self.views[result] = (registers[0], part)
        return result

    def _compute(self) -> None:
        names = [n for n, op in COMPUTE.items() if op.homogeneous or not self.homogeneous]
        name = self.rng.choices(names, [COMPUTE[n].weight for n in names])[0]
        op = COMPUTE[name]
        registers = tuple(self.pick() for _ in range(op.operands))
        shape = op.shape(*(self.shapes[i] for i in registers))
        if shape is not None and max(shape) <= 64:
            self._new("compute", name, registers, shape)

    def _view(self) -> None:
        name = self.rng.choices(list(PARTS), [weight for _, weight in PARTS.values()])[0]
        base = self.pick()
        part = PARTS[name][0](self.shapes[base], self.rng)
        if part is not None:
            self._new("view", name, (base,), part.shape, part)

    def _write(self) -> None:
        names = [n for n, op in WRITES.items() if op.homogeneous or not self.homogeneous]
        name = self.rng.choices(names, [WRITES[n].weight for n in names])[0]
        target = self.pick()
        others = tuple(self.pick() for _ in range(WRITES[name].operands))
        if self.writable(target) and all(self._fits(other, target, name) for other in others):
            self.steps.append(Step("write", name, (target, *others), -1, self.rng.randrange(1 << 30)))

    def _gate(self) -> None:
        """Something computed from a register, made a gate in place through a view, and multiplied with the register."""
        base = self.pick()
        name = self.rng.choice(["scale", "spatial mean", "mean", "position embedding"])
        shape = COMPUTE[name].shape(self.shapes[base])
        if shape is None:
            return
        gate = self._new("compute", name, (base,), shape)
        view, parts = gate, ["transpose", "flatten", "unsqueeze", "identity", "slice", "tokens", "chunk", "select"]
        part = PARTS[self.rng.choice(parts)][0](shape, self.rng)
        if part is not None:
            view = self._new("view", "part", (gate,), part.shape, part)
        self._squash(view)
        self._new("compute", "product", (base, gate), self.shapes[base])

    def _gated_half(self) -> None:
        """A register in two halves, of which one is made a gate in place and multiplied with the other."""
        base = self.pick()
        found = [PARTS["chunk"][0](self.shapes[base], self.rng) for _ in range(8)]
        first = next((part for part in found if part is not None), None)
        if first is None or not self.writable(base):
            return
        second = next((part for part in found if part is not None and part.disjoint != first.disjoint), None)
        if (
            second is None
            or second.disjoint is None
            or first.disjoint is None
            or second.disjoint[0] != first.disjoint[0]
        ):
            return
        a, b = (self._new("view", "chunk", (base,), part.shape, part) for part in (first, second))
        self._squash(b)
        if self.rng.random() < 0.5:
            self._new("compute", "product", (a, b), first.shape)
        else:
            self.steps.append(Step("write", "*=", (a, b), -1, 0))

    def _squash(self, register: int) -> None:
        name = self.rng.choice(["sigmoid_", "F.hardsigmoid(inplace=True)", "tanh_", "clamp_"])
        self.steps.append(Step("write", name, (register,), -1, 0))

    def _fits(self, other: int, target: int, name: str) -> bool:
        a, b = self.shapes[other], self.shapes[target]
        if WRITES[name].same_shape and (a != b or other == target):
            return False
        if len(a) != len(b) or any(m not in (1, n) for m, n in zip(a, b, strict=True)):
            return False
        return other == target or self.root(other) != self.root(target) or self._apart(other, target)

    def _apart(self, a: int, b: int) -> bool:
        """Whether two registers are different chunks of a third: torch forbids operands that overlap."""
        if a not in self.views or b not in self.views or self.views[a][0] != self.views[b][0]:
            return False
        one, other = self.views[a][1].disjoint, self.views[b][1].disjoint
        return one is not None and other is not None and one[0] == other[0] and one[1] != other[1]


def random_program(seed: int) -> Program:
    """A program of 3 to 12 steps."""
    rng = Random(seed)
    shape = rng.choice([(4, 4, 4), (2, 4, 4), (4, 6), (6, 4), (4, 4)])
    writer = _Writer(rng, shape, homogeneous=rng.random() < 0.35)
    length = rng.randint(3, 12)
    for _ in range(200):
        if len(writer.steps) >= length:
            break
        writer.draw()
    last = max(writer.shapes)
    output = last if rng.random() < 0.7 else rng.choice(list(writer.shapes))
    return Program(
        shape, tuple(writer.steps), output, writer.shapes, rng.randint(1, 3), seed,
        rng.choice(["linear", "linear", "product", "+=", "[:, 0] =", "mul_"]), len(shape) == 3 and rng.random() < 0.25,
    )  # fmt: skip


def with_dead_branch(program: Program) -> Program:
    """The same program, and steps beside it that nobody uses: computations, views, and writes to copies."""
    rng = Random(program.seed + 7)
    steps, shapes = list(program.steps), dict(program.shapes)
    for _ in range(rng.randint(1, 3)):
        place = rng.randint(0, len(steps))
        made = [0, *(s.result for s in steps[:place] if s.result in program.shapes and s.result > 0)]
        base, new = rng.choice(made), max(shapes) + 1
        name = rng.choice(["sigmoid", "clone", "softmax", "linear", "identity"])
        kind = "view" if name == "identity" else "compute"
        shapes[new] = (*shapes[base][:-1], 4) if name == "linear" else shapes[base]
        part = PARTS["identity"][0](shapes[base], rng) if kind == "view" else None
        added = [Step(kind, name, (base,), new, 0, part)]
        if name == "clone":
            added.append(Step("write", rng.choice(["sigmoid_", "mul_(number)", "zero_"]), (new,), -1, 0))
        steps[place:place] = added
    return replace(program, steps=tuple(steps), shapes=shapes)


def _is_sound(program: Program) -> bool:
    """Whether every write has a target that can be written to, and operands that don't overlap with it."""
    writer = _Writer(Random(0), program.shape, False)
    writer.shapes = program.shapes
    for step in program.steps:
        if step.part is not None:
            writer.views[step.result] = (step.registers[0], step.part)
        elif step.kind == "write":
            target, *others = step.registers
            if not writer.writable(target) or not all(writer._fits(other, target, step.name) for other in others):
                return False
    return True


def smaller(program: Program) -> list[Program]:
    """The program with one step less, or with less around it, in every way that leaves a program."""
    return [each for each in _smaller(program) if _is_sound(each)]


def _smaller(program: Program) -> list[Program]:
    found = []
    for i, step in enumerate(program.steps):
        rest = program.steps[:i] + program.steps[i + 1 :]
        if step.result < 0:
            found.append(replace(program, steps=rest))
            continue
        base = step.registers[0]
        used = step.result == program.output or any(step.result in s.registers for s in rest)
        if not used:
            found.append(replace(program, steps=rest))
        elif program.shapes[base] == program.shapes[step.result]:
            renamed = tuple(
                replace(s, registers=tuple(base if r == step.result else r for r in s.registers)) for s in rest
            )
            output = base if program.output == step.result else program.output
            found.append(replace(program, steps=renamed, output=output))
    if program.batch > 1:
        found.append(replace(program, batch=program.batch - 1))
    if program.head != "linear":
        found.append(replace(program, head="linear"))
    if program.channels_last:
        found.append(replace(program, channels_last=False))
    return found
