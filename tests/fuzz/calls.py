"""Samples of operations, checked by themselves and beside the plain call of the same operation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import torch

from fuzz.checks import (
    RELATIVE,
    Case,
    Finding,
    Plain,
    check,
    check_reference,
    check_same,
    check_shared,
    gradient_times_input,
    ill_conditioned,
    references,
    run,
)
from fuzz.operations import HOMOGENEOUS, Choice, Unfit, model_of, table_name
from hilrp.util.nested import tensors


def check_choice(choice: Choice, seed: int = 0) -> list[Finding] | str:
    """What is wrong with the explanations of a call, or why it is none that can be explained in floating point."""
    try:
        case = model_of(choice)
    except Unfit as unfit:
        return str(unfit)
    rng = Random(seed)
    reason = Plain(case).reason() or ("ill-conditioned" if ill_conditioned(case) else None)
    if reason is not None:
        return reason
    rules = rng.choice(["hilrp", "epsilon"])
    findings, found = check(case, rules)
    if found is not None:
        found_itemised, itemised = check(case, rules, itemised=True)
        findings += found_itemised
        if itemised is not None:
            findings += check_same("itemised and totals", found.relevance, itemised.relevance, found.score)
        findings += _beside(choice, case, found, rules)
        if rules == "epsilon" and choice.carrier == "first" and table_name(choice.operation) in HOMOGENEOUS:
            expected = gradient_times_input(case) if "in place" not in choice.form else None
            if expected is not None:
                findings += check_same("gradient x input", found.relevance, expected, found.score)
    return findings + _relative(case, rng, seed)


def _beside(choice: Choice, case: Case, found, rules: str) -> list[Finding]:
    """The plain call of the same operation, and each sample alone."""
    findings = []
    if choice.form in ("method", "in place", "out=") or choice.layout != "as it is":
        form = choice.form if choice.form == "in place through a view" else "function"
        try:
            plain = model_of(replace(choice, form=form, layout="as it is"))
        except Unfit:
            plain = None
        if plain is not None and torch.allclose(run(plain.model, plain.x), run(case.model, case.x)):
            _, explained = check(plain, rules)
            if explained is not None:
                findings += check_same(f"form ({rules})", found.relevance, explained.relevance, found.score)
    for i in range(len(found.score) if len(found.score) > 1 else 0):
        if choice.batch == "along":
            break  # operands of one sample need not fit the others
        others, explained = check(case.sample(i), rules)
        findings += [Finding(f"{each.kind}, alone", each.detail) for each in others]
        if explained is not None:
            own = [t[i : i + 1] for t in tensors(found.relevance)]
            findings += check_same(f"batched and alone ({rules})", own, explained.relevance, explained.score)
    return findings


def _relative(case: Case, rng: Random, seed: int) -> list[Finding]:
    name = rng.choice(list(RELATIVE))
    kind, reference = rng.choice(list(references(case.x, torch.Generator().manual_seed(seed)).items()))
    try:
        with torch.no_grad():
            before = run(case.model, reference)
    except (RuntimeError, ValueError):  # a domain that torch checks
        return []
    if not bool(before.isfinite().all()) or float(before.abs().max()) > 1e6 or ill_conditioned(case, None, reference):
        return []
    findings, found = check_reference(case, name, reference)
    findings = [Finding(each.kind, f"[{kind}] {each.detail}") for each in findings]
    return findings + (check_shared(case, name, kind, reference) if found is not None and len(found) > 1 else [])
