"""What went wrong, as it may be shown to anybody: without paths of this machine."""

from __future__ import annotations

import re

#: From a root to the last name; within quotes there may be spaces. Addresses (https://...) and names of models
#: (zoo/swin) don't begin with a root.
_QUOTED = re.compile(r"(?<=['\"])(?:~?/|[A-Za-z]:\\)[^'\"]*[/\\]")
_PATH = re.compile(r"(?<![\w.:/\\~-])(?:~?/|[A-Za-z]:\\)(?:[^\s/\\'\"<>|:;,()\[\]]+[/\\])+")


def shown(problem: str) -> str:
    """The same words, with the last name of each path alone.

    Example:
        >>> shown("[Errno 2] No such file: '/home/me/.cache/hub/model.safetensors'; see https://example.org/a/b")
        "[Errno 2] No such file: 'model.safetensors'; see https://example.org/a/b"
    """
    return _PATH.sub("", _QUOTED.sub("", problem))
