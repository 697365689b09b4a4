"""S01: a client that sends a byte now and then is closed in time, and nobody else waits for it."""

import statistics
import time

import pytest
from serving_harness import Client, in_threads, png, read_all, request

from vitrail.ship.serve.limits import Limits


def test_the_default_deadlines_close_a_slow_client_within_ten_seconds():
    limits = Limits()
    assert limits.header_timeout_s <= 9.5
    assert limits.body_timeout_s <= 9.5


def drip(server, start: bytes, drop: bytes, every_s: float, longest_s: float) -> float:
    """Seconds until the server closed a connection that sends `start`, then `drop` again and again."""
    began = time.monotonic()
    with server.connect() as sock:
        sock.sendall(start)
        sock.settimeout(every_s)
        while time.monotonic() - began < longest_s:
            try:
                if not sock.recv(4096):
                    return time.monotonic() - began
                read_all(sock)
                return time.monotonic() - began
            except TimeoutError:
                pass
            except ConnectionResetError:
                return time.monotonic() - began
            try:
                sock.sendall(drop)
            except (BrokenPipeError, ConnectionResetError):
                return time.monotonic() - began
    return float("inf")


SLOW_HEADER = (b"POST /predict HTTP/1.1\r\nHost: t\r\nX-Slow: ", b"a")
SLOW_BODY = (b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\nContent-Length: 5000\r\n\r\n", b"a")
SILENT = (b"", b"")


@pytest.mark.parametrize("kind", [SLOW_HEADER, SLOW_BODY, SILENT], ids=["header", "body", "silent"])
def test_a_slow_client_is_closed_at_its_deadline(server, kind):
    taken = drip(server, *kind, every_s=0.2, longest_s=8)
    assert 1.0 < taken < 4.0


def latencies(server, count):
    client, body, out = Client(server), png(), []
    for _ in range(count):
        began = time.perf_counter()
        assert client.post("/predict", body)[0] == 200
        out.append(time.perf_counter() - began)
    client.close()
    return sorted(out)


def slow_crowd(server, connections, measured):
    """(p99 or so alone, the same beside a crowd of slow clients, seconds until each was closed)."""
    alone = latencies(server, measured)

    def one(k):
        if k == 0:
            time.sleep(0.3)
            return latencies(server, measured)
        return drip(server, *(SLOW_HEADER, SLOW_BODY)[k % 2], every_s=0.5, longest_s=9)

    beside, *closed = in_threads(connections + 1, one)
    return alone, beside, closed


def test_a_crowd_of_slow_clients_does_not_slow_the_others(server):
    alone, beside, closed = slow_crowd(server, 60, 60)
    assert max(closed) < 6
    assert statistics.median(beside) <= 2 * statistics.median(alone) + 0.05


@pytest.mark.scorecard
def test_five_hundred_slow_clients_leave_the_p99_within_twice(start):
    server = start(options=("--header-timeout-s", "8", "--body-timeout-s", "8"))
    alone, beside, closed = slow_crowd(server, 500, 400)
    assert max(closed) <= 10
    assert beside[int(0.99 * len(beside))] <= 2 * alone[int(0.99 * len(alone))] + 0.01


def test_connections_are_bounded_and_the_one_too_many_is_told(start):
    server = start(options=("--connections", "6"))
    crowd = [server.connect() for _ in range(6)]
    time.sleep(0.3)
    with server.connect() as sock:
        assert read_all(sock).startswith(b"HTTP/1.1 503")
    for sock in crowd:
        sock.close()
    time.sleep(0.2)
    assert server.raw(request("/predict", png())).status == 200
