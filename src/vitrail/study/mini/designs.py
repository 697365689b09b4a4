"""The small studies: the factors and the protocol of the paper's ablations, at a size that fits one machine.

    design("positions", scale_of("cpu")).cells

Each function is one study; `judge` puts its claims to the test on what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

from vitrail.errors import UsageError, nearest
from vitrail.evaluate.intervals import Interval, difference
from vitrail.study.mini.design import Cell, Design, Figures, Verdict, at_least, compare, points, sign
from vitrail.study.mini.scale import Scale, axial, bit, hybrid, macs_of, vit

__all__ = ["DESIGNS", "design"]

PARTS = (3.0, 10.0, 30.0, 100.0)  # per cent of the images: 9, 30, 90 and 303 million of JFT's 303
SIMILAR = 1.0  # points within which two kinds count as alike at this scale


def design(name: str, scale: Scale) -> Design:
    """A study by name, for a scale."""
    if name not in DESIGNS:
        raise UsageError(f"There is no small study {name!r}{nearest(name, DESIGNS)}.")
    return DESIGNS[name](scale)


def data_size(scale: Scale) -> Design:
    """Figures 3 and 4: the same training on 3, 10, 30 and 100 % of the images; models of one compute."""
    macs = macs_of(vit(scale))
    models = {"ViT": vit(scale), "hybrid": hybrid(scale, macs), "BiT": bit(scale, macs)}
    cells = [Cell(f"{name}-{part:g}", name, model, part, percent=part) for name, model in models.items() for part in PARTS]

    def judge(found: Figures) -> list[Verdict]:
        few, many = f"{PARTS[0]:g}", f"{PARTS[-1]:g}"
        gain = {name: [b - a for a, b in zip(found[f"{name}-{few}"], found[f"{name}-{many}"])] for name in models}
        return [
            compare(f"With little data ({few} %) a ResNet beats a ViT.", "BiT", found[f"BiT-{few}"], "ViT", found[f"ViT-{few}"]),
            compare("With all of it the ViT is ahead: the lines cross.", "ViT", found[f"ViT-{many}"], "BiT", found[f"BiT-{many}"]),
            compare("A ViT gains more from more data than a ResNet.", "ViT's gain", gain["ViT"], "BiT's gain", gain["BiT"]),
        ]

    return Design(
        "data-size", "Pre-training data size: ViT, hybrid and BiT at matched compute", ("figure-4", "figure-3", "table-5"),
        tuple(cells), judge, "pre-training images, % of what there is", x_log=True,
        note="Same steps for every size, best weights by held-out accuracy (the paper stops early).",
    )  # fmt: skip


def compute(scale: Scale) -> Design:
    """Figure 5: three sizes of each family; the same data and steps."""
    cells = []
    for size, wide in (("small", 0.5), ("medium", 1.0), ("large", 2.0)):
        base = vit(scale, wide=wide)
        for name, model in (("ViT", base), ("hybrid", hybrid(scale, macs_of(base))), ("BiT", bit(scale, macs_of(base)))):
            cells.append(Cell(f"{name}-{size}", name, model))

    def judge(found: Figures) -> list[Verdict]:
        mean = {
            name: [fmean(seed) for seed in zip(*(found[f"{name}-{s}"] for s in ("small", "medium", "large")))] for name in ("ViT", "BiT")
        }
        return [
            compare("At the same compute ViTs transfer better than ResNets.", "ViT", mean["ViT"], "BiT", mean["BiT"]),
            compare("Hybrids are ahead of ViTs at small compute.", "hybrid", found["hybrid-small"], "ViT", found["ViT-small"]),
            at_least("The hybrids' lead is gone at large compute.", "ViT", found["ViT-large"], "hybrid", found["hybrid-large"], SIMILAR),
        ]

    return Design(
        "compute", "Pre-training compute against transfer", ("figure-5", "table-6"), tuple(cells), judge,
        "pre-training compute, exaFLOPs", x_log=True, x_compute=True,
    )  # fmt: skip


def positions(scale: Scale) -> Design:
    """Table 8: every kind and place of position embedding that goes together."""
    kinds = {"none": "none", "1-D": "learned", "2-D": "learned2d", "relative": "relative"}
    places = {"stem": "stem", "every layer": "every", "shared": "shared"}
    cells = [
        Cell(f"{kind}, {place}" if kind != "none" else "none", place, vit(scale, position=kinds[kind], position_at=places[place]))
        for kind in kinds
        for place in places
        if place == "stem" or kind in ("1-D", "2-D")
    ]

    def judge(found: Figures) -> list[Verdict]:
        some = {name: values for name, values in found.items() if name != "none"}
        every = [fmean(seed) for seed in zip(*some.values())]
        best, worst = (pick(some, key=lambda name: fmean(some[name])) for pick in (max, min))
        gap = difference(some[best], some[worst])
        spread = Verdict(
            "The kinds and places differ little among themselves.",
            f"best {best} {fmean(some[best]):.1f}, worst {worst} {fmean(some[worst]):.1f}: {points(gap)}",
            None if gap.low <= SIMILAR < gap.high or math.isnan(gap.low) else gap.high <= SIMILAR,
        )
        return [compare("Any position embedding beats none.", "mean of all kinds", every, "none", found["none"]), spread]

    return Design("positions", "Position embeddings", ("table-8",), tuple(cells), judge)


def pooling(scale: Scale) -> Design:
    """Figure 9: class token with a tanh layer, and mean pooling at the same and at 3/8 of the rate (8e-4 and 3e-4)."""
    lr = scale.recipe.optim.lr
    token = vit(scale, pool="token", representation=scale.base["width"])
    gap = vit(scale, pool="gap")
    cells = (
        Cell("class token", "class token", token),
        Cell("GAP", "GAP", gap),
        Cell("GAP, 3/8 of the rate", "GAP", gap, changes={"optim.lr": lr * 3 / 8}),
    )

    def judge(found: Figures) -> list[Verdict]:
        lower, same, cls = found["GAP, 3/8 of the rate"], found["GAP"], found["class token"]
        return [
            at_least("Mean pooling does as well as the class token, at a lower rate.", "GAP", lower, "class token", cls, SIMILAR),
            compare("Mean pooling needs that lower rate.", "GAP at 3/8", lower, "GAP at the same rate", same),
        ]

    return Design("pooling", "Class token against global average pooling", ("figure-9",), cells, judge)


SGD: dict[str, Any] = {  # BiT, as in the recipe table-7
    "optim.name": "sgd",
    "optim.lr": 0.03,
    "optim.lr_batch": 256,
    "optim.weight_decay": 1e-4,
    "optim.coupled_decay": True,
    "optim.decay": "all",
    "schedule.decay": "stair",
    "schedule.stair_fractions": (0.25, 0.575, 0.75, 0.925),
    "schedule.stair_factors": (0.1, 0.01, 0.001, 0.0001),
}


def resnet_optimizer(scale: Scale) -> Design:
    """Table 7: Adam and SGD (by BiT) for two sizes of ResNet."""
    sizes = {"small": bit(scale, macs_of(vit(scale))), "large": bit(scale, macs_of(vit(scale, wide=2.0)))}
    cells = [
        Cell(f"{size}, {name}", name, model, changes=changes)
        for size, model in sizes.items()
        for name, changes in (("Adam", {}), ("SGD", SGD))
    ]

    def judge(found: Figures) -> list[Verdict]:
        mean = {name: [fmean(pair) for pair in zip(*(found[f"{size}, {name}"] for size in sizes))] for name in ("Adam", "SGD")}
        return [compare("Adam pre-training transfers better than SGD, for ResNets.", "Adam", mean["Adam"], "SGD", mean["SGD"])]

    return Design("resnet-optimizer", "Adam against SGD for pre-training ResNets", ("table-7",), tuple(cells), judge)


def shape(scale: Scale) -> Design:
    """Figure 8: one dimension of the Transformer scaled at a time, and all together; x is compute relative to the base."""
    start = {**scale.base, "mlp_width": 2 * scale.base["width"]}  # the paper's base has an MLP of twice the width
    made = lambda patch=None, **changed: vit(scale, patch=patch, **{**start, **changed})
    base = made()
    models = {("base", 1.0): base}
    models |= {("depth", float(f)): made(depth=f * start["depth"]) for f in scale.depths}
    models |= {("width", f): made(width=int(f * start["width"]), heads=int(f * start["heads"])) for f in (1.5, 2.0)}
    models |= {("MLP width", float(f)): made(mlp_width=f * start["mlp_width"]) for f in (2, 4)}
    models |= {("patch size", 2.0): made(patch=scale.patch // 2)}
    both = {name: int(1.5 * start[name]) for name in ("depth", "width", "mlp_width", "heads")}
    models |= {("all", 1.5): made(**both)}
    relative = lambda model: macs_of(model) / macs_of(base)
    cells = [Cell(f"{kind} x{f:g}" if kind != "base" else "base", kind, model, relative(model)) for (kind, f), model in models.items()]

    def slope(found: Figures, kind: str) -> list[float]:
        """Points gained a doubling of compute, by the largest of its kind; one a seed."""
        cell = max((cell for cell in cells if cell.series == kind), key=lambda cell: cell.x or 0.0)
        return [(a - b) / math.log2(cell.x or 2.0) for a, b in zip(found[cell.name], found["base"])]

    def judge(found: Figures) -> list[Verdict]:
        gains = {kind: slope(found, kind) for kind in ("depth", "width", "patch size")}
        claim = "A doubling of compute gains more as depth than as width."
        patches = Interval(fmean(gains["patch size"]), math.nan, math.nan) if len(gains["patch size"]) < 2 else None
        gain = patches or difference(gains["patch size"], [0.0] * len(gains["patch size"]))
        return [
            compare(claim, "points by depth", gains["depth"], "by width", gains["width"]),
            Verdict("Smaller patches help without adding parameters.", f"points a doubling: {points(gain)}", sign(gain)),
        ]

    return Design(
        "shape", "Scaling the shape of the Transformer", ("figure-8",), tuple(cells), judge, "compute, relative to the base", x_log=True,
    )  # fmt: skip


def axial_attention(scale: Scale) -> Design:
    """Figure 13: ViT, axial ViT and a ResNet of the ViT's compute, at two patch sizes."""
    cells = [Cell("BiT", "BiT", bit(scale, macs_of(vit(scale))))]
    for patch in (scale.patch, scale.patch // 2):
        cells += [Cell(f"ViT/{patch}", "ViT", vit(scale, patch=patch)), Cell(f"AxialViT/{patch}", "AxialViT", axial(scale, patch=patch))]

    def judge(found: Figures) -> list[Verdict]:
        return [
            compare(f"Axial attention is ahead at patch {p}, for more compute.", "axial", found[f"AxialViT/{p}"], "ViT", found[f"ViT/{p}"])
            for p in (scale.patch, scale.patch // 2)
        ]

    return Design(
        "axial", "Axial attention", ("figure-13",), tuple(cells), judge, "pre-training compute, exaFLOPs", x_log=True, x_compute=True,
        note="AxialResNet50 is left out: Vitrail has no convolution-free ResNet.",
    )  # fmt: skip


def masked(scale: Scale) -> Design:
    """Section 4.6: from scratch, after masked patch prediction on unlabelled images, after supervised pre-training."""
    model = vit(scale)
    predict = {"objective.loss": "masked_patches", "objective.mask_rate": 0.5}
    cells = (
        Cell("from scratch", "from scratch", model, pretrain="none"),
        Cell("masked patches", "masked patches", model, changes=predict, pretrain="masked"),
        Cell("supervised", "supervised", model),
    )

    def judge(found: Figures) -> list[Verdict]:
        scratch, hidden, labels = (found[cell.name] for cell in cells)
        return [
            compare("Masked patch pre-training beats training from scratch.", "masked patches", hidden, "scratch", scratch),
            compare("Supervised pre-training is better still.", "supervised", labels, "masked patches", hidden),
        ]

    return Design(
        "masked", "Masked patch pre-training against scratch and supervised", ("self-supervision",), cells, judge, finetune=True,
        note="All three learn from a fifth of the downstream images, for half the steps; the pre-trained ones at 0.3 times the rate.",
    )  # fmt: skip


DESIGNS: dict[str, Callable[[Scale], Design]] = {
    "data-size": data_size,
    "compute": compute,
    "positions": positions,
    "pooling": pooling,
    "resnet-optimizer": resnet_optimizer,
    "shape": shape,
    "axial": axial_attention,
    "masked": masked,
}
