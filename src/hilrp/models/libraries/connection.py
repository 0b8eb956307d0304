"""Whether a hub can be reached, found out at once: its client tries for most of a minute."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import torch

_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080, "socks5h": 1080}
#: For how many seconds an answer is taken for the present one: a model has several files.
_KEPT = 5.0
_answers: dict[tuple[str, int], tuple[float, str | None]] = {}
#: Those who need the hub's client to look into its cache alone: its switch is one for all threads.
_users: set[object] = set()
#: What the switch was before the first of them came.
_before = False
_lock = threading.Lock()
#: Held while torch is told to read weights alone: that, too, is one setting for all threads.
_reading = threading.RLock()
#: Whether nothing is to be fetched, whatever could be reached, in this thread.
_alone: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def cache_alone() -> Iterator[None]:
    """Lets models be loaded from caches alone, those of addresses included, while the context lasts, in this thread."""
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def unreachable(url: str) -> str | None:
    """Why nothing can be had from an address, or ``None`` if its host, or the proxy before it, accepts connections.

    It takes no longer than two seconds, or than the hub's own setting ``HF_HUB_ETAG_TIMEOUT``, where a connection is
    slow.
    """
    host, port = _first_hop(url)
    if _alone.get():
        return f"{host} is not asked"
    asked, why = _answers.get((host, port), (0.0, None))
    if not asked or time.monotonic() - asked > _KEPT:
        why = _refusal(host, port, _patience())
        _answers[host, port] = time.monotonic(), why
    return f"{host} can't be reached: {why}" if why else None


def _patience() -> float:
    """How many seconds to wait for a connection: two, where the setting is no number."""
    try:
        return float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or 2.0)
    except ValueError:
        return 2.0


def in_cache(url: str) -> bool:
    """Whether torch's hub has the file of an address in its cache."""
    return (Path(torch.hub.get_dir()) / "checkpoints" / Path(urlsplit(url).path).name).exists()


def hub() -> str | None:
    """Where the client of the hub that timm, transformers and open_clip load from goes to.

    ``None`` if it isn't installed, or was told to go nowhere.
    """
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    return None if constants.HF_HUB_OFFLINE and not _users else constants.ENDPOINT


@contextmanager
def cache_only() -> Iterator[None]:
    """Lets the client of the hub look into its cache alone, as ``HF_HUB_OFFLINE=1`` does, while the context lasts."""
    global _before
    from huggingface_hub import constants

    own = object()
    with _lock:
        if not _users:
            _before = constants.HF_HUB_OFFLINE
        _users.add(own)
        _set_offline(True)
    try:
        yield
    finally:
        with _lock:
            _users.remove(own)
            _set_offline(True if _users else _before)


@contextmanager
def weights_only() -> Iterator[None]:
    """Lets torch unpickle nothing while the context lasts.

    torch's hub would, for libraries that don't tell it otherwise: it checks a file when it is downloaded, not one that
    lies in its cache. Where the user has decided, that holds.
    """
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    with _reading:
        decided = name in os.environ or "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" in os.environ
        if not decided:
            os.environ[name] = "1"
        try:
            yield
        finally:
            if not decided:
                del os.environ[name]


def _set_offline(value: bool) -> None:
    from huggingface_hub import constants, utils

    constants.HF_HUB_OFFLINE = value
    # Clients before version 1 ask when they open a session.
    forget: Callable[[], None] | None = getattr(utils, "reset_sessions", None)
    if forget is not None:
        forget()


def _first_hop(url: str) -> tuple[str, int]:
    """The host and port that a request to an address connects to: those of the proxy, if there is one."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(parts.netloc):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)


def _refusal(host: str, port: int, seconds: float) -> str | None:
    """Why a connection can't be had in that time."""
    end = time.monotonic() + seconds
    try:
        found = _first([partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)], end)
        # All at once: an address that keeps silent, as one of IPv6 may, must not stand before one that answers.
        _first([partial(_knock, address[:2], seconds) for *_, address in found], end)
    except TimeoutError:
        return f"no answer within {seconds:g} s (HF_HUB_ETAG_TIMEOUT=10 in the environment allows ten)"
    except (OSError, UnicodeError) as error:
        return str(error)
    return None


def _knock(address: Any, seconds: float) -> None:
    socket.create_connection(address, seconds).close()


_Found = TypeVar("_Found")


def _first(calls: Sequence[Callable[[], _Found]], end: float) -> _Found:
    """What the first call that succeeds returns. None is waited for beyond the end.

    A name server may keep silent for long.
    """
    outcomes: SimpleQueue[tuple[list[_Found], Exception | None]] = SimpleQueue()

    def run(call: Callable[[], _Found]) -> None:
        try:
            outcomes.put(([call()], None))
        except Exception as error:
            outcomes.put(([], error))

    for call in calls:
        threading.Thread(target=run, args=(call,), daemon=True).start()
    failed: Exception = TimeoutError()
    for _ in calls:
        try:
            found, error = outcomes.get(timeout=max(0.0, end - time.monotonic()))
        except Empty:
            raise TimeoutError from None
        if error is None:
            return found[0]
        failed = error
    raise failed
