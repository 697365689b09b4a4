"""Weights by URI, against a server on this machine: cache, resumption, pins, offline, refusals."""

import base64
import hashlib
import http.server
import json
import threading
import time

import pytest
import torch

import vitrail
from vitrail.errors import CheckpointError, ResourceError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.weights import download as transfer
from vitrail.weights.hub import DEFAULT_MODEL, builtin_names, fetch
from vitrail.weights.rules import their_tensors
from vitrail.weights.safe import write_safetensors

CONTENT = bytes(range(256)) * 20_000  # 5 MB


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, body):
        server, path = self.server, self.path.partition("?")[0]
        server.log.append((self.command, path, self.headers.get("Range"), self.headers.get("Authorization")))
        if path in server.moved:
            self.send_response(302)
            self.send_header("Location", server.moved[path])
            self.end_headers()
            return
        if path not in server.files:
            self.send_response(404)
            if path.startswith(("/owner/", "/timm/")):
                self.send_header("X-Error-Code", "EntryNotFound" if "/resolve/main/" in path else "RevisionNotFound")
            elif "/resolve/" in path:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = server.files[path]
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        start = 0
        wanted = self.headers.get("Range")
        if wanted and self.headers.get("If-Range", tag) == tag:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", tag)
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("Content-Length", str(len(data) - start))
        if server.md5:
            self.send_header("x-goog-hash", f"crc32c=AAAAAA==,md5={server.md5}")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            part = data[start:]
            if server.breaks:
                server.breaks -= 1
                part = part[: len(part) // 2]
            self.wfile.write(part)
        self.close_connection = True


@pytest.fixture
def server(tmp_path, monkeypatch):
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.files, web.moved, web.log, web.breaks, web.md5 = {}, {}, [], 0, None
    web.url = f"http://127.0.0.1:{web.server_port}"
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    for name in ("HF_HUB_OFFLINE", "VITRAIL_OFFLINE", "HF_TOKEN", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    monkeypatch.setenv("VITRAIL_GS_ENDPOINT", web.url)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    yield web
    web.shutdown()
    web.server_close()
    thread.join(5)


def digest(data):
    return hashlib.sha256(data).hexdigest()


def gets(server):
    return [entry for entry in server.log if entry[0] == "GET"]


# ---- https and buckets ----


def test_a_file_is_fetched_once_and_then_comes_from_the_cache(server):
    server.files["/vit_models/augreg/B_16.npz"] = CONTENT
    first = fetch("gs://vit_models/augreg/B_16.npz")
    assert first.name == "B_16.npz" and first.read_bytes() == CONTENT
    assert fetch("gs://vit_models/augreg/B_16.npz") == first
    assert fetch("gs://vit_models/augreg/B_16.npz", offline=True) == first
    assert len(gets(server)) == 1
    assert sorted(p.name for p in first.parent.iterdir()) == ["B_16.npz", "B_16.npz.lock"]


def test_a_broken_connection_is_continued_where_it_broke_off(server):
    server.files["/w.npz"] = CONTENT
    server.breaks = 2
    assert fetch(f"{server.url}/w.npz").read_bytes() == CONTENT
    ranges = [entry[2] for entry in gets(server)]
    assert ranges[0] is None and ranges[1] == f"bytes={len(CONTENT) // 2}-" and len(ranges) == 3


def test_a_file_that_changed_meanwhile_is_begun_anew(server):
    server.files["/w.npz"] = CONTENT
    server.breaks = 99
    with pytest.raises(ResourceError, match="cannot be fetched"):
        fetch(f"{server.url}/w.npz")
    server.breaks, server.files["/w.npz"] = 0, CONTENT[::-1]
    assert fetch(f"{server.url}/w.npz").read_bytes() == CONTENT[::-1]


def test_C14_a_pinned_hash_that_does_not_match_deletes_the_download_and_exits_5(server, tmp_path):
    server.files["/w.npz"] = CONTENT
    pin = digest(CONTENT)
    assert fetch(f"{server.url}/w.npz#sha256={pin}").read_bytes() == CONTENT
    server.files["/v.npz"] = b"other bytes"
    with pytest.raises(CheckpointError, match=f"not the pinned {pin}") as caught:
        fetch(f"{server.url}/v.npz", sha256=pin)
    assert caught.value.exit_code == 5
    assert not list((tmp_path / "cache").rglob("v.npz"))


def test_google_s_checksum_is_compared(server, tmp_path):
    server.files["/bit_models/x.npz"] = CONTENT
    server.md5 = base64.b64encode(hashlib.md5(CONTENT).digest()).decode()
    assert fetch("gs://bit_models/x.npz").read_bytes() == CONTENT
    server.files["/bit_models/y.npz"] = CONTENT
    server.md5 = base64.b64encode(hashlib.md5(b"").digest()).decode()
    with pytest.raises(CheckpointError, match="MD5"):
        fetch("gs://bit_models/y.npz")
    assert not [p for p in (tmp_path / "cache").rglob("y.npz*") if p.suffix != ".lock"]


def test_a_larger_file_than_allowed_is_refused_before_it_is_written(server, tmp_path):
    server.files["/w.npz"] = CONTENT
    with pytest.raises(ResourceError, match=r"5,120,000 bytes, and 1,000,000 are allowed"):
        fetch(f"{server.url}/w.npz", max_bytes=1_000_000)
    assert sum(p.stat().st_size for p in (tmp_path / "cache").rglob("*") if p.is_file()) < 100


def test_what_is_not_there_says_so_and_exits_5(server):
    with pytest.raises(CheckpointError, match="there is no such file"):
        fetch("gs://vit_models/nothing.npz")


def test_offline_says_so_and_touches_no_network(server, monkeypatch):
    with pytest.raises(ResourceError, match="the network is off"):
        fetch(f"{server.url}/w.npz", offline=True)
    monkeypatch.setenv("VITRAIL_OFFLINE", "1")
    with pytest.raises(ResourceError, match="the network is off"):
        fetch("hf://owner/name")
    assert server.log == []


def test_an_unreachable_server_is_one_clear_error(server):
    with pytest.raises(ResourceError, match=r"cannot be fetched .*refused") as caught:
        fetch("http://127.0.0.1:9/w.npz")
    assert "local path" in caught.value.hint


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("http://example.com/w.npz", "only https"),
        ("https://user:secret@example.com/w.npz", "no passwords"),
        ("ftp://example.com/w.npz", "no weights are fetched from ftp"),
        ("gs://my-bucket/w.npz", "of Google's buckets only"),
        ("gs://vit_models/", "name a file"),
        ("hf://justaname", "not a model on the hub"),
        ("hf://owner/../../etc/passwd", "not a model on the hub"),
        ("builtin:nothing", "no weights are packaged"),
    ],
)
def test_strange_uris_are_refused_without_a_request(uri, why):
    with pytest.raises(UsageError, match=why) as caught:
        fetch(uri)
    assert "secret" not in str(caught.value)


def test_a_redirect_away_from_https_is_refused():
    handler = transfer._SafeRedirects()
    request = transfer.urllib.request.Request("https://example.com/w.npz")
    with pytest.raises(UsageError, match="only https"):
        handler.redirect_request(request, None, 302, "", {}, "http://example.com/w.npz")


# ---- the hub ----


@pytest.fixture
def repository(server):
    """A Hugging Face repository with a small ViT, in pure bytes."""
    from vitrail.weights.format import format_named

    config = ViTConfig(width=32, depth=1, heads=2, mlp_width=48, patch_size=8, image_size=16, classes=3, eps=1e-12, activation="gelu")
    model = build(config, seed=1)
    form = format_named("hf")
    path = server_file(server, their_tensors(form.rules(config), dict(model.named_parameters())))
    server.files["/owner/name/resolve/main/model.safetensors"] = path
    server.files["/timm/vit.tag/resolve/main/model.safetensors"] = path
    described = json.dumps(form.sidecar(config, None)["config.json"]).encode()
    server.files["/owner/name/resolve/main/config.json"] = described
    server.files["/timm/vit.tag/resolve/main/config.json"] = described
    return model


def server_file(server, tensors):
    import io

    stream = io.BytesIO()
    write_safetensors(stream, {name: tensor.detach().contiguous() for name, tensor in tensors.items()}, {"format": "pt"})
    return stream.getvalue()


def test_a_model_comes_from_the_hub_with_the_files_beside_it(server, repository):
    model = vitrail.load_model("hf://owner/name")
    assert model.config.heads == 2 and model.config.eps == 1e-12  # only config.json says so
    x = torch.randn(1, 3, 16, 16)
    assert torch.equal(model(x), repository.eval()(x))
    assert model.card.parents == ("hf://owner/name",)
    asked = len(server.log)
    offline = vitrail.load_model("hf://owner/name", offline=True)
    assert torch.equal(offline(x), model(x)) and len(server.log) == asked


def test_timm_names_are_repositories_of_timm(server, repository):
    assert fetch("timm://vit.tag").name == "model.safetensors"


def test_one_file_of_a_repository_can_be_named(server, repository):
    path = fetch("hf://owner/name@main/model.safetensors")
    assert path.read_bytes() == server.files["/owner/name/resolve/main/model.safetensors"]
    assert (path.parent / "config.json").is_file()
    with pytest.raises(CheckpointError, match=r"the repository has no other\.npz"):
        fetch("hf://owner/name/other.npz")


def test_C14_a_pin_on_the_hub_deletes_what_does_not_match(server, repository, tmp_path):
    with pytest.raises(CheckpointError, match="was deleted"):
        fetch("hf://owner/name", sha256="0" * 64)
    assert not list((tmp_path / "hub").rglob("model.safetensors"))
    right = digest(server.files["/owner/name/resolve/main/model.safetensors"])
    assert fetch(f"hf://owner/name#sha256={right}").is_file()


def test_errors_of_the_hub_are_told_apart(server, repository):
    with pytest.raises(CheckpointError, match="no such repository"):
        fetch("hf://nobody/nothing")
    with pytest.raises(CheckpointError, match="there is no revision 'v2'"):
        fetch("hf://owner/name@v2")
    with pytest.raises(ResourceError, match="not in the cache"):
        fetch("hf://owner/name", offline=True)
    with pytest.raises(ResourceError, match="are allowed"):
        fetch("hf://owner/name", max_bytes=100)


# ---- packaged ----


def test_the_default_model_is_packaged_weights():
    assert DEFAULT_MODEL.startswith("builtin:")
    for name in builtin_names():
        assert fetch(f"builtin:{name}").suffix == ".safetensors"
