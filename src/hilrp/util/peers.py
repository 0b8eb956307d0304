"""Packages that only some users have: imported where they are used. Where one is missing, an error says so."""

from __future__ import annotations

import importlib
from typing import Any

from hilrp.util.errors import UnavailableError


class MissingPeerError(UnavailableError, ImportError):
    """A package that is needed isn't installed."""


def imported(name: str, install: str) -> Any:
    """A module of another package.

    Args:
        name: Its name.
        install: What pip is given to install it, as a shell takes it.

    Example:
        >>> imported("shap_of_the_future", install="'hilrp[compat]'")
        Traceback (most recent call last):
        hilrp.util.peers.MissingPeerError: shap_of_the_future is not installed. Install it with: pip install
        'hilrp[compat]'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = (error.name or name).partition(".")[0]
        raise MissingPeerError(f"{missing} is not installed. Install it with: pip install {install}") from error
