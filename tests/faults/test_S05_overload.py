"""S05: five times more than it can do: what is accepted is answered in time, the rest is told to come back, memory stays."""

import threading
import time

import pytest
from serving_harness import Answer, Client, encoded, in_threads, picture, read_all, request

BODY = encoded(picture(size=(2400, 3200)), "JPEG", quality=30)  # few bytes and many pixels: the work is the server's


def peak(server, seconds, clients=4) -> float:
    """Answers a second with a few polite clients, one request at a time each."""
    stop = time.monotonic() + seconds

    def one(_k):
        client, count = Client(server), 0
        while time.monotonic() < stop:
            assert client.post("/predict", BODY)[0] == 200
            count += 1
        client.close()
        return count

    return sum(in_threads(clients, one)) / seconds


def open_loop(server, rate, seconds):
    """`rate` requests a second, whatever the server does: (status, seconds, headers) of each."""
    results, lock, threads = [], threading.Lock(), []
    message = request("/predict", BODY, "image/jpeg")

    def one():
        began = time.monotonic()
        try:
            with server.connect(30) as sock:
                sock.sendall(message)
                answer = Answer(read_all(sock))
            entry = (answer.status, time.monotonic() - began, answer.headers)
        except OSError as error:
            entry = (type(error).__name__, time.monotonic() - began, {})
        with lock:
            results.append(entry)

    start, sent = time.monotonic(), 0
    while (now := time.monotonic() - start) < seconds:
        while sent < rate * now:
            threads.append(threading.Thread(target=one))
            threads[-1].start()
            sent += 1
        time.sleep(0.005)
    for thread in threads:
        thread.join()
    return results, time.monotonic() - start


def overload(start, seconds):
    server = start(options=("--queue", "16", "--max-batch", "4", "--request-timeout-s", "5"))
    best = peak(server, 1.5)
    open_loop(server, 5 * best, 0.7)
    before = server.rss()
    results, taken = open_loop(server, 5 * best, seconds)
    accepted = [(s, h) for status, s, h in results if status == 200]
    refused = [h for status, _, h in results if status == 503]
    assert {status for status, _, _ in results} <= {200, 503}, "nothing reset, nothing timed out"
    assert refused and all(h.get("retry-after") == "1" for h in refused)
    assert sorted(s for s, _ in accepted)[int(0.99 * len(accepted))] <= 5
    assert server.rss() - before < 64 * 2**20
    assert server.metrics()["vitrail_queue_images"] == 0
    return len(accepted) / taken / best


def test_overload_is_answered_and_the_queue_stays_bounded(start):
    goodput = overload(start, 3.0)
    assert goodput > 0.5  # three seconds beside other tests; the long run below asks for 0.9


@pytest.mark.scorecard
def test_a_minute_of_fivefold_overload_keeps_nine_tenths_of_the_peak(start):
    assert overload(start, 60.0) >= 0.9
