"""S08: past the deadline the answer is 504, its place is free again, and the next request is right."""

import base64
import json
import time

from serving_harness import encoded, picture, png


def test_a_request_past_its_deadline_gets_504_and_frees_its_place(start):
    server = start(options=("--request-timeout-s", "0.3"))
    expected = server.post("/predict", png()).json()
    large = base64.b64encode(encoded(picture(size=(2000, 2400)), "JPEG")).decode()
    slow = json.dumps({"images": [large] * 60}).encode()
    began = time.monotonic()
    answer = server.post("/batch", slow, "application/json")
    assert (answer.status, answer.json()["error"]) == (504, "deadline")
    assert time.monotonic() - began < 2.0
    for _ in range(100):
        if server.metrics()["vitrail_queue_images"] == 0:
            break
        time.sleep(0.05)
    time.sleep(0.3)  # the images that were being decoded when the deadline passed
    assert server.post("/predict", png()).json() == expected
