"""The 19 tasks of VTAB-1k on fabricated records: every label map, every slice, every rule."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.encode import encode_png
from vitrail.data.source import open_source
from vitrail.data.vtab import GROUPS, TASKS, find_task
from vitrail.errors import DataError, UsageError

_spec = importlib.util.spec_from_file_location("records", Path(__file__).parent / "records.py")
records = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(records)
BY_NAME = {task.name: task for task in TASKS}


def label(task, **fields):
    """The label a task gives a record that was written and read."""
    from vitrail.data.tfrecord import parse_example

    named = {name.replace("__", "/"): value for name, value in fields.items()}
    return BY_NAME[task].label(parse_example(records.example(named), BY_NAME[task].fields))


PLAIN = [task.name for task in TASKS if task.fields == ("label",)]


def test_there_are_19_tasks_in_the_papers_groups_with_their_classes():
    assert [sum(task.group == group for task in TASKS) for group in GROUPS] == [7, 4, 8]
    assert [task.classes for task in TASKS] == [102, 100, 47, 102, 37, 397, 10, 2, 10, 45, 5, 8, 6, 6, 16, 16, 4, 18, 9]
    assert len(PLAIN) == 12


@pytest.mark.parametrize("task", PLAIN)
def test_plain_tasks_take_the_label_as_it_is(task):
    assert label(task, image=b"x", label=BY_NAME[task].classes - 1) == BY_NAME[task].classes - 1


@pytest.mark.parametrize(("objects", "expected"), [(3, 0), (7, 4), (10, 7)])
def test_clevr_counts_objects_from_three(objects, expected):
    assert label("clevr-count", objects__size=np.zeros(objects, int)) == expected


@pytest.mark.parametrize(
    ("closest", "expected"), [(7.9, 0), (8.0, 0), (8.01, 1), (8.5, 1), (8.7, 2), (9.2, 3), (9.5, 3), (9.75, 4), (10.0, 4), (12.0, 5)]
)
def test_clevr_distance_is_that_of_the_closest_object_and_a_threshold_is_passed_when_exceeded(closest, expected):
    coords = np.array([[5.0, 5.0, 13.0], [1.0, 2.0, closest], [0.0, 0.0, 50.0]], np.float32).ravel()
    assert label("clevr-distance", objects__pixel_coords=coords) == expected


@pytest.mark.parametrize(
    ("kinds", "depths", "expected"),
    [
        ([0, 1, 2], [30.0, 7.0, 9.0], 0),
        ([0, 3], [12.0, 1.0], 1),  # a pedestrian (3) is no vehicle
        ([2], [20.5], 2),
        ([2], [20.0], 1),
        ([3, 7], [1.0, 2.0], 3),  # no vehicle
        ([], [], 3),
        ([0], [-1.0], 0),
    ],
)
def test_kitti_is_the_depth_of_the_closest_car_van_or_truck(kinds, depths, expected):
    places = np.array([[0.0, 0.0, z] for z in depths], np.float32).ravel()
    assert label("kitti-distance", objects__location=places, objects__type=np.array(kinds, int)) == expected


def test_dsprites_positions_share_a_class_two_by_two_and_orientations_by_two_and_a_half():
    assert [label("dsprites-location", label_x_position=k) for k in (0, 1, 2, 30, 31)] == [0, 0, 1, 15, 15]
    assert [label("dsprites-orientation", label_orientation=k) for k in (0, 2, 3, 4, 5, 7, 8, 39)] == [0, 0, 1, 1, 2, 2, 3, 15]
    counts = np.bincount([label("dsprites-orientation", label_orientation=k) for k in range(40)])
    assert len(counts) == 16 and set(counts) == {2, 3}


def test_smallnorb_takes_its_own_attributes():
    record = {"label_azimuth": 17, "label_elevation": 8, "label_category": 4}
    assert (label("smallnorb-azimuth", **record), label("smallnorb-elevation", **record)) == (17, 8)


SIZES = {  # records of the official data, TFDS
    "caltech101": {"train": 3057, "test": 6084},
    "cifar100": {"train": 50000, "test": 10000},
    "dtd": {"train": 1880, "validation": 1880, "test": 1880},
    "flowers102": {"train": 1020, "validation": 1020, "test": 6149},
    "pets": {"train": 3680, "test": 3669},
    "sun397": {"train": 76128, "validation": 10875, "test": 21750},
    "svhn": {"train": 73257, "test": 26032},
    "camelyon": {"train": 262144, "validation": 32768, "test": 32768},
    "eurosat": {"train": 27000},
    "resisc45": {"train": 31500},
    "retinopathy": {"train": 35126, "validation": 10906, "test": 42670},
    "clevr-count": {"train": 70000, "validation": 15000, "test": 15000},
    "clevr-distance": {"train": 70000, "validation": 15000, "test": 15000},
    "dmlab": {"train": 65550, "validation": 22628, "test": 22735},
    "dsprites-location": {"train": 737280},
    "dsprites-orientation": {"train": 737280},
    "kitti-distance": {"train": 6347, "validation": 423, "test": 711},
    "smallnorb-azimuth": {"train": 24300, "test": 24300},
    "smallnorb-elevation": {"train": 24300, "test": 24300},
}
VALIDATION = {
    "caltech101": ("train", 2751),
    "cifar100": ("train", 45000),
    "pets": ("train", 2944),
    "svhn": ("train", 65931),
    "eurosat": ("train", 16200),
    "resisc45": ("train", 18900),
    "clevr-count": ("train", 63000),
    "clevr-distance": ("train", 63000),
    "dsprites-location": ("train", 589824),
    "dsprites-orientation": ("train", 589824),
    "smallnorb-azimuth": ("test", 0),
    "smallnorb-elevation": ("test", 0),
}
TESTS = {
    "eurosat": ("train", 21600, 27000),
    "resisc45": ("train", 25200, 31500),
    "clevr-count": ("validation", 0, 15000),
    "clevr-distance": ("validation", 0, 15000),
    "dsprites-location": ("train", 663552, 737280),
    "dsprites-orientation": ("train", 663552, 737280),
    "smallnorb-azimuth": ("test", 12150, 24300),
    "smallnorb-elevation": ("test", 12150, 24300),
}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_slices_are_the_official_ones_and_test_images_never_train(task):
    lengths = SIZES[task.name].__getitem__
    split, start = VALIDATION.get(task.name, ("validation", 0))
    assert task.ranges("train800", lengths) == [("train", 0, 800)]
    assert task.ranges("val200", lengths) == [(split, start, start + 200)]
    assert task.ranges("train", lengths) == [("train", 0, 800), (split, start, start + 200)]
    assert task.ranges("test", lengths) == [TESTS.get(task.name, ("test", 0, SIZES[task.name].get("test")))]
    used = {(name, k) for name, a, b in task.ranges("train", lengths) for k in range(a, b)}
    assert len(used) == 1000
    assert not any((name, k) in used for name, a, b in task.ranges("test", lengths) for k in (a, b - 1))


def test_what_may_not_be_flipped_or_cropped():
    assert {t.name for t in TASKS if not t.flip} == {"dsprites-orientation", "dsprites-location", "smallnorb-azimuth"}
    assert {t.name for t in TASKS if not t.crop} == {"clevr-count", "clevr-distance", "dmlab", "kitti-distance", "dsprites-location"}


@pytest.fixture
def sprites(tmp_path):
    def make(k):
        mask = np.zeros((8, 8), np.uint8)
        mask[k % 8] = 1
        return {"image": encode_png(mask), "label_x_position": k % 32, "label_orientation": k % 40}

    shards = [[make(k) for k in range(s * 500, (s + 1) * 500)] for s in range(4)]
    names = {"label_x_position": list(map(str, range(32))), "label_orientation": list(map(str, range(40)))}
    records.write_tfds(tmp_path / "dsprites" / "2.0.0", "dsprites", {"train": shards}, names)
    return tmp_path


def test_a_task_opens_from_what_tfds_prepared(sprites):
    address = f"vtab:dsprites-location?root={sprites}"
    train, test = open_source(address, "train"), open_source(address, "test")
    assert len(train) == 1000 and len(test) == 200 and train.official
    chosen = [*range(800), *range(1600, 1800)]
    assert train.labels.tolist() == [k % 32 // 2 for k in chosen]
    assert test.labels.tolist() == [k % 32 // 2 for k in range(1800, 2000)]
    assert train.id(800) == "dsprites-train.tfrecord-00003-of-00004:100"
    pixels = train.read(805).data  # masks of 0 and 1 become 0 and 255, three channels
    assert pixels.shape == (8, 8, 3) and sorted(np.unique(pixels).tolist()) == [0, 255] and (pixels[1605 % 8] == 255).all()
    assert open_source(address, "val200").labels.tolist() == train.labels[800:].tolist()
    with pytest.raises(DataError, match="val200"):
        open_source(address, "val")


def test_other_copies_call_themselves_unofficial_unless_ids_are_given(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 4)):
        for name in ("no", "yes"):
            (tmp_path / "d" / split / name).mkdir(parents=True)
            for k in range(count // 2 if split == "test" else 520):
                (tmp_path / "d" / split / name / f"{split}-{name}-{k}.png").write_bytes(
                    encode_png(rng.integers(255, size=(4, 4, 3), dtype=np.uint8))
                )
    loose = open_source(f"vtab:camelyon?from={tmp_path / 'd'}", "train800")
    assert len(loose) == 800 and any("not the official split" in note for note in loose.notes)
    ids = {"train800": [f"train-yes-{k}" for k in range(8)], "val200": ["train-no-3"], "test": ["test-no-1", "test-yes-0"]}
    (tmp_path / "ids.json").write_text(json.dumps(ids))
    listed = open_source(f"vtab:camelyon?from={tmp_path / 'd'}&ids={tmp_path / 'ids.json'}", "train")
    assert listed.official and len(listed) == 9 and not any("not the official" in note for note in listed.notes)
    assert listed.labels.tolist() == [1] * 8 + [0]
    with pytest.raises(DataError, match="has 2 classes, and dtd has 47"):
        open_source(f"vtab:dtd?from={tmp_path / 'd'}", "train")


def test_names_that_do_not_exist_name_their_nearest():
    assert find_task("dSpr-Ori").name == "dsprites-orientation"
    with pytest.raises(UsageError, match="cifar100"):
        find_task("cifar1000")
    with pytest.raises(DataError, match="tfds build dtd"):
        open_source("vtab:dtd?root=/nowhere", "train")
