"""torch's samples of every operation of the table: a seeded part.

`make fuzz` goes on from there, with a budget of time.
"""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch's samples of operations need it")

from fuzz.calls import check_choice
from fuzz.operations import operations, random_choice, table_name

PARTS = 8
LISTED = [name for name in operations() if table_name(name) is not None]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.filterwarnings("ignore")
def test_operations(part):
    """One call of every operation of the table: one of torch's samples in a random form, layout and batch."""
    findings, count = [], 0
    for seed in range(part, len(LISTED), PARTS):
        choice = random_choice(seed, LISTED[seed])
        found = check_choice(choice, seed)
        count += not isinstance(found, str)
        findings += [f"{choice}: {each}" for each in found] if not isinstance(found, str) else []
    assert count > len(LISTED) // PARTS // 2, "hardly anything was checked"
    assert not findings, "\n".join([f"{len(findings)} findings in {count} calls", *findings])
