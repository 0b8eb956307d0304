"""Explaining a model: one forward pass under the engine, one backward pass, and the books."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hilrp import messages
from hilrp.checks import check_input, check_model, tolerance
from hilrp.engine import Engine
from hilrp.errors import AuditError, AuditWarning, BooksError, HilrpError, InputError, ModelError
from hilrp.explanation import Explanation
from hilrp.layout import Layout
from hilrp.ledger import Books, Ledger, Site
from hilrp.rules import Rules
from hilrp.stages import find_stages, first_map, to_map
from hilrp.targets import Contrast, Target, score_of
from hilrp.tree import map_tensors, tensors

Audit = Literal["strict", "warn", "off"]

#: Gradients of single pixels underflow in float16; the backward pass is started with this instead of one.
FLOAT16_SEED = 4096.0


def explain(
    model: nn.Module,
    x: Any,
    target: Target | Contrast = None,
    rules: str | Rules = "hilrp",
    reference: None = None,
    audit: Audit = "strict",
    stages: str | Sequence[str] | None = "auto",
    itemised: bool = False,
) -> Explanation:
    """Decomposes a model's prediction over its input.

    Args:
        model: Any PyTorch vision model, in evaluation mode. It is not changed.
        x: The input ``[B,C,H,W]``, preprocessed as the model expects; a tuple of positional inputs, or a mapping of
            keyword inputs (``{"pixel_values": x}``).
        target: What to explain: ``None`` for the predicted class, a class index, one per sample, a
            `hilrp.targets.Contrast`, or a function of the model's output that returns one scalar per sample.
        rules: A preset's name or a `Rules`.
        reference: Reserved for explanations relative to a reference input; leave it at ``None``.
        audit: ``"strict"`` raises where relevance could be lost, ``"warn"`` warns, ``"off"`` does neither.
        stages: Modules whose outputs get a map: ``"auto"``, a list of module paths, or ``None``.
        itemised: Keep the books per operation, not only in total. Slower.

    Example:
        >>> import torch, hilrp
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 2)).eval()
        >>> explanation = hilrp.explain(model, torch.randn(1, 3, 8, 8), target=1)
        >>> explanation.map.shape, bool(explanation.ledger.residual < 1e-4)
        (torch.Size([1, 8, 8]), True)
    """
    return Explainer(model, rules, reference, audit, stages, itemised).explain(x, target)


class Explainer:
    """A model with a rule set, ready to explain many inputs. See `explain` for the arguments.

    An explainer holds no state between calls and may be used from several threads.

    Example:
        >>> import torch, hilrp
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval()
        >>> hilrp.Explainer(model, rules="epsilon").attribute(torch.randn(2, 3, 2, 2), target=[0, 4]).shape
        torch.Size([2, 3, 2, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        rules: str | Rules = "hilrp",
        reference: None = None,
        audit: Audit = "strict",
        stages: str | Sequence[str] | None = "auto",
        itemised: bool = False,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module.")
        if audit not in ("strict", "warn", "off"):
            raise InputError(f'audit={audit!r}: use "strict", "warn" or "off".')
        if reference is not None:
            raise InputError(
                "reference: explanations relative to a reference input aren't available; leave it at None."
            )
        self.model = unwrap(model)
        self.rules = Rules.named(rules)
        self.audit, self.itemised = audit, itemised
        self.stages = find_stages(self.model, stages)

    def attribute(self, x: Any, target: Target | Contrast = None) -> Any:
        """The relevance alone, in the form of the input: captum's contract."""
        return self.explain(x, target).relevance

    def explain(self, x: Any, target: Target | Contrast = None) -> Explanation:
        """Explains a batch. See `explain`."""
        batch = check_input(x)
        check_model(self.model)
        done = self._pass(x, target, batch, self.itemised, self.stages)
        if done.books.unsplit or self._samples_mixed_up(done.ledger):
            done = replace(done, ledger=self._ledger_by_sample(x, target, done, batch))
            done.engine.notes["books kept in one more pass per sample, since the batch could not be followed"] = batch
        self._check(done, x, target, batch)
        return Explanation(
            relevance=done.relevance,
            input=map_tensors(Tensor.detach, x),
            score=done.score,
            target=done.target,
            output=done.output,
            stages=done.stages,
            trace=done.trace,
            ledger=done.ledger,
            rules=self.rules,
            notes=dict(done.engine.notes),
        )

    # One pass -------------------------------------------------------------------------------------------------

    def _pass(
        self,
        x: Any,
        target: Target | Contrast,
        batch: int,
        itemised: bool,
        stages: Sequence[str] = (),
        inspect: Callable[[Site, Tensor], None] | None = None,
    ) -> _Pass:
        books = Books(batch, itemised)
        maps: dict[str, Tensor] = {}
        sums: dict[str, Tensor] = {}
        image = next((t.shape[2:] for t in tensors(x) if t.ndim == 4), None)

        def capture(path: str, module: nn.Module, output: Any) -> None:
            features = first_map(output) if path in stages else None
            if features is None or features.shape[0] != batch:
                return
            value = features.detach()

            def read(g: Tensor | None) -> None:
                if g is None:
                    return
                relevance = value * (g / books.seed)
                sums[path] = relevance.flatten(1).sum(1).double()
                found = to_map(relevance, image) if image is not None else None
                if found is not None:
                    maps[path] = found

            features.register_hook(read)

        engine = Engine(self.model, self.rules, books, self._problem, capture, inspect=inspect)
        with ExitStack() as stack:
            for context in (torch.inference_mode(False), torch.enable_grad(), *_eager()):
                stack.enter_context(context)
            leaves = map_tensors(_leaf, x)
            inputs = map_tensors(lambda t: engine.tracker.watch(t, Layout(0, 1)) if t.requires_grad else t, leaves)
            with engine:
                output = self._forward(engine, inputs)
                score, classes = score_of(output, target, batch)
                score = engine.tracker.current(score)
            self._check_score(engine, score)
            wanted = [t for t in tensors(leaves) if t.requires_grad]
            books.seed = FLOAT16_SEED if torch.float16 in engine.dtypes else 1.0
            seeds = torch.full_like(score, books.seed)
            gradients = torch.autograd.grad(score, wanted, seeds, allow_unused=True)
        given = {id(t): g / books.seed for t, g in zip(wanted, gradients, strict=True) if g is not None}
        relevance = map_tensors(lambda t: t.detach() * given[id(t)] if id(t) in given else torch.zeros_like(t), leaves)
        per_input = [
            r.double().flatten(1).sum(1)
            for t, r in zip(tensors(leaves), tensors(relevance), strict=True)
            if t.requires_grad
        ]
        score = score.detach()
        ledger = Ledger.close(books, score, sum(per_input[1:], per_input[0]))
        order = [name for name in self.stages if name in sums]
        trace = {"input": ledger.share} | {name: sums[name] / ledger.score for name in order}
        output = map_tensors(lambda t: engine.tracker.current(t).detach(), output)
        engine.tracker.release()
        return _Pass(
            relevance, score, classes, output, {n: maps[n] for n in order if n in maps}, trace, ledger, books, engine
        )

    def _forward(self, engine: Engine, inputs: Any) -> Any:
        try:
            if isinstance(inputs, Mapping):
                return self.model(**inputs)
            return self.model(*inputs) if isinstance(inputs, (tuple, list)) else self.model(inputs)
        except HilrpError:
            raise
        except Exception as error:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors(inputs))
            raise ModelError(
                f"The model raised {type(error).__name__} in {messages.place(engine.path, engine.module)} on an input of shape {shapes}: "
                f"{error}. Check that the input has the shape, type and device that the model expects."
            ) from error

    def _problem(self, error: AuditError) -> None:
        if self.audit == "strict" and self.rules.conserving:
            raise error
        if self.audit == "warn":
            warnings.warn(str(error), AuditWarning, stacklevel=2)

    # Checks ---------------------------------------------------------------------------------------------------

    def _check_score(self, engine: Engine, score: Tensor) -> None:
        if score.requires_grad and engine.tracker.varies(score):
            return
        if engine.tracker.varies(score):
            raise ModelError(
                "The score depends on the input only through gates (softmax, log, statistics), which keep the relevance that reaches "
                "them. Explain what goes into the last of them: the logit instead of its softmax."
            )
        raise ModelError(
            "The score does not depend on the input: the output is constant, or the model computes it without torch, under "
            "torch.no_grad() or behind .detach()."
        )

    def _check(self, done: _Pass, x: Any, target: Target | Contrast, batch: int) -> None:
        """Raises or warns about a result that can't be trusted."""
        ledger = done.ledger
        finite = all(
            bool(t.isfinite().all())
            for t in tensors((done.relevance, done.score, done.output))
            if t.is_floating_point()
        )
        if not finite:
            self._problem_with(self._find_non_finite(x, target, batch))
        elif bool((ledger.score == 0).any()):
            sample = int((ledger.score == 0).nonzero()[0])
            self._problem_with(
                ModelError(
                    f"The score of sample {sample} is zero: there is nothing to decompose. (A classifier whose head is initialised "
                    "with zeros does this: load trained weights, or choose another target.)"
                )
            )
        elif self.rules.conserving and bool((ledger.residual > tolerance(done.engine.dtypes, done.score.device)).any()):
            self._problem_with(self._find_leak(x, target, batch, ledger))

    def _problem_with(self, error: HilrpError) -> None:
        if self.audit == "strict":
            raise error
        if self.audit == "warn":
            warnings.warn(str(error), AuditWarning, stacklevel=4)

    def _samples_mixed_up(self, ledger: Ledger) -> bool:
        """Whether the books close in total but not for each sample: the samples were not told apart."""
        if len(ledger.score) == 1 or not self.rules.conserving:
            return False
        open_ = bool((ledger.residual > 1e-4).any())
        return open_ and bool(ledger.difference.sum().abs() < 0.01 * ledger.difference.abs().sum())

    def _ledger_by_sample(self, x: Any, target: Target | Contrast, done: _Pass, batch: int) -> Ledger:
        """The ledgers of the samples, each explained alone."""
        ledgers = []
        for i in range(batch):
            alone = map_tensors(lambda t, i=i: t[i : i + 1] if t.shape[:1] == (batch,) else t, x)  # type: ignore[misc]
            chosen = target if done.target is None or isinstance(target, Contrast) else done.target[i : i + 1]
            ledgers.append(self._pass(alone, _sample_of(chosen, i), 1, self.itemised).ledger)
        return Ledger(
            score=torch.cat([each.score for each in ledgers]),
            pixels=torch.cat([each.pixels for each in ledgers]),
            entries=_joined([each.entries for each in ledgers]),
            leaks=_joined([each.leaks for each in ledgers]),
            itemised=self.itemised,
        )

    def _find_leak(self, x: Any, target: Target | Contrast, batch: int, ledger: Ledger) -> BooksError:
        sample = int(ledger.residual.nan_to_num(float("inf")).argmax())
        found = self._pass(x, target, batch, itemised=True).ledger
        worst = max(found.leaks, key=lambda name: float(found.leaks[name][sample].abs()), default=None)
        where = f" The largest leak is at `{worst}`: {float(found.leaks[worst][sample]):.4g}." if worst else ""
        gross = float(sum((v[sample].abs() for v in ledger.entries.values()), ledger.pixels[sample].abs()))
        hint = (
            " The score is tiny beside the relevance that flows, so that rounding alone can do this: try float64."
            if gross > 1000 * float(ledger.score[sample].abs())
            else " If it is an operation of your own, correct its rule (hilrp.register)."
        )
        return BooksError(
            f"The books of sample {sample} do not close: of the score {float(ledger.score[sample]):.6g}, "
            f"{float(ledger.difference[sample]):.4g} is unaccounted for (residual {float(ledger.residual[sample]):.2g}).{where}{hint}"
        )

    def _find_non_finite(self, x: Any, target: Target | Contrast, batch: int) -> ModelError:
        for name, parameter in (*self.model.named_parameters(), *self.model.named_buffers()):
            if parameter.is_floating_point() and not bool(parameter.isfinite().all()):
                return ModelError(
                    f"The model's `{name}` holds values that aren't finite (NaN or infinite). Load sound weights."
                )

        def inspect(site: Site, tensor: Tensor) -> None:
            if bool(tensor.isnan().any()):
                raise ModelError(
                    f"A value that isn't finite first appears at `{site}`. Check the scale of the input, or use a wider type (float32, float64)."
                )

        try:
            self._pass(x, target, batch, itemised=True, inspect=inspect)
        except ModelError as error:
            return error
        return ModelError(
            "The relevance isn't finite although every activation is. Use a wider type (float32, float64)."
        )


@dataclass(frozen=True)
class _Pass:
    """What one forward and backward pass gave."""

    relevance: Any
    score: Tensor
    target: Tensor | None
    output: Any
    stages: dict[str, Tensor]
    trace: dict[str, Tensor]
    ledger: Ledger
    books: Books
    engine: Engine


def unwrap(model: nn.Module) -> nn.Module:
    """What is inside DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        inner = model._modules.get("_orig_mod")
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner


def _leaf(t: Tensor) -> Tensor:
    # A clone made here is an ordinary tensor even where the caller's was made in inference mode.
    return t.detach().clone().requires_grad_() if t.is_floating_point() else t.clone()


def _eager() -> list[Any]:
    """Compiled parts of the model run as written. Only asked for where something in this process was compiled."""
    return [torch.compiler.set_stance("force_eager")] if "torch._dynamo.eval_frame" in sys.modules else []


def _sample_of(target: Any, i: int) -> Any:
    if isinstance(target, Contrast):
        return Contrast(_one(target.wanted, i), _one(target.other, i))
    return target


def _one(classes: Any, i: int) -> Any:
    flat = torch.as_tensor(classes).reshape(-1)
    return int(flat[i if flat.numel() > 1 else 0])


def _joined(dicts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    names = dict.fromkeys(name for each in dicts for name in each)
    return {name: torch.cat([each.get(name, torch.zeros(1, dtype=torch.float64)) for each in dicts]) for name in names}
