"""Which operation has which form relative to a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hilrp.method import bilinear, normalisation, reindexing
from hilrp.method.call import Call
from hilrp.method.secant.affine import affine, detach, unbooked, unpool
from hilrp.method.secant.attention import attention, log_sum, softmax
from hilrp.method.secant.elementwise import divide, elementwise
from hilrp.method.secant.positions import deformable, pooled_regions, sample
from hilrp.method.secant.products import layer, mix, norm, product, root
from hilrp.method.secant.selections import choose, extreme, ordered, pool, quantile
from hilrp.method.secant.shares import no_form

Rule = Callable[[Call], Any]


def rule_for(name: str, rule: Rule, users: bool = False) -> Rule:
    """The secant form of an operation, by its name or by its rule without a reference.

    Of a user's, by the rule alone.
    """
    found = _USERS.get(rule) if users else _BY_NAME.get(name)
    found = found or _BY_RULE.get(rule)
    if found is None:
        raise no_form(name)
    return found


#: A user's gate keeps what reaches it, on the reference, too.
_USERS: dict[Rule, Rule] = {normalisation.stop: normalisation.stop}
_BY_RULE: dict[Rule, Rule] = {
    bilinear.layer: layer, bilinear.mix: mix, bilinear.multiply: product, bilinear.attention: attention, bilinear.softmax: softmax,
    bilinear.sample: sample, bilinear.deformable: deformable, bilinear.pooled_regions: pooled_regions,
    reindexing.native: affine, reindexing.add: affine, reindexing.affine: affine, reindexing.detach: detach,
    normalisation.activation: elementwise, normalisation.offset_activation: elementwise, normalisation.stop: elementwise,
    normalisation.power: elementwise, normalisation.divide: divide, normalisation.variance: product, normalisation.select: extreme, normalisation.norm: norm,
    reindexing.unpool: unpool,
} | {rule: unbooked(rule) for rule in (reindexing.average_pool, normalisation.batch_norm, normalisation.layer_norm, normalisation.rms_norm,
                                       normalisation.group_norm, normalisation.instance_norm)}  # fmt: skip
_BY_NAME: dict[str, Rule] = (
    dict.fromkeys("relu abs leaky_relu prelu rrelu hypot".split(), elementwise)
    | dict.fromkeys("amax amin".split(), extreme)
    | dict.fromkeys("median kthvalue topk sort".split(), ordered)
    | dict.fromkeys(
        (
            f"{kind}max_pool{n}d{ending}"
            for kind in ("", "adaptive_")
            for n in "123"
            for ending in ("", "_with_indices")
        ),
        pool,
    )
    | dict.fromkeys("where masked_fill".split(), choose)
    | {"square": product, "std": root, "quantile": quantile, "log_softmax": log_sum, "logsumexp": log_sum}
)
