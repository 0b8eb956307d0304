"""HiLRP: relevance maps that decompose the prediction of any vision model, with books that close.

explanation = hilrp.explain(model, x)
explanation.map, explanation.ledger.table()
"""

from hilrp import targets
from hilrp.audit import AuditReport, audit
from hilrp.errors import (
    AuditError,
    AuditWarning,
    BooksError,
    HilrpError,
    InputError,
    ModelError,
    TargetError,
    TooLargeError,
)
from hilrp.explainer import Explainer, explain
from hilrp.explanation import Explanation
from hilrp.ledger import Ledger
from hilrp.libraries.loaded import Loaded
from hilrp.loading import load
from hilrp.registry import register
from hilrp.rules import PRESETS, Rules
from hilrp.verdicts import Verdict

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "AuditError",
    "AuditReport",
    "AuditWarning",
    "BooksError",
    "Explainer",
    "Explanation",
    "HilrpError",
    "InputError",
    "Ledger",
    "Loaded",
    "ModelError",
    "Rules",
    "TargetError",
    "TooLargeError",
    "Verdict",
    "audit",
    "explain",
    "load",
    "register",
    "targets",
]
