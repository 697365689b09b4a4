"""Speed is measured on the model alone and says where."""

import torch

from vitrail.evaluate.speed import measure_speed


def test_throughput_and_latency_are_of_the_forward_pass(shapes_model, monkeypatch):
    shapes = []
    whole = shapes_model.forward
    monkeypatch.setattr(shapes_model, "forward", lambda x: (shapes.append(tuple(x.shape)), whole(x))[1])
    speed = measure_speed(shapes_model, device=torch.device("cpu"), precision="fp32", batch_size=6)
    assert set(shapes) == {(6, 3, 32, 32), (1, 3, 32, 32)}
    assert speed.images_per_s > 0 and speed.latency_ms <= speed.latency_p95_ms and speed.runs >= 3
    assert "cpu" in str(speed) and "fp32" in str(speed) and speed.to_dict()["batch_size"] == 6
