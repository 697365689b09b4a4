"""Prometheus counters, gauges and histograms, written as text without a client library."""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from collections.abc import Callable

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)

Labels = tuple[tuple[str, str], ...]


def _text(labels: Labels) -> str:
    def escape(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{k}="{escape(v)}"' for k, v in labels) + "}" if labels else ""


class Histogram:
    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.buckets, value)] += 1
        self.total += value

    def lines(self, name: str) -> list[str]:
        out, running = [], 0
        for bound, count in zip((*self.buckets, "+Inf"), self.counts, strict=True):
            running += count
            out.append(f'{name}_bucket{{le="{bound}"}} {running}')
        return [*out, f"{name}_sum {self.total:.6f}", f"{name}_count {running}"]


class Metrics:
    """What /metrics says. Label values come from our own routes and models, never from a client."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: dict[Labels, int] = defaultdict(int)
        self.refused: dict[Labels, int] = defaultdict(int)
        self.images = 0
        self.restarts = 0
        self.latency = Histogram(LATENCY_BUCKETS_S)
        self.batch_size = Histogram(BATCH_BUCKETS)
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def request(self, route: str, status: int, seconds: float) -> None:
        with self.lock:
            self.requests[(("route", route), ("status", str(status)))] += 1
            self.latency.observe(seconds)

    def refusal(self, reason: str) -> None:
        with self.lock:
            self.refused[(("reason", reason),)] += 1

    def batch(self, size: int) -> None:
        with self.lock:
            self.images += size
            self.batch_size.observe(size)

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self.gauges[name] = (help_text, read)

    def render(self) -> str:
        with self.lock:
            out = ["# HELP vitrail_requests_total Answers by route and status.", "# TYPE vitrail_requests_total counter"]
            out += [f"vitrail_requests_total{_text(k)} {v}" for k, v in sorted(self.requests.items())]
            out += ["# HELP vitrail_refused_total Requests refused, by reason.", "# TYPE vitrail_refused_total counter"]
            out += [f"vitrail_refused_total{_text(k)} {v}" for k, v in sorted(self.refused.items())]
            out += ["# HELP vitrail_images_total Images answered.", "# TYPE vitrail_images_total counter"]
            out += [f"vitrail_images_total {self.images}"]
            out += ["# HELP vitrail_request_seconds Time from header to answer.", "# TYPE vitrail_request_seconds histogram"]
            out += self.latency.lines("vitrail_request_seconds")
            out += ["# HELP vitrail_batch_images Images in one forward pass.", "# TYPE vitrail_batch_images histogram"]
            out += self.batch_size.lines("vitrail_batch_images")
        for name, (help_text, read) in self.gauges.items():
            out += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {read():g}"]
        return "\n".join(out) + "\n"
