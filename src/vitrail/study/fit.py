"""Whether weights and labelled images fit each other, tried on a sample: the list of classes, and the range of the input.

Both can be wrong without an error: logits then come out under other names, or from pixels scaled otherwise than in
training. So the sample is run under every usual range, and what the outputs do is held against what the card says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.transform import IMAGENET_MEAN, IMAGENET_STD
from vitrail.study.finding import Finding

__all__ = ["fits"]

HALF = (0.5, 0.5, 0.5)
# what a set of weights may have been trained on: mean and std of pixels in [0, 1]
RANGES = {
    "[-1, 1]": (HALF, HALF),
    "ImageNet mean and std": (IMAGENET_MEAN, IMAGENET_STD),
    "[0, 1]": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "[0, 255]": ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)),
}
ENOUGH = 3  # images a class, before its usual output means something
AGREE = 0.7  # of the images, under their class's usual output
SURE = 3.0  # standard errors


def fits(model: Any, some: Sequence[tuple[np.ndarray, int]], theirs: Sequence[str], place: torch.device) -> Iterator[Finding]:
    """What a sample of (pixels, index into `theirs`, -1 for none) says about a model's class list and input range."""
    ours = tuple(model.card.classes)
    known = {name: i for i, name in enumerate(ours)}
    named = [known.get(name, -1) for name in theirs]
    labels = torch.tensor([label for _, label in some])
    one_answer = model.config.classes > 1 and getattr(model.config, "pool", "") != "unpooled"
    if not one_answer or model.config.channels not in (1, 3) or not some or int(labels.max()) < 0:
        yield _by_name(ours, theirs, model.config.classes)
        yield Finding("note", "input range", "cannot be tried: that takes labelled images, and a head")
        return
    said, answers = _answers(model, [pixels for pixels, _ in some], place)
    seen = _usual_outputs(answers, labels, len(theirs))
    yield _classes(ours, theirs, named, seen, model.config.classes)
    wanted = torch.tensor(seen if seen is not None else named)[labels]
    wanted[labels < 0] = -1
    yield _range(answers, said, wanted)


# ---- the list of classes ----


def _by_name(ours: Sequence[str], theirs: Sequence[str], outputs: int) -> Finding:
    """The two lists side by side; nothing was tried."""
    if not ours:
        return Finding("note", "classes", f"the weights carry no class names ({outputs} outputs, {len(theirs)} classes in the data)",
                       "" if outputs == len(theirs) else "vitrail finetune gives the weights a head for the data")  # fmt: skip
    if tuple(ours) == tuple(theirs):
        return Finding("ok", "classes", "the data's are the weights', in the same order")
    strangers = [name for name in theirs if name not in set(ours)]
    if not strangers:
        return Finding("ok", "classes", f"the data's {len(theirs)} are among the weights' {len(ours)}; matched by name")
    meant = len(ours) == len(theirs) or len(strangers) < len(theirs)  # one list with other names, or some misspelt
    return Finding("problem" if meant else "note", "classes",
                   f"the weights do not know {len(strangers)} of the data's {len(theirs)}: {', '.join(strangers[:5])}",
                   "rename the folders as the weights call them; or vitrail finetune gives the weights a head for these")  # fmt: skip


def _classes(ours: Sequence[str], theirs: Sequence[str], named: list[int], seen: list[int] | None, outputs: int) -> Finding:
    """What the card calls the outputs, against the outputs that the data's classes have."""
    if seen is None or all(a == b for a, b in zip(seen, named)):
        return _by_name(ours, theirs, outputs)
    order = list(range(outputs))
    if not ours:
        text = f"no names on the card; output {seen[0]} is {theirs[0]!r}, {seen[1]} {theirs[1]!r}" if len(theirs) > 1 else "no names"
        same = seen == order[: len(theirs)] and len(theirs) == outputs
        return Finding("note", "classes", "no names on the card; the outputs are the data's classes, in their order" if same else text,
                       "card.replace(classes=…) with the names in the order of the outputs")  # fmt: skip
    called = ", ".join(f"{theirs[i]!r} {ours[output]!r}" for i, output in enumerate(seen) if output != named[i])
    return Finding("problem", "classes", f"the class list is not that of the outputs: the weights call {called[:300]}",
                   "model.card = model.card.replace(classes=…) with the names in the order of the outputs, then save_model")  # fmt: skip


def _usual_outputs(answers: Mapping[str, Tensor], labels: Tensor, classes: int) -> list[int] | None:
    """The output that each class of the data mostly gets, under the range where they agree best; None where that means nothing."""
    counts = torch.bincount(labels[labels >= 0], minlength=classes)
    if int(counts.min()) < ENOUGH:
        return None
    best, agreement = None, AGREE
    for logp in answers.values():
        predicted = logp.argmax(-1)
        usual = [int(predicted[labels == k].mode().values) for k in range(classes)]
        agree = float((predicted == torch.tensor(usual)[labels])[labels >= 0].float().mean())
        if len(set(usual)) == classes and agree >= agreement:
            best, agreement = usual, agree
    return best


# ---- the range of the input ----


def _answers(model: Any, images: Sequence[np.ndarray], place: torch.device) -> tuple[str, dict[str, Tensor]]:
    """(the card's range, log-probabilities of the sample under every range, its own among them)."""
    view, channels = model.card.transform(), model.config.channels
    grey = lambda values: values if channels == 3 or len(values) == 1 else (sum(values) / 3,)
    ranges = {name: (grey(mean), grey(std)) for name, (mean, std) in RANGES.items()}
    close = lambda a, b: np.allclose(a, b, atol=1e-3)
    said = next((name for name, (mean, std) in ranges.items() if close(mean, view.mean) and close(std, view.std)), "its own")
    pixels = torch.stack([torch.from_numpy(np.asarray(view.pixels(image))).permute(2, 0, 1) for image in images]).to(place).float() / 255
    column = lambda values: torch.tensor(values, device=place).view(1, -1, 1, 1)
    answers = {
        name: model((pixels - column(mean)) / column(std)).float().log_softmax(-1).cpu()
        for name, (mean, std) in {**ranges, said: (view.mean, view.std)}.items()
    }
    return said, answers


def _range(answers: Mapping[str, Tensor], said: str, wanted: Tensor) -> Finding:
    """The card's range, unless another one makes the right answers likelier beyond chance, image by image."""
    here = wanted >= 0
    if not bool(here.any()):
        return Finding("note", "input range", f"{said}; cannot be tried: the weights know none of the data's classes")
    rows = torch.arange(len(wanted))[here]
    loss = {name: -logp[rows, wanted[here]] for name, logp in answers.items()}
    right = {name: 100 * float((logp.argmax(-1) == wanted)[here].float().mean()) for name, logp in answers.items()}
    best = min(loss, key=lambda name: float(loss[name].mean()))
    text = f"{said}: right {right[said]:.0f} % of the time on {len(rows)} images, loss {float(loss[said].mean()):.2g}"
    gain, share = loss[said] - loss[best], float(loss[best].mean() / loss[said].mean().clamp_min(1e-12))
    beyond_chance = len(rows) > 1 and float(gain.mean()) > SURE * float(gain.std()) / math.sqrt(len(rows))
    of_use = float(loss[best].mean()) < math.log(next(iter(answers.values())).shape[-1])  # better than equal guesses
    if best != said and beyond_chance and of_use and right[best] >= right[said] and share < 0.8:
        sure = right[best] > right[said] or share < 0.5
        return Finding("problem" if sure else "note", "input range",
                       f"{text}; but with {best} {right[best]:.0f} %, loss {float(loss[best].mean()):.2g}",
                       "the weights were probably trained with that: model.card.replace(preprocess=…) with its mean and std")  # fmt: skip
    return Finding("ok", "input range", text)
