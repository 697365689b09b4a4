"""The routes. A request is a raw image; an answer is JSON; nothing a client sends is ever a path.

    POST /predict                 image -> classes with probabilities     (first model)
    POST /models/{name}/predict   the same, for a named model
    POST /explain                 image -> PNG: the image with its attention rollout over it
    POST /attention               image -> JSON: rollout and the class token's row of every layer and head
    POST /batch                   {"images": [base64, ...]} -> one answer an image, errors in place
    GET  /models /health /ready /metrics /openapi.json /

`serve/limits.py` holds every bound.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import functools
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any, Protocol

import numpy as np
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from vitrail.errors import DecodeError, UsageError
from vitrail.ship.serve.batching import Batcher
from vitrail.ship.serve.limits import Limits
from vitrail.ship.serve.metrics import Metrics
from vitrail.ship.serve.openapi import describe_routes

log = logging.getLogger("vitrail.serve")
TOLD = ("too_many_bytes", "too_many_pixels", "bad_dimensions", "format_refused")  # details in our own words, fit for a client
HEADER_BYTES = 32 * 1024
LOOKS = 8  # explanations waiting or running
CURL = "curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' {url}"


class Model(Protocol):
    """What the server needs of a predictor (`vitrail.ship.predict.Predictor` is one)."""

    name: str
    classes: tuple[str, ...]

    def pixels(self, data: bytes, where: str = "") -> np.ndarray: ...
    def forward(self, batch: np.ndarray) -> np.ndarray: ...
    def answer(self, logits: np.ndarray, top: int) -> list[dict[str, Any]]: ...
    def overlay(self, data: bytes) -> bytes: ...
    def attention(self, data: bytes) -> dict[str, Any]: ...
    def describe(self) -> dict[str, Any]: ...


class Refusal(Exception):
    """An answer that is no result: status, reason code, what to do next."""

    def __init__(self, status: int, reason: str, message: str, *, retry_s: int | None = None, close: bool = False) -> None:
        self.status, self.reason, self.message = status, reason, message
        self.headers = {"retry-after": str(retry_s)} if retry_s else {}
        if close:
            self.headers["connection"] = "close"


class Site:
    """The models, each with its line, and what all routes share."""

    def __init__(self, models: dict[str, Model], limits: Limits, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self.draining = False
        self.decoders = ThreadPoolExecutor(2, thread_name_prefix="vitrail-decode")
        self.lookers = ThreadPoolExecutor(1, thread_name_prefix="vitrail-explain")
        self.looking = 0
        self.bytes_held = 0
        self.models = models
        self.lines = {name: self._line(name) for name in models}
        metrics.gauge("vitrail_queue_images", "Images decoded or waiting.", lambda: sum(b.taken for b in self.lines.values()))
        metrics.gauge("vitrail_body_bytes", "Bytes of request bodies held.", lambda: self.bytes_held)
        metrics.gauge("vitrail_ready", "1 while new requests are taken.", lambda: float(not self.draining))

    def _line(self, name: str) -> Batcher:
        return Batcher(lambda batch: self.models[name].forward(batch), self.limits, self.metrics)

    def pick(self, request: Request) -> str:
        name = request.path_params.get("name") or next(iter(self.models))
        if name not in self.models:
            raise Refusal(404, "unknown_model", "No model of that name; GET /models lists them.")
        return str(name)

    def replace(self, models: dict[str, Model]) -> None:
        """Swap in freshly loaded models of the same names; images in line see the new ones."""
        if set(models) != set(self.models):
            names = ", ".join(sorted(models))
            raise UsageError(f"the weights now hold the models {names}.", hint="other names need a new start of the server")
        self.models.update(models)


@contextlib.contextmanager
def holding(site: Site) -> Iterator[Callable[[int], None]]:
    """Counts the bytes of one request's body while it is received and answered, over all requests at once."""
    mine = 0

    def add(count: int) -> None:
        nonlocal mine
        if site.bytes_held + count > site.limits.max_waiting_bytes:
            raise Refusal(503, "busy", "Too many bytes are waiting; try again in a moment.", retry_s=1, close=True)
        mine += count
        site.bytes_held += count

    try:
        yield add
    finally:
        site.bytes_held -= mine


async def read_body(request: Request, limits: Limits, add: Callable[[int], None]) -> bytes:
    """The whole body, or a refusal as soon as it is known to be too long, too slow or empty."""
    too_long = Refusal(413, "too_many_bytes", f"The body may have {limits.max_bytes} bytes.", close=True)
    if "content-length" in request.headers and "transfer-encoding" in request.headers:
        raise Refusal(400, "ambiguous_length", "Content-Length and Transfer-Encoding exclude each other.", close=True)
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdigit() and int(declared) > limits.max_bytes:
        raise too_long
    chunks, length = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                length += len(chunk)
                if length > limits.max_bytes:
                    raise too_long
                add(len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        raise Refusal(408, "slow_body", f"The body must arrive within {limits.body_timeout_s:g} s.", close=True) from None
    if not length:
        raise Refusal(422, "empty", "The body is empty: send the image itself. " + curl(request))
    return b"".join(chunks)


def curl(request: Request) -> str:
    return CURL.format(url=str(request.base_url).rstrip("/") + "/predict")


def want_image(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if not (kind.startswith("image/") or kind == "application/octet-stream"):
        message = f"Send the image itself as the body, with Content-Type image/*: {curl(request)}"
        raise Refusal(415, "unsupported_media_type", message, close=True)


async def gone(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


async def in_time(request: Request, work: Awaitable[Any], limits: Limits) -> Any:
    """`work`'s result; cancelled when the deadline passes or the client leaves."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(request))
    try:
        done, _ = await asyncio.wait({task, leaving}, timeout=limits.request_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        if leaving in done:
            raise ClientDisconnect
        raise Refusal(504, "deadline", f"No answer within {limits.request_timeout_s:g} s.")
    finally:
        for other in (task, leaving):
            other.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


def top_k(request: Request) -> int:
    text = request.query_params.get("top", "5")
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise Refusal(400, "bad_top", "top is a number from 1 to 1000.")
    return int(text)


async def one_image(site: Site, name: str, data: bytes, top: int, want_logits: bool) -> dict[str, Any]:
    """Decode in a thread, travel in a batch, name the classes."""
    model, line = site.models[name], site.lines[name]
    pixels = await asyncio.get_running_loop().run_in_executor(site.decoders, model.pixels, data, "body")
    logits = await line.logits(pixels)
    answer: dict[str, Any] = {"model": name, "classes": model.answer(logits, top)}
    if want_logits:
        answer["logits"] = [float(v) for v in logits]
    return answer


async def predict(site: Site, request: Request) -> Response:
    want_image(request)
    name, top = site.pick(request), top_k(request)
    line = site.lines[name]
    refuse_when_full(line, 1)
    with holding(site) as add:
        data = await read_body(request, site.limits, add)
        with place(line, 1):
            want_logits = request.query_params.get("logits") == "1"
            return JSONResponse(await in_time(request, one_image(site, name, data, top, want_logits), site.limits))


def refuse_when_full(line: Batcher, images: int) -> None:
    """Before the body is read, so that a refusal costs next to nothing. A place is only taken after: slow bodies hold none."""
    if line.taken + images > line.limits.queue:
        raise Refusal(503, "busy", "The queue is full; try again in a moment.", retry_s=1, close=True)


@contextlib.contextmanager
def place(line: Batcher, images: int) -> Iterator[None]:
    """So many places in the line, given back whatever happens."""
    refuse_when_full(line, images)
    line.taken += images
    try:
        yield
    finally:
        line.taken -= images


async def batch(site: Site, request: Request) -> Response:
    name, top = site.pick(request), top_k(request)
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise Refusal(415, "unsupported_media_type", 'Send JSON: {"images": ["<base64>", ...]}', close=True)
    line = site.lines[name]
    refuse_when_full(line, 1)

    async def one(item: bytes | None) -> dict[str, Any]:
        if item is None:
            return {"error": "bad_base64"}
        try:
            return await one_image(site, name, item, top, False)
        except DecodeError as error:
            return {"error": error.reason}

    with holding(site) as add:
        images = images_of(await read_body(request, site.limits, add), site.limits)
        with place(line, len(images)):
            work = asyncio.gather(*(one(item) for item in images))
            return JSONResponse({"model": name, "answers": await in_time(request, work, site.limits)})


def images_of(body: bytes, limits: Limits) -> list[bytes | None]:
    """The images of a batch request; None where the base64 of one is broken."""
    try:
        items = json.loads(body)["images"]
        assert isinstance(items, list) and items and all(isinstance(i, str) for i in items)
    except (ValueError, KeyError, TypeError, AssertionError, RecursionError):
        raise Refusal(400, "bad_json", 'Send {"images": ["<base64>", ...]}.') from None
    if len(items) > limits.max_images:
        raise Refusal(413, "too_many_images", f"A batch may have {limits.max_images} images.")
    out: list[bytes | None] = []
    for item in items:
        try:
            out.append(base64.b64decode(item, validate=True))
        except (binascii.Error, ValueError):
            out.append(None)
    return out


async def look(site: Site, request: Request, method: str) -> Any:
    """Explanations run one at a time beside the batches, with a short line of their own."""
    want_image(request)
    model = site.models[site.pick(request)]
    if site.looking >= LOOKS:
        raise Refusal(503, "busy", "Too many explanations at once; try again in a moment.", retry_s=1, close=True)
    site.looking += 1
    try:
        with holding(site) as add:
            data = await read_body(request, site.limits, add)
            work = asyncio.get_running_loop().run_in_executor(site.lookers, getattr(model, method), data)
            return await in_time(request, work, site.limits)
    finally:
        site.looking -= 1


async def explain(site: Site, request: Request) -> Response:
    return Response(await look(site, request, "overlay"), media_type="image/png")


async def attention(site: Site, request: Request) -> Response:
    return JSONResponse(await look(site, request, "attention"))


async def list_models(site: Site, request: Request) -> Response:
    return JSONResponse({"models": [m.describe() for m in site.models.values()]})


async def health(site: Site, request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def ready(site: Site, request: Request) -> Response:
    return JSONResponse({"ready": not site.draining}, status_code=503 if site.draining else 200)


async def metrics_text(site: Site, request: Request) -> Response:
    return PlainTextResponse(site.metrics.render(), media_type="text/plain; version=0.0.4")


async def openapi(site: Site, request: Request) -> Response:
    return JSONResponse(describe_routes([(method, path) for method, path, _ in ROUTES], site.limits))


async def page(site: Site, request: Request) -> Response:
    policy = "default-src 'none'; img-src 'self' blob: data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
    return HTMLResponse(page_text(), headers={"content-security-policy": policy, "x-content-type-options": "nosniff"})


@functools.cache
def page_text() -> str:
    return resources.files("vitrail.ship.serve").joinpath("page.html").read_text("utf-8")


Handler = Callable[[Site, Request], Awaitable[Response]]
ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/", page),
    ("POST", "/predict", predict),
    ("POST", "/batch", batch),
    ("POST", "/explain", explain),
    ("POST", "/attention", attention),
    ("GET", "/models", list_models),
    ("POST", "/models/{name}/predict", predict),
    ("POST", "/models/{name}/batch", batch),
    ("POST", "/models/{name}/explain", explain),
    ("POST", "/models/{name}/attention", attention),
    ("GET", "/health", health),
    ("GET", "/ready", ready),
    ("GET", "/metrics", metrics_text),
    ("GET", "/openapi.json", openapi),
]


def guarded(site: Site, route: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Every way a handler can end becomes a status, a reason code and one log line; never a traceback."""

    async def run(request: Request) -> Response:
        start = time.perf_counter()
        response = await answered(site, request, handler)
        if site.draining:
            response.headers["connection"] = "close"
        site.metrics.request(route, response.status_code, time.perf_counter() - start)
        return response

    return run


def check_header(request: Request) -> None:
    """What the HTTP library lets pass when it arrives in one piece."""
    if sum(len(name) + len(value) for name, value in request.scope["headers"]) > HEADER_BYTES:
        raise Refusal(431, "header_too_long", f"The header may have {HEADER_BYTES} bytes.", close=True)
    if request.scope["http_version"] not in ("1.0", "1.1"):
        raise Refusal(505, "http_version", "This server speaks HTTP/1.1.", close=True)


async def answered(site: Site, request: Request, handler: Handler) -> Response:
    try:
        check_header(request)
        return await handler(site, request)
    except Refusal as refusal:
        site.metrics.refusal(refusal.reason)
        body = {"error": refusal.reason, "message": refusal.message}
        return JSONResponse(body, status_code=refusal.status, headers=refusal.headers)
    except DecodeError as error:
        site.metrics.refusal(error.reason)
        message = "The body is no image this server reads."
        if error.reason in TOLD:
            message += f" {error.detail}."
        return JSONResponse({"error": error.reason, "message": message}, status_code=422)
    except ClientDisconnect:
        site.metrics.refusal("client_left")
        return Response(status_code=499)
    except UsageError as error:
        site.metrics.refusal("unsupported")
        log.warning("refused: %s", error.message)
        return JSONResponse({"error": "unsupported", "message": "This model cannot answer that."}, status_code=422)
    except Exception as error:
        site.metrics.refusal("internal")
        log.error("internal error: %s", type(error).__name__, exc_info=error)
        return JSONResponse({"error": "internal", "message": "The server failed on this request."}, status_code=500)


def build_app(site: Site) -> Starlette:
    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        for line in site.lines.values():
            line.start()
        yield
        for line in site.lines.values():
            await line.stop()

    async def nowhere(request: Request, _error: Exception) -> Response:
        site.metrics.refusal("not_found")
        return JSONResponse({"error": "not_found", "message": "No such route; see /openapi.json."}, status_code=404)

    async def wrong_method(request: Request, _error: Exception) -> Response:
        site.metrics.refusal("method_not_allowed")
        return JSONResponse({"error": "method_not_allowed", "message": "See /openapi.json."}, status_code=405)

    routes = [Route(path, guarded(site, path, handler), methods=[method]) for method, path, handler in ROUTES]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: nowhere, 405: wrong_method})
