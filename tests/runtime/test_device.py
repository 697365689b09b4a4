"""Which device a name means, and what is refused before anything is moved."""

import pytest
import torch

from vitrail.config import from_dict
from vitrail.errors import ResourceError, UsageError
from vitrail.runtime.device import pick_device
from vitrail.train.loop import train


def test_without_a_name_the_cpu_or_the_gpu_of_this_rank():
    assert pick_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu") == torch.device("cpu")


def test_a_name_that_is_no_device_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'cuda'"):
        pick_device("cudda")


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_one_error(name):
    there = torch.cuda.is_available() if name == "cuda" else torch.backends.mps.is_available()
    if there:
        assert pick_device(name).type == name
    else:
        with pytest.raises(ResourceError, match="asked for"):
            pick_device(name)


def test_training_where_float64_is_missing_is_refused_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    recipe = from_dict({"name": "x", "model": {"name": "mu/8"}, "data": {"train": "builtin:shapes"}, "train": {"steps": 1}})
    with pytest.raises(UsageError, match="training does not run on mps"):
        train(recipe, tmp_path / "run", device="mps", progress=False)
