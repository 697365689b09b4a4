"""The server against the bare model: requests a second, p50 and p99, at batches of 1 to 64.

    python benchmarks/serve.py [--model S/16] [--batches 1,2,4,8,16,32,64] [--threads 1] [--rounds 3] [--json FILE]

bare: one process calls `Predictor` on the same JPEG files in a loop, decoded and answered in batches of B.
server: `vitrail serve --max-batch B` with 2 B clients, each asking again as soon as it is answered, so that a
batch is decoded while the one before it is computed. Both have `--threads` threads for the model.

Windows of the two alternate, so that a busy machine slows both; the best window of each counts. CPU is
the time of the process (all its threads) an image, which a busy machine changes less: "overhead" is by it,
the part of it that the server spends beyond the bare loop.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitrail.model.variants import create_model
from vitrail.ship.predictor import Predictor
from vitrail.weights.card import Card, card_of
from vitrail.weights.store import save_model

TICKS = os.sysconf("SC_CLK_TCK")


def photographs(count: int) -> list[bytes]:
    """JPEG files of 320 x 240 pixels with structure at every scale."""
    rng, made = np.random.default_rng(0), []
    for _ in range(count):
        smooth = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize((320, 240), Image.Resampling.BICUBIC)
        pixels = np.asarray(smooth, np.int16) + rng.integers(-12, 13, (240, 320, 3))
        out = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
        made.append(out.getvalue())
    return made


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def bare_window(predictor: Predictor, photos: list[bytes], batch: int, seconds: float) -> tuple[float, float]:
    """(images a second, CPU seconds an image)."""
    began, used, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds or not count:
        predictor.forward(np.stack([predictor.pixels(photos[(count + k) % len(photos)]) for k in range(batch)]))
        count += batch
    return count / (time.perf_counter() - began), (time.process_time() - used) / count


class Clients:
    """Keep-alive connections that ask for `seconds`; `latencies` of what was answered."""

    def __init__(self, port: int, count: int, photos: list[bytes]) -> None:
        self.port, self.count, self.photos = port, count, photos
        self.latencies: list[float] = []

    def ask(self, k: int, until: float) -> None:
        connection, number = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120), k
        while time.perf_counter() < until:
            began = time.perf_counter()
            connection.request("POST", "/predict", self.photos[number % len(self.photos)], {"Content-Type": "image/jpeg"})
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            self.latencies.append(time.perf_counter() - began)
            number += 1
        connection.close()

    def run(self, seconds: float) -> float:
        """Answers a second; the clock stops when the last answer is there."""
        self.latencies, began = [], time.perf_counter()
        threads = [threading.Thread(target=self.ask, args=(k, began + seconds)) for k in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(self.latencies) / (time.perf_counter() - began)


@contextlib.contextmanager
def served(weights: Path, batch: int, threads: int) -> Iterator[tuple[int, int]]:
    """(port, process id of the worker) of a server that is ready."""
    command = [sys.executable, "-m", "vitrail", "serve", str(weights), "--port", "0", "--json", "--threads", str(threads)]
    command += ["--max-batch", str(batch), "--queue", str(max(128, 4 * batch)), "--request-timeout-s", "120"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stdout is not None
        text = ""
        while "}" not in text:
            text += process.stdout.readline()
        port = int(json.loads(text)["address"].rpartition(":")[2])
        while True:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                connection.request("GET", "/ready")
                if connection.getresponse().status == 200:
                    break
            time.sleep(0.2)
        yield port, int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def measure(predictor: Predictor, weights: Path, batch: int, given: argparse.Namespace) -> dict[str, Any]:
    photos = photographs(max(16, batch))
    bare, server, latencies = [], [], []
    with served(weights, batch, given.threads) as (port, worker):
        clients = Clients(port, 2 * batch, photos)
        clients.run(0.1)
        bare_window(predictor, photos, batch, 0.1)
        for _ in range(given.rounds):
            bare.append(bare_window(predictor, photos, batch, given.seconds))
            used = cpu_seconds(worker)
            rate = clients.run(given.seconds)
            server.append((rate, (cpu_seconds(worker) - used) / len(clients.latencies)))
            latencies.append(clients.latencies)
    best = latencies[max(range(given.rounds), key=lambda i: server[i][0])]
    alone, cost = max(rate for rate, _ in bare), min(cpu for _, cpu in bare)
    return {
        "batch": batch,
        "bare_per_s": round(alone, 2),
        "server_per_s": round(max(rate for rate, _ in server), 2),
        "p50_ms": round(1000 * float(np.quantile(best, 0.5)), 1),
        "p99_ms": round(1000 * float(np.quantile(best, 0.99)), 1),
        "bare_cpu_ms": round(1000 * cost, 2),
        "server_cpu_ms": round(1000 * min(cpu for _, cpu in server), 2),
        "overhead_percent": round(100 * (min(cpu for _, cpu in server) / cost - 1), 1),
        "requests": sum(len(times) for times in latencies),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="S/16")
    parser.add_argument("--batches", default="1,2,4,8,16,32,64")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window; a batch is always finished")
    parser.add_argument("--json", default=None)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = create_model(given.model)
    with torch.no_grad():
        model.head.weight.normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
    model.card = Card(name="model")
    print(
        f"{'batch':>5} {'bare/s':>8} {'server/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'bare CPU ms':>12} {'server CPU ms':>14} {'overhead':>9}"
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "model.safetensors"
        save_model(model, weights, card=card_of(model))
        predictor = Predictor(model, device="cpu")
        for batch in map(int, given.batches.split(",")):
            row = measure(predictor, weights, batch, given)
            rows.append(row)
            print(
                f"{batch:>5} {row['bare_per_s']:>8.2f} {row['server_per_s']:>9.2f} {row['p50_ms']:>8.1f} {row['p99_ms']:>8.1f} "
                f"{row['bare_cpu_ms']:>12.2f} {row['server_cpu_ms']:>14.2f} {row['overhead_percent']:>8.1f}%",
                flush=True,
            )
    if given.json:
        told = {"model": given.model, "threads": given.threads, "torch": torch.__version__, "rows": rows}
        Path(given.json).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
