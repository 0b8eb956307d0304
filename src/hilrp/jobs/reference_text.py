"""References and passes in the words of the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hilrp.attribution.chains import Chains
from hilrp.attribution.references import NAMED, Given, Reference, named
from hilrp.jobs.explain_files import checksum
from hilrp.method.rules import Rules
from hilrp.models.images import read
from hilrp.models.libraries.loaded import Loaded
from hilrp.util.errors import InputError

#: What rules are relative to that need a reference, if none is named: each picture's mean colour.
DEFAULT = "mean"


def reference_name(text: str | None, rules: str) -> str | None:
    """The reference that is asked for, or the one that rules begin with; none, where they need none.

    Example:
        >>> reference_name(None, "secant"), reference_name(None, "hilrp"), reference_name("blurred", "hilrp")
        ('mean', None, 'blurred')
    """
    preset = Rules.named(rules)
    if text is not None and text not in NAMED and not Path(text).is_file():
        raise InputError(f"--reference {text}: neither an image file nor one of {', '.join(NAMED)}.")
    if text is not None:
        replace(preset, constants="reference")  # an error that says which rules have no such form
    return DEFAULT if text is None and preset.constants == "reference" else text


def check_passes(passes: int, rules: str, reference: str | None) -> None:
    """Raises if so many passes can't be spent: chains have even numbers of steps, and begin at a reference."""
    if Chains.of(passes).passes > 1 and reference is None:
        raise InputError(
            f"--passes {passes}: --rules {rules} has no reference, from which they begin. Leave --rules out, or give "
            "a --reference."
        )


def reference_of(text: str | None, loaded: Loaded) -> tuple[Reference | None, str | None]:
    """A reference by name, or an image that is prepared as the others are; and what it is called."""
    if text is None:
        return None, None
    if text in NAMED:
        return named(text, loaded.preprocess.mean, loaded.preprocess.std), text
    path = Path(text)
    return Given(loaded.batch([read(path)[0]]), path.name), file_name(text)


def file_name(text: str | None) -> str | None:
    """A reference as settings name it: of a file, with the checksum of what is in it."""
    if text is None or text in NAMED:
        return text
    return f"{Path(text).name} ({checksum(Path(text))[:12]})"
