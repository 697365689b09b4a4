"""S08: past the deadline the answer is 504, its place is free again, and the next request is right."""

import base64
import json
import time

from serving_harness import encoded, picture, png


def test_a_request_past_its_deadline_gets_504_and_frees_its_place(start):
    server = start(options=("--request-timeout-s", "0.3"))
    expected = in_time(server)
    large = base64.b64encode(encoded(picture(size=(2000, 2400)), "JPEG")).decode()
    slow = json.dumps({"images": [large] * 60}).encode()
    began = time.monotonic()
    answer = server.post("/batch", slow, "application/json")
    assert (answer.status, answer.json()["error"]) == (504, "deadline")
    assert time.monotonic() - began < 3.0
    for _ in range(100):
        if server.metrics()["vitrail_queue_images"] == 0:
            break
        time.sleep(0.05)
    assert in_time(server) == expected


def in_time(server):
    """The answer to one image; on a busy machine one alone may pass so short a deadline too, and decoding may go on for a moment."""
    for _ in range(20):
        answer = server.post("/predict", png())
        if answer.status != 504:
            return answer.json()
        time.sleep(0.2)
    raise AssertionError("nothing is answered any more")
