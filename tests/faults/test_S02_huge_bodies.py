"""S02: whatever a request says about its length, no more than the limit is read."""

import pytest
from serving_harness import png, read_all, request

LIMIT = 2**20  # of the server under test


def header(*lines):
    return "\r\n".join(["POST /predict HTTP/1.1", "Host: t", "Content-Type: image/png", *lines, "", ""]).encode()


def test_a_declared_length_over_the_limit_is_refused_before_the_body(server):
    answer = server.raw(header("Content-Length: 1000000000") + b"x" * 1000)
    assert answer.status == 413
    assert answer.json()["error"] == "too_many_bytes"


def pour(server, start, piece, most) -> tuple[int, bytes]:
    """Send pieces until the server stops taking them: (bytes sent, what it said)."""
    sent = 0
    with server.connect(5) as sock:
        sock.sendall(start)
        try:
            while sent < most:
                sock.sendall(piece)
                sent += len(piece)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            pass
        return sent, read_all(sock)


def test_an_endless_chunked_body_is_cut_at_the_limit(server):
    before = server.rss()
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    sent, said = pour(server, header("Transfer-Encoding: chunked"), piece, 64 * LIMIT)
    assert sent < LIMIT + 8 * 2**20, "the kernel buffers a few megabytes on both sides; the server took no more"
    assert said == b"" or b" 413 " in said[:20]
    assert server.rss() - before <= 2 * LIMIT + 8 * 2**20


def test_a_chunked_body_a_little_over_the_limit_is_told_413(server):
    body = b"".join(b"%x\r\n%s\r\n" % (65536, b"x" * 65536) for _ in range(17))
    answer = server.raw(header("Transfer-Encoding: chunked") + body + b"0\r\n\r\n")
    assert answer.status == 413


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: -5",),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: five",),
        ("Content-Length: +5",),
        ("Content-Length: 5, 6",),
        ("Content-Length: 99999999999999999999999999",),
    ],
    ids=lambda lines: "; ".join(lines),
)
def test_a_length_that_is_no_length_is_refused(server, lines):
    assert server.raw(header(*lines) + b"x" * 5).status in (400, 413)


def test_a_length_longer_than_the_body_ends_at_the_deadline(server):
    answer = server.raw(header("Content-Length: 5000") + b"x" * 10)
    assert answer.status == 408
    assert answer.json()["error"] == "slow_body"


def test_memory_stays_within_the_limit_over_many_refusals(server):
    message = request("/predict", b"x" * LIMIT)
    for _ in range(20):
        server.raw(message)
    before = server.rss()
    for _ in range(20):
        assert server.raw(message).status == 422
    assert server.rss() - before <= 2 * LIMIT


def test_all_bodies_together_are_bounded(start):
    server = start(options=("--max-waiting-bytes", "200000"))
    with server.connect() as first:
        first.sendall(header("Content-Length: 180000") + b"x" * 150_000)
        for _ in range(100):
            if server.metrics()["vitrail_body_bytes"] == 150_000:
                break
        refused = server.raw(header("Content-Length: 90000") + b"x" * 90_000)
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
    assert server.post("/predict", png()).status == 200


def test_the_healthy_twin_a_body_just_below_the_limit_is_read(server):
    padded = png() + b"\0" * (LIMIT - len(png()) - 1)
    assert server.raw(request("/predict", padded)).status == 200
