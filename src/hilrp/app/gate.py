"""The door of the page: every request passes here before Gradio sees it, and most of what Gradio offers is closed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hilrp.app.access import Access, client, cookie
from hilrp.app.sessions import Session, Sessions
from hilrp.app.uploads import Uploads
from hilrp.util.errors import InputError

#: The browser is told to ask nobody else for anything, whatever Gradio's page would like.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
        "frame-ancestors 'self'; form-action 'self'; base-uri 'self'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_API = "/gradio_api"
_JOIN, _RUN, _BEAT, _ANSWERS = f"{_API}/queue/join", f"{_API}/run/predict", f"{_API}/heartbeat/", f"{_API}/queue/data"
#: All that the page needs. What else Gradio has (its history, direct calls, files by path, other hosts' files, ...) is
#: not there.
_READ = re.compile(
    rf"/|/config|/theme\.css|/favicon\.ico|/manifest\.json|/(assets|static|svelte|explanation|export|thumbnail)/.+"
    rf"|{_API}/(info|theme\.css|app_id|queue/data|upload_progress|heartbeat/[^/]+)"
)
_WRITE = (_JOIN, _RUN, f"{_API}/upload")
#: No address of the page has these.
_ODD = re.compile(r"\\|\0|//|/\.{1,2}(/|$)")
#: Gradio would build the page's own address from these.
_FORWARDED = (b"x-forwarded-host", b"x-forwarded-prefix", b"x-gradio-server", b"x-direct-url")
#: What a browser's tab calls itself.
_TAB = re.compile(r"[A-Za-z0-9_-]{6,64}")
#: The largest request without a file, in bytes, and how many of them a tab may wait for.
_BODY, _AWAITED = 2**20, 16


class Refused(Exception):
    """A request is not answered; says why, and with which status."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


@dataclass
class Gate:
    """Answers what must not reach Gradio, and opens sessions for what may.

    Attributes:
        app: What is behind it.
        access: Who may use the page.
        sessions: All tabs.
        uploads: What they have sent.
        events: Whether there is an event of that number on the page.
        awaited: How many answers a tab waits for.
    """

    app: ASGIApp
    access: Access
    sessions: Sessions
    uploads: Uploads
    events: Callable[[int], bool]
    awaited: Callable[[str], int]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; pages have no use for websockets."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request, secured = HTTPConnection(scope), _secured(send)
        try:
            answer = self._answer(request)
            if answer is not None:
                await answer(scope, receive, secured)
                return
            scope["headers"] = [pair for pair in scope["headers"] if pair[0].lower() not in _FORWARDED]
            path = scope["path"]
            if path in (_JOIN, _RUN):
                receive = _replayed(await self._event(request, receive), receive)
            elif path == _ANSWERS and self.sessions.find(request.query_params.get("session_hash", "")) is None:
                raise Refused("This tab is not known. Load the page again.", 404)
        except Refused as refused:
            plain = PlainTextResponse(str(refused), refused.status)
            shown = JSONResponse({"detail": str(refused), "error": str(refused)}, refused.status)
            await (shown if scope["path"] in (_JOIN, _RUN) else plain)(scope, receive, secured)
            return
        if path.startswith(_BEAT):
            await self._beating(request, receive, secured)
        else:
            await self.app(scope, receive, secured)

    def _answer(self, request: HTTPConnection) -> Response | None:
        """What a request gets that does not pass, or that brings the token."""
        why = self.access.refusal(request)
        if why is not None:
            raise Refused(why, 403)
        method, path = request.scope["method"], request.scope["path"]
        introduced = method == "GET" and path == "/" and self.access.introduced(request)
        if not introduced and not self.access.allowed(request):
            raise Refused("This page needs its token. Open the address that hilrp serve printed.", 403)
        if introduced:
            # Without the token in the address, which is kept in histories.
            answer = RedirectResponse("/", 303)
            encrypted = request.url.scheme == "https"
            answer.set_cookie(cookie(request), self.access.token or "", httponly=True, samesite="lax", secure=encrypted)
            return answer
        if _ODD.search(path):
            raise Refused("There is no such page.", 404)
        if not (_READ.fullmatch(path) if method in ("GET", "HEAD") else method == "POST" and path in _WRITE):
            raise Refused("There is no such page.", 404)
        return None

    async def _event(self, request: HTTPConnection, receive: Receive) -> bytes:
        """The body of an event of a tab, whose files are now the tab's."""
        body = await _read(receive)
        try:
            event = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused("What was sent is no event of this page.", 400) from None
        tab = event.get("session_hash") if isinstance(event, dict) else None
        if not isinstance(tab, str) or not _TAB.fullmatch(tab):
            raise Refused("There is no tab that this is for. Load the page again.", 400)
        number, data = event.get("fn_index"), event.get("data")
        if type(number) is not int or not self.events(number) or not isinstance(data, list):
            raise Refused("What was sent is no event of this page.", 400)
        if self.awaited(tab) >= _AWAITED:
            raise Refused("Too much is asked at once. Wait for an answer first.", 429)
        session = self._session(tab, request)
        try:
            for path in _paths(data):
                self.uploads.claim(path, session)
        except InputError as error:
            raise Refused(str(error), 403) from None
        return body

    def _session(self, tab: str, request: HTTPConnection) -> Session:
        try:
            return self.sessions.of(tab, client(request))
        except InputError as error:
            raise Refused(str(error), 503) from None

    async def _beating(self, request: HTTPConnection, receive: Receive, send: Send) -> None:
        """A tab keeps this connection as long as it is open."""
        tab = request.scope["path"].removeprefix(_BEAT)
        try:
            if not _TAB.fullmatch(tab):
                raise Refused("There is no tab that this is for. Load the page again.", 400)
            session = self._session(tab, request)
        except Refused as refused:
            await PlainTextResponse(str(refused), refused.status)(request.scope, receive, send)
            return
        session.open += 1
        try:
            await self.app(request.scope, receive, send)
        finally:
            session.open -= 1
            session.touch()


async def _read(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused("The request did not arrive whole.", 400)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _BODY:
            raise Refused(f"A request may have {_BODY // 2**20} MiB; files are dropped on the page.", 413)
        if not message.get("more_body"):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body once more, and then what else comes."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _paths(data: Any) -> Iterator[str]:
    """The paths of all files that an event names, in whatever it has them."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if "path" in value or "meta" in value:
                yield str(value.get("path"))
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _secured(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_HEADERS)
        await send(message)

    return sending
