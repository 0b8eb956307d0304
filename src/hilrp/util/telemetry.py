"""The switches that keep the libraries underneath from telling others what they are used for.

The commands set them, for themselves and the processes that they start. ``import hilrp`` doesn't: the environment of
a program belongs to its author.
"""

from __future__ import annotations

import os

#: What turns a library's calls home off, all of them read when that library is imported or started.
_OFF = {
    # The hub's client: what it tells of versions and tools, and the list of tools that it asks for.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # transformers asks a service of the hub to convert weights that are not safetensors.
    "DISABLE_SAFETENSORS_CONVERSION": "1",
    # Gradio counts its users, and asks for its newest version.
    "GRADIO_ANALYTICS_ENABLED": "False",
    # Ray reports what it is used for, and asks the metadata services of three clouds where it is.
    "RAY_USAGE_STATS_ENABLED": "0",
}


def switches() -> dict[str, str]:
    """The switches that the user has not set: ``os.environ.update(switches())`` keeps what was decided."""
    return {name: value for name, value in _OFF.items() if name not in os.environ}
