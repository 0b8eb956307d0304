"""Errors of the library: each names the input, the reason and the remedy."""

from __future__ import annotations


class HilrpError(Exception):
    """Base of everything that hilrp raises on purpose."""


class InputError(HilrpError, ValueError):
    """The input or an argument can't be explained as given."""


class UnavailableError(InputError):
    """A model can't be had here: its library isn't installed, or has no model of that name."""


class TargetError(HilrpError, ValueError):
    """The target doesn't fit the model's output."""


class ModelError(HilrpError, RuntimeError):
    """The model can't be explained in its present state, or raised by itself."""


class ConstantScoreError(ModelError):
    """The score does not depend on the input."""


class TooLargeError(HilrpError, MemoryError):
    """Memory doesn't suffice for what was to be explained at once."""


class AuditError(HilrpError, RuntimeError):
    """An operation on the relevance path has no rule, or hid from the engine."""


class BooksError(AuditError):
    """The ledger doesn't close: relevance was lost or created."""


class AuditWarning(UserWarning):
    """What would be an error under ``audit="strict"``, under ``audit="warn"``."""
