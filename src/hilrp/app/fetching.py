"""Fetches published weights in a process of its own, which is ended when nobody waits for them any more.

The libraries' clients can't be interrupted in a thread. What the process has fetched stays in the caches of the
libraries, a file that is not whole included, and is not fetched again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import redirect_stdout

from hilrp.app.stopping import Stopped
from hilrp.util.errors import HilrpError, InputError

#: With -P, so that what lies in the folder where the page was started is not taken for a library.
_COMMAND = [sys.executable, "-P", "-m", "hilrp.app.fetching"]
#: Every so many seconds it is looked whether anybody waits.
_PAUSE = 0.2


def fetch(name: str, gone: threading.Event) -> None:
    """Brings the weights of a model into its library's cache; ends at once when ``gone`` is set."""
    with subprocess.Popen(
        [*_COMMAND, name],
        env=os.environ | {"PYTHONPATH": _named_folders(os.environ.get("PYTHONPATH", ""))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            while process.poll() is None:
                if gone.wait(_PAUSE):
                    raise Stopped
        finally:
            process.kill()
        said = process.stdout.read() if process.stdout is not None else ""
    if process.returncode:
        raise InputError(said.strip() or f"{name}: its weights could not be fetched. Try again.")


def _named_folders(path: str) -> str:
    """A search path without its empty entries: Python takes each of these for the folder where it was started."""
    return os.pathsep.join(filter(None, path.split(os.pathsep)))


def _end_with_parent() -> None:
    """Ends this process when the one that started it has ended, and with it the other end of standard input."""
    sys.stdin.read()
    os._exit(1)


def _main() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from hilrp.models.loading import load

    try:
        with redirect_stdout(sys.stderr):  # what libraries print is not for who waits
            load(sys.argv[1])
    except HilrpError as error:
        print(error)
        sys.exit(1)


if __name__ == "__main__":
    _main()
