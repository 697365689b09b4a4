"""A real server process on loopback, spoken to over raw sockets, and the images to send it.

Loaded by tests/ship/conftest.py and tests/faults/conftest.py.
"""

import contextlib
import http.client
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay")


def tiny_model(path: Path, name="tiny", seed=1, size=32, arch="mu/16", classes=CLASSES, **options) -> Path:
    """A small ViT with a head that is not zero, saved with a card."""
    import torch

    from vitrail.model.variants import create_model
    from vitrail.weights.card import Card, card_of
    from vitrail.weights.store import save_model

    model = create_model(arch, image_size=size, classes=len(classes), seed=seed, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.head.weight.normal_(0, 0.5, generator=generator)
    model.card = Card(name=name, classes=classes)
    save_model(model, path, card=card_of(model))
    return path


def picture(seed=0, size=(40, 52)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def encoded(array: np.ndarray, format="PNG", **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, format, **options)
    return out.getvalue()


def png(seed=0, **options) -> bytes:
    return encoded(picture(seed), "PNG", **options)


def bomb(side=60_000) -> bytes:
    """A one-bit PNG of side x side pixels in a few kilobytes."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    line = b"\0" * (1 + side // 8)
    squeeze = zlib.compressobj(9)
    body = b"".join(squeeze.compress(line) for _ in range(min(side, 4000))) + squeeze.flush()
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )


class Answer:
    """A response taken apart by hand."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split()[1]) if first.startswith("HTTP/") else 0
        self.headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}

    def json(self):
        return json.loads(self.body)


def request(path, body=b"", kind="image/png", method="POST", close=True, extra=()) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}"]
    lines += [f"Content-Type: {kind}"] if kind else []
    lines += ["Connection: close"] if close else []
    return "\r\n".join([*lines, *extra, "", ""]).encode() + body


class Server:
    """`vitrail serve WEIGHTS --port 0 …` as a user starts it."""

    def __init__(self, *weights, options=(), env=None, log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "vitrail", "serve", *map(str, weights), "--port", "0", "--json", "--threads", "1", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=open(log, "wb"), env=environment, text=True)
        text = ""
        while "}" not in text:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server ended: {log.read_text()}")
            text += line
        self.host, port = json.loads(text)["address"].removeprefix("http://").rsplit(":", 1)
        self.port = int(port)

    # ---- speaking ----

    def connect(self, timeout=20.0) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout)

    def raw(self, data: bytes, timeout=20.0) -> Answer:
        """Send bytes, read until the other side closes."""
        with self.connect(timeout) as sock:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(data)
            return Answer(read_all(sock))

    def post(self, path, body, kind="image/png", **options) -> Answer:
        return self.raw(request(path, body, kind, **options))

    def get(self, path) -> Answer:
        return self.raw(request(path, b"", None, "GET"))

    def metrics(self) -> dict[str, float]:
        lines = self.get("/metrics").body.decode().splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line and line[0] != "#")}

    def ready(self, within_s=60.0) -> "Server":
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.log.read_text()}")
            with contextlib.suppress(OSError, ValueError):
                if self.get("/ready").status == 200:
                    return self
            time.sleep(0.05)
        raise TimeoutError(f"not ready: {self.log.read_text()}")

    # ---- looking at the worker ----

    @property
    def worker(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def rss(self) -> int:
        """Bytes of memory of the worker now."""
        fields = Path(f"/proc/{self.worker}/status").read_text()
        return int(fields.split("VmRSS:")[1].split()[0]) * 1024

    def stop(self, timeout=40.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.stdout.close()


def read_all(sock: socket.socket) -> bytes:
    out = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            out += data
    return bytes(out)


class Client:
    """One keep-alive connection."""

    def __init__(self, server: Server, timeout=30.0) -> None:
        self.connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)

    def post(self, path, body, kind="image/png"):
        self.connection.request("POST", path, body, {"Content-Type": kind})
        answer = self.connection.getresponse()
        return answer.status, answer.read(), answer.headers

    def close(self):
        self.connection.close()


def in_threads(count, work):
    """`work(k)` in `count` threads; their results, or the first exception."""
    results, errors = [None] * count, []

    def run(k):
        try:
            results[k] = work(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
