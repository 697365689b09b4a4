"""The routes as an OpenAPI document, made from the table of routes, so that it cannot name one that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vitrail import __version__
from vitrail.ship.serve.limits import Limits

__all__ = ["describe_routes"]

# last segment -> (summary, what is sent, what comes back)
SAYS: dict[str, tuple[str, str | None, str]] = {
    "": ("The page to try it in a browser.", None, "text/html"),
    "predict": ("The classes of one image, with probabilities.", "image/*", "application/json"),
    "batch": ("The classes of several images, errors in place.", "application/json", "application/json"),
    "explain": ("The image with its attention rollout over it.", "image/*", "image/png"),
    "attention": ("Rollout, and the attention of every layer and head, as grids.", "image/*", "application/json"),
    "models": ("The models and what they answer.", None, "application/json"),
    "health": ("200 while the process answers.", None, "application/json"),
    "ready": ("200 while new requests are taken, 503 while draining.", None, "application/json"),
    "metrics": ("Counters and histograms for Prometheus.", None, "text/plain"),
    "openapi.json": ("This document.", None, "application/json"),
}
ERRORS = {
    "400": "The request is malformed; `error` says how.",
    "404": "No such route or model.",
    "408": "The body came too slowly.",
    "413": "The body is too long, or has too many images.",
    "415": "The body is not an image; `message` holds a curl line that works.",
    "422": "The body is no image this server reads; `error` is the reason.",
    "503": "The queue is full; try again after Retry-After seconds.",
    "504": "No answer within the deadline.",
}
ANSWER = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "classes": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "class": {"type": "string"},
                    "index": {"type": "integer"},
                    "probability": {"type": "number"},
                },
            },
        },
        "logits": {"type": "array", "items": {"type": "number"}, "description": "With ?logits=1."},
    },
}
TOP: dict[str, Any] = {
    "name": "top",
    "in": "query",
    "description": "How many classes.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 5},
}
LOGITS: dict[str, Any] = {"name": "logits", "in": "query", "description": "1: the logits too.", "schema": {"type": "string", "enum": ["1"]}}
NAME: dict[str, Any] = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


def describe_routes(routes: Iterable[tuple[str, str]], limits: Limits) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for method, path in routes:
        paths.setdefault(path, {})[method.lower()] = _operation(path, limits)
    about = "Send an image as the raw body of a POST; the answer is JSON."
    return {"openapi": "3.1.0", "info": {"title": "Vitrail", "version": __version__, "description": about}, "paths": paths}


def _operation(path: str, limits: Limits) -> dict[str, Any]:
    last = path.rsplit("/", 1)[-1]
    summary, sent, received = SAYS[last]
    schema = ANSWER if last == "predict" else {"type": "object"} if received == "application/json" else {"type": "string"}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": summary, "content": {received: {"schema": schema}}}},
    }
    parameters: list[dict[str, Any]] = [NAME] if "{name}" in path else []
    parameters += [TOP, LOGITS] if last == "predict" else [TOP] if last == "batch" else []
    if parameters:
        operation["parameters"] = parameters
    if sent:
        body = {"type": "string", "format": "binary", "maxLength": limits.max_bytes}
        if last == "batch":
            items = {"type": "array", "maxItems": limits.max_images, "items": {"type": "string", "contentEncoding": "base64"}}
            body = {"type": "object", "required": ["images"], "properties": {"images": items}}  # type: ignore[dict-item]
        operation["requestBody"] = {"required": True, "content": {sent: {"schema": body}}}
        operation["responses"] |= {status: {"description": text} for status, text in ERRORS.items()}
    return operation
