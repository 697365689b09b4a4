"""S13: however many ask at once, each gets the answer to its own image."""

import json

import pytest
from serving_harness import Client, in_threads, png


def check(server, images, requests, clients):
    bodies = [png(seed) for seed in range(images)]
    alone = [json.loads(Client(server).post("/predict?logits=1", body)[1])["logits"] for body in bodies]
    assert len({tuple(logits) for logits in alone}) == images, "every image has its own answer"

    def one(k):
        client, wrong = Client(server), 0
        for number in range(k, requests, clients):
            tag = number * 7919 % images
            status, body, _ = client.post("/predict?logits=1", bodies[tag])
            while status == 503:
                status, body, _ = client.post("/predict?logits=1", bodies[tag])
            wrong += json.loads(body)["logits"] != alone[tag]
        client.close()
        return wrong

    assert sum(in_threads(clients, one)) == 0


def test_a_thousand_tagged_requests_are_never_mixed_up(server):
    check(server, images=60, requests=1000, clients=16)


@pytest.mark.scorecard
def test_ten_thousand_tagged_requests_are_never_mixed_up(server):
    check(server, images=500, requests=10_000, clients=32)
