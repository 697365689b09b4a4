"""S09: no path from outside reaches the file system."""

import asyncio
import sys

import pytest
from serving_harness import png, request

ROOTS = ["/etc/passwd", "/..", "/../../etc/passwd", "//etc/passwd", "/./predict/../etc/passwd", "/page.html", "/static/../app.py"]
ENCODED = [
    "/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2fetc%2fpasswd",
    "/%252e%252e%252fetc",
    "/..%c0%af..%c0%afetc",
    "/%00",
    "/page.html%00.png",
]
WINDOWS = ["/..\\..\\windows\\win.ini", "/C:/windows/win.ini", "/c:%5cwindows%5cwin.ini", "/\\\\host\\share"]
SCHEMES = ["/file:///etc/passwd", "/http://169.254.169.254/", "/?file=/etc/passwd", "/predict/etc/passwd"]
MODELS = [
    f"/models/{name}/predict"
    for name in ("..", "../..", "%2e%2e", "..%2f..%2fetc", "/etc/passwd", "tiny/..", "%00", "tiny%00", "a" * 3000, "file:%2f%2f%2fetc")
]
METHODS = [("PUT", "/models/new"), ("DELETE", "/models/tiny"), ("POST", "/models"), ("POST", "/models/tiny"), ("TRACE", "/")]
URLS = [("GET", path) for path in ROOTS + ENCODED + WINDOWS + SCHEMES] + [("POST", path) for path in MODELS] + METHODS


@pytest.mark.parametrize(("method", "path"), URLS, ids=lambda v: v[:40])
def test_the_answer_is_not_found(server, method, path):
    answer = server.raw(request(path, png() if method == "POST" else b"", "image/png", method))
    if path.startswith("/?"):
        assert answer.status == 200, "the page, which takes no parameters"
    else:
        assert answer.status in (400, 404, 405)
    assert b"root:" not in answer.body


def call(app, method, path, body=b"", kind="image/png"):
    """One request to the ASGI application, in this process: its status."""
    said = []

    async def run():
        sent = False

        async def receive():
            nonlocal sent
            if sent:
                await asyncio.sleep(3600)
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            said.append(message)

        headers = [(b"host", b"t"), (b"content-type", kind.encode())]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
        await app(
            {**scope, "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("t", 80), "client": ("t", 1)}, receive, send
        )

    async def with_lines():
        async with app.router.lifespan_context(app):
            await run()

    asyncio.run(with_lines())
    return said[0]["status"]


def test_no_file_is_opened_for_any_of_these_urls(weights):
    from vitrail.ship.predict import load_predictors
    from vitrail.ship.serve.app import Site, build_app
    from vitrail.ship.serve.limits import Limits
    from vitrail.ship.serve.metrics import Metrics

    predictors = load_predictors([str(weights)])
    app = lambda: build_app(Site(dict(predictors), Limits(), Metrics()))
    assert call(app(), "GET", "/") == 200  # reads the packaged page, once
    assert call(app(), "POST", "/predict", png()) == 200
    opened, watching = [], [True]
    sys.addaudithook(lambda event, args: opened.append(args[0]) if watching[0] and event in ("open", "os.listdir", "os.scandir") else None)
    try:
        for method, path in URLS:
            call(app(), method, path, png() if method == "POST" else b"")
        assert call(app(), "POST", "/predict", png()) == 200, "nor for a good one"
    finally:
        watching[0] = False
    assert [path for path in opened if not isinstance(path, int)] == []
