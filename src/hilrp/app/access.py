"""Who may use the page: requests of this machine's own browser, or of whoever has the token."""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from hilrp.app import LOOPBACK

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Access:
    """What a request must have.

    Attributes:
        host: Where the page listens.
        token: What the address must hold when the page is opened for the first time; ``None`` if it needn't.
    """

    host: str = "127.0.0.1"
    token: str | None = None

    def refusal(self, request: HTTPConnection) -> str | None:
        """Why a request is not answered, whoever sends it."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        place = _place(f"{request.scope['scheme'].replace('ws', 'http')}://{host}")
        if len(request.headers.getlist("host")) != 1 or not _HOST.fullmatch(host) or place is None:
            return "The address of this page is no valid one."
        # Pages of other names that lead here must not read what is shown here.
        if self.host in LOOPBACK and place[1] not in LOOPBACK:
            return "This page is for this machine alone."
        # Other pages must not send anything, those of this machine's other ports included; links may be followed.
        if origin is not None and _place(origin) != place:
            return "Requests of other pages are not answered."
        elsewhere = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and request.headers.get("sec-fetch-mode") != "navigate":
            return "Requests of other pages are not answered."
        return None

    def allowed(self, request: HTTPConnection) -> bool:
        """Whether a request has the cookie that the token was changed for, where one is needed."""
        return self.token is None or self._is_token(request.cookies.get(cookie(request)))

    def introduced(self, request: HTTPConnection) -> bool:
        """Whether the page is opened with its token."""
        return self.token is not None and self._is_token(request.query_params.get("token"))

    def _is_token(self, said: str | None) -> bool:
        return said is not None and hmac.compare_digest(said.encode(), (self.token or "").encode())


def cookie(request: HTTPConnection) -> str:
    """The name of the cookie with the token: a host's cookies are those of all its ports."""
    server = request.scope.get("server") or ("", 0)
    return f"hilrp-token-{server[1]}"


def client(request: HTTPConnection) -> str:
    """Whose requests are counted together: an address, or the network of 64 bits that one of IPv6 is in."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_loopback:
        return "loopback"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def _place(address: str) -> tuple[str, str | None, int | None] | None:
    """Scheme, host and port of an address."""
    try:
        parts = urlsplit(address)
        return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
