"""References by name, given, or averaged: what relevance is relative to. See `hilrp.attribution.references`."""

from hilrp.attribution.references import *  # noqa: F403
from hilrp.attribution.references import __all__ as __all__
