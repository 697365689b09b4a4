"""ImageNet-C on a fabricated tree: levels found, errors by hand, mCE only of the whole set."""

import json
import math

import numpy as np
import pytest

from vitrail.data.encode import encode_png
from vitrail.data.source import open_source
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.corruption import ALEXNET, corruption, find_levels, mean_corruption_error, refuse_other_options
from vitrail.evaluate.imagenet import wnids

OPTIONS = {"workers": 0, "device": "cpu"}


def test_alexnet_has_100_and_a_perfect_model_none():
    flat = {name: dict.fromkeys(range(1, 6), error) for name, error in ALEXNET.items()}
    assert len(ALEXNET) == 15 and mean_corruption_error(flat)[0] == pytest.approx(1.0)
    assert mean_corruption_error({name: dict.fromkeys(range(1, 6), 0.0) for name in ALEXNET}) == (0.0, [])


def test_it_is_the_mean_of_ratios_and_not_the_ratio_of_means():
    errors = {name: dict.fromkeys(range(1, 6), 0.5) for name in ALEXNET}
    assert mean_corruption_error(errors)[0] == pytest.approx(np.mean([0.5 / a for a in ALEXNET.values()]))
    errors["fog"] = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 1.0}  # sums over severities come first
    others = [0.5 / a for name, a in ALEXNET.items() if name != "fog"]
    assert mean_corruption_error(errors)[0] == pytest.approx(np.mean([*others, 2.0 / (5 * ALEXNET["fog"])]))


def test_without_a_level_there_is_no_mean():
    errors = {name: dict.fromkeys(range(1, 6), 0.5) for name in ALEXNET}
    del errors["snow"][4]
    mean, absent = mean_corruption_error(errors)
    assert math.isnan(mean) and absent == ["snow/4"]


@pytest.fixture
def tree(tmp_path):
    """Two groups as the archives unpack, one picture of each of the thousand classes for a few levels."""
    rng = np.random.default_rng(0)
    for path in ("noise/gaussian_noise/1", "noise/gaussian_noise/3", "extra/spatter/5", "weather/fog/2"):
        for k, wnid in enumerate(wnids()):
            folder = tmp_path / path / wnid
            folder.mkdir(parents=True)
            if k < 25:
                (folder / "ILSVRC2012_val_00000001.png").write_bytes(encode_png(rng.integers(255, size=(32, 32, 3), dtype=np.uint8)))
    return tmp_path


def test_every_level_is_measured_as_it_is_stored(tree, make_model, answer_by_hand, tmp_path):
    model = make_model(1000)
    assert [(what, level) for what, level, _ in find_levels(tree)] == [
        ("gaussian_noise", 1),
        ("gaussian_noise", 3),
        ("fog", 2),
        ("spatter", 5),
    ]
    told = corruption(model, tree, cache=False, out=tmp_path / "out", allow=("empty-class",), **OPTIONS)
    for level, folder in zip(told.levels, ("noise/gaussian_noise/1", "noise/gaussian_noise/3", "weather/fog/2", "extra/spatter/5")):
        source = open_source(str(tree / folder), allow=("empty-class",))
        guesses = answer_by_hand(model, source).argmax(1)
        assert level.images == 25 and level.top1.value == np.mean(guesses == source.labels)
    assert math.isnan(told.mce) and len(told.absent) == 72 and "absent" in str(told)
    body = json.loads((tmp_path / "out" / "result.json").read_text())
    assert body["mce"] is None and len(body["levels"]) == 4 and body["cost"]["passes"] == 100
    assert any("32 x 32" in note for note in told.notes)


def test_from_the_command_line(tree, make_model, tmp_path, capsys):
    from vitrail.cli import main
    from vitrail.weights.store import save_model

    model = make_model(1000)
    save_model(model, tmp_path / "m.safetensors", card=model.card)
    arguments = ["eval", str(tmp_path / "m.safetensors"), "--data", str(tree), "--protocol", "imagenet-c", "--allow", "empty-class"]
    assert main([*arguments, "--cache", str(tmp_path / "kept"), "--workers", "0", "--device", "cpu"]) == 0
    assert "gaussian_noise" in capsys.readouterr().out
    assert main([*arguments, "--cache", str(tmp_path / "kept"), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["passes"] == 0  # every answer was kept
    assert main([*arguments, "--split", "val"]) == 2


def test_folders_and_options_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(DataError, match="no corruption"):
        find_levels(tmp_path)
    with pytest.raises(UsageError, match="--real"):
        refuse_other_options({"real": "x", "split": None})
    assert refuse_other_options({"split": None, "bootstrap": 1000, "batch_size": 3}) == {"batch_size": 3}
