"""The command line: one file per command, or per few that belong together."""

from hilrp.cli import audit, bench, coverage, demo, explain, models, run, serve, verify, views
from hilrp.cli.base import app

__all__ = ["app", "audit", "bench", "coverage", "demo", "explain", "models", "run", "serve", "verify", "views"]
