"""S16: under load for a long time, memory and open files stay what they were."""

import os
import time

import pytest
from serving_harness import Client, in_threads, png, request


def files(server) -> int:
    return len(os.listdir(f"/proc/{server.worker}/fd"))


def load(server, seconds, clients=4):
    """Good images, broken ones, explanations, and clients that hang up in the middle; answers with the requests made."""
    bodies = [png(k) for k in range(4)]
    stop = time.monotonic() + seconds

    def one(k):
        client, count = Client(server), 0
        while time.monotonic() < stop:
            kind = (k + count) % 8
            if kind == 6:
                assert client.post("/predict", b"no image")[0] == 422
            elif kind == 7:
                with server.connect() as sock:
                    sock.sendall(request("/predict", bodies[0])[:-10])
            else:
                assert client.post("/explain" if kind == 5 else "/predict", bodies[count % 4])[0] in (200, 503)
            count += 1
        client.close()
        return count

    return sum(in_threads(clients, one))


def steady(server, seconds, warm_s):
    load(server, warm_s)
    before, opened = server.rss(), files(server)
    made = load(server, seconds)
    time.sleep(0.5)
    assert files(server) <= opened + 4
    metrics = server.metrics()
    assert metrics["vitrail_queue_images"] == 0 and metrics["vitrail_body_bytes"] == 0
    return made, server.rss() - before


def test_memory_and_files_stay_where_they_were(start):
    made, grown = steady(start(), 6.0, warm_s=3.0)
    assert made > 100
    assert grown < 24 * 2**20


@pytest.mark.scorecard
@pytest.mark.timeout(4200)
def test_an_hour_of_load_leaves_memory_and_files_where_they_were(start):
    made, grown = steady(start(), 3600.0, warm_s=60.0)
    assert made > 10_000
    assert grown < 32 * 2**20
