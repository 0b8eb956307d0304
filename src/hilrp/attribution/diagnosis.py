"""Why a result can't be trusted: which operation loses relevance, and where numbers stop being finite."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from hilrp.attribution.forward_backward import Pass
from hilrp.attribution.single_samples import of_sample
from hilrp.method.ledger import Ledger, Site
from hilrp.method.rules import REFERENCE_IS_DEFAULT
from hilrp.util.errors import BooksError, HilrpError, ModelError

#: A leak is blamed for what is missing if it is at least this part of it.
_BLAMED = 0.1


def leak(run: Pass, ledger: Ledger) -> HilrpError:
    """What to say of a ledger that does not close.

    Args:
        run: The same pass once more, with an itemised ledger of one sample.
        ledger: The ledger of all samples.
    """
    if bool(ledger.score.isfinite().all()) and not bool(ledger.explained.isfinite().all()):
        run.close()
        return _reference_not_finite()
    sample = int(ledger.leak.nan_to_num(float("inf")).argmax())
    _, found = of_sample(run, sample)
    run.close()
    missing = float(ledger.difference[sample])
    worst = max(found.leaks, key=lambda name: float(found.leaks[name].abs()), default=None)
    largest = 0.0 if worst is None else float(found.leaks[worst])
    gross = float(sum((v[sample].abs() for v in ledger.entries.values()), ledger.pixels[sample].abs()))
    # Leaks of single operations sum to what is missing, unless it went where no operation was seen.
    if abs(largest) >= _BLAMED * max(abs(missing), float(found.difference.abs())):
        reason = (
            f" The largest leak is at `{worst}`: {largest:.4g}. If it is an operation of your own, correct its rule "
            "(hilrp.register); if it is one of torch's, please report it."
        )
    else:
        reason = (
            " No operation that hilrp saw leaks as much: relevance was lost or made where it doesn't look (a hook on "
            "a tensor that changes gradients, code that hides from it). hilrp.audit(model, x) lists what it saw."
        )
    if gross > 1000 * float(ledger.score[sample].abs()):
        reason = " The score is tiny beside the relevance that flows, so that rounding alone can do this: try float64."
    return BooksError(
        f"The books of sample {sample} do not close: of the score {float(ledger.score[sample]):.6g}, {missing:.4g} is "
        f"unaccounted for (residual {float(ledger.residual[sample]):.2g}, leak {float(ledger.leak[sample]):.2g})."
        f"{reason}"
    )


def non_finite(model: nn.Module, run: Callable[[Callable[[Site, Tensor], None]], Pass]) -> ModelError:
    """What to say of a result that isn't finite.

    Args:
        model: The model.
        run: Runs the same pass once more, and shows each operation's output to what it is given.
    """
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if parameter.is_floating_point() and not bool(parameter.isfinite().all()):
            return ModelError(
                f"The model's `{name}` holds values that aren't finite (NaN or infinite). Load sound weights."
            )

    def inspect(site: Site, tensor: Tensor) -> None:
        if bool(tensor.isnan().any()):
            raise ModelError(
                f"NaN first appears at `{site}`. Check the scale of the input, or use a wider type (float32, float64)."
            )

    try:
        found = run(inspect)
    except ModelError as error:
        return error
    before = found.reference_score
    if before is not None and bool(found.score.isfinite().all()) and not bool(before.isfinite().all()):
        return _reference_not_finite()
    hint = "" if before is None else f" {REFERENCE_IS_DEFAULT}."
    return ModelError(
        "The output or the relevance overflows, although no activation is NaN. Use a wider type (float32, float64)."
        f"{hint}"
    )


def _reference_not_finite() -> ModelError:
    return ModelError(
        "The score on the reference isn't finite (NaN or infinite), though that of the input is. "
        f"{REFERENCE_IS_DEFAULT}. Or give another reference=."
    )
