"""VTAB-1k: 19 tasks of 1,000 training images, with the splits and labels of google-research/task_adaptation.

    vtab:cifar100?root=/data/tensorflow_datasets            from folders that TFDS prepared, the official split
    vtab:cifar100?from=hf://datasets/cifar100               from elsewhere: a random part, and it says so
    vtab:cifar100?from=photos/&ids=ids.json                 from elsewhere, by published lists of ids

Splits: `train` (800 + 200 images, the ones the reported model is trained on), `train800` and
`val200` (to choose hyper-parameters), `test` (all of it). The slices are ranges of TFDS's
record order, percentages rounded down. Labels of the structured tasks are made from the
records: counts, binned distances, coarse positions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from vitrail.data.source import Listing, Options, open_source
from vitrail.data.split import listed
from vitrail.data.tfrecord import Fields, Label, find_prepared, read_range
from vitrail.errors import DataError, UsageError, nearest

__all__ = ["GROUPS", "SPLITS", "TASKS", "Task", "Vtab", "find_task"]

GROUPS = ("natural", "specialized", "structured")
SPLITS = ("train", "test", "train800", "val200")


def given(name: str = "label") -> Label:
    """The label as the record has it."""
    return lambda fields: int(fields[name][0])


def count_objects(fields: Fields) -> int:
    """CLEVR: scenes have 3 to 10 objects."""
    return len(fields["objects/size"]) - 3


def nearest_object(fields: Fields) -> int:
    """CLEVR: distance from the camera to the closest object, in six bins."""
    distances = np.asarray(fields["objects/pixel_coords"], np.float32).reshape(-1, 3)[:, 2]
    return binned(distances.min(), (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0))


def nearest_vehicle(fields: Fields) -> int:
    """KITTI: depth of the closest car, van or truck, in three bins; the fourth class: there is none."""
    depths = np.asarray(fields["objects/location"], np.float32).reshape(-1, 3)[:, 2]
    vehicles = depths[np.asarray(fields["objects/type"]) < 3]
    return binned(min(vehicles.min(initial=1000.0), 1000.0), (-100.0, 8.0, 20.0, 999.0))


def binned(value: float, thresholds: Sequence[float]) -> int:
    """The number of the last threshold that lies below the value, in float32 as the original."""
    below = np.flatnonzero(np.asarray(thresholds, np.float32) < np.float32(value))
    return int(below[-1]) if len(below) else -1


def coarse(name: str, values: int, classes: int) -> Label:
    """dSprites: neighbouring values share a class: floor(value / (values / classes))."""
    return lambda fields: int(np.float32(fields[name][0]) // np.float32(values / classes))


@dataclass(frozen=True)
class Task:
    """One task; `val` and `test` say where these slices begin: (TFDS split, percentages that are passed over)."""

    name: str
    group: str
    dataset: str
    major: int
    classes: int
    val: tuple[str, tuple[int, ...]]
    test: tuple[str, tuple[int, ...]] = ("test", ())
    label: Label = field(default=given(), repr=False)
    fields: tuple[str, ...] = ("label",)
    times: int = 1
    flip: bool = True  # False: a mirror image has another label
    crop: bool = True  # False: a crop would change or cut away what the label speaks of

    def ranges(self, split: str, lengths: Any) -> list[tuple[str, int, int]]:
        """(TFDS split, from, to) of each piece; `lengths(split)` is the number of its records."""
        val, test = self._begin(self.val, lengths), self._begin(self.test, lengths)
        pieces = {
            "train800": [("train", 0, 800)],
            "val200": [(self.val[0], val, val + 200)],
            "test": [(self.test[0], test, lengths(self.test[0]))],
        }
        return pieces["train800"] + pieces["val200"] if split == "train" else pieces[split]

    @staticmethod
    def _begin(slice_: tuple[str, tuple[int, ...]], lengths: Any) -> int:
        split, percents = slice_
        return sum(percent * lengths(split) // 100 for percent in percents)


def tail(percent: int) -> tuple[str, tuple[int, ...]]:
    return "train", (percent,)


_VALIDATION = ("validation", ())
_CLEVR: dict[str, Any] = {"dataset": "clevr", "major": 3, "val": tail(90), "test": ("validation", ()), "crop": False}
_SPRITES: dict[str, Any] = {"dataset": "dsprites", "major": 2, "classes": 16, "val": tail(80), "test": ("train", (80, 10)), "times": 255}
_NORB: dict[str, Any] = {"dataset": "smallnorb", "major": 2, "val": ("test", ()), "test": ("test", (50,))}

TASKS: tuple[Task, ...] = (
    Task("caltech101", "natural", "caltech101", 3, 102, tail(90)),
    Task("cifar100", "natural", "cifar100", 3, 100, tail(90)),
    Task("dtd", "natural", "dtd", 3, 47, _VALIDATION),
    Task("flowers102", "natural", "oxford_flowers102", 2, 102, _VALIDATION),
    Task("pets", "natural", "oxford_iiit_pet", 3, 37, tail(80)),
    Task("sun397", "natural", "sun397/tfds", 4, 397, _VALIDATION),
    Task("svhn", "natural", "svhn_cropped", 3, 10, tail(90)),
    Task("camelyon", "specialized", "patch_camelyon", 2, 2, _VALIDATION),
    Task("eurosat", "specialized", "eurosat/rgb", 2, 10, tail(60), ("train", (60, 20))),
    Task("resisc45", "specialized", "resisc45", 3, 45, tail(60), ("train", (60, 20))),
    Task("retinopathy", "specialized", "diabetic_retinopathy_detection/btgraham-300", 3, 5, _VALIDATION),
    Task("clevr-count", "structured", classes=8, label=count_objects, fields=("objects/size",), **_CLEVR),
    Task("clevr-distance", "structured", classes=6, label=nearest_object, fields=("objects/pixel_coords",), **_CLEVR),
    Task("dmlab", "structured", "dmlab", 2, 6, _VALIDATION, crop=False),
    Task(
        "dsprites-location", "structured", label=coarse("label_x_position", 32, 16), fields=("label_x_position",),
        flip=False, crop=False, **_SPRITES,
    ),
    Task(
        "dsprites-orientation", "structured", label=coarse("label_orientation", 40, 16), fields=("label_orientation",),
        flip=False, **_SPRITES,
    ),
    Task(
        "kitti-distance", "structured", "kitti", 3, 4, _VALIDATION, label=nearest_vehicle,
        fields=("objects/location", "objects/type"), crop=False,
    ),
    Task(
        "smallnorb-azimuth", "structured", classes=18, label=given("label_azimuth"), fields=("label_azimuth",), flip=False, **_NORB
    ),
    Task("smallnorb-elevation", "structured", classes=9, label=given("label_elevation"), fields=("label_elevation",), **_NORB),
)  # fmt: skip
ALIASES = {
    "clevr-dist": "clevr-distance", "dspr-loc": "dsprites-location", "dspr-ori": "dsprites-orientation", "kitti-dist": "kitti-distance",
    "snorb-azim": "smallnorb-azimuth", "snorb-elev": "smallnorb-elevation", "patch_camelyon": "camelyon",
    "oxford_flowers102": "flowers102", "oxford_iiit_pet": "pets", "svhn_cropped": "svhn", "kitti": "kitti-distance",
    "diabetic_retinopathy_detection": "retinopathy",
}  # fmt: skip


def find_task(name: str) -> Task:
    """A task by its name, or by the paper's short one."""
    known = {task.name: task for task in TASKS}
    plain = ALIASES.get(name.lower(), name.lower())
    if plain not in known:
        raise UsageError(f"VTAB has no task {name!r}{nearest(name, known)}.")
    return known[plain]


class Vtab:
    """The reader of a `vtab:TASK` address."""

    tolerant = False

    def __init__(self, where: str) -> None:
        self.name = where
        task, _, query = where.removeprefix("vtab:").partition("?")
        self.task = find_task(task)
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        for key in self.query:
            if key not in ("root", "from", "ids"):
                raise UsageError(f"{where}: unknown option {key!r}{nearest(key, ('root', 'from', 'ids'))}.")

    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def open(self, split: str | None, options: Options) -> Listing:
        assert split is not None
        if "from" in self.query:
            return _elsewhere(self.name, self.task, self.query["from"], self.query.get("ids"), split)
        prepared = find_prepared(tfds_root(self.query.get("root")), self.task.dataset, self.task.major)
        names = prepared.class_names(self.task.fields[0]) if self.task.fields == ("label",) else None
        classes = names or tuple(map(str, range(self.task.classes)))
        if len(classes) != self.task.classes:
            raise DataError(f"{prepared.path} names {len(classes)} classes, and {self.task.name} has {self.task.classes}.")
        ranges = self.task.ranges(split, prepared.length)
        return read_range(
            prepared, ranges, name=f"vtab:{self.task.name}", split=split, classes=classes,
            label=self.task.label, fields=self.task.fields, times=self.task.times,
        )  # fmt: skip


def tfds_root(given_root: str | None) -> Path:
    """Where TFDS keeps its prepared data: as told, TFDS_DATA_DIR, or its default."""
    return Path(given_root or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def _elsewhere(name: str, task: Task, where: str, ids: str | None, split: str) -> Any:
    """Another copy of a task's data: by published ids, else a random part that calls itself one."""
    if ids is None:
        parts = {"train": "train[:1000]", "train800": "train[:800]", "val200": "train[800:1000]", "test": "test"}
        source = open_source(where, split=parts[split])
        note = f"{task.name} from {where}: not the official split of VTAB-1k"
        found = replace(source, notes=(*source.notes, note)) if isinstance(source, Listing) else source
        if found is source:
            source.notes = (*source.notes, note)
    else:
        try:
            table = json.loads(Path(ids).read_text("utf-8"))
            chosen = table["train800"] + table["val200"] if split == "train" else table[split]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{ids} is no list of ids ({error}).", hint='{"train800": […], "val200": […], "test": […]}') from None
        found = listed(open_source(where, split="test" if split == "test" else "train"), chosen, f"{task.name} {split}")
    if len(found.classes) != task.classes:
        raise DataError(f"{where} has {len(found.classes)} classes, and {task.name} has {task.classes}.")
    return found
