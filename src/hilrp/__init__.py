"""HiLRP: relevance maps that decompose the prediction of any vision model, with books that close.

explanation = hilrp.explain(model, x)
explanation.sentence()  # how much higher the score is than on the picture's mean colour
explanation.map, explanation.ledger.table()  # where that difference comes from
"""

from hilrp import targets
from hilrp.answers.answer import Answer
from hilrp.answers.explaining import explain_answer
from hilrp.attribution.audit import AuditReport, audit
from hilrp.attribution.chains import Chains
from hilrp.attribution.explainer import Explainer, explain
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.kinds import Kind
from hilrp.attribution.tiled import TiledExplainer
from hilrp.attribution.tiles import Tiles
from hilrp.attribution.verdicts import Verdict
from hilrp.method.ledger import Ledger
from hilrp.method.registry import register
from hilrp.method.rules import PRESETS, Rules
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import load
from hilrp.models.recordings import Recording, read_file
from hilrp.util.errors import (
    AuditError,
    AuditWarning,
    BooksError,
    HilrpError,
    InputError,
    ModelError,
    TargetError,
    TooLargeError,
)

__version__ = "0.2.0"

__all__ = [
    "PRESETS",
    "Answer",
    "AuditError",
    "AuditReport",
    "AuditWarning",
    "BooksError",
    "Chains",
    "Explainer",
    "Explanation",
    "HilrpError",
    "InputError",
    "Kind",
    "Ledger",
    "Loaded",
    "ModelError",
    "Recording",
    "Rules",
    "TargetError",
    "TiledExplainer",
    "Tiles",
    "TooLargeError",
    "Verdict",
    "audit",
    "explain",
    "explain_answer",
    "load",
    "read_file",
    "register",
    "targets",
]
