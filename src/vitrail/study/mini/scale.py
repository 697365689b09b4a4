"""How large a small study is: one base model for a CPU or a GPU, and hybrids and ResNets of the same compute.

"Same compute" is the analytic count of multiply-adds (model/cost.py): the width whose count lies
nearest is taken, and every table of a study prints the count, so that what is left shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.config import ModelSpec, Recipe, load_recipe
from vitrail.model.cost import cost_of
from vitrail.model.names import Config, config_for

__all__ = ["SCALES", "Scale", "axial", "bit", "hybrid", "macs_of", "scale_of", "vit"]

GROUPS = 4  # of group norms: widths may then be any multiple of 4


@dataclass(frozen=True)
class Scale:
    """The packaged recipe `mini:NAME`, and the convolutional networks that go with it."""

    name: str
    recipe: Recipe
    stem_root: str  # of hybrids: "standard" (stride 4) or "small" (stride 1)
    stem_layers: tuple[int, ...]
    stem_patch: int  # cut from the stem's map, so that there are as many tokens as in the base ViT
    resnet_layers: tuple[int, ...]
    depths: tuple[int, ...]  # of the study of shapes: multiples of the base

    @property
    def side(self) -> int:
        assert self.recipe.model.image_size is not None
        return self.recipe.model.image_size[0]

    @property
    def patch(self) -> int:
        return int(self.recipe.model.name.partition("/")[2])

    @property
    def base(self) -> dict[str, Any]:
        """width, depth, heads, mlp_width"""
        return self.recipe.model.options


SHAPES: dict[str, dict[str, Any]] = {
    "cpu": {"stem_root": "standard", "stem_layers": (1,), "stem_patch": 2, "resnet_layers": (1, 1, 1), "depths": (2, 4)},
    "gpu": {"stem_root": "small", "stem_layers": (1, 1, 1), "stem_patch": 2, "resnet_layers": (2, 2, 2), "depths": (2, 4)},
}
SCALES = tuple(SHAPES)


def scale_of(name: str) -> Scale:
    return Scale(name, load_recipe(f"mini:{name}"), **SHAPES[name])


def macs_of(model: ModelSpec) -> int:
    """Multiply-adds of one image."""
    return cost_of(config(model)).macs


def config(model: ModelSpec) -> Config:
    return config_for(model.name, classes=10, image_size=model.image_size, **model.options)


# ---------------------------------------------------------------- families


def vit(scale: Scale, *, wide: float = 1.0, patch: int | None = None, **options: Any) -> ModelSpec:
    """The base ViT; `wide` scales its width, its MLP and its number of heads together."""
    base = dict(scale.base)
    for name in ("width", "mlp_width", "heads"):
        base[name] = max(1, round(base[name] * wide))
    return ModelSpec(f"mu/{patch or scale.patch}", (scale.side, scale.side), options={**base, **options})


def axial(scale: Scale, *, patch: int | None = None, **options: Any) -> ModelSpec:
    """The base ViT with axial attention: every block twice."""
    return ModelSpec(f"Axialmu/{patch or scale.patch}", (scale.side, scale.side), options={**scale.base, **options})


def hybrid(scale: Scale, macs: int) -> ModelSpec:
    """A ResNet stem and the base ViT's depth; of the widths whose stem does a tenth to six tenths of the work, the nearest."""
    head = scale.base["width"] // scale.base["heads"]
    ratio = scale.base["mlp_width"] // scale.base["width"]
    made = []
    for stem in range(GROUPS, 8 * GROUPS + 1, GROUPS):
        for heads in range(1, 4 * scale.base["heads"] + 1):
            shape = {**scale.base, "width": head * heads, "heads": heads, "mlp_width": ratio * head * heads}
            shape["stem"] = {"layers": list(scale.stem_layers), "width": stem, "root": scale.stem_root, "groups": GROUPS}
            made.append(ModelSpec(f"mu/{scale.stem_patch}", (scale.side, scale.side), options=shape))
    return nearest([model for model in made if 0.1 <= stem_share(model) <= 0.6], macs)


def stem_share(model: ModelSpec) -> float:
    """Part of a hybrid's multiply-adds that its stem does."""
    layers = cost_of(config(model)).layers
    return sum(macs for name, macs in layers.items() if name.startswith("stem.")) / sum(layers.values())


def bit(scale: Scale, macs: int) -> ModelSpec:
    """A BiT ResNet of nearest compute."""
    made = []
    for width in range(GROUPS, 64 * GROUPS + 1, GROUPS):
        options = {"layers": list(scale.resnet_layers), "width_factor": width / 64, "groups": GROUPS}
        made.append(ModelSpec("R26x1", (scale.side, scale.side), options=options))
    return nearest(made, macs)


def nearest(models: Sequence[ModelSpec], macs: int) -> ModelSpec:
    return min(models, key=lambda model: abs(macs_of(model) - macs))
