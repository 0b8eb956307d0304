"""The packages whose places the drop-ins take: imported where they are used. Where one is missing, an error says so."""

from __future__ import annotations

from typing import Any

from hilrp.util.peers import MissingPeerError, imported

__all__ = ["MissingPeerError", "peer"]


def peer(name: str) -> Any:
    """A module of another package.

    Example:
        >>> peer("shap_of_the_future")
        Traceback (most recent call last):
        hilrp.util.peers.MissingPeerError: shap_of_the_future is not installed. Install it with: pip install
        'hilrp[compat]'
    """
    return imported(name, install="'hilrp[compat]'")
