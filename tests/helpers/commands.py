"""The command line, called in the test's own process."""

from __future__ import annotations

from typing import Any

from typer.testing import CliRunner, Result

from hilrp.cli import app


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def words(result: Result) -> str:
    """What a command printed, without its line breaks."""
    return " ".join(result.output.split())
