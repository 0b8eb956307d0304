"""The lines of Python that make an explanation again."""

from __future__ import annotations

from dataclasses import dataclass

from hilrp.app.relative import REFERENCE, RULES
from hilrp.attribution.references import NAMED, named
from hilrp.jobs.target_text import ParsedTarget
from hilrp.models.libraries.loaded import Loaded
from hilrp.targets import Detection, Region, Views


@dataclass(frozen=True)
class Request:
    """What a user asked of a model.

    Attributes:
        target, against: In the words of `hilrp explain`.
        rules: A preset.
        reference: What relevance is relative to, by name.
        passes: How many passes are spent.
        checkpoint, classes: The files that the weights and the names of the classes are from, where they are somebody's
            own.
    """

    target: str
    against: str | None = None
    rules: str = RULES
    reference: str | None = REFERENCE
    passes: int = 1
    checkpoint: str | None = None
    classes: str | None = None


def written(
    opening: str, loaded: Loaded, request: Request, parsed: ParsedTarget, name: str, whole: bool = False
) -> str:
    """The lines of Python that make an explanation again.

    Args:
        opening: Lines that open the picture as ``image``: imports, an empty line, the rest, which may use ``loaded``.
        loaded: The model.
        request: What was asked of it.
        parsed: The target of the request, read from its text.
        name: What the results are saved as.
        whole: Whether the whole picture is drawn, with the map in its place.
    """
    needed, _, opened = opening.partition("\n\n")
    imports = ["import hilrp", *needed.splitlines()]
    weights = f", checkpoint={request.checkpoint!r}" if request.checkpoint else ""
    if request.classes:
        weights += f", classes={request.classes!r}"
    lines = [f"loaded = hilrp.load({loaded.name!r}{weights})", *opened.splitlines(), "x = loaded.batch([image])"]
    model, options = "loaded.model", f", rules={request.rules!r}"
    if parsed.tower:
        imports += ["from hilrp.targets import Cosine", "from hilrp.texts import ImageTower, caption_embeddings"]
        caption = parsed.text.partition(":")[2]
        lines.append(f"caption = caption_embeddings(loaded.texts.model, loaded.texts.ids({caption!r}))")
        model, target = "ImageTower(loaded.texts.model).eval()", "Cosine(caption)"
    else:
        kind, target = _target(parsed)
        imports += [f"from hilrp.targets import {kind}"] if kind else []
    if request.reference is not None:
        reference = repr(request.reference)
        # A colour is another number after another preprocessing.
        if named(request.reference, loaded.preprocess.mean, loaded.preprocess.std) != NAMED[request.reference]:
            imports.append("from hilrp.references import named")
            lines.append(f"reference = named({reference}, loaded.preprocess.mean, loaded.preprocess.std)")
            reference = "reference"
        options += f", reference={reference}"
    passes = f", passes={request.passes}" if request.passes > 1 else ""
    lines += [
        f"explanation = hilrp.Explainer({model}{options}).explain(x, {target}{passes})",
        "print(explanation.sentence(0, loaded), explanation.verdicts)",
        f"explanation.save({name!r}, loaded{', [image]' if whole else ''})",
    ]
    others = sorted(set(imports[1:]))
    return "\n".join([*others, *([""] if others else []), imports[0], "", *lines, ""])


def _target(parsed: ParsedTarget) -> tuple[str, str]:
    """What to import from `hilrp.targets`, and what to write."""
    target = parsed.target
    if isinstance(target, Views):
        return "Views", "Views()"
    if isinstance(target, Region):
        return "Region", f"Region({target.label!r}, box={target.box!r})"
    if isinstance(target, Detection):
        rest = f", label={target.label!r}" if target.side is None else f", side={target.side!r}"
        return "Detection", f"Detection({target.query!r}{rest})"
    if parsed.against is not None:
        return "Contrast", f"Contrast({parsed.label!r}, {parsed.against!r})"
    return "", repr(parsed.label)
