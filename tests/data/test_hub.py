"""hf:// addresses against a hub on the loopback: parquet as it is, the converted branch, the cache, no network."""

import hashlib
import http.server
import io
import json
import threading
from urllib.parse import unquote, urlparse

import pytest
from photos import png

from vitrail.data.source import list_splits, open_source
from vitrail.errors import DataError, ResourceError, UsageError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
COMMIT = "0" * 39 + "1"


def parquet(first, count):
    features = {"image": {"_type": "Image"}, "label": {"names": ["a", "b"], "_type": "ClassLabel"}}
    rows = range(first, first + count)
    table = pa.table({"image": [{"bytes": png(i), "path": None} for i in rows], "label": [i % 2 for i in rows]})
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), out)
    return out.getvalue()


REPOSITORIES = {
    ("me/birds", "main"): {
        "README.md": b"#",
        "data/train-00000-of-00002.parquet": parquet(0, 4),
        "data/train-00001-of-00002.parquet": parquet(4, 4),
        "data/test-00000-of-00001.parquet": parquet(90, 2),
    },
    ("me/zipped", "main"): {"photos.zip": b"PK"},
    ("me/zipped", "refs/convert/parquet"): {"default/train/0000.parquet": parquet(0, 3)},
    ("me/several", "main"): {"big/train-00000-of-00001.parquet": parquet(0, 3), "small/train-00000-of-00001.parquet": parquet(0, 2)},
}


class Hub(http.server.BaseHTTPRequestHandler):
    asked = None  # names of the files sent, a new list each test

    def log_message(self, *_):
        pass

    def answer(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = unquote(urlparse(self.path).path)
        if path.startswith("/api/datasets/"):
            owner, name, verb, *rest = path.removeprefix("/api/datasets/").split("/", 3)
            revision = rest[0].rstrip("/") if rest else "main"
            files = REPOSITORIES.get((f"{owner}/{name}", revision))
            if files is None:
                code = "RevisionNotFound" if any(repo == f"{owner}/{name}" for repo, _ in REPOSITORIES) else "RepoNotFound"
                return self.answer(b"{}", 404, X_Error_Code=code)
            listing = [{"type": "file", "path": path, "size": len(data), "oid": "x"} for path, data in files.items()]
            body = listing if verb == "tree" else {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]}
            return self.answer(json.dumps(body).encode(), Content_Type="application/json")
        repo, _, rest = path.removeprefix("/datasets/").partition("/resolve/")
        for (one, revision), files in REPOSITORIES.items():
            for start in (revision, COMMIT):
                if one == repo and rest.startswith(start + "/") and rest.removeprefix(start + "/") in files:
                    data = files[rest.removeprefix(start + "/")]
                    if self.command == "GET":
                        self.asked.append(rest.rsplit("/", 1)[-1])
                    return self.answer(data, ETag=f'"{hashlib.sha1(data).hexdigest()}"')
        return self.answer(b"", 404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET


@pytest.fixture
def hub(monkeypatch, tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    Hub.asked = []
    yield server
    server.shutdown()
    server.server_close()


def test_only_the_files_of_the_split_are_downloaded(hub):
    assert list_splits("hf://datasets/me/birds") == ("train", "test") and Hub.asked == []
    source = open_source("hf://datasets/me/birds", "train")
    assert len(source) == 8 and source.classes == ("a", "b") and source.read(6).data == png(6)
    assert Hub.asked == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    open_source("hf://datasets/me/birds", "train[:50%]")
    assert len(Hub.asked) == 2  # from the cache


def test_what_is_not_parquet_comes_from_the_hubs_conversion(hub):
    assert len(open_source("hf://datasets/me/zipped", "train")) == 3


def test_a_configuration_has_to_be_chosen(hub):
    with pytest.raises(DataError, match="configurations big, small"):
        open_source("hf://datasets/me/several", "train")
    assert len(open_source("hf://datasets/me/several/small", "train")) == 2


def test_without_a_network_the_cache_answers(hub, monkeypatch):
    first = open_source("hf://datasets/me/birds", "test")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = open_source("hf://datasets/me/birds", "test")
    assert again.fingerprint == first.fingerprint and again.read(1).data == png(91)
    with pytest.raises(ResourceError, match="HF_HUB_OFFLINE is set and the data set is not in the cache"):
        open_source("hf://datasets/me/zipped", "train")


def test_a_hub_that_cannot_be_reached_is_said_so(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ResourceError, match="cannot be reached") as caught:
        open_source("hf://datasets/me/birds", "train")
    assert caught.value.exit_code == 6 and "hf download" in caught.value.hint


def test_names_that_are_not_there(hub):
    with pytest.raises(DataError, match="no such data set"):
        open_source("hf://datasets/me/nothing", "train")
    with pytest.raises(DataError, match="no such revision"):
        open_source("hf://datasets/me/birds@v9", "train")
    with pytest.raises(UsageError, match="no data set on the hub"):
        open_source("hf://datasets/birds", "train")
