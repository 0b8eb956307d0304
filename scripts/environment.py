"""Builds the virtual environment that `make` uses, once for each pyproject.toml.

It lies in the user's cache directory, keyed by a hash of pyproject.toml and the Python version, so that fresh
clones share it. Prints the path of its Python. Only the dependencies are installed: the package itself is used
from `src`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def requirements(project: dict) -> list[str]:
    """All dependencies with those of the `dev` extra; references to the project's own extras are followed."""
    extras = project["optional-dependencies"]
    found, queue = [], [*project["dependencies"], *extras["dev"]]
    while queue:
        item = queue.pop(0)
        if item.startswith("hilrp["):
            queue += [each for name in item[6:-1].split(",") for each in extras[name.strip()]]
        else:
            found.append(item)
    return sorted(set(found))


def main() -> None:
    """Builds the environment if it isn't there, and prints the path of its Python."""
    source = (ROOT / "pyproject.toml").read_bytes()
    wanted = requirements(tomllib.loads(source.decode())["project"])
    key = hashlib.sha256("\n".join([*wanted, sys.version]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hilrp"
    home = cache / f"venv-{key}"
    python, complete = home / "bin" / "python", home / "complete"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"venv-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            print(f"building the environment in {home} (once; it downloads several GB)", file=sys.stderr, flush=True)
            venv.create(home, clear=True, with_pip=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True, stdout=sys.stderr)
            complete.touch()
    print(python)


if __name__ == "__main__":
    main()
