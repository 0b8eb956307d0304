"""Rule sets: which rule each primitive uses, as one small immutable value.

A rule set belongs to one explanation and never to the process, so that two of them can be in use at
the same time, also from two threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_type_hints

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
        modules: Other rules for some modules: pairs of a key and a rule set, which `Rules.named` makes of a mapping.

    Example:
        >>> Rules(gamma=0.1).linear
        'gamma'
        >>> Rules.named("epsilon").linear
        'epsilon'
        >>> Rules.named({"stem.*": Rules(gamma=0.5), "*": "hilrp"}).gamma
        0.25
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
    modules: tuple[tuple[str | type, Rules], ...] = ()

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
        for key, own in self.modules:
            if own.modules:
                raise InputError(f"rules[{key!r}] has rules for modules of its own. Give each module a key here.")
            if own.constants != self.constants:
                one, other = ("are", "are not") if own.constants == "reference" else ("are not", "are")
                raise InputError(
                    f'rules[{key!r}] {one} relative to a reference, those of "*" {other}: an explanation is one or the '
                    f'other. Give "*" or {key!r} rules of the same kind (`hilrp.Rules(linear=..., constants=...)`).'
                )

    @property
    def conserving(self) -> bool:
        """Whether the books must close under these rules."""
        return all(rules.unlisted == "rule" for rules in (self, *dict(self.modules).values()))

    def relative(self) -> Rules:
        """The same rules relative to a reference, in which constants cancel."""
        own = []
        for key, rules in self.modules:
            try:
                own.append((key, replace(rules, constants="reference")))
            except InputError as error:
                raise InputError(f"rules[{key!r}]: {error}") from None
        return replace(self, constants="reference", modules=tuple(own))

    def described(self) -> dict[str, Any]:
        """The rules in words and numbers, as a file keeps them."""
        found = vars(self) | {"modules": {name_of_key(key): rules.described() for key, rules in self.modules}}
        return found if self.modules else {name: value for name, value in found.items() if name != "modules"}

    @staticmethod
    def named(rules: AnyRules) -> Rules:
        """The preset of that name, or the rules that a mapping gives to modules; a ``Rules`` is returned as it is.

        A key of a mapping is a pattern of module paths (``"blocks.0.*"``; ``*`` stands for anything, dots included) or
        a class of modules. It holds for the modules that it fits and for all that runs inside them. The first key that
        fits counts. ``"*"`` comes last and has the rules of everything else; without it these are the default.
        """
        if isinstance(rules, Rules):
            return rules
        if isinstance(rules, Mapping):
            return _by_module(rules)
        try:
            return PRESETS[rules]
        except (KeyError, TypeError):
            raise InputError(
                f"rules={rules!r} is not a preset. Use one of {', '.join(PRESETS)}, a hilrp.Rules(...), or a mapping "
                "from modules to rules."
            ) from None


#: What ``rules=`` takes: a preset's name, a rule set, or rule sets by module.
AnyRules = str | Rules | Mapping[str | type, str | Rules]


def _by_module(rules: Mapping[str | type, str | Rules]) -> Rules:
    """The rule set that a mapping stands for."""
    keys = list(rules)
    for key in keys:
        if not isinstance(key, (str, type)):
            raise InputError(f"rules: the key {key!r} is neither a pattern of module paths nor a class of modules.")
    if "*" in keys[:-1]:
        raise InputError(
            f'rules: "*" is all that no key before it fits; {keys[keys.index("*") + 1]!r} after it would never be '
            'used. Put "*" last.'
        )
    rest = Rules.named(rules.get("*", DEFAULT_RULES))
    own = []
    for key in keys:
        if key != "*":
            try:
                own.append((key, Rules.named(rules[key])))
            except InputError as error:
                raise InputError(f"rules[{key!r}]: {error}") from None
    if rest.modules:
        raise InputError('rules["*"] has rules for modules of its own. Give each module a key here.')
    if rest.constants == "absorb":
        return replace(rest, modules=tuple(own))
    plain = replace(rest, constants="absorb")
    own = [(key, replace(rules, constants="absorb")) for key, rules in own]
    return replace(plain, modules=tuple(own)).relative()


def name_of_key(key: str | type) -> str:
    """What the key of a module's rules is called: the pattern, or the name of the class."""
    return key if isinstance(key, str) else f"{key.__module__}.{key.__qualname__}"


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
