"""Whom processes talk to: what Python code looks for, and the sockets that any process has open."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterator
from pathlib import Path

#: Runs in a process of Python before anything else: writes down every host that it looks for and isn't this machine.
_SPY = """
import socket

def note(name):
    with open({log!r}, "a") as file:
        file.write(str(name) + "\\n")

def watch(function, host):
    def watched(*args, **options):
        name = host(*args)
        if name not in (None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0"):
            note(name)
        return function(*args, **options)
    return watched

note("watching")
socket.getaddrinfo = watch(socket.getaddrinfo, lambda host, *_: host.decode() if isinstance(host, bytes) else host)
host_of = lambda _, *given: given[-1][0] if isinstance(given[-1], tuple) else None
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, watch(getattr(socket.socket, name), host_of))
"""


class Spy:
    """Watches processes that are started with its environment, and those that they start."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "asked.txt"
        (folder / "sitecustomize.py").write_text(_SPY.format(log=str(self._log)))
        self.environment = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}

    def watched(self) -> int:
        """How many processes it was in."""
        return self._log.read_text().split().count("watching")

    def asked(self) -> set[str]:
        """The hosts that they looked for, by name or address."""
        return set(self._log.read_text().split()) - {"watching"}


def processes(mark: str) -> Iterator[Path]:
    """The folders in /proc of the processes whose environment holds a mark, written in Python or not."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                yield folder
        except OSError:  # ended meanwhile
            continue


def strangers(mark: str) -> set[str]:
    """What the sockets of marked processes are bound or connected to, as Linux shows it, loopback aside.

    A socket that listens to every address is bound to ``0.0.0.0`` or ``::``.
    """
    found = set()
    for folder in processes(mark):
        try:
            own = {os.readlink(link) for link in (folder / "fd").iterdir()}
            for protocol in ("tcp", "tcp6", "udp", "udp6"):
                for line in (folder / "net" / protocol).read_text().splitlines()[1:]:
                    _, local, remote, state, *rest = line.split()
                    if f"socket:[{rest[5]}]" in own:
                        found |= {f"{protocol} {each}" for each in _beyond(local, remote, listens=state == "0A")}
        except OSError:  # ended meanwhile
            continue
    return found


def _beyond(local: str, remote: str, listens: bool) -> Iterator[str]:
    """The addresses of a socket that lead out of this machine's loopback."""
    for which, address in (("from", _address(local)), ("to", _address(remote))):
        mapped = getattr(address, "ipv4_mapped", None) or address
        if not mapped.is_loopback and (not mapped.is_unspecified or (listens and which == "from")):
            yield f"{which} {mapped}"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An address as /proc writes it: words of four bytes, each in this machine's order."""
    digits = text.partition(":")[0]
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    return ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
