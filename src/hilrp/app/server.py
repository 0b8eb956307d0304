"""What is sent to the browser: Gradio's page, and what it shows, from memory. Nothing is asked of any other host."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from hilrp.app import LOOPBACK
from hilrp.app.models import Models
from hilrp.util.errors import InputError, UnavailableError
from hilrp.util.telemetry import switches

# Gradio reads them when it is imported.
os.environ.update(switches())
# Nothing of what is done on the page is kept, neither here nor in the browser.
os.environ["GRADIO_RUN_HISTORY"] = "False"

try:
    import gradio as gr
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
    from gradio.routes import file_upload_statuses
    from starlette.requests import ClientDisconnect
except ModuleNotFoundError as missing:
    raise UnavailableError(f"{missing.name} is not installed. Install it with: pip install 'hilrp[app]'") from missing

from hilrp.app.access import Access, client
from hilrp.app.actions import Actions
from hilrp.app.blocks import build
from hilrp.app.controller import Controller
from hilrp.app.gate import Gate
from hilrp.app.receiving import receive
from hilrp.app.relative import Start
from hilrp.app.results import KINDS
from hilrp.app.sessions import Sessions
from hilrp.app.uploads import LARGEST, Uploads
from hilrp.pages.parts import sheet

#: Open tabs listen for news as long as they are open: this is how many seconds they are waited for.
_GRACE = 2
#: Colours of Gradio's -> those of style.css, which are light or dark by themselves.
_THEME = {
    "body_background_fill": "ground", "background_fill_primary": "card", "background_fill_secondary": "ground",
    "block_background_fill": "card", "block_label_background_fill": "card", "panel_background_fill": "card",
    "input_background_fill": "sunken", "checkbox_label_background_fill": "sunken", "code_background_fill": "sunken",
    "button_secondary_background_fill": "sunken", "button_secondary_background_fill_hover": "line",
    "checkbox_label_background_fill_hover": "line", "border_color_primary": "line", "block_border_color": "line",
    "input_border_color": "line", "body_text_color": "ink", "button_secondary_text_color": "ink",
    "checkbox_label_text_color": "ink", "body_text_color_subdued": "soft", "block_label_text_color": "soft",
    "block_title_text_color": "soft", "block_info_text_color": "soft", "input_placeholder_color": "soft",
}  # fmt: skip
#: Every so many seconds it is looked for what nobody wants any more.
_SWEEP = 30.0


def make_app(
    models: Models, folder: Path, host: str = "127.0.0.1", token: str | None = None, start: Start | None = None
) -> FastAPI:
    """The whole application.

    Args:
        models: The models.
        folder: Where files are put that are sent.
        host: Where it listens.
        token: What its address must hold when it is opened first.
        start: How a new tab explains.
    """
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    sessions, uploads = Sessions(start or Start()), Uploads(folder)
    blocks = build(Actions(Controller(models), uploads), sessions)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=_sweeping(sessions, uploads))
    app.state.sessions, app.state.uploads = sessions, uploads
    app.add_middleware(
        Gate,
        access=Access(host, token),
        sessions=sessions,
        uploads=uploads,
        events=lambda number: number in blocks.fns,
        awaited=lambda tab: len(blocks._queue.pending_event_ids_session.get(tab, ())),
    )

    @app.post("/gradio_api/upload")
    async def upload(request: Request, upload_id: str | None = None) -> Response:
        return await _upload(request, uploads, upload_id)

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
    ).set(**{f"{name}{form}": f"var(--{own})" for name, own in _THEME.items() for form in ("", "_dark")})
    here = files("hilrp.app")
    scripts = "".join(f"<script>{(here / name).read_text()}</script>" for name in ("answers.js", "page.js"))
    mounted = gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        server_name=host,
        theme=theme,
        css=(here / "page.css").read_text(),
        # Gradio would put its own names before what is in css.
        head=f"<style>{sheet('style.css')}</style>{scripts}",
        footer_links=[],
        max_file_size=LARGEST,
        ssr_mode=False,
        enable_monitoring=False,
        show_error=False,
        pwa=False,
        mcp_server=False,
    )
    # Gradio checks that the files of a request were sent with it only once a page is launched, which a mounted one
    # never is.
    blocks.has_launched = True
    # Nor are its functions called but by a tab.
    blocks.api_open = False
    return mounted


def _sweeping(sessions: Sessions, uploads: Uploads) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Looks, as long as the page is served, for tabs and files that nobody wants any more."""

    async def sweep() -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            for each in (sessions, uploads):
                await asyncio.to_thread(each.sweep)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(sweep())
        yield
        task.cancel()

    return lifespan


async def _upload(request: Request, uploads: Uploads, upload_id: str | None) -> Response:
    """Takes files in; answers with their paths, as Gradio's page expects it."""
    announced = request.headers.get("content-length", "")
    if not re.fullmatch("[0-9]{1,15}", announced):
        return PlainTextResponse("Files are sent with their size (Content-Length). Drop them on the page.", 411)
    try:
        upload = uploads.reserve(client(request), int(announced))
    except InputError as error:
        return PlainTextResponse(str(error), 413)
    progress = None if upload_id is None else file_upload_statuses

    def tell(name: str, part: bytes) -> None:
        if progress is not None:
            progress.append(upload_id, name, part)

    found: list[Path] | None = None
    try:
        kind = request.headers.get("content-type", "")
        found = await receive(request.stream(), kind, upload.folder, int(announced), LARGEST, tell)
        uploads.arrived(upload, found)
    except InputError as error:
        return PlainTextResponse(str(error), 400)
    except ClientDisconnect:
        return PlainTextResponse("The files did not arrive whole. Drop them again.", 400)
    finally:
        if found is None:
            uploads.cancel(upload)
        if progress is not None:
            progress.set_done(upload_id)
    return JSONResponse([str(path) for path in found])


def _gone() -> Response:
    return HTMLResponse("<p>This explanation is no longer kept. Explain the picture again.</p>", 404)


def _ascii(name: str) -> str:
    return name.encode("ascii", "ignore").decode() or "explanation"


def serve(
    models: Models,
    host: str,
    port: int,
    ready: Callable[[str], None],
    token: bool | None = None,
    start: Start | None = None,
) -> None:
    """Runs the page until it is stopped; what was uploaded and not yet read goes with its folder.

    Args:
        models: The models.
        host: Where it listens.
        port: The port; 0 for any that is free.
        ready: Is told the address.
        token: Whether the page needs a token, which is in that address; where it is not told, beyond this machine.
        start: How a new tab explains.
    """
    # Once it is shut down, uvicorn raises again the signal that stopped it; by default SIGTERM would leave no time to
    # clean up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="hilrp-serve-") as folder, suppress(KeyboardInterrupt):
        secret = secrets.token_urlsafe(24) if (host not in LOOPBACK if token is None else token) else None
        app = make_app(models, Path(folder), host, secret, start)
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
        query = "" if secret is None else f"?token={secret}"
        ready(f"http://{'localhost' if host in LOOPBACK else host}:{number}/{query}")
        server.run(sockets=[socket])
