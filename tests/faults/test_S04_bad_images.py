"""S04: a bomb or a broken image costs its own request, and changes no bit of the others in its batch."""

import base64
import json

import pytest
from serving_harness import bomb, encoded, in_threads, picture, png

BAD = {
    "bomb": (bomb(), "too_many_pixels"),
    "truncated": (png()[:200], "truncated"),
    "random": (bytes(range(256)) * 4, "unrecognised"),
    "html": (b"<!doctype html><html></html>", "unrecognised"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"></svg>', "format_refused"),
    "strip": (encoded(picture(size=(1, 400))), "bad_dimensions"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_422_with_its_reason(server, name):
    data, reason = BAD[name]
    answer = server.post("/predict", data)
    assert (answer.status, answer.json()["error"]) == (422, reason)


def test_a_bomb_takes_no_memory(server):
    server.post("/predict", png())
    before = server.rss()
    for _ in range(10):
        assert server.post("/predict", bomb(50_000)).status == 422
    assert server.rss() - before < 16 * 2**20


def test_batch_mates_of_bad_images_are_equal_to_the_last_bit(server):
    good = [png(seed) for seed in range(8)]
    alone = [server.post("/predict?logits=1", data).json()["logits"] for data in good]
    bad = [data for data, _ in BAD.values()]

    def send(k):
        if k % 3 == 2:
            return server.post("/predict", bad[k % len(bad)]).status
        return k % 8, server.post("/predict?logits=1", good[k % 8]).json()["logits"]

    for result in in_threads(24, send):
        assert result == 422 or result[1] == alone[result[0]]


def test_a_bad_image_in_a_batch_request_is_an_error_in_its_place(server):
    images = [png(1), b"no image", png(2), bomb()]
    body = json.dumps({"images": [base64.b64encode(i).decode() for i in images] + ["%%%"]}).encode()
    answers = server.post("/batch", body, "application/json").json()["answers"]
    assert [a.get("error") for a in answers] == [None, "unrecognised", None, "too_many_pixels", "bad_base64"]
    alone = server.post("/predict", images[2]).json()["classes"]
    assert answers[2]["classes"] == alone
