"""What is explained of each image of a data set, in the words of the command line: always a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from hilrp.jobs.bench.methods import find
from hilrp.jobs.run.rows import Row
from hilrp.jobs.target_text import LABEL, ParsedTarget
from hilrp.models.libraries.loaded import Loaded
from hilrp.util.errors import InputError


def asked(text: str, against: str | None, loaded: Loaded) -> ParsedTarget:
    """The class that a text names for a model; of the data set's own class it says no more than what it is against."""
    own = text.strip().lower() == LABEL
    parsed = ParsedTarget.parse("prediction" if own else text, loaded, against)
    if parsed.target is not None or parsed.strongest > 1:
        raise InputError(
            f"--target {text}: of a data set one class of each image is explained: prediction, label, or a class by "
            "name or index. `hilrp explain` takes the others."
        )
    return replace(parsed, text=LABEL if own else parsed.text)


def check_target(text: str, against: str | None, loaded: Loaded, methods: Sequence[str]) -> None:
    """Raises if a model has no such class, or if a method can't explain what is asked."""
    asked(text, against, loaded)
    other = next((name for name in methods if find(name).rules is None), None)
    if against is not None and other is not None:
        raise InputError(
            f"--against {against}: --method {other} explains a class, and not the difference of two. Leave one of the "
            "two out."
        )


def note_contrast(loaded: Loaded, other: int, target: Tensor, rows: Sequence[Row]) -> None:
    """Notes in rows what their targets are contrasted with; none can be with itself."""
    for row, label in zip(rows, target.tolist(), strict=True):
        if label == other:
            raise InputError(f"{row['id']}: the target and the class that it is against are the same here.")
        row |= {"against": other, "against_name": loaded.named(other)}
