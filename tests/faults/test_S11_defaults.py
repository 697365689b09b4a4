"""S11: out of the box: this machine only, these routes and no others, nothing from elsewhere on the page."""

import re
from pathlib import Path

from serving_harness import Server

ROUTES = [
    "GET /",
    "GET /health",
    "GET /metrics",
    "GET /models",
    "GET /openapi.json",
    "GET /ready",
    "POST /attention",
    "POST /batch",
    "POST /explain",
    "POST /models/{name}/attention",
    "POST /models/{name}/batch",
    "POST /models/{name}/explain",
    "POST /models/{name}/predict",
    "POST /predict",
]


def test_the_routes_are_these_and_the_document_lists_them_all(server):
    from vitrail.ship.serve.app import ROUTES as TABLE

    assert sorted(f"{method} {path}" for method, path, _ in TABLE) == ROUTES
    paths = server.get("/openapi.json").json()["paths"]
    assert sorted(f"{method.upper()} {path}" for path, ways in paths.items() for method in ways) == ROUTES


def test_the_default_address_is_loopback(server):
    assert server.host == "127.0.0.1"
    listening = Path(f"/proc/{server.worker}/net/tcp").read_text()
    entry = next(line for line in listening.splitlines() if f":{server.port:04X} " in line.split("rem_address")[0][:30])
    assert entry.split()[1].startswith("0100007F:")


def test_an_open_address_is_named(weights, tmp_path):
    server = Server(weights, options=("--host", "0.0.0.0"), log=tmp_path / "log")
    server.host = "127.0.0.1"
    server.ready().stop()
    assert "open to the network" in server.log.read_text()


def test_the_page_loads_nothing_from_anywhere_else(server):
    answer = server.get("/")
    page = answer.body.decode()
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    links = re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)|\burl\(([^)]*)|(@import.*)""", page)
    assert links and all("".join(link).startswith("data:") for link in links)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
