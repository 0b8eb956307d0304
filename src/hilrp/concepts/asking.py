"""The concepts of a layer: what each holds of a score, and where in the input that comes from."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.explainer import Audit, Explainer
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.references import Average, Given
from hilrp.concepts import basis as bases
from hilrp.concepts.ablation import Ablation, AtLayer
from hilrp.concepts.cut import Arrived, Cut, Progress, Section, many
from hilrp.concepts.layer import Layer
from hilrp.concepts.results import ConceptMaps, ConceptRelevance
from hilrp.method.ledger import OTHERS, REFERENCE, Ledger
from hilrp.method.rules import DEFAULT_RULES, AnyRules
from hilrp.targets import Target, score_of
from hilrp.targets.classes import Checked
from hilrp.util.errors import AuditWarning, BooksError, InputError, ModelError
from hilrp.util.nested import tensors


class Concepts:
    """The concepts of a layer: its channels, groups of them, heads of attention, or directions of a basis.

    Args:
        model: The model, in evaluation mode. It is not changed.
        at: The layer: a module's path, for what it returns (``"layer3"``, ``"blocks.5"`` for the residual stream);
            ``"layer3:input"`` for what it is given, ``"layer3#2"`` for its second run, ``"layer3[1]"`` for the second
            of several tensors.
        basis: What concepts are: ``None`` for channels; a number of groups of neighbouring channels; lists of channels;
            ``"heads"`` of the attention ``at``; a tensor ``[K,C]`` of directions; or
            `Directions` with an encoder of its own (a sparse autoencoder).
        rules: The rules: see `hilrp.explain`.
        reference: What relevance is relative to, one for each sample: see `hilrp.explain`.
        audit: ``"strict"`` raises where relevance could be lost, ``"warn"`` warns, ``"off"`` does neither.
        axis: Where the channels are in the layer, where its shape does not tell.
        kind: What kind of thing the input is: see `hilrp.explain`.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
        >>> concepts = Concepts(model, at="1", axis=1)
        >>> found = concepts.maps(torch.randn(1, 3, 8, 8), target=1, concepts=[0, 2])
        >>> found.maps.shape, bool(found.residual < 1e-5)
        (torch.Size([1, 2, 8, 8]), True)
    """

    def __init__(
        self,
        model: nn.Module,
        at: str,
        basis: Any = None,
        rules: AnyRules = DEFAULT_RULES,
        reference: Any = None,
        audit: Audit = "strict",
        axis: int | None = None,
        kind: str | None = None,
    ) -> None:
        if isinstance(basis, str):
            if basis != "heads":
                raise InputError(f'basis={basis!r}: the one name is "heads".')
            self.layer, basis = Layer.heads_of(model, at)
        else:
            self.layer = Layer.named(at, axis)
        self.basis = bases.named(basis)
        with in_words_of_layers():
            self._explainer = Explainer(model, rules, reference, audit, stages=None, keep=[self.layer.keep], kind=kind)
        if isinstance(self._explainer.reference, Average):
            raise _several()
        self._audit = audit

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self._explainer.model

    @property
    def settings(self) -> dict[str, str]:
        """What relevance depends on beside model, layer and basis, in words."""
        reference = self._explainer.reference
        told = repr(reference)
        if isinstance(reference, Given):
            digest = sha256()
            for t in tensors(reference.value):
                digest.update(t.detach().cpu().contiguous().numpy().tobytes())
            told = f"given {digest.hexdigest()[:16]}"
        return {"rules": repr(self._explainer.rules), "reference": told, "kind": str(self._explainer.kind)}

    def relevance(self, x: Any, target: Target = None) -> ConceptRelevance:
        """What each concept holds of the score, with a ledger.

        Args:
            x: The input: see `hilrp.explain`.
            target: What is explained: see `hilrp.explain`.
        """
        found, cut = cut_pass(self._explainer, x, target)
        try:
            return self._split(found, cut)[0]
        finally:
            cut.close()

    def maps(
        self,
        x: Any,
        target: Target = None,
        concepts: Iterable[int] | None = None,
        at_once: int | None = None,
        progress: Progress | None = None,
    ) -> ConceptMaps:
        """Where in the input the relevance of concepts comes from.

        One backward pass finds what comes to the layer. Those from there to the input run many at once, and share what
        the forward pass has saved.

        Args:
            x: The input.
            target: What is explained.
            concepts: Which concepts get a map; by default all.
            at_once: How many backward passes run at once; by default 32 on a GPU, and 8 on a CPU.
            progress: Called with how many maps are done, and how many there are.
        """
        if at_once is not None and at_once < 1:
            raise InputError(f"at_once={at_once}: give one or more.")
        found, cut = cut_pass(self._explainer, x, target)
        try:
            whole, section, g, beside = self._split(found, cut)
            chosen = _chosen(concepts, section.count)
            one_hot = torch.eye(section.count, dtype=g.dtype, device=g.device)

            def one(concept: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
                arrived = section.down(g, concept)
                return arrived.maps, arrived.others | arrived.kept

            parts, why = many(one, one_hot[chosen], g.device, at_once, progress)
            rest = beside.maps
            left = g - section.seeds(g, one_hot[chosen].sum(0))
            if bool(left.any()):
                rest = rest + section.onward(left).maps
            maps = torch.cat([each for each, _ in parts]).transpose(0, 1)
            kept = {name: torch.cat([each[name] for _, each in parts]).mT for name in parts[0][1]}
            made = ConceptMaps(**vars(whole), concepts=chosen, maps=maps, rest=rest, kept=kept, one_by_one=why)
        finally:
            cut.close()
        self._check(made)
        return made

    def without(self, concepts: int | Iterable[int], x: Any, target: Target = None) -> Ablation:
        """The score with one concept, or several, set to what they are on the reference (zero, where there is none).

        Args:
            concepts: Which.
            x: The input.
            target: What is explained.
        """
        found, cut = cut_pass(self._explainer, x, target)
        try:
            whole, section, _, _ = self._split(found, cut)
            chosen = _chosen(concepts, section.count)
            ablated = section.back(section.written.without(chosen)).contiguous()
            now = section.kept.tensor.detach()
        finally:
            cut.close()
        shape = (len(found), -1, *now.shape[1:]) if len(now) != len(found) else now.shape
        layer = AtLayer(self.model, str(self.layer), found.input)
        asked = target if callable(target) or found.target is None else Checked(found.target, found.against)
        there = layer.values()
        if there.shape != now.shape or not torch.allclose(there, now, rtol=found.tolerance, atol=found.tolerance):
            raise ModelError(
                f"without: of what `{self.layer}` returns it is another tensor that goes on, of shape "
                f"{tuple(now.shape)}. Name a module that returns this one alone."
            )
        if layer.goes_other_ways(asked, len(found)):
            raise ModelError(
                f"without: what is at `{self.layer}` also goes on other ways than from there (a skip that begins "
                "before the module, a dropout that returns what it was given), where it can't be set. Name the module "
                "that made it, or one whose result goes no other way."
            )
        with torch.no_grad():
            ablated_score = score_of(layer(ablated.reshape(shape)), asked, len(found)).value
        own = whole.relevance[:, chosen].sum(1)
        return Ablation(found.score, ablated_score, own, layer, now.reshape(shape), ablated.reshape(shape), asked)

    def _split(self, found: Explanation, cut: Cut) -> tuple[ConceptRelevance, Section, Tensor, Arrived]:
        """What concepts hold, the layer, what gradient comes to it, and what passes beside it."""
        section = cut.section(self.layer, self.basis)
        seen: list[Tensor] = []
        beside = cut.whole({section: seen.append}, stopped=section)
        if not seen:
            raise ModelError(
                f"at: no relevance of this score comes to `{self.layer}`: it is not on the way from the input to it. "
                "Name another module."
            )
        relevance, outside = section.relevance(seen[0])
        inputs = {f"concepts of {self.layer}": relevance.sum(1)}
        if bool((outside != 0).any()):
            inputs["outside the basis"] = outside
        inputs[f"beside {self.layer}"] = beside.maps.double().flatten(1).sum(1)
        inputs |= {f"beside it, at {name}": t for name, t in beside.others.items()}
        before = {name: t for name, t in found.ledger.entries.items() if name == REFERENCE}
        ledger = Ledger(
            found.ledger.score, torch.stack([*inputs.values()]).sum(0), before | beside.kept, {}, False, inputs,
            found.ledger.relative_to, found.ledger.floor,
        )  # fmt: skip
        made = ConceptRelevance(str(self.layer), relevance, section.activations, ledger, found)
        if not bool(relevance.isfinite().all() & outside.isfinite().all()):
            self._unsound(
                f"what concepts of `{self.layer}` hold isn't finite (NaN or infinite): the basis, or its encoder, "
                "makes such numbers of the layer's values, or they overflow their type. Look at the codes, or use "
                "float32."
            )
        elif found.rules.conserving and not bool((ledger.residual <= found.tolerance).all()):
            self._unsound(
                f"the ledger of `{self.layer}` does not close:\n{ledger.table(int(ledger.residual.argmax()))}"
            )
        return made, section, seen[0], beside

    def _check(self, made: ConceptMaps) -> None:
        found = made.explanation
        if not bool((made.residual <= found.tolerance).all()):  # NaN is no agreement
            self._unsound(
                f"the maps of concepts of `{made.at}` and the rest are {float(made.residual.max()):.2g} off the whole "
                "map. Try at_once=1; if that differs, an operation's batched form is wrong: please report it."
            )
        missing = made.difference.abs() / made.ledger.scale[:, None].clamp(min=torch.finfo(torch.float64).tiny)
        if found.rules.conserving and not bool((missing <= found.tolerance).all()):
            worst = made.concepts[int(missing.amax(0).argmax())]
            self._unsound(
                f"the map of concept {worst} of `{made.at}` and what constants kept of it are "
                f"{float(missing.max()):.2g} of the score off its relevance."
            )

    def _unsound(self, message: str) -> None:
        if self._audit == "strict":
            raise BooksError(message)
        if self._audit == "warn":
            warnings.warn(message, AuditWarning, stacklevel=3)


def _several() -> InputError:
    return InputError("reference: concepts are relative to one reference for each sample. Give one, no list.")


def cut_pass(explainer: Explainer, x: Any, target: Target) -> tuple[Explanation, Cut]:
    """The explanation of a score, and the pass that it came of, with its graph."""
    with in_words_of_layers():
        found = explainer.explain(x, target)
    if OTHERS in found.ledger.entries:
        raise ModelError(
            "The samples of this batch see each other, so that one's concepts hold others' scores. Give one at a time."
        )
    run = explainer.run_again(found, target)
    if run.reference_score is not None:
        apart = (run.reference_score.double() - found.ledger.entries[REFERENCE]).abs()
        if bool((apart > found.tolerance * found.ledger.scale).any()):
            raise _several()
    return found, Cut(run, found)


def _chosen(concepts: int | Iterable[int] | None, count: int) -> list[int]:
    """The numbers of concepts, each once."""
    if concepts is None:
        return [*range(count)]
    several = concepts.tolist() if isinstance(concepts, Tensor) else concepts
    given = [*several] if isinstance(several, Iterable) else [several]
    chosen = [index(each) if hasattr(each, "__index__") and not isinstance(each, bool) else each for each in given]
    wrong = [each for each in chosen if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < count]
    if not chosen or wrong:
        raise InputError(f"concepts={chosen}: give numbers from 0 to {count - 1}, at least one.")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"concepts={chosen}: one is named twice, and its relevance would count twice.")
    return chosen


@contextmanager
def in_words_of_layers() -> Iterator[None]:
    """Within, errors about what is kept speak of the layer that was named."""
    try:
        yield
    except InputError as error:
        raise type(error)(str(error).replace("keep:", "at:", 1)) from error
