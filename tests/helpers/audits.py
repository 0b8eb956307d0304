"""What an audit's row must say."""

from __future__ import annotations

from typing import Any

from hilrp.jobs.coverage.splits import judge


def assert_sound(row: dict[str, Any]) -> None:
    """The model passed, and somebody has looked at each of its even splits."""
    assert row["status"] == "pass", row
    unknown = [place for place in row["splits"] if judge(row["name"], place) is None]
    assert not unknown, f"even splits that nobody has looked at: {unknown}"
