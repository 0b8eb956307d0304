"""torch's samples of every operation of the table: a seeded part.

`make fuzz` goes on from there, with a budget of time.
"""

from __future__ import annotations

import pytest

pytest.importorskip("expecttest", reason="torch's samples of operations need it")

from fuzz.calls import check_choice
from fuzz.operations import operations, random_choice, table_name

PARTS = 8
#: How many calls of every operation of the table.
CALLS = 2
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
