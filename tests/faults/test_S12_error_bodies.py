"""S12: an error says what to do, and nothing about the inside."""

import random
import re

import pytest
from serving_harness import Answer, png, read_all, request

LEAK = re.compile(
    rb"Traceback|File \"|\.py|site-packages|/home|/root|/work|/usr|/tmp|Error\b|Exception|0x[0-9a-f]{6}|torch|numpy|PIL|starlette"
)


def requests(count):
    chance = random.Random(7)
    paths = [
        "/predict",
        "/batch",
        "/explain",
        "/attention",
        "/models/x/predict",
        "/predict?top=0",
        "/predict?top=x",
        "/batch?top=9999",
        "/x",
    ]
    kinds = ["image/png", "image/jpeg", "application/json", "text/plain", "multipart/form-data", ""]
    bodies = [b"", b"{}", b'{"images": 3}', b'{"images": ["' + b"A" * 99 + b'"]}', b"[" * 5000, b"\xff\xd8\xff" + bytes(99)]
    for _ in range(count):
        body = chance.choice(bodies)
        if chance.random() < 0.5:
            image = bytearray(png(chance.randrange(9)))
            for _ in range(chance.randrange(1, 20)):
                image[chance.randrange(len(image))] = chance.randrange(256)
            body = bytes(image[: chance.randrange(1, len(image))])
        yield request(chance.choice(paths), body, chance.choice(kinds), chance.choice(["POST", "POST", "POST", "GET", "BREW"]))


@pytest.mark.parametrize("count", [120, pytest.param(500, marks=pytest.mark.scorecard)])
def test_no_error_names_a_path_a_class_or_a_line(server, count):
    refused = 0
    for message in requests(count):
        with server.connect() as sock:
            sock.sendall(message)
            answer = Answer(read_all(sock))
        assert 200 <= answer.status < 500 or answer.status == 503, answer.raw[:300]
        if answer.status >= 400:
            refused += 1
            assert not LEAK.search(answer.body), answer.body
    assert refused > count / 2


def test_memory_errors_and_deep_json_are_refusals(server):
    assert server.post("/batch", b"[" * 100_000, "application/json").status == 400
