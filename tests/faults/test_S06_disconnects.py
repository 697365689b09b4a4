"""S06: clients that leave, at any moment, leave nothing behind."""

import random
import socket
import struct
import time

import pytest
from serving_harness import in_threads, png, request


def abort(server, after: str, wait_s: float) -> None:
    """Open, send part or all of a request, leave by a reset."""
    message = request("/predict", png())
    cut = {"header": 30, "body": len(message) // 2, "queued": len(message)}[after]
    sock = server.connect()
    sock.sendall(message[:cut])
    time.sleep(wait_s)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def leave_in_crowds(server, count):
    chance = random.Random(0)
    plans = [(chance.choice(("header", "body", "queued")), chance.random() * 0.01) for _ in range(count)]
    in_threads(8, lambda k: [abort(server, *plan) for plan in plans[k::8]])


def settled(server):
    for _ in range(100):
        if server.metrics()["vitrail_queue_images"] == 0 and server.metrics()["vitrail_body_bytes"] == 0:
            return True
        time.sleep(0.05)
    return False


def check(server, count):
    expected = server.post("/predict?logits=1", png()).json()
    leave_in_crowds(server, count)
    assert settled(server)
    assert server.post("/predict?logits=1", png()).json() == expected


def test_after_many_aborts_the_gauges_return_to_zero(server):
    check(server, 400)


@pytest.mark.scorecard
def test_after_ten_thousand_aborts_the_gauges_return_to_zero(server):
    check(server, 10_000)
