"""builtin:fashion: what is packaged, and that it stays what it is."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import vitrail.data.builtin
from vitrail.data.source import list_splits, open_source
from vitrail.errors import DataError, UsageError


def test_fashion_has_ten_thousand_training_and_two_thousand_test_images():
    train, test = open_source("builtin:fashion", "train"), open_source("builtin:fashion", "test")
    assert (len(train), len(test)) == (10_000, 2_000)
    assert np.bincount(train.labels).tolist() == [1000] * 10
    assert np.bincount(test.labels).tolist() == [200] * 10
    assert train.classes == test.classes and train.classes[9] == "Ankle boot"
    record = train.read(0)
    assert record.data.shape == (28, 28) and record.data.dtype == np.uint8 and record.id.startswith("train/")


def test_fashion_never_changes():
    assert open_source("builtin:fashion", "train").fingerprint == "f1d908b350149087c0abace56cfc6f8c"


def test_the_package_of_data_is_small_and_licensed():
    folder = Path(vitrail.data.builtin.__file__).parent
    assert (folder / "fashion.npz").stat().st_size < 6e6
    assert "MIT License" in (folder / "LICENSE-fashion-mnist").read_text()


def test_a_source_pickles():
    source = open_source("builtin:fashion", "test[:10]")
    again = pickle.loads(pickle.dumps(source))
    assert again.fingerprint == source.fingerprint and np.array_equal(again.read(3).data, source.read(3).data)


def test_names_that_do_not_exist_are_named_with_their_nearest():
    with pytest.raises(UsageError, match="did you mean 'fashion'"):
        open_source("builtin:fasion", "train")
    with pytest.raises(UsageError, match="takes no options"):
        open_source("builtin:fashion?n=3", "train")
    with pytest.raises(UsageError, match="has the splits train, test"):
        open_source("builtin:fashion")
    with pytest.raises(DataError, match="no split 'val'"):
        open_source("builtin:fashion", "val")
    assert list_splits("builtin:fashion") == ("train", "test")
