"""S03: anything but a raw image is answered 415 with the line that works, and no parser runs."""

import time

import pytest
from serving_harness import png, request

MULTIPART = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n' + b"\x89PNG" * 100 + b"\r\n--x--\r\n"


@pytest.mark.parametrize(
    "kind",
    ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "text/html", "application/json", "", "image", "*/*"],
)
@pytest.mark.parametrize("path", ["/predict", "/explain", "/attention", "/models/tiny/predict"])
def test_the_answer_is_415_with_a_curl_line_that_works(server, kind, path):
    answer = server.raw(request(path, MULTIPART, kind))
    assert answer.status == 415
    assert "curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://test/predict" in answer.json()["message"]


def test_the_answer_comes_at_once(server):
    began = time.perf_counter()
    for _ in range(5):
        server.raw(request("/predict", MULTIPART, "multipart/form-data; boundary=x"))
    assert (time.perf_counter() - began) / 5 < 0.05


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "IMAGE/PNG; q=1", "application/octet-stream"])
def test_the_healthy_twin_an_image_of_any_declared_kind_is_read_by_its_content(server, kind):
    assert server.raw(request("/predict", png(), kind)).status == 200
