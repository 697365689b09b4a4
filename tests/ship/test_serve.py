"""What `vitrail serve` answers on each route, with several models, and when its weights change on disk."""

import base64
import io
import json
import re
import shutil
import signal
import time

import numpy as np
import pytest
from PIL import Image
from serving_harness import CLASSES, encoded, picture, png, tiny_model

from vitrail.ship.predictor import Predictor
from vitrail.weights.load import load_model


@pytest.fixture(scope="module")
def predictor(weights):
    return Predictor(load_model(weights), device="cpu")


def until(what, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_predict_names_classes_with_probabilities_best_first(server, predictor):
    body = server.post("/predict?top=10", png(3)).json()
    assert body["model"] == "tiny" and sorted(c["class"] for c in body["classes"]) == sorted(CLASSES)
    chances = [c["probability"] for c in body["classes"]]
    assert chances == sorted(chances, reverse=True) and sum(chances) == pytest.approx(1)
    expected = {c["class"]: c["probability"] for c in predictor([png(3)], top=10)[0]}
    assert {c["class"]: c["probability"] for c in body["classes"]} == pytest.approx(expected, abs=1e-6)
    assert len(server.post("/predict?top=2", png(3)).json()["classes"]) == 2
    assert server.post("/predict?top=0", png(3)).status == 400


def test_a_batch_answers_each_image_and_says_which_are_none(server):
    images = [base64.b64encode(png(k)).decode() for k in range(6)]
    images[2], images[4] = "%%%", base64.b64encode(b"no image").decode()
    answer = server.post("/batch?top=3", json.dumps({"images": images}).encode(), "application/json")
    assert answer.status == 200
    found = answer.json()["answers"]
    assert (found[2], found[4]) == ({"error": "bad_base64"}, {"error": "unrecognised"})
    for k in (0, 1, 3, 5):
        assert found[k]["classes"] == server.post("/predict?top=3", png(k)).json()["classes"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"images": []}', b'{"images": [1]}', b'{"images": {}}', b"[" * 100_000])
def test_a_batch_that_is_no_list_of_images_is_refused_with_the_form_that_works(server, body):
    answer = server.post("/batch", body, "application/json")
    assert answer.status == (422 if not body else 400)
    assert server.get("/health").status == 200


def test_explain_is_the_upright_image_with_its_rollout_over_it(server, predictor):
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = encoded(picture(3, (40, 60)), "JPEG", quality=95, exif=exif)
    answer = server.post("/explain", photo, "image/jpeg")
    assert answer.headers["content-type"] == "image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(answer.body))), np.asarray(Image.open(io.BytesIO(predictor.overlay(photo)))))


def test_attention_gives_every_layer_and_head_as_a_grid(server, predictor):
    found = server.post("/attention", png(4)).json()
    expected = predictor.attention(png(4))
    config = predictor.model.config
    assert np.asarray(found["layers"]).shape == (config.depth, config.heads, *config.grid)
    assert np.allclose(found["layers"], expected["layers"], atol=1e-4) and np.allclose(found["rollout"], expected["rollout"], atol=1e-4)
    assert found["box"] == expected["box"] and found["note"]


def test_the_models_are_described(server):
    (model,) = server.get("/models").json()["models"]
    assert model["name"] == "tiny" and model["classes"] == 10 and model["image_size"] == [32, 32] and model["attention"] is True
    assert server.get("/health").json() == {"status": "ok"} and server.get("/ready").json() == {"ready": True}


LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+(\.[0-9]+)?')


def test_metrics_are_prometheus_text_and_count_what_happened(server):
    before = server.metrics()
    server.post("/predict", png())
    server.post("/predict", b"no image")
    text = server.get("/metrics").body.decode()
    for line in text.splitlines():
        assert line.startswith("# ") or LINE.fullmatch(line), line
    after = server.metrics()
    grew = {name for name in after if after[name] > before.get(name, 0)}
    assert 'vitrail_requests_total{route="/predict",status="200"}' in grew
    assert 'vitrail_requests_total{route="/predict",status="422"}' in grew
    assert any("unrecognised" in name for name in grew)
    assert after["vitrail_ready"] == 1 and after["vitrail_queue_images"] == 0


def test_the_openapi_document_names_every_route_and_what_to_send(server):
    document = server.get("/openapi.json").json()
    assert document["openapi"].startswith("3.")
    assert {"/", "/predict", "/batch", "/explain", "/attention", "/models", "/health", "/ready", "/metrics"} <= set(document["paths"])
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"] and "200" in operation["responses"]
            if method == "get":
                assert server.get(path).status == 200
            elif "{name}" not in path:
                assert set(operation["requestBody"]["content"]) <= {"image/*", "application/json"}
                assert {"413", "415", "422", "503", "504"} <= set(operation["responses"])
            else:
                assert any(parameter["name"] == "name" and parameter["in"] == "path" for parameter in operation["parameters"])


def test_several_models_answer_by_name_and_are_renewed_by_a_signal(start, tmp_path):
    one, two = tiny_model(tmp_path / "one.safetensors", name="one"), tiny_model(tmp_path / "two.safetensors", name="two", seed=2)
    renewed = tiny_model(tmp_path / "later.safetensors", name="one", seed=3)
    server = start(one, two)
    ask = lambda name: server.post(f"/models/{name}/predict?logits=1", png()).json()["logits"]
    first, other = ask("one"), ask("two")
    assert first != other and server.post("/predict?logits=1", png()).json()["logits"] == first, "the first is the default"
    assert server.post("/models/three/predict", png()).status == 404

    worker = server.worker
    shutil.copyfile(one, tmp_path / "kept")
    shutil.copyfile(renewed, tmp_path / "next")
    (tmp_path / "next").replace(one)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: ask("one") != first)
    assert ask("two") == other and server.worker == worker, "the same process, and the other model untouched"

    second = ask("one")
    one.write_bytes(b"half a file")
    server.process.send_signal(signal.SIGHUP)
    until(lambda: "reload failed, the old models stay" in server.log.read_text())
    assert ask("one") == second
    (tmp_path / "kept").replace(one)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: ask("one") == first)
