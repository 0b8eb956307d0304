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
        ran_in: Where to enter the paths of modules in which an operation runs.
    """

    def __init__(self, model: nn.Module, rules: Rules, ran_in: set[str] | None = None) -> None:
        self._rules, self._ran_in = rules, set() if ran_in is None else ran_in
        self._modules = dict(model.named_modules()) if rules.modules else {}
        self._found: dict[str, tuple[str | type, Rules]] = {}

    def at(self, path: str) -> Rules:
        """The rules of an operation in the module of that path: the first whose key fits it, or a module around it."""
        self._ran_in.add(path)
        return self._of(path)[1]

    def _of(self, path: str) -> tuple[str | type, Rules]:
        if path not in self._found:
            names = path.split(".") if path else []
            around = {".".join(names[:count]) for count in range(len(names) + 1)}
            fitting = (each for each in self._rules.modules if any(self._fits(each[0], module) for module in around))
            self._found[path] = next(fitting, ("*", self._rules))
        return self._found[path]

    @property
    def unused(self) -> list[str]:
        """The keys under which no operation has run."""
        used = {self._of(path)[0] for path in self._ran_in}
        return [name_of_key(key) for key, _ in self._rules.modules if key not in used]

    @property
    def left_out(self) -> dict[str, list[str]]:
        """Of the other keys the modules with weights in which no operation ran, though one ran around them."""
        found: dict[str, list[str]] = {}
        unused = self.unused
        for path, module in self._modules.items():
            key, around = self._of(path)[0], path.rpartition(".")[0]
            ran = path in self._ran_in or around not in self._ran_in or self._of(around)[0] == key
            name = name_of_key(key)
            if path and key != "*" and name not in unused and not ran and any(True for _ in module.parameters(False)):
                found.setdefault(name, []).append(path)
        return found

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
