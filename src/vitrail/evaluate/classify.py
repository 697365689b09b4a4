"""`evaluate`: a model on a data set, every number with its denominator.

    result = vitrail.evaluate("runs/photos/last.safetensors", "photos/", split="test")
    print(result)              result.top1.value, result.counts.confusion, result.to_dict()

No image is dropped or doubled: a file that cannot be read is named in `unreadable_files` and
missing from `images`; an image without a label is counted in `unlabelled`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vitrail.data.source import Source, list_splits, open_source
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.answers import Answers
from vitrail.evaluate.calibration import Scaling, fit_temperature, scale
from vitrail.evaluate.classes import owner_by_map, owner_by_name, read_map
from vitrail.evaluate.features import cache_folder, name_of
from vitrail.evaluate.folder import prepare_folder, write_folder
from vitrail.evaluate.imagenet import IN_ORDER, owner_by_wnid
from vitrail.evaluate.intervals import Interval, bootstraps, wilson
from vitrail.evaluate.metrics import Counts, average_precision, mean_known
from vitrail.evaluate.protocols import Protocol, find_protocol
from vitrail.evaluate.real import accepted_labels, score_real
from vitrail.evaluate.result import Evaluation
from vitrail.evaluate.score import part_counts, resolved, score
from vitrail.evaluate.speed import measure_speed
from vitrail.evaluate.survey import Asker, Survey
from vitrail.evaluate.views import Views
from vitrail.runtime import distributed
from vitrail.runtime.device import pick_device

__all__ = ["Evaluation", "evaluate", "match_classes", "open_asker", "score"]

EVAL_SPLITS = ("test", "val")
BOOTSTRAP = 1000


def evaluate(
    model: str | nn.Module,
    data: Any,
    *,
    split: str | None = None,
    protocol: str | None = None,
    class_map: Mapping[str, Any] | str | Path | None = None,
    restrict: bool | None = None,
    real: str | Path | None = None,
    views: str = "none",
    calibrate: str | None = None,
    bootstrap: int = BOOTSTRAP,
    speed: bool = False,
    batch_size: int | None = None,
    precision: str = "auto",
    device: str | None = None,
    workers: int | None = None,
    image_size: Any = None,
    cache: str | Path | bool = False,
    allow: Collection[str] = (),
    out: str | Path | None = None,
    keep_answers: bool = False,
    progress: bool = False,
) -> Evaluation:
    """Measure a model (weights, or one loaded) on a data set (an address, or a Source).

    split: default the test split, else the validation split.
    protocol: how a set of ImageNet's family is scored (`evaluate.protocols`).
    class_map: class of the data -> output(s) of the model, or a JSON file of it.
    restrict: outputs that stand for no class of the data cannot be answered. Default: where names
        match a part of the outputs; with a class map an answer outside is a wrong one, as in ObjectNet.
    real: the file real.json of ImageNet ReaL, or {image: [classes]}.
    views: test-time augmentation, "flip", "five" or "ten" (`evaluate.views`).
    calibrate: a split with other images, which fits a temperature.
    bootstrap: draws for the intervals that have no closed form; 0: none.
    speed: measure throughput and latency of the model alone as well.
    cache: keep the answers so that an interrupted run goes on; True: in Vitrail's cache folder, or a path.
    out: a folder for tables and pictures (`evaluate.folder`).
    """
    asker, name = open_asker(
        model, views=views, batch_size=batch_size, precision=precision, device=device, workers=workers,
        image_size=image_size, cache=cache, progress=progress,
    )  # fmt: skip
    convention = find_protocol(protocol) if protocol else None
    if protocol == "imagenet-c":
        raise UsageError("imagenet-c is 75 data sets; it has a function of its own.", hint="vitrail.corruption(model, folder)")
    source = _source(data, split, allow)
    table = read_map(class_map) if isinstance(class_map, str | os.PathLike) else class_map
    match = match_classes(asker.model, source, name, table, restrict, convention)
    accepted = accepted_labels(real, source) if real else None
    held = _held_out(data, calibrate, source, allow) if calibrate is not None else None
    if held is not None:
        match.refuse_scaling()
    if out is not None:
        prepare_folder(out)
    view = asker.model.card.transform()
    ask: dict[str, Any] = {"owner": match.owner, "restrict": match.restrict, "keep_scores": source.multilabel or held is not None}
    survey, scaling = asker.survey(source, view, **ask), None
    if held is not None:
        fitted = asker.survey(held, view, **ask)
        scaling = _scaled(survey.answers, fitted.answers, str(calibrate))
        survey = Survey(survey.answers, survey.unreadable, survey.spent + fitted.spent)
    spoken = dict.fromkeys((*source.notes, *match.notes, *(convention.note(len(source)) if convention else ())))
    fast = measure_speed(asker.model, device=asker.device, precision=asker.precision, batch_size=asker.batch_size) if speed else None
    result = _conclude(
        survey, source, bootstrap, keep_answers or out is not None, model=name, precision=asker.precision, protocol=protocol, views=views,
        real=score_real(survey.answers.guesses[:, 0], survey.answers.index, accepted) if accepted is not None else None,
        scaling=scaling, speed=fast, notes=tuple(spoken),
        folder=str(out) if out is not None else None,
    )  # fmt: skip
    if out is not None and distributed.is_main():
        write_folder(result, out, source)
    return result


def open_asker(
    model: str | nn.Module,
    *,
    views: str = "none",
    batch_size: int | None = None,
    precision: str = "auto",
    device: str | None = None,
    workers: int | None = None,
    image_size: Any = None,
    cache: str | Path | bool = False,
    progress: bool = False,
) -> tuple[Asker, str]:
    """The model on its device, ready to be asked, and its name."""
    name, network = _model(model, image_size)
    place = pick_device(device)
    folder = None if cache is False else cache_folder() if cache is True else Path(cache)
    seen = Views(views, network.card.transform().image_size)
    batch = batch_size or (256 if place.type == "cuda" else 32)
    return Asker(network.to(place), seen, place, resolved(precision, place), batch, workers, folder, not progress), name


# ---------------------------------------------------------------- which output is which class


@dataclass(frozen=True, eq=False)
class Match:
    """The outputs of a model against the classes of the data; owner None: the same ones."""

    owner: np.ndarray | None
    restrict: bool
    notes: tuple[str, ...] = ()

    def refuse_scaling(self) -> None:
        """A temperature needs the model's own probabilities over the data's classes."""
        if self.owner is None:
            return
        several = np.bincount(self.owner[self.owner >= 0]).max(initial=0) > 1
        if several or not self.restrict:
            raise UsageError("a temperature is fitted where every class has one output and no other may be answered.", hint="--restrict")


def match_classes(
    model: Any, source: Source, name: str, table: Mapping[str, Any] | None, restrict: bool | None, how: Protocol | None
) -> Match:
    """By a map, by a convention, by ImageNet's numbers, or by names; anything else is refused."""
    outputs, count, classes = tuple(model.card.classes), model.config.classes, tuple(source.classes)
    if table is not None:
        return Match(owner_by_map(table, outputs, count, classes), bool(restrict))
    owner = how.owner(outputs, count, classes, source.name) if how else None
    notes: tuple[str, ...] = ()
    if owner is None and (not outputs or set(outputs).isdisjoint(classes)):
        owner = owner_by_wnid(outputs, count, classes)
        notes = (IN_ORDER,) if owner is not None else ()
    if owner is None:
        owner = owner_by_name(outputs, classes, name, source.name)
        if owner is None and count != len(classes):
            raise DataError(
                f"{name} has {count} outputs, and {source.name} has {len(classes)} classes.",
                hint="fine-tune a head for this data (vitrail finetune), or give a --class-map",
            )
    if restrict is None:
        restrict = how.restrict if how else True
    return Match(owner, restrict and owner is not None, notes)


# ---------------------------------------------------------------- numbers


def _conclude(survey: Survey, source: Source, draws: int, keep: bool, **told: Any) -> Evaluation:
    answers, classes = survey.answers, tuple(source.classes)
    labelled = answers.rows(answers.labels >= 0) if answers.labels.ndim == 1 else answers
    counts = part_counts(labelled, len(classes))
    class_ap = None
    if source.multilabel and labelled.scores is not None and len(labelled):
        scores, targets = labelled.scores, labelled.labels
        class_ap = np.array([average_precision(scores[:, k], targets[:, k]) for k in range(len(classes))])
    per_class, ece, mean_ap = _intervals(labelled, counts, class_ap is not None, draws)
    return Evaluation(
        data=source.name, split=source.split, classes=classes, images=counts.images, unreadable_files=survey.unreadable,
        unlabelled=len(answers) - len(labelled), top1=wilson(counts.top1, counts.images), top5=wilson(counts.top5, counts.images),
        counts=counts, spent=survey.spent, mean_per_class=per_class, ece=ece, mean_ap=mean_ap, class_ap=class_ap,
        answers=answers if keep else None, **told,
    )  # fmt: skip


def _intervals(answers: Answers, counts: Counts, ranked: bool, draws: int) -> tuple[Interval, Interval, Interval | None]:
    """(accuracy a class, calibration error, mAP) by the bootstrap over images."""
    point = Interval(counts.mean_per_class, np.nan, np.nan, how="not asked"), Interval(counts.ece, np.nan, np.nan, how="not asked")
    if not draws or not len(answers):
        mean_ap = Interval(_mean_ap(answers, None), np.nan, np.nan, how="not asked") if ranked and len(answers) else None
        return (*point, mean_ap)
    figures = Figures(answers, len(counts.support))
    found = bootstraps(lambda rows: figures(np.bincount(rows, minlength=len(answers))), len(answers), draws=draws)
    mean_ap = None
    if ranked:
        weigh = lambda rows: [_mean_ap(answers, np.bincount(rows, minlength=len(answers)))]
        mean_ap = bootstraps(weigh, len(answers), draws=max(20, min(draws, int(2e8 / answers.labels.size))))[0]
    return found[0], found[1], mean_ap


class Figures:
    """Mean accuracy of the classes and calibration error of answers, each counted as often as a draw says."""

    def __init__(self, answers: Answers, classes: int) -> None:
        single = answers.labels.ndim == 1
        first = answers.guesses[:, 0]
        if single:
            self.right = first == answers.labels
            self.rows, self.truth = np.arange(len(answers)), answers.labels
        else:
            self.right = np.take_along_axis(answers.labels > 0, first[:, None], axis=1)[:, 0]
            self.rows, self.truth = np.nonzero(answers.labels > 0)
        self.named = self.truth == first[self.rows]
        self.classes = classes
        self.bins = Counts.bin_of(answers.confidence)
        self.gap = self.right - answers.confidence.astype(np.float64)

    def __call__(self, times: np.ndarray) -> Sequence[float]:
        weights = times[self.rows].astype(np.float64)
        support = np.bincount(self.truth, weights, minlength=self.classes)
        hits = np.bincount(self.truth, weights * self.named, minlength=self.classes)
        some = support > 0
        ece = np.abs(np.bincount(self.bins, times * self.gap)).sum() / times.sum()
        return [float((hits[some] / support[some]).mean()) if some.any() else np.nan, float(ece)]


def _mean_ap(answers: Answers, times: np.ndarray | None) -> float:
    scores = answers.scores
    assert scores is not None
    return mean_known(np.array([average_precision(scores[:, k], answers.labels[:, k], times) for k in range(scores.shape[1])]))


# ---------------------------------------------------------------- calibration


def _held_out(data: Any, split: str, measured: Source, allow: Collection[str]) -> Source:
    """The source that fits a temperature: none of the measured images may be in it."""
    held = open_source(data, split=split, allow=allow)
    if held.multilabel:
        raise UsageError("images have several labels; a temperature is fitted to one label an image.")
    if tuple(held.classes) != tuple(measured.classes):
        raise DataError(f"{split} and {measured.split} of {measured.name} have other classes.")
    theirs = {measured.id(i): i for i in range(len(measured))}
    both = [(i, theirs[held.id(i)]) for i in range(len(held)) if held.id(i) in theirs]
    if any(_bytes(held, i) == _bytes(measured, j) for i, j in both[:8]):
        raise UsageError(
            f"{split} and {measured.split} share {len(both):,} images; a temperature is fitted on others than it is judged by.",
            hint="--split 'test[:50%]' --calibrate 'test[50%:]', or --calibrate val",
        )
    return held


def _bytes(source: Source, i: int) -> bytes:
    data = source.read(i).data
    return data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()


def _scaled(measured: Answers, held: Answers, split: str) -> Scaling:
    assert measured.scores is not None and held.scores is not None
    temperature = fit_temperature(held.scores, held.labels)
    return scale(temperature, split, int((held.labels >= 0).sum()), measured.scores, measured.labels)


# ---------------------------------------------------------------- opening


def _model(model: str | nn.Module, image_size: Any) -> tuple[str, Any]:
    if isinstance(model, nn.Module):
        if not hasattr(model, "card"):
            raise UsageError(
                "this model has no card, so nobody knows how its images are prepared.", hint="model = vitrail.load_model(path)"
            )
        return name_of(model), model
    from vitrail.weights.load import load_model

    return str(model), load_model(str(model), image_size=image_size)


def _source(data: Any, split: str | None, allow: Collection[str]) -> Source:
    if split is None and isinstance(data, str | os.PathLike):
        have = list_splits(data)
        split = next((name for name in EVAL_SPLITS if name in have), None)
        if split is None and have:
            raise UsageError(
                f"{data} has no test or validation split, only {', '.join(have)}.", hint=f"say which images: --split '{have[0]}[90%:]'"
            )
    return open_source(data, split=split, allow=allow)
