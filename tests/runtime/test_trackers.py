"""TensorBoard, Weights & Biases and MLflow: what they are sent, and that none of them can stop a run."""

import sys
from types import SimpleNamespace

import pytest

from vitrail.errors import ResourceError, UsageError
from vitrail.runtime.trackers import Trackers

LINE = {"step": 7, "loss": 1.5, "time": {"images_per_s": 30.0}, "eval": {"top1": 0.25, "notes": "none"}, "ema": True}
SENT = {"loss": 1.5, "time/images_per_s": 30.0, "eval/top1": 0.25}


class Wandb(SimpleNamespace):
    def __init__(self):
        super().__init__(begun=None, lines=[], broken=False)

    def init(self, **options):
        self.begun = options
        return self

    def log(self, numbers, step):
        if self.broken:
            raise ConnectionError("no network")
        self.lines.append((step, numbers))


class MLflow(SimpleNamespace):
    def __init__(self):
        super().__init__(name=None, settings=None, lines=[])

    def start_run(self, run_name):
        self.name = run_name

    def log_dict(self, settings, file):
        self.settings = settings

    def log_metrics(self, numbers, step):
        self.lines.append((step, numbers))


@pytest.fixture
def services(monkeypatch):
    found = {"wandb": Wandb(), "mlflow": MLflow()}
    for name, service in found.items():
        monkeypatch.setitem(sys.modules, name, service)
    return found


def test_every_number_is_sent_under_its_own_name(services, tmp_path):
    Trackers(("wandb", "mlflow"), tmp_path / "run-1", {"name": "tiny"}).send(7, LINE)
    wandb, mlflow = services["wandb"], services["mlflow"]
    assert wandb.lines == mlflow.lines == [(7, SENT)]
    assert wandb.begun["config"] == mlflow.settings == {"name": "tiny"}
    assert (wandb.begun["id"], wandb.begun["resume"], mlflow.name) == ("run-1", "allow", "run-1")  # a resumed run goes on in its own


def test_a_service_that_fails_is_left_alone_and_the_others_go_on(services, tmp_path):
    trackers = Trackers(("wandb", "mlflow"), tmp_path, {})
    services["wandb"].broken = True
    with pytest.warns(UserWarning, match="wandb failed and is switched off"):
        trackers.send(1, LINE)
    trackers.send(2, LINE)
    assert [step for step, _ in services["mlflow"].lines] == [1, 2] and services["wandb"].lines == []


def test_tensorboard_gets_a_file(tmp_path):
    pytest.importorskip("tensorboardX")
    Trackers(("tensorboard",), tmp_path, {}).send(7, LINE)
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_one_that_does_not_exist_or_is_not_installed_says_what_to_do(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match="did you mean 'tensorboard'"):
        Trackers(("tensorbord",), tmp_path, {})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ResourceError, match="tracking"):
        Trackers(("wandb",), tmp_path, {})
