"""Which of hilrp's own code something is made by: the modules that it imports, and a fingerprint of them.

Imports are read and not run, those inside of functions among them. So nothing has to be listed, and a file that moves
stays in.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

_ROOT = "hilrp"


def fingerprint(*entries: str, package: Path | None = None) -> str:
    """A fingerprint of modules and of all modules of hilrp that they import, directly or not.

    The same wherever hilrp is installed.

    Args:
        entries: The modules, by name.
        package: The folder of the package; that of the running one by default.
    """
    found = hashlib.sha256()
    for name, file in sorted(reached(*entries, package=package).items()):
        content = file.read_bytes()
        found.update(f"{name} {len(content)}\n".encode() + content)
    return found.hexdigest()[:12]


def reached(*entries: str, package: Path | None = None) -> dict[str, Path]:
    """The modules themselves, those that they import and the packages that these are in: name -> file.

    Example:
        >>> found = reached("hilrp.attribution.explainer")
        >>> "hilrp.targets.classes" in found, "hilrp.cli" in found
        (True, False)
    """
    modules = dict(_modules(package or Path(__file__).parents[1]))
    missing = set(entries) - set(modules)
    if missing:
        raise ModuleNotFoundError(
            f"{', '.join(sorted(missing))}: no such module of hilrp. Name the one that it became."
        )
    found: dict[str, Path] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name in modules and name not in found:
            found[name] = modules[name]
            waiting += [*_imports(name, modules), name.rpartition(".")[0]]
    return found


def _modules(package: Path) -> Iterator[tuple[str, Path]]:
    """All modules of the package: name and file."""
    for file in package.rglob("*.py"):
        *folders, stem = file.relative_to(package).with_suffix("").parts
        yield ".".join([_ROOT, *folders] if stem == "__init__" else [_ROOT, *folders, stem]), file


def _imports(name: str, modules: dict[str, Path]) -> Iterator[str]:
    """What a module imports; names that are no modules may be among it."""
    file = modules[name]
    parent = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in _statements(file.read_bytes()):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), parent)
            yield origin
            yield from (f"{origin}.{each.name}" for each in node.names)
        else:
            given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "name")]
            yield from (name for argument in given[:1] for name in _named(argument, modules))


def _named(argument: ast.expr, modules: dict[str, Path]) -> Iterator[str]:
    """What ``import_module`` may be asked for: of a name that is put together, all that begin like it."""
    if isinstance(argument, ast.Constant):
        yield str(argument.value)
    elif isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
        start = str(argument.values[0].value)
        yield from (name for name in modules if name.startswith(start))


@cache
def _statements(source: bytes) -> list[ast.Import | ast.ImportFrom | ast.Call]:
    """What imports in a file, calls of ``import_module`` among it, but for what is there for type checkers alone."""
    found: list[ast.Import | ast.ImportFrom | ast.Call] = []
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)) or (
            isinstance(node, ast.Call) and _last(node.func) == "import_module"
        ):
            found.append(node)
        if isinstance(node, ast.If) and _last(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)
    return found


def _last(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
