"""A seeded part of the fuzz suite. `make fuzz` goes on from there, with a budget of time."""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch's samples of operations need it")

from fuzz.calls import check_choice
from fuzz.drawing import random_program
from fuzz.operations import operations, random_choice, table_name
from fuzz.pairs import check_program, shrunk

PARTS = 8
PROGRAMS = 480
#: How many calls of every operation of the table.
CALLS = 3
LISTED = [name for name in operations() if table_name(name) is not None]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.filterwarnings("ignore")
def test_operations(part):
    """torch's samples of every operation of the table, in random forms, layouts and batches."""
    findings, count = [], 0
    for name in LISTED[part::PARTS]:
        for seed in range(CALLS):
            choice = random_choice(seed, name)
            found = check_choice(choice, seed)
            count += not isinstance(found, str)
            findings += [f"{choice}: {each}" for each in found] if not isinstance(found, str) else []
    assert count > len(LISTED) // PARTS, "hardly anything was checked"
    assert not findings, "\n".join([f"{len(findings)} findings in {count} calls", *findings])


@pytest.mark.parametrize("part", range(PARTS))
def test_programs(part):
    """Random programs in pairs."""
    findings, count = [], 0
    for seed in range(part, PROGRAMS, PARTS):
        program = random_program(seed)
        found = check_program(program)
        if isinstance(found, str):
            continue
        count += 1
        findings += [(program, each) for each in found[:1]]
    assert count > PROGRAMS // PARTS // 2, "hardly anything was checked"
    lines = [f"seed {program.seed}: {each}" for program, each in findings]
    if findings:
        lines.append(str(shrunk(findings[0][0], findings[0][1].kind)))
    assert not findings, "\n".join([f"{len(findings)} findings in {count} programs", *lines])
