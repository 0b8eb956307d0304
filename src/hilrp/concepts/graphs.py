"""Which concepts of a lower layer carry one of a higher: a graph of concepts, whose every step adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.explainer import Explainer
from hilrp.attribution.explanation import Explanation
from hilrp.concepts import basis as bases
from hilrp.concepts.asking import cut_pass, in_words_of_layers
from hilrp.concepts.cut import Progress, Section, many
from hilrp.concepts.layer import Layer
from hilrp.method.rules import DEFAULT_RULES, AnyRules
from hilrp.targets import Target
from hilrp.util.errors import BooksError, InputError, ModelError


@dataclass(frozen=True)
class Step:
    """What carries concepts of a layer at the next lower one.

    ``relevance = edges.sum(2) + outside + beside + kept``.

    Attributes:
        upper: The higher layer.
        lower: The lower layer.
        concepts: Which concepts of the higher layer these are.
        relevance: What each holds, ``[B,concepts]``.
        edges: What of it each concept of the lower layer carries, ``[B,concepts,K]``.
        outside: What of it the lower layer's basis does not hold, ``[B,concepts]``.
        beside: What of it passes beside the lower layer and arrives at the input.
        kept: What constants between the two layers keep of it, by kind.
    """

    upper: str
    lower: str
    concepts: list[int]
    relevance: Tensor
    edges: Tensor
    outside: Tensor
    beside: Tensor
    kept: dict[str, Tensor] = field(default_factory=dict)

    @property
    def difference(self) -> Tensor:
        """What of each concept's relevance is nowhere: rounding."""
        told = self.edges.sum(2) + self.outside + self.beside
        return self.relevance - sum(self.kept.values(), told)


@dataclass(frozen=True, repr=False)
class ConceptGraph:
    """Concepts of several layers, from the highest to the lowest, and what carries them.

    Attributes:
        layers: The layers, from the highest.
        relevance: Layer -> the relevance of each of its concepts, ``[B,K]``.
        concepts: Layer -> those that are in the graph: the strongest of the batch.
        steps: From each layer to the next lower.
        explanation: The explanation of the score.
    """

    layers: list[str]
    relevance: dict[str, Tensor]
    concepts: dict[str, list[int]]
    steps: list[Step]
    explanation: Explanation

    def table(self, sample: int = 0) -> str:
        """The graph of one sample as text: each concept, with what carries it."""
        lines = []
        for step in self.steps:
            lower = self.concepts[step.lower]
            for i, concept in enumerate(step.concepts):
                own = step.edges[sample, i]
                order = sorted(lower, key=lambda k: -abs(float(own[k])))
                others = float(own.sum() - own[lower].sum())
                kept = sum(float(t[sample, i]) for t in step.kept.values())
                lines.append(f"{step.upper} {concept}  {float(step.relevance[sample, i]):.4g}")
                lines += [f"    {step.lower} {k:<5d} {float(own[k]):>10.4g}" for k in order]
                rest = {"other concepts": others, "outside the basis": float(step.outside[sample, i])}
                rest |= {f"beside {step.lower}": float(step.beside[sample, i]), "constants": kept}
                lines += [f"    {name:<18} {value:>10.4g}" for name, value in rest.items() if value]
        return "\n".join(lines)

    def dot(self, sample: int = 0) -> str:
        """The graph of one sample in the language of Graphviz; an edge is as wide as what it carries."""
        lines = ["digraph concepts {", "  rankdir=BT;", "  node [shape=box];"]
        for at in self.layers:
            for k in self.concepts[at]:
                lines.append(f'  "{at} {k}" [label="{at} {k}\\n{float(self.relevance[at][sample, k]):.3g}"];')
        for step in self.steps:
            whole = float(step.edges[sample].abs().max()) or 1.0
            for i, concept in enumerate(step.concepts):
                for k in self.concepts[step.lower]:
                    value = float(step.edges[sample, i, k])
                    colour = "#b2182b" if value > 0 else "#2166ac"
                    lines.append(
                        f'  "{step.lower} {k}" -> "{step.upper} {concept}" [label="{value:.2g}", color="{colour}", '
                        f"penwidth={0.3 + 4 * abs(value) / whole:.2f}];"
                    )
        return "\n".join([*lines, "}"])

    def __repr__(self) -> str:
        sizes = ", ".join(f"{at}: {len(self.concepts[at])} of {self.relevance[at].shape[1]}" for at in self.layers)
        return f"ConceptGraph({sizes})"


def graph(
    model: nn.Module,
    at: Sequence[str],
    x: Any,
    target: Target = None,
    count: int = 5,
    basis: Any = None,
    rules: AnyRules = DEFAULT_RULES,
    reference: Any = None,
    axis: int | None = None,
    at_once: int | None = None,
    progress: Progress | None = None,
) -> ConceptGraph:
    """Says which concepts of lower layers carry the strongest ones of higher layers.

    Args:
        model: The model.
        at: Two layers or more, from the highest: see `Concepts`.
        x: The input.
        target: What is explained.
        count: How many concepts of each layer are in the graph.
        basis: What concepts are, in all layers, or by layer.
        rules: The rules.
        reference: What relevance is relative to.
        axis: Where the channels are, where the layers' shapes do not tell.
        at_once: How many backward passes run at once.
        progress: Called with how many concepts of a layer are done, and how many there are.

    Example:
        >>> layers = [nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)]
        >>> found = graph(nn.Sequential(*layers).eval(), ["4", "2"], torch.randn(1, 3, 2, 2), target=1, count=2)
        >>> found, bool(found.steps[0].difference.abs().max() < 1e-6)
        (ConceptGraph(4: 2 of 4, 2: 2 of 6), True)
    """
    if isinstance(at, str) or len(at) < 2:
        raise InputError(f'at={at!r}: give two layers or more, from the highest: ["layer4", "layer3"].')
    if count < 1:
        raise InputError(f"count={count}: give one concept or more.")
    layers = [Layer.named(each, axis) for each in at]
    if len(set(layers)) < len(layers):
        raise InputError(f"at={list(at)}: a layer is named twice.")
    missing = [each for each in at if each not in basis] if isinstance(basis, Mapping) else []
    if missing:
        raise InputError(f"basis: there is none for {missing}. Give one for each layer; None for channels.")
    with in_words_of_layers():
        explainer = Explainer(model, rules, reference, stages=None, keep=[*dict.fromkeys(each.keep for each in layers)])
    found, cut = cut_pass(explainer, x, target)
    try:
        sections = [
            cut.section(layer, bases.named(basis[name] if isinstance(basis, Mapping) else basis))
            for name, layer in zip(at, layers, strict=True)
        ]
        arrived: dict[Section, Tensor] = {}
        cut.whole({section: partial(arrived.__setitem__, section) for section in sections}, None)
        for name, section in zip(at, sections, strict=True):
            if section not in arrived:
                raise ModelError(f"at: no relevance of this score comes to `{name}`. Name another module.")
        relevance = {name: s.relevance(arrived[s])[0] for name, s in zip(at, sections, strict=True)}
        chosen = {
            name: own.abs().sum(0).argsort(descending=True, stable=True)[:count].tolist()
            for name, own in relevance.items()
        }
        steps = []
        for i, (upper, lower) in enumerate(pairwise(sections)):
            concepts = chosen[at[i]]
            one_hot = torch.eye(upper.count, dtype=upper.kept.tensor.dtype, device=upper.kept.tensor.device)[concepts]
            steps.append(
                _step(upper, lower, arrived[upper], one_hot, concepts, relevance[at[i]][:, concepts], at_once, progress)
            )
    finally:
        cut.close()
    made = ConceptGraph(list(at), relevance, chosen, steps, found)
    if found.rules.conserving:
        for step in made.steps:
            if not bool((step.difference.abs() <= found.tolerance * found.ledger.scale[:, None]).all()):
                raise BooksError(
                    f"the step from `{step.upper}` to `{step.lower}` does not add up: "
                    f"{float(step.difference.abs().max()):.3g} of relevance is nowhere."
                )
    return made


def _step(
    upper: Section,
    lower: Section,
    g: Tensor,
    one_hot: Tensor,
    concepts: list[int],
    relevance: Tensor,
    at_once: int | None,
    progress: Progress | None,
) -> Step:
    """What carries some concepts of a layer at a lower one."""

    def one(concept: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        seen: list[Tensor] = []
        with upper.cut.stopped_at(lower, seen.append):
            arrived = upper.down(g, concept)
        if not seen:
            raise InputError(
                f"at: `{lower.layer}` does not come before `{upper.layer}`: nothing of it goes there. Name the layers "
                "from the highest to the lowest."
            )
        own, outside = lower.relevance(seen[0])
        beside = sum(arrived.others.values(), arrived.maps.double().flatten(1).sum(1))
        return own, outside, beside, arrived.kept

    parts, _ = many(one, one_hot, g.device, at_once, progress)
    own, outside, beside = (torch.cat([part[i] for part in parts]).transpose(0, 1) for i in range(3))
    kept = {name: torch.cat([part[3][name] for part in parts]).mT for name in parts[0][3]}
    return Step(str(upper.layer), str(lower.layer), concepts, relevance, own, outside, beside, kept)
