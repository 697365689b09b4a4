"""S10: SIGTERM under load: not ready at once, everything accepted is answered, exit code 0."""

import http.client
import signal
import threading
import time

import pytest
from serving_harness import Client, png


def drain_under_load(server, clients):
    """(answers after the signal, requests that got no answer)."""
    body, told, answered, lost = png(), threading.Event(), [], []

    def busy(k):
        client = Client(server)
        while True:
            try:
                status, _, headers = client.post("/predict", body)
                if told.is_set():
                    answered.append(status)
                if headers.get("connection") == "close":
                    client = Client(server)
            except ConnectionRefusedError:
                return  # nobody listens any more: nothing was accepted
            except (OSError, http.client.HTTPException) as error:
                lost.append(f"{type(error).__name__} {error}")
                return

    threads = [threading.Thread(target=busy, args=(k,)) for k in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    told.set()
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(30)
    for thread in threads:
        thread.join(30)
    return code, answered, lost


def test_sigterm_under_load_loses_nothing_that_was_accepted(start):
    code, answered, lost = drain_under_load(start(), 12)
    assert lost == []
    assert code == 0
    assert answered and set(answered) <= {200, 503}


@pytest.mark.scorecard
def test_ten_drains_under_load_lose_nothing(start):
    for _ in range(10):
        code, _, lost = drain_under_load(start(), 24)
        assert (code, lost) == (0, [])


def test_a_draining_server_is_not_ready_at_once_and_finishes_a_body_on_its_way(start):
    server = start()
    message = png()
    with server.connect() as sock:
        head = f"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\nContent-Length: {len(message)}\r\n\r\n".encode()
        sock.sendall(head + message[:50])
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        assert server.get("/ready").status == 503
        time.sleep(0.8)  # the listening socket is closed by now, this connection is not
        sock.sendall(message[50:])
        answer = sock.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200")
    assert server.process.wait(20) == 0
