"""S14: requests made to confuse are refused, and the process lives."""

import pytest
from serving_harness import png

START = b"POST /predict HTTP/1.1\r\nHost: t\r\nContent-Type: image/png\r\n"
FORMS = {
    "length and chunks": START
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: t\r\n\r\n",
    "chunked twice": START + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "unknown encoding": START + b"Transfer-Encoding: zip\r\n\r\nabc",
    "a chunk that is no number": START + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n",
    "64 KiB of header": START + b"X-Long: " + b"a" * 65536 + b"\r\n\r\n",
    "ten thousand headers": START + b"".join(b"X-%d: 1\r\n" % k for k in range(10_000)) + b"\r\n",
    "folded header": START + b"X-A: 1\r\n two\r\nContent-Length: x\r\n\r\n",
    "bare newlines": b"POST /predict HTTP/1.1\nHost t\n\n",
    "bad utf-8 in the path": b"GET /\xff\xfe HTTP/1.1\r\nHost: t\r\n\r\n",
    "nul in a header": START + b"X-A: a\0b\r\n\r\n",
    "no http at all": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "http 9": b"GET / HTTP/9.9\r\nHost: t\r\n\r\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_a_malformed_request_is_refused(server, name):
    answer = server.raw(FORMS[name])
    assert answer.status in (400, 404, 408, 413, 431, 501, 505)
    assert answer.raw.count(b"HTTP/1.1 ") == 1, "one request, one answer: nothing was smuggled in"
    assert server.get("/health").status == 200


def test_ten_thousand_tiny_chunks_are_one_body(server):
    image = png(seed=3)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in image[:10_000]) + b"%x\r\n%s\r\n" % (
        max(1, len(image) - 10_000), image[10_000:] or b"\0",
    )  # fmt: skip
    answer = server.raw(START + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert answer.status == 200
    assert answer.json() == server.post("/predict", image).json()


def test_pipelined_requests_are_answered_in_order(server):
    body = png(seed=1)
    one = START + b"Content-Length: %d\r\n\r\n" % len(body) + body
    last = b"GET /health HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
    raw = server.raw(one + one + last).raw
    assert raw.count(b"HTTP/1.1 200") == 3
    assert raw.endswith(b'{"status":"ok"}')
