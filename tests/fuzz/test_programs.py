"""Random programs in pairs: a seeded part. `make fuzz` goes on from there, with a budget of time."""

from __future__ import annotations

import pytest

from fuzz.drawing import random_program
from fuzz.pairs import check_program, shrunk

PARTS = 8
PROGRAMS = 128


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
