"""Rule sets: which rule each primitive uses, as one small immutable value.

A rule set belongs to one explanation and never to the process, so that two of them can be in use at
the same time, also from two threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from hilrp.util.errors import InputError

LinearRule = Literal["gamma", "bounded", "epsilon", "zplus", "zplus_weights", "gamma_weights", "gamma_weights_bias"]
AttentionRule = Literal["cp", "uniform", "attnlrp"]
ConstantsPolicy = Literal["absorb", "reference"]
UnlistedPolicy = Literal["rule", "raw"]


@dataclass(frozen=True)
class Rules:
    """The rules of one explanation.

    Attributes:
        gamma: Weight of the favoured contributions in the gamma rules, for linear layers.
        gamma_conv: The same for convolutions; ``None`` means ``gamma``.
        epsilon: Stabiliser of the denominators that can vanish, under every rule on weights and under ``zplus``. The
            sign-aware gamma rule needs none, and the epsilon rule is used in its limit, the native
            backward pass.
        linear: ``"gamma"`` (sign-aware), ``"bounded"`` (the same with a gamma of its own for each unit), ``"epsilon"``,
            ``"zplus"`` (positive contributions, ``w^+ a^+ + w^- a^-`` and positive biases), or one of those on
            positive *weights*: ``"gamma_weights"`` (Eq. (6) as the paper prints it, without the bias),
            ``"zplus_weights"`` (Eqs. (3) and (4) as printed, ``a w^+`` without the bias), and
            ``"gamma_weights_bias"`` (Eq. (6) with the bias as one more contribution).
        bound: Of ``"bounded"``: how many times as much relevance a unit of the first layer may hand out, in size, as it
            gets.
        exact_from: Of ``"bounded"``: the depth, from 0 to 1, from which on units may hand out whatever they do without
            a gamma. In between the bound grows.
        attention: Without a reference, what a product of two input-dependent factors does: ``"cp"`` sends all relevance
            through the signal, ``"uniform"`` splits it evenly, ``"attnlrp"`` splits it evenly and
            carries the gate's part on through the softmax by its Taylor expansion.
        constants: What happens to the relevance of biases and other constants: ``"absorb"`` leaves it
            with them; ``"reference"`` explains the difference to a reference input, in which they cancel.
        unlisted: ``"raw"`` runs every operation that AttnLRP has no rule for on its raw gradient: the
            degenerate baseline of the paper's conservation table. Such a rule set doesn't conserve.

    Example:
        >>> Rules(gamma=0.1).linear
        'gamma'
        >>> Rules.named("epsilon").linear
        'epsilon'
    """

    gamma: float = 0.25
    gamma_conv: float | None = None
    epsilon: float = 1e-6
    linear: LinearRule = "gamma"
    bound: float = 1.2
    exact_from: float = 0.5
    attention: AttentionRule = "cp"
    constants: ConstantsPolicy = "absorb"
    unlisted: UnlistedPolicy = "rule"

    def __post_init__(self) -> None:
        hints = get_type_hints(Rules)
        for name in ("linear", "attention", "constants", "unlisted"):
            allowed = get_args(hints[name])
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"Rules({name}={getattr(self, name)!r}) is not a known rule. Use one of: "
                    f"{', '.join(map(repr, allowed))}."
                )
        for name in ("gamma", "gamma_conv", "epsilon", "bound", "exact_from"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"Rules({name}={getattr(self, name)!r}) is no number.")
        for name in ("gamma", "gamma_conv", "epsilon"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(f"Rules({name}={value!r}) must be a finite number that isn't negative.")

        if self.constants == "reference" and (
            self.unlisted == "raw" or self.linear not in ("gamma", "bounded", "epsilon")
        ):
            raise InputError(
                f"Rules(linear={self.linear!r}, unlisted={self.unlisted!r}) has no form relative to a reference. Use "
                'linear="gamma", "bounded" or "epsilon", and unlisted="rule".'
            )

        if not 1 < self.bound < float("inf"):
            raise InputError(f"Rules(bound={self.bound!r}) must be a finite number above one.")
        if not self.exact_from >= 0:
            raise InputError(f"Rules(exact_from={self.exact_from!r}) must be a number that isn't negative.")

    @property
    def conserving(self) -> bool:
        """Whether the books must close under these rules."""
        return self.unlisted == "rule"

    @staticmethod
    def named(rules: str | Rules) -> Rules:
        """The preset of that name; a ``Rules`` is returned as it is."""
        if isinstance(rules, Rules):
            return rules
        try:
            return PRESETS[rules]
        except (KeyError, TypeError):
            raise InputError(
                f"rules={rules!r} is not a preset. Use one of {', '.join(PRESETS)}, or a hilrp.Rules(...)."
            ) from None


PRESETS: dict[str, Rules] = {
    # The paper: gamma 0.25 and conservation-preserving attention.
    "hilrp": Rules(),
    # The paper's setting for deep convolutional hybrids (EfficientViT).
    "hilrp-conv": Rules(gamma_conv=0.05),
    # AttnLRP with the vision setting of its authors: a small gamma on linear layers, a larger one on the stem.
    "attnlrp": Rules(gamma=0.05, gamma_conv=0.25, attention="attnlrp"),
    # Relative to a reference, in which constants cancel; a gamma for each unit.
    "secant": Rules(linear="bounded", constants="reference"),
    "epsilon": Rules(linear="epsilon"),
    "zplus": Rules(linear="zplus"),
    "naive": Rules(gamma=0.05, gamma_conv=0.25, attention="attnlrp", unlisted="raw"),
}
#: The preset that is used where none is named.
DEFAULT_RULES = "secant"
#: What to say where something fails only since there is a reference, for which nobody may have asked.
REFERENCE_IS_DEFAULT = (
    "By default the score is explained relative to a reference, on which the model runs as well; "
    'rules="hilrp" explains it without one'
)
