"""The command line: one file per command, or per few that belong together."""

from hilrp.cli import ask, audit, bench, coverage, demo, explain, models, run, serve, summary, verify, views
from hilrp.cli.base import ORDER, app

# What one begins with comes first, here as in the help.
app.registered_commands.sort(key=lambda command: ORDER.index(getattr(command.callback, "__name__", "")))

__all__ = [
    "app",
    "ask",
    "audit",
    "bench",
    "coverage",
    "demo",
    "explain",
    "models",
    "run",
    "serve",
    "summary",
    "verify",
    "views",
]
