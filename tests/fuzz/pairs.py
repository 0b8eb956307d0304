"""Programs checked in pairs.

In place and out of place, batched and alone, itemised and in total, plain and with a dead branch, relative to one
reference for all samples and to the same for each, along a chain and step by step.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import torch

import hilrp
from fuzz.checks import (
    RELATIVE,
    Case,
    Finding,
    Plain,
    check,
    check_prediction,
    check_reference,
    check_same,
    check_shared,
    digits_lost,
    explain,
    gradient_times_input,
    ill_conditioned,
    references,
    run,
)
from fuzz.drawing import smaller, with_dead_branch
from fuzz.programs import Model, Program
from hilrp.attribution.explanation import Explanation


def check_program(program: Program) -> list[Finding] | str:
    """What is wrong with the explanations of a program, or why it is none that can be explained in floating point."""
    x, rng = program.input(), Random(program.seed + 3)
    model = Model(program).eval()
    try:
        with torch.no_grad():
            classes = run(model, x).argmax(1)
    except (RuntimeError, ValueError) as error:
        return f"torch refuses it: {str(error)[:60]}"
    case = Case(model, x, classes, chooses=program.chooses)
    twin = case.of(Model(program, in_place=False).eval())
    plain = Plain(case)
    reason = plain.reason() or ("ill-conditioned" if ill_conditioned(twin) else None)
    if reason is not None:
        return reason
    with torch.no_grad():
        other = run(twin.model, x)
    assert torch.allclose(other, plain.output, rtol=1e-9, atol=1e-11), (
        f"the twins of program {program.seed} differ:\n{program}"
    )

    rules = rng.choice(["hilrp", "epsilon"])
    findings, found = check(case, rules)
    findings += check_prediction(case, rules)
    if found is not None:
        found_itemised, itemised = check(case, rules, itemised=True)
        findings += found_itemised
        if itemised is not None:
            findings += check_same("itemised and totals", found.relevance, itemised.relevance, found.score)
        found_twin, functional = check(twin, rules)
        findings += [Finding(f"{each.kind}, out of place", each.detail) for each in found_twin]
        if functional is not None:
            findings += check_same(
                f"in place and out of place ({rules})", found.relevance, functional.relevance, found.score
            )
        findings += _beside(program, case, found.relevance, rules)
        if rules == "epsilon" and program.homogeneous:
            expected = gradient_times_input(twin)
            # By Euler's theorem it sums to the score; torch's own gradient of a batch norm of one sample does not.
            if expected is not None and sums_to(expected, found.score):
                findings += check_same("gradient x input", found.relevance, expected, found.score)
    return findings + _relative(program, case, twin, rng)


def _beside(program: Program, case: Case, relevance: torch.Tensor, rules: str) -> list[Finding]:
    """The same with a dead branch, and each sample alone."""
    findings = []
    dead = case.of(Model(with_dead_branch(program)).eval())
    found, explained = check(dead, rules)
    findings += [Finding(f"{each.kind}, dead branch", each.detail) for each in found]
    if explained is not None:
        findings += check_same(f"dead branch ({rules})", relevance, explained.relevance, explained.score)
    if program.batch == 1 or not _takes_one(case):
        return findings
    for i in range(program.batch):
        found, explained = check(case.sample(i), rules)
        findings += [Finding(f"{each.kind}, alone", each.detail) for each in found]
        if explained is not None:
            findings += check_same(
                f"batched and alone ({rules})", relevance[i : i + 1], explained.relevance, explained.score
            )
    return findings


def sums_to(relevance: list[torch.Tensor], score: torch.Tensor) -> bool:
    """Whether each sample's relevance sums to its score."""
    total = torch.stack([t.flatten(1).sum(1) for t in relevance]).sum(0)
    return bool(((total - score).abs() <= 1e-6 * score.abs().clamp(min=1e-6)).all())


def _takes_one(case: Case) -> bool:
    """Whether the plain model runs on one sample: torch refuses norms of a single value."""
    one = case.sample(0)
    try:
        with torch.no_grad():
            run(one.model, one.x)
    except ValueError:
        return False
    return True


def _relative(program: Program, case: Case, twin: Case, rng: Random) -> list[Finding]:
    """The sum rule, and the twins relative to a reference."""
    name = rng.choice(list(RELATIVE))
    kind, reference = rng.choice(list(references(case.x, torch.Generator().manual_seed(program.seed)).items()))
    with torch.no_grad():
        if not bool(run(case.model, reference).isfinite().all()) or ill_conditioned(case, twin, reference):
            return []
    lost = digits_lost(case, reference)
    findings, found = check_reference(case, name, reference)
    findings = [Finding(each.kind, f"[{kind}] {each.detail}") for each in findings]
    if found is None:
        return findings
    others, functional = check_reference(twin, name, reference)
    findings += [Finding(f"{each.kind}, out of place", f"[{kind}] {each.detail}") for each in others]
    if functional is not None:
        findings += check_same(
            f"in place and out of place ({name}, {kind})", found.relevance, functional.relevance, found.score, lost
        )
    dead = case.of(Model(with_dead_branch(program)).eval())
    others, beside = check_reference(dead, name, reference)
    findings += [Finding(f"{each.kind}, dead branch", f"[{kind}] {each.detail}") for each in others]
    if beside is not None:
        findings += check_same(f"dead branch ({name}, {kind})", found.relevance, beside.relevance, found.score, lost)
    if program.batch > 1 and _takes_one(case):
        others, alone = check_reference(case.sample(program.batch - 1), name, reference[-1:])
        findings += [Finding(f"{each.kind}, alone", f"[{kind}] {each.detail}") for each in others]
        if alone is not None:
            findings += check_same(
                f"batched and alone ({name}, {kind})", found.relevance[-1:], alone.relevance, alone.score, lost
            )
    findings += _along_a_chain(case, twin, name, kind, reference, rng)
    return findings + (check_shared(case, name, kind, reference, twin) if program.batch > 1 else [])


def _along_a_chain(case: Case, twin: Case, name: str, kind: str, reference: torch.Tensor, rng: Random) -> list[Finding]:
    """Steps of a chain, of which each is handed what the one before has computed, and each step by itself."""
    generator = torch.Generator().manual_seed(rng.randrange(2**32))
    mixed = torch.where(torch.rand(case.x.shape, generator=generator) < 0.5, case.x, reference)
    between = torch.empty_like(case.x).copy_(mixed)  # in memory as the input is
    states = [reference, between, case.x]
    pairs = list(pairwise(states))
    with torch.no_grad():
        if not bool(run(case.model, between).isfinite().all()):
            return []
    if any(ill_conditioned(case.at(state), twin, before) for before, state in pairs):
        return []
    alone = [explain(case.at(state), RELATIVE[name], before) for before, state in pairs]
    if any(not isinstance(each, Explanation) for each in alone):
        return []  # found by the other checks, or a right answer
    try:
        explainer = hilrp.Explainer(case.model, RELATIVE[name], 0.0, stages=None)
        steps = explainer.explain_chain([state.clone() for state in states], case.target)
    except hilrp.HilrpError as error:
        return [Finding("refusal, chain", f"[{kind}] {type(error).__name__}: {error}")]
    findings = []
    for (before, state), one, other in zip(pairs, alone, steps, strict=True):
        lost = digits_lost(case.at(state), before)
        findings += check_same(f"a chain ({name}, {kind})", one.relevance, other.relevance, one.score, lost)
        findings += check_same(f"scores of a chain ({name}, {kind})", one.score, other.score)
    return findings


def shrunk(program: Program, kind: str) -> Program:
    """The smallest program to be had by leaving things out that still has a finding of the kind."""
    while True:
        for each in smaller(program):
            try:
                found = check_program(each)
            except (AssertionError, RuntimeError, ValueError):  # no program any more
                continue
            if not isinstance(found, str) and any(finding.kind == kind for finding in found):
                program = each
                break
        else:
            return program
