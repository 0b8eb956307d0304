"""Rules relative to a reference: every operation's exact secant form.

The model runs on the input and, beside it, on a reference. With ``D`` for the difference of a tensor's two values and
relevance ``g * D``, biases and all other constants cancel: a rule has only to pass on ``g * D y`` to the operands, so
that in the end the pixels hold ``f(x) - f(x0)``. Linear maps do so as they are; the gamma rule is applied to the
contributions ``w D a``; everything else has a closed form, in which nothing is held fixed.
"""

from hilrp.method.secant import affine, attention, elementwise, positions, products, selections
from hilrp.method.table import FORMS

#: Their names are those of the column ``secant`` of the table.
_FORMS = [
    affine.affine, affine.unpool, affine.detach,
    products.layer, products.mix, products.product, products.root, products.norm,
    attention.attention, attention.softmax, attention.log_sum,
    elementwise.elementwise, elementwise.divide, elementwise.normalise,
    positions.sample, positions.deformable, positions.pooled_regions,
    selections.pool, selections.extreme, selections.ordered, selections.quantile, selections.choose,
]  # fmt: skip
FORMS |= {form.__name__: form for form in _FORMS}
