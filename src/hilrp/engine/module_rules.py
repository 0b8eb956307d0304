"""Which rules hold where, if modules have rules of their own."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

from hilrp.method.rules import Rules, name_of_key
from hilrp.util.errors import InputError


class ModuleRules:
    """The rules at each module of a model.

    A module is known by one path, the first that leads to it.

    Args:
        model: The model.
        rules: The rule set, with those of modules.
        used: Where to enter the keys under which an operation runs.
    """

    def __init__(self, model: nn.Module, rules: Rules, used: set[str | type] | None = None) -> None:
        self._rules, self._used = rules, set() if used is None else used
        self._modules = dict(model.named_modules()) if rules.modules else {}
        self._found: dict[str, tuple[str | type, Rules]] = {}

    def at(self, path: str) -> Rules:
        """The rules of an operation in the module of that path: the first whose key fits it, or a module around it."""
        if path not in self._found:
            names = path.split(".") if path else []
            around = {".".join(names[:count]) for count in range(len(names) + 1)}
            fitting = (each for each in self._rules.modules if any(self._fits(each[0], module) for module in around))
            self._found[path] = next(fitting, ("*", self._rules))
        key, found = self._found[path]
        self._used.add(key)
        return found

    @property
    def unused(self) -> list[str]:
        """The keys under which no operation has run."""
        return [name_of_key(key) for key, _ in self._rules.modules if key not in self._used]

    def check(self) -> None:
        """Raises where a key fits no module."""
        for key, _ in self._rules.modules:
            if any(self._fits(key, path) for path in self._modules):
                continue
            if isinstance(key, str):
                some = ", ".join(repr(path) for path in list(self._modules)[1:6])
                raise InputError(
                    f"rules: {key!r} fits no module of the model. Its modules are {some}, ... "
                    "(model.named_modules() lists them; one that is in two places has the first name)."
                )
            raise InputError(f"rules: the model has no module of the class {name_of_key(key)}.")

    def _fits(self, key: str | type, path: str) -> bool:
        return fnmatchcase(path, key) if isinstance(key, str) else isinstance(self._modules.get(path), key)
