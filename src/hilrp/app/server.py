"""What is sent to the browser: Gradio's page, and what it shows, from memory. Nothing is asked of any other host."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, urlsplit

from hilrp.app import LOOPBACK
from hilrp.app.models import Models
from hilrp.util.errors import InputError, UnavailableError
from hilrp.util.telemetry import switches

# Gradio reads them when it is imported.
os.environ.update(switches())

try:
    import gradio as gr
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, PlainTextResponse
except ModuleNotFoundError as missing:
    raise UnavailableError(f"{missing.name} is not installed. Install it with: pip install 'hilrp[app]'") from missing

from hilrp.app.actions import Actions
from hilrp.app.blocks import build
from hilrp.app.controller import Controller
from hilrp.app.results import KINDS
from hilrp.app.sessions import Sessions

#: The browser is told to ask nobody else for anything, whatever Gradio's page would like.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "frame-ancestors 'self'; form-action 'self'; base-uri 'self'"
)
#: The largest file that may be sent: checkpoints are large.
_LARGEST = "4gb"
#: Open tabs listen for news as long as they are open: this is how many seconds they are waited for.
_GRACE = 2
#: The most that may be sent and not yet read, in bytes.
_TOTAL = 8 * 2**30


def make_app(models: Models, uploads: Path, host: str = "127.0.0.1") -> FastAPI:
    """The whole application; files are sent to the folder ``uploads``."""
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    sessions = Sessions()
    blocks = build(Actions(Controller(models), uploads), sessions)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.sessions = sessions

    @app.middleware("http")
    async def guard(request: Request, next_step: Callable[[Request], Awaitable[Response]]) -> Response:
        own, origin = _host(f"//{request.headers.get('host', '')}"), request.headers.get("origin")
        # Pages of other names that lead here must not read what is shown here, and other pages must not send anything.
        if host in LOOPBACK and own not in LOOPBACK:
            return PlainTextResponse("This page is for this machine alone.", 403)
        if origin is not None and _host(origin) != own:
            return PlainTextResponse("Requests of other pages are not answered.", 403)
        if request.url.path.endswith("/upload") and _size(uploads) > _TOTAL:
            return PlainTextResponse("Too much is being sent at once. Try again later.", 413)
        response = await next_step(request)
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    @app.get("/explanation/{token}")
    def explanation(token: str) -> Response:
        found = sessions.result(token)
        return _gone() if found is None else HTMLResponse(found.page, headers={"Cache-Control": "no-store"})

    @app.get("/export/{token}/{kind}")
    def export(token: str, kind: str) -> Response:
        found = sessions.result(token)
        if found is None or kind not in KINDS:
            return _gone()
        headers = {
            "Content-Disposition": (
                f"attachment; filename=\"{_ascii(found.name)}.{kind}\"; filename*=UTF-8''{quote(found.name)}.{kind}"
            ),
            "Cache-Control": "no-store",
        }
        return Response(found.export(kind), media_type=KINDS[kind][0], headers=headers)

    @app.get("/thumbnail/{token}")
    def thumbnail(token: str) -> Response:
        found = sessions.picture(token)
        if found is None:
            return _gone()
        return Response(found.thumbnail(), media_type="image/png", headers={"Cache-Control": "no-store"})

    fonts = ["system-ui", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif"]
    theme = gr.themes.Base(
        primary_hue="blue", neutral_hue="slate", font=fonts, font_mono=["ui-monospace", "Consolas", "monospace"]
    )
    here = files("hilrp.app")
    mounted = gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        server_name=host,
        theme=theme,
        css=(here / "page.css").read_text(),
        head="".join(f"<script>{(here / name).read_text()}</script>" for name in ("answers.js", "page.js")),
        footer_links=[],
        max_file_size=_LARGEST,
        ssr_mode=False,
        enable_monitoring=False,
        show_error=True,
        pwa=False,
        mcp_server=False,
    )
    # Gradio checks that the files of a request were sent with it only once a page is launched, which a mounted one
    # never is.
    blocks.has_launched = True
    return mounted


def _host(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _size(folder: Path) -> int:
    """The size of all files in a folder, in bytes; one that is deleted meanwhile doesn't count."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _gone() -> Response:
    return HTMLResponse("<p>This explanation is no longer kept. Explain the picture again.</p>", 404)


def _ascii(name: str) -> str:
    return name.encode("ascii", "ignore").decode() or "explanation"


def serve(models: Models, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Runs the page until it is stopped; what was uploaded and not yet read goes with its folder.

    Args:
        models: The models.
        host: Where it listens.
        port: The port; 0 for any that is free.
        ready: Is told the address.
    """
    # Once it is shut down, uvicorn raises again the signal that stopped it; by default SIGTERM would leave no time to
    # clean up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="hilrp-serve-") as folder, suppress(KeyboardInterrupt):
        app = make_app(models, Path(folder), host)
        server = uvicorn.Server(
            uvicorn.Config(app, host=host, port=port, log_level="warning", timeout_graceful_shutdown=_GRACE)
        )
        try:
            socket = server.config.bind_socket()
        except SystemExit as error:
            raise InputError(
                f"--host {host} --port {port}: can't be listened to. Is something else running there, or is it not an "
                "address of this machine? --port 0 takes a free port."
            ) from error
        socket.listen()
        number = socket.getsockname()[1]
        ready(f"http://{'localhost' if host in LOOPBACK else host}:{number}/")
        server.run(sockets=[socket])
