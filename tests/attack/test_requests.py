"""Forged requests to the page: each is refused with a plain sentence, and shows nothing of this machine."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("gradio")

from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from helpers.pages import begun, encoded, uploaded
from hilrp.app import sessions as sessions_module
from hilrp.app import uploads as uploads_module
from hilrp.app.problems import shown
from hilrp.app.server import make_app
from hilrp.app.sessions import Session, Sessions
from hilrp.app.uploads import Uploads
from hilrp.util.errors import InputError

LOCAL, REMOTE = "http://localhost:7860", "http://192.0.2.7:7860"
TOKEN = "3kYqW0xV7uJ2mTnR8sLdZbCf"
API = "/gradio_api"
JOIN, RUN, UPLOAD = f"{API}/queue/join", f"{API}/run/predict", f"{API}/upload"


@pytest.fixture(scope="module")
def page(controller, tmp_path_factory) -> TestClient:
    """The page on this machine."""
    return TestClient(make_app(controller.models, tmp_path_factory.mktemp("uploads")), LOCAL, follow_redirects=False)


@pytest.fixture(scope="module")
def public(controller, tmp_path_factory) -> TestClient:
    """The page on an address that others can reach."""
    app = make_app(controller.models, tmp_path_factory.mktemp("uploads"), "0.0.0.0", TOKEN)
    return TestClient(app, REMOTE, follow_redirects=False)


@pytest.fixture(autouse=True)
def _nothing_left(page, public) -> Iterator[None]:
    """Each begins with no cookies, and leaves neither tabs nor files behind."""
    for each in (page, public):
        each.cookies.clear()
    yield
    for each in (page, public):
        sessions: Sessions = each.app.state.sessions
        for tab in list(sessions._open):
            sessions.close(tab)
        assert each.app.state.uploads.size == 0


def number(page: TestClient, event: str) -> int:
    """An event of the page, by its kind."""
    events = page.get("/config").json()["dependencies"]
    return next(each["id"] for each in events if any(name == event for _, name in each["targets"]))


def file(path: object, **more: object) -> dict[str, object]:
    return {"path": path, "meta": {"_type": "gradio.FileData"}, **more}


# What is not there ----------------------------------------------------------------------------------------------------

SECRETS = ("root:", "/root", "/home", "/tmp", "site-packages", "Traceback")
CLOSED = [
    # Traversal, in every part of a path.
    ("GET", "/explanation/..%2f..%2fetc%2fpasswd"),
    ("GET", "/export/..%2f..%2fetc/passwd"),
    ("GET", "/export/x/..%2f..%2f..%2fetc%2fpasswd"),
    ("GET", "/thumbnail/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
    ("GET", "/assets/..%2f..%2f..%2froutes.py"),
    ("GET", "/static/..%2f..%2f..%2f..%2fetc%2fpasswd"),
    ("GET", "/svelte/%2e%2e/%2e%2e/%2e%2e/routes.py"),
    ("GET", "/assets/..%5c..%5croutes.py"),
    ("GET", "/static//etc/passwd"),
    ("GET", "/assets/x%00.js"),
    # Files by path, and those of other hosts.
    ("GET", f"{API}/file=/etc/passwd"),
    ("GET", f"{API}/file/etc/passwd"),
    ("GET", f"{API}/file=http://192.0.2.1/x"),
    ("GET", f"{API}/proxy=http://192.0.2.1/x"),
    ("GET", f"{API}/custom_component/x/client/y/..%2f..%2fetc%2fpasswd"),
    # Gradio's own.
    ("GET", f"{API}/runs"),
    ("GET", f"{API}/runs/"),
    ("GET", f"{API}/run-history/records"),
    ("GET", f"{API}/run-history/buckets"),
    ("POST", f"{API}/run-history/connect"),
    ("GET", f"{API}/deep_link?session_hash=somebody"),
    ("GET", f"{API}/queue/status"),
    ("GET", f"{API}/startup-events"),
    ("GET", f"{API}/openapi.json"),
    ("GET", f"{API}/dev/reload"),
    ("GET", "/monitoring"),
    ("GET", "/monitoring/summary"),
    ("GET", "/openapi.json"),
    ("POST", "/login"),
    ("POST", f"{API}/component_server"),
    ("POST", f"{API}/process_recording"),
    ("POST", f"{API}/vibe-edit"),
    ("POST", f"{API}/call/handle"),
    ("POST", f"{API}/call/v2/handle"),
    ("POST", f"{API}/api/predict"),
    ("POST", f"{API}/run/handle"),
    ("POST", f"{API}/cancel"),
    ("POST", f"{API}/reset"),
    ("POST", f"{API}/stream/0"),
    ("GET", f"{API}/stream/somebody/1/2/playlist.m3u8"),
    # Other ways to ask.
    ("PUT", "/"),
    ("DELETE", "/explanation/x"),
    ("OPTIONS", JOIN),
    ("GET", JOIN),
    ("GET", UPLOAD),
    ("POST", "/"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_what_is_not_there(page, method, path):
    answer = page.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == 404
    assert not any(secret in answer.text for secret in SECRETS)


@pytest.mark.parametrize("address", ["/", f"{API}/queue/join", "/ws"])
def test_there_are_no_websockets(page, address):
    with pytest.raises(WebSocketDisconnect), page.websocket_connect(address):
        pass


# Hosts and origins ----------------------------------------------------------------------------------------------------

ELSEWHERE = [
    {"host": "evil.example:7860"},
    {"host": "localhost.evil.example:7860"},
    {"host": "localhost@evil.example"},
    {"host": "localhost:7860, evil.example"},
    {"host": "evil.example#localhost"},
    {"host": ""},
    {"host": "localhost:7860\\@evil.example"},
    {"origin": "https://evil.example"},
    {"origin": "http://localhost:9999"},
    {"origin": "http://localhost"},
    {"origin": "https://localhost:7860"},
    {"origin": "http://127.0.0.1:7860"},
    {"origin": "http://localhost:7860.evil.example"},
    {"origin": "http://[::1"},
    {"host": "[::1::]"},
    {"host": "[1.2]"},
    {"host": "localhost:99999", "origin": "http://localhost:99998"},
    {"origin": "null"},
    {"origin": ""},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
]


@pytest.mark.parametrize("headers", ELSEWHERE, ids=str)
@pytest.mark.parametrize(("method", "path"), [("GET", "/config"), ("POST", JOIN), ("POST", UPLOAD)])
def test_requests_from_elsewhere(page, headers, method, path):
    answer = page.request(method, path, headers=headers)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_requests_of_the_page_itself(page):
    for headers in ({"origin": LOCAL}, {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, {}):
        assert page.get("/config", headers=headers).status_code == 200
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert page.get("/", headers=link).status_code == 200


def test_the_address_of_the_page_is_its_own(page):
    """Whatever a header says; else the page would send its tab's requests there."""
    for name in ("x-forwarded-host", "x-gradio-server", "x-direct-url"):
        assert "evil" not in page.get("/config", headers={name: "evil.example"}).text


def test_names_of_files_are_no_headers(page, controller):
    session = begun(controller)
    session.picture.__dict__["name"] = 'a"\r\nSet-Cookie: x=1\r\n\r\n<script>.png'
    controller.explain(session)
    page.app.state.sessions._open["tab-of-names"] = session
    answer = page.get(f"/export/{session.result.token}/json")
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers
    assert set(answer.headers["content-disposition"]) & set("\r\n<") == set()


# The token ------------------------------------------------------------------------------------------------------------

EVERYWHERE = [
    ("GET", "/"),
    ("GET", "/config"),
    ("GET", "/theme.css"),
    ("GET", "/assets/index.js"),
    ("GET", "/explanation/x"),
    ("GET", "/export/x/npz"),
    ("GET", "/thumbnail/x"),
    ("GET", f"{API}/info"),
    ("GET", f"{API}/queue/data?session_hash=somebody"),
    ("GET", f"{API}/heartbeat/somebody"),
    ("GET", f"{API}/file=/etc/passwd"),
    ("GET", f"{API}/runs"),
    ("GET", "/no/such/page"),
    ("POST", JOIN),
    ("POST", RUN),
    ("POST", UPLOAD),
]


@pytest.mark.parametrize(("method", "path"), EVERYWHERE)
def test_nothing_without_the_token(public, method, path):
    answer = public.request(method, path)
    assert answer.status_code == 403
    assert "needs its token" in answer.text


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/?token=", {}),
        ("/?token=wrong", {}),
        (f"/?token={TOKEN[:-1]}", {}),
        (f"/?token={TOKEN}x", {}),
        (f"/?token={TOKEN.lower()}", {}),
        (f"/?token=%00{TOKEN}", {}),
        ("/?token=%F0%9F%94%91", {}),
        (f"/?Token={TOKEN}", {}),
        (f"/config?token={TOKEN}", {}),
        (f"{API}/queue/data?session_hash=somebody&token={TOKEN}", {}),
        ("/", {"authorization": f"token {TOKEN}"}),
        ("/", {"x-token": TOKEN}),
        ("/", {"cookie": f"token={TOKEN}"}),
        ("/", {"cookie": f"hilrp-token-9999={TOKEN}"}),
        ("/", {"cookie": f"hilrp-token-7860={TOKEN[:-1]}"}),
        ("/", {"cookie": "hilrp-token-7860="}),
        (f"/{TOKEN}", {}),
    ],
)
def test_wrong_tokens(public, path, headers):
    assert public.get(path, headers=headers).status_code == 403


def test_websockets_need_it_too(public):
    with pytest.raises(WebSocketDisconnect), public.websocket_connect("/"):
        pass


def test_the_token_opens_the_page_once(public):
    """It becomes a cookie that no script can read and no other page can use, and leaves the address."""
    answer = public.get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert all(part in cookie for part in ("hilrp-token-7860=", "httponly", "samesite=lax"))
    assert public.get("/").status_code == 200
    assert TOKEN not in public.get("/").text
    assert public.get(f"/?token={TOKEN}").headers["location"] == "/"  # it leaves the address every time
    assert public.post(f"/?token={TOKEN}").status_code == 404


def test_on_this_machine_none_is_needed(page):
    assert page.get("/").status_code == 200
    assert page.get("/?token=anything").status_code == 200


# Tabs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [JOIN, RUN])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"session_hash": None},
        {"session_hash": ""},
        {"session_hash": "None"},
        {"session_hash": 7},
        {"session_hash": ["somebody"]},
        {"session_hash": "a" * 65},
        {"session_hash": "../../etc"},
        {"session_hash": "some\r\nbody"},
    ],
    ids=str,
)
def test_no_tab_no_answer(page, path, more):
    answer = page.post(path, json={"data": [], "fn_index": number(page, "load"), **more})
    assert answer.status_code == 400
    assert "no tab that this is for" in answer.json()["detail"]
    assert len(page.app.state.sessions) == 0


@pytest.mark.parametrize("tab", ["", "somebody", "..%2fsomebody", "None", "'%20or%201=1"])
def test_answers_of_tabs_that_are_not_open(page, tab):
    answer = page.get(f"{API}/queue/data?session_hash={tab}")
    assert answer.status_code == 404
    assert "not known" in answer.text


@pytest.mark.parametrize("tab", ["x", "a" * 65, "some%0abody", "ä" * 8])
def test_tabs_with_odd_names(page, tab):
    assert page.get(f"{API}/heartbeat/{tab}").status_code == 400
    assert len(page.app.state.sessions) == 0


def test_functions_are_not_called_directly(page):
    """Those that compute wait in the queue, with a tab that asked for them."""
    answer = page.post(RUN, json={"data": [], "fn_index": number(page, "load"), "session_hash": "somebody"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        b"7",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        json.dumps({"session_hash": "somebody"}).encode(),
        json.dumps({"session_hash": "somebody", "fn_index": 10**9, "data": []}).encode(),
        json.dumps({"session_hash": "somebody", "fn_index": -1, "data": []}).encode(),
        json.dumps({"session_hash": "somebody", "fn_index": "0", "data": []}).encode(),
        json.dumps({"session_hash": "somebody", "fn_index": True, "data": []}).encode(),
        json.dumps({"session_hash": "somebody", "fn_index": 0, "data": {}}).encode(),
        json.dumps({"session_hash": "somebody", "fn_index": 0}).encode(),
        b'{"session_hash": "\xff\xfe", "fn_index": 0, "data": []}',
    ],
    ids=lambda body: body[:60].decode("latin-1"),
)
def test_events_that_are_none(page, body):
    answer = page.post(JOIN, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert not any(secret in answer.text for secret in SECRETS)
    assert len(page.app.state.sessions) == 0


def test_a_giant_event(page):
    answer = page.post(JOIN, json={"session_hash": "somebody", "fn_index": 0, "data": ["x" * 2**20]})
    assert answer.status_code == 413


def test_a_tab_can_not_ask_for_everything_at_once(page):
    """Others wait for their turn, too."""
    body = {"data": [], "fn_index": number(page, "load"), "session_hash": "impatient"}
    found = [page.post(JOIN, json=body).status_code for _ in range(20)]
    assert found == [200] * 16 + [429] * 4
    assert page.post(JOIN, json=body | {"session_hash": "somebody"}).status_code == 200


def test_results_of_other_tabs(page, controller):
    """They are had by their tokens, which nobody can guess; neither a tab's name nor a part of a token will do."""
    sessions: Sessions = page.app.state.sessions
    session = sessions._open["somebodys"] = begun(controller)
    token, picture = session.result.token, session.picture.token
    assert min(len(token), len(picture)) >= 22
    for guess in ("somebodys", token[:-1], f"{token}x", token.swapcase(), picture, "%00", "*", "."):
        assert page.get(f"/explanation/{guess}").status_code == 404
        assert page.get(f"/export/{guess}/npz").status_code == 404
    for guess in ("somebodys", picture[:-1], token):
        assert page.get(f"/thumbnail/{guess}").status_code == 404
    for kind in ("exe", "npz%2f..", "..", "NPZ", "page"):
        assert page.get(f"/export/{token}/{kind}").status_code == 404


def test_whoever_opens_many_tabs_loses_his_own(monkeypatch):
    """65 cheap requests of one client took every other's tab."""
    sessions = Sessions()
    mine = [sessions.of(f"mine-{i}", "192.0.2.1") for i in range(3)]
    flood = [sessions.of(f"flood-{i}", "192.0.2.66") for i in range(200)]
    assert not any(each.gone.is_set() for each in mine)
    assert len(sessions) == 3 + 16
    assert [each.gone.is_set() for each in flood] == [True] * 184 + [False] * 16


def test_many_clients_take_no_others_tab(monkeypatch):
    """When there is no more room, new ones are refused; those that nobody looks at go first."""
    sessions = Sessions()
    mine = sessions.of("mine", "192.0.2.1")
    for i in range(63):
        sessions.of(f"flood-{i}", f"198.51.100.{i}").open = 1
    with pytest.raises(InputError, match="Too many tabs are open"):
        sessions.of("another", "203.0.113.9")
    assert not mine.gone.is_set()
    sessions.find("flood-5").open = 0
    sessions._open["flood-5"].used -= 61
    sessions.of("another", "203.0.113.9")
    assert sessions._open.keys() >= {"mine", "another"}
    assert "flood-5" not in sessions._open


def test_open_tabs_of_this_machine_outlive_cheap_requests():
    sessions = Sessions()
    looked_at = sessions.of("looked-at")
    looked_at.open = 1
    for i in range(200):
        sessions.of(f"flood-{i}")
    assert not looked_at.gone.is_set()


def test_tabs_that_nobody_looks_at_are_closed(monkeypatch):
    sessions = Sessions()
    left, looked_at = sessions.of("left"), sessions.of("looked-at")
    looked_at.open = 1
    for each in (left, looked_at):
        each.used -= sessions_module._ALONE + 1
    sessions.sweep()
    assert (left.gone.is_set(), looked_at.gone.is_set()) == (True, False)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../../etc/passwd",
        "http://192.0.2.1/x.png",
        "https://example.org/x.png",
        "file:///etc/passwd",
        "{uploads}",
        "{uploads}/../../../etc/passwd",
        "{theirs}",
        "{theirs}/",
        "{mine}/../{name}",
        "{mine}\0",
        "",
        None,
        7,
        ["{mine}"],
    ],
    ids=str,
)
def test_paths_in_events(page, tmp_path, path):
    """Only what this tab has sent is read; nothing else is even looked for."""
    uploads: Uploads = page.app.state.uploads
    theirs, mine = (uploaded(uploads, name, b"x") for name in ("theirs.png", "mine.png"))
    page.app.state.uploads.claim(str(theirs), page.app.state.sessions.of("somebody-else"))
    names = {"uploads": uploads.folder, "theirs": theirs, "mine": mine, "name": mine.name}
    said = path.format(**names) if isinstance(path, str) else path
    event = {"fn_index": number(page, "upload"), "session_hash": "somebody"}
    for data in ([[file(said)]], [file(said, is_stream=True)], [{"a": [{"b": file(said)}]}], [{"path": said}]):
        answer = page.post(JOIN, json={"data": data, **event})
        assert answer.status_code == 403
        assert "was not sent from this page" in answer.json()["detail"]
        assert str(uploads.folder) not in answer.text
    assert theirs.exists()
    page.app.state.sessions.of("somebody").files.add(mine)


def test_a_file_belongs_to_a_tab(page):
    """The same picture from eight tabs: each has its own file, and reads it."""
    content = encoded(Image.new("RGB", (8, 8), "red"))
    sent = [page.post(UPLOAD, files={"files": ("same.png", content)}).json()[0] for _ in range(8)]
    assert len(set(sent)) == 8
    assert all(Path(path).name == "same.png" for path in sent)
    sessions = page.app.state.sessions
    for i, path in enumerate(sent):
        session = sessions.of(f"tab-number-{i}")
        assert page.app.state.uploads.claim(path, session).read_bytes() == content
        with pytest.raises(InputError, match="was not sent from this page"):
            page.app.state.uploads.claim(path, sessions.of("another-tab"))
        sessions.close(f"tab-number-{i}")
        assert all(Path(other).exists() for other in sent[i + 1 :])


def asgi(app: Any, body: Iterable[bytes], length: str | None, meanwhile: threading.Event | None = None) -> int:
    """An upload as it is on the wire, with whatever length it announces; returns the status."""
    headers = [(b"host", b"localhost:7860"), (b"content-type", b"multipart/form-data; boundary=b")]
    headers += [] if length is None else [(b"content-length", length.encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": UPLOAD, "raw_path": UPLOAD.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("192.0.2.1", 1), "server": ("localhost", 7860),
    }  # fmt: skip
    parts, status = list(body), []

    async def receive() -> dict[str, object]:
        if meanwhile is not None:
            await asyncio.to_thread(meanwhile.wait, 20)
        if not parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])

    asyncio.run(app(scope, receive, send))
    return status[0]


def form(content: bytes, name: str = "a.png") -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    return head.encode() + content + b"\r\n--b--\r\n"


WHOLE = form(b"x" * 1000)


@pytest.mark.parametrize(
    ("body", "length", "expected"),
    [
        ([WHOLE], None, 411),
        ([WHOLE], "-1", 411),
        ([WHOLE], "a thousand", 411),
        ([WHOLE], "1e3", 411),
        ([WHOLE], "9" * 14, 413),
        ([WHOLE], str(5 * 2**30 + 1), 413),
        ([WHOLE], "10", 400),
        ([WHOLE[:500], WHOLE[500:]], "600", 400),
        ([WHOLE[:500], b""], "1100", 400),
        ([b""], "0", 400),
        ([b"no form at all"], "14", 400),
        ([b"--b\r\nContent-Disposition: form-data; name=other\r\n\r\nx\r\n--b--\r\n"], "100", 400),
        ([b"--b\r\n" + b"A: b\r\n" * 5000 + b"\r\nx\r\n--b--\r\n"], "40000", 400),
        ([b"--b\r\nA: " + b"b" * 100_000], "100100", 400),
        ([b"".join(form(b"x")[:-7] + b"\r\n" for _ in range(101)) + b"--b--\r\n"], "100000", 400),
    ],
    ids=[
        "no length", "negative", "words", "a float", "terabytes", "more than one may", "a lie", "a lie in parts",
        "cut off", "nothing", "no form", "no file", "many headers", "a long header", "many files",
    ],
)  # fmt: skip
def test_uploads_that_lie(page, body, length, expected):
    uploads: Uploads = page.app.state.uploads
    assert asgi(page.app, body, length) == expected
    assert uploads.size == 0
    assert list(uploads.folder.iterdir()) == []


def test_files_that_are_too_large_are_not_kept(page, monkeypatch):
    monkeypatch.setattr("hilrp.app.server.LARGEST", 999)
    assert asgi(page.app, [WHOLE], str(len(WHOLE))) == 400
    assert list(page.app.state.uploads.folder.iterdir()) == []


def test_uploads_side_by_side_share_the_limit(page, monkeypatch):
    """Room is made before anything is read: of eight at once, seven passed a limit of one."""
    uploads: Uploads = page.app.state.uploads
    monkeypatch.setattr(uploads, "total", len(WHOLE))
    go, found = threading.Event(), []
    send = lambda: found.append(asgi(page.app, [WHOLE], str(len(WHOLE)), go))  # noqa: E731
    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 20
    while len(found) < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == [413] * 7  # while the first is still being sent
    go.set()
    for thread in threads:
        thread.join()
    assert found == [413] * 7 + [200]
    monkeypatch.setattr(uploads_module, "UNOWNED", -1.0)
    uploads.sweep()


def test_one_client_can_not_take_all_the_room(tmp_path):
    uploads = Uploads(tmp_path, total=100, of_client=60)
    uploads.reserve("192.0.2.1", 60)
    with pytest.raises(InputError, match="Too much is being sent"):
        uploads.reserve("192.0.2.1", 1)
    uploads.reserve("192.0.2.2", 40)


def test_what_no_tab_names_is_deleted_within_minutes(tmp_path, monkeypatch):
    assert uploads_module.UNOWNED <= 600
    uploads, session = Uploads(tmp_path), Session()
    left, named = (uploaded(uploads, name, b"x") for name in ("left.png", "named.png"))
    uploads.claim(str(named), session)
    uploads.sweep()
    assert left.exists()
    monkeypatch.setattr(uploads_module, "UNOWNED", -1.0)
    uploads.sweep()
    assert (left.exists(), named.exists()) == (False, True)
    assert uploads.size == 1
    session.end()
    assert uploads.size == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("/etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("..", "file"),
        ("", "file"),
        (".", "file"),
        ("a<b>:c|d?.png", "a_b__c_d_.png"),
        ("x" * 300 + ".png", "x" * 196 + ".png"),
        ("Größe 猫.png", "Größe 猫.png"),
    ],
)
def test_names_of_files(page, sent, kept):
    body = form(b"x", sent.replace("\\", "\\\\"))
    assert asgi(page.app, [body], str(len(body))) == 200
    uploads: Uploads = page.app.state.uploads
    found = [path for path in uploads.folder.rglob("*") if path.is_file()]
    assert [path.name for path in found] == [kept]
    uploads.claim(str(found[0]), page.app.state.sessions.of("somebody"))


# What is said ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("No such file or directory: '/home/me/.cache/hub/x.bin'", "No such file or directory: 'x.bin'"),
        ("can't open /var/hilrp-serve-1/ab/mine.pt.", "can't open mine.pt."),
        ("C:\\Users\\me\\x.pt is no checkpoint", "x.pt is no checkpoint"),
        ("~/models/x.pt: not a file", "x.pt: not a file"),
        ("zoo/swin, timm/resnet50 and https://example.org/a/b stay", None),
        ("10 km/h and/or 3/4", None),
    ],
)
def test_errors_show_no_path(problem, said):
    assert shown(problem) == (said or problem)
