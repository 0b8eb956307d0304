"""The packages whose places the drop-ins take: imported where they are used. Where one is missing, an error says so."""

from __future__ import annotations

import importlib
from typing import Any

from hilrp.util.errors import UnavailableError


class MissingPeerError(UnavailableError, ImportError):
    """A package that a drop-in needs isn't installed."""


def peer(name: str) -> Any:
    """A module of another package.

    Example:
        >>> peer("shap_of_the_future")
        Traceback (most recent call last):
        hilrp.compat.peers.MissingPeerError: shap_of_the_future is not installed. Install it with: pip install
        'hilrp[compat]'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = (error.name or name).partition(".")[0]
        raise MissingPeerError(f"{missing} is not installed. Install it with: pip install 'hilrp[compat]'") from error
