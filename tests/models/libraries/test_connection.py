"""Published models with and without a connection.

At once an error, from the cache, from a hub of one's own, through a proxy.
"""

from __future__ import annotations

import http.server
import os
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save

import hilrp
from hilrp.models.libraries import connection
from hilrp.util.errors import InputError

#: A revision on the hub.
REVISION = "0" * 40
PUBLISHED = [
    "test_convnext",
    "gcvit_xxtiny",
    "hf-hub:timm/resnet18.a1_in1k",
    "torchvision/squeezenet1_1",
    "transformers/owner/name",
    "open_clip/ViT-B-32-quickgelu",
]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Empty caches, no proxies, and no answers of earlier tests."""
    for scheme in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme}_proxy".upper(), raising=False)
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "torch"))
    monkeypatch.setattr(connection, "_answers", {})


@pytest.fixture
def no_connection(monkeypatch):
    """No name is known, as on a machine without a network."""

    def unknown(*args, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)


@pytest.fixture
def silence(monkeypatch):
    """A name server that doesn't answer, as behind a firewall that drops packets."""
    over = threading.Event()

    def wait(*args, **options):
        over.wait(20)
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    yield
    over.set()


def fails(name, words):
    """It takes less than three seconds to say why a model can't be had."""
    from hilrp.models.resolve import resolve

    place, _ = resolve(name)
    __import__(f"hilrp.models.libraries.{place}")  # the time of imports is not ours
    start = time.monotonic()
    with pytest.raises(InputError, match=words) as caught:
        hilrp.load(name)
    assert time.monotonic() - start < 3
    assert name.removeprefix(f"{place}/") in str(caught.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_without_a_connection_it_fails_at_once(name, no_connection):
    fails(name, r"can't be reached: .*Name or service not known.*--checkpoint.*zoo/swin")
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("name", PUBLISHED)
def test_behind_a_firewall_that_drops_packets_it_fails_soon(name, silence):
    fails(name, r"can't be reached: no answer within 2 s.*--checkpoint.*zoo/swin")


def test_a_slow_connection_may_be_given_more_time(silence, monkeypatch):
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "1")
    fails("test_convnext", r"no answer within 1 s \(HF_HUB_ETAG_TIMEOUT")


def test_a_random_model_asks_nobody(monkeypatch):
    monkeypatch.setattr(connection, "unreachable", lambda url: pytest.fail("a connection was looked for"))
    assert hilrp.audit(*_built("timm/test_convnext")).passed


def _built(name):
    from hilrp.models.random_models import build

    built = build(name)
    return built.model, built.inputs


# From the cache --------------------------------------------------------------------------------------------------


def snapshot(place: Path, name: str) -> Path:
    """The folder of a model in a cache of the hub."""
    folder = place / f"models--{name.replace('/', '--')}"
    files = folder / "snapshots" / REVISION
    files.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(REVISION)
    return files


def same(model, weights):
    return all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_timm_from_the_cache_without_a_connection(tmp_path, no_connection):
    weights = timm.create_model("test_convnext").state_dict()
    hub = timm.get_pretrained_cfg("test_convnext").hf_hub_id
    (snapshot(tmp_path / "hub", hub) / "model.safetensors").write_bytes(save(weights))
    assert same(hilrp.load("test_convnext").model, weights)
    assert not constants.HF_HUB_OFFLINE


def test_transformers_from_the_cache_without_a_connection(tmp_path, no_connection):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=32
    )
    model = transformers.ViTForImageClassification(config)
    files = snapshot(tmp_path / "hub", "owner/name")
    model.save_pretrained(files)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(files)
    assert same(hilrp.load("transformers/owner/name").model, model.state_dict())


def test_torchvision_from_the_cache_without_a_connection(tmp_path, no_connection):
    models = pytest.importorskip("torchvision").models
    weights = models.squeezenet1_1().state_dict()
    file = Path(urlsplit(models.get_model_weights("squeezenet1_1").DEFAULT.url).path).name
    (tmp_path / "torch" / "checkpoints").mkdir(parents=True)
    torch.save(weights, tmp_path / "torch" / "checkpoints" / file)
    assert same(hilrp.load("torchvision/squeezenet1_1").model, weights)


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_nothing_in_the_cache_is_unpickled(tmp_path, monkeypatch, no_connection):
    """torchvision lets torch's hub unpickle what lies in its cache, which is checked only when it is downloaded."""
    models = pytest.importorskip("torchvision").models
    file = Path(urlsplit(models.get_model_weights("mobilenet_v3_small").DEFAULT.url).path).name
    (tmp_path / "checkpoints").mkdir()
    torch.save({"weight": Harmful(tmp_path / "ran")}, tmp_path / "checkpoints" / file)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(InputError, match="mobilenet_v3_small: its published weights could not be loaded"):
        hilrp.load("torchvision/mobilenet_v3_small")
    assert not (tmp_path / "ran").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_what_the_user_told_torch_stays(monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with connection.weights_only():
        assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
    monkeypatch.delenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    with connection.weights_only():
        assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "0"


def test_threads_share_the_switch_of_the_hubs_client():
    with connection.cache_only():
        with connection.cache_only():
            pass
        assert constants.HF_HUB_OFFLINE
        assert connection.hub() == constants.ENDPOINT
    assert not constants.HF_HUB_OFFLINE


def test_a_user_who_is_offline_stays_so(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(connection, "unreachable", lambda url: pytest.fail("a connection was looked for"))
    fails("test_convnext", "could not be loaded")
    assert constants.HF_HUB_OFFLINE


# With a connection -----------------------------------------------------------------------------------------------


@pytest.fixture
def server():
    """A hub, or a proxy before one, that has the files of `files`; what it was asked for is in `asked`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.server.asked.append(self.path)
            content = self.server.files.get(urlsplit(self.path).path)
            self.send_response(404 if content is None else 200)
            self.send_header("X-Repo-Commit", REVISION)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if content is not None and self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.files, made.asked = {}, []
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def published(server):
    """Weights that the hub has for timm/test_convnext."""
    weights = timm.create_model("test_convnext").state_dict()
    hub = timm.get_pretrained_cfg("test_convnext").hf_hub_id
    server.files[f"/{hub}/resolve/main/model.safetensors"] = save(weights)
    return weights


def endpoint(monkeypatch, url):
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    huggingface_hub.close_session()  # the client reads the proxies of the environment when it opens one


def test_a_hub_of_ones_own(server, published, monkeypatch):
    endpoint(monkeypatch, f"http://127.0.0.1:{server.server_port}")
    assert same(hilrp.load("test_convnext").model, published)
    assert server.asked


def test_through_a_proxy(server, published, monkeypatch):
    endpoint(monkeypatch, "http://hub.invalid")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.server_port}")
    assert same(hilrp.load("test_convnext").model, published)
    assert server.asked[0].startswith("http://hub.invalid/")


def test_a_proxy_that_is_not_there(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    endpoint(monkeypatch, "https://hub.invalid")
    monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{port}")
    fails("test_convnext", r"127.0.0.1 can't be reached: .*Connection refused")
    monkeypatch.setenv("NO_PROXY", "hub.invalid")
    fails("test_convnext", r"hub.invalid can't be reached")


def test_an_address_that_keeps_silent_does_not_stand_before_one_that_answers(server, monkeypatch):
    port = server.server_port
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("silent", "127.0.0.1")]
    connect, over = socket.create_connection, threading.Event()

    def knock(address, *rest):
        if address[0] == "silent":
            over.wait(20)
            raise TimeoutError
        return connect(address, *rest)

    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *a, **o: infos if host == "hub.invalid" else resolve(host, *a, **o)
    )
    monkeypatch.setattr(socket, "create_connection", knock)
    assert connection.unreachable(f"http://hub.invalid:{port}") is None
    over.set()
