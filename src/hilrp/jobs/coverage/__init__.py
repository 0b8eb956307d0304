"""The audited coverage of whole model libraries: which models pass, and why the others don't."""

from hilrp.jobs.coverage.runner import run
from hilrp.jobs.coverage.store import Settings, Store

__all__ = ["Settings", "Store", "run"]
