"""What relevance is relative to on the page, in words, and how many passes can be spent on it."""

from __future__ import annotations

from dataclasses import dataclass

from hilrp.method.rules import Rules
from hilrp.util.errors import InputError

#: Name of a reference -> what it is, beside "this picture".
REFERENCES = {
    "mean": "its mean colour",
    "blurred": "a blurred copy of it",
    "black": "a black picture",
    "grey": "a grey picture",
    "white": "a white picture",
    "neutral": "a neutral colour",
}
#: The rules and the reference of a new tab.
RULES, REFERENCE = "secant", "mean"
#: How many passes are offered; two are worse than one (docs/passes.md).
PASSES = (1, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Start:
    """How a new tab explains.

    Attributes:
        rules, reference: By name.
        passes: How many are spent.
    """

    rules: str = RULES
    reference: str | None = REFERENCE
    passes: int = 1

    def __post_init__(self) -> None:
        if self.reference is not None and self.reference not in REFERENCES:
            raise InputError(
                f"reference {self.reference}: the page offers {', '.join(REFERENCES)}. Choose one of them."
            )
        if self.passes not in PASSES:
            raise InputError(
                f"passes {self.passes}: the page offers {', '.join(map(str, PASSES))}. Choose one of them."
            )


def reference_of(rules: str) -> str | None:
    """The reference that rules begin with: those that need one get each picture's mean colour, the others none."""
    return REFERENCE if Rules.named(rules).constants == "reference" else None
