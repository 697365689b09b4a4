"""What a name stands for: "B/16", "ViT-B/16", "L/16@384", "R50+ViT-B/16", "R50x1", "AxialViT-B/16". Needs no torch."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from vitrail.errors import UsageError, nearest
from vitrail.model.config import AxialConfig, ResNetConfig, ResNetStem, ViTConfig, pair

__all__ = ["Config", "config_for", "config_from_dict", "config_to_dict", "list_models"]

Config = ViTConfig | AxialConfig | ResNetConfig
CONFIGS: dict[str, type[Config]] = {kind.family: kind for kind in (ViTConfig, AxialConfig, ResNetConfig)}

# name -> width, depth, heads, MLP width (table 1; figure 4 for b; Scaling ViT; big_vision)
SIZES: dict[str, tuple[int, int, int, int]] = {
    "mu": (32, 1, 2, 128),
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "b": (384, 12, 6, 1536),
    "M": (512, 12, 8, 2048),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "So400m": (1152, 27, 16, 4304),
    "H": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
    "g-opt": (1536, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
    "G-opt": (1536, 48, 16, 8192),
    "e": (1792, 56, 16, 15360),
}
# the stem and the patch of a hybrid, by the letter of its ResNet and its total stride. R+ViT-Ti/16 is called /16 by
# its authors, but its root has stride 4 and its patches are 8 wide: 7 x 7 tokens at 224, as its published count says
HYBRIDS: dict[tuple[str, int], tuple[tuple[int, ...], int]] = {
    ("R", 16): ((), 8),
    ("R26", 32): ((2, 2, 2, 2), 1),
    ("R50", 32): ((3, 4, 6, 3), 1),
    ("R50", 16): ((3, 4, 9), 1),
}
RESNETS: dict[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
NAMED = (
    *("mu/16", "Ti/16", "S/32", "S/16", "B/32", "B/16", "B/8", "L/32", "L/16", "L/14", "H/14", "g/14", "G/14"),
    *("R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32", "R50+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/32", "R50+ViT-L/16"),
    *("AxialViT-B/32", "AxialViT-B/16"),
    *("R50x1", "R50x2", "R50x3", "R101x1", "R101x3", "R152x1", "R152x2", "R152x4", "R200x3"),
)
VIT = re.compile(r"(?:(?P<root>R\d*)\+|(?P<axial>Axial))?(?:ViT-)?(?P<size>[A-Za-z0-9-]+)/(?P<patch>\d+(?:x\d+)?)")
BIT = re.compile(r"(?:BiT-)?R(?P<depth>\d+)x(?P<factor>\d+)")


def list_models() -> list[str]:
    """Every name that `create_model` knows; `@384` or another image size can follow each."""
    return list(NAMED)


def config_for(name: str, *, classes: int = 1000, image_size: Any = None, **options: Any) -> Config:
    """The configuration a name stands for, with options over it."""
    plain, _, image = name.strip().partition("@")
    kind, settings = named_settings(plain, name)
    size = image_size or (size_of(image, name) if image else (224, 224))
    check_options(options, kind)
    return kind(**{**settings, "classes": classes, "image_size": pair(size, "image_size"), **options})


def named_settings(plain: str, name: str) -> tuple[type[Config], dict[str, Any]]:
    """What a name without its image size says: the kind of configuration, and the fields it sets."""
    if (bit := BIT.fullmatch(plain)) and int(bit["depth"]) in RESNETS and int(bit["factor"]):
        return ResNetConfig, {"layers": RESNETS[int(bit["depth"])], "width_factor": int(bit["factor"])}
    vit = VIT.fullmatch(plain)
    if vit is None or vit["size"] not in SIZES:
        raise unknown(name)
    settings = dict(zip(("width", "depth", "heads", "mlp_width"), SIZES[vit["size"]]))
    patch = size_of(vit["patch"], name)
    if vit["root"] is None:
        return AxialConfig if vit["axial"] else ViTConfig, {**settings, "patch_size": patch}
    if (vit["root"], patch[0]) not in HYBRIDS or patch[0] != patch[1]:
        raise unknown(name)
    layers, patch_of_map = HYBRIDS[vit["root"], patch[0]]
    return ViTConfig, {**settings, "patch_size": (patch_of_map, patch_of_map), "stem": ResNetStem(layers=layers)}


def unknown(name: str) -> UsageError:
    plain = name.upper().removeprefix("VIT-").replace("_", "/").replace("TI/", "Ti/")  # ViT-B_16, as Google's files are called
    close = f" (did you mean {plain!r}?)" if plain in NAMED else nearest(name, list_models())
    return UsageError(f"no model is called {name!r}{close}.", hint="vitrail models")


def size_of(text: str, name: str) -> tuple[int, int]:
    """ "16" -> (16, 16); "16x32" -> (16, 32)."""
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None:
        raise unknown(name)
    return int(match[1]), int(match[2] or match[1])


def check_options(options: dict[str, Any], kind: type[Config]) -> None:
    """Refuse an option the configuration does not have."""
    known = {field.name for field in dataclasses.fields(kind)}
    for option in options:
        if option not in known:
            raise UsageError(
                f"a model of this family has no option {option!r}{nearest(option, known)}.",
                hint=f"the options are the fields of vitrail.model.config.{kind.__name__}",
            )


def config_to_dict(config: Config) -> dict[str, Any]:
    """A configuration as JSON values, with the family it belongs to."""
    return {"family": config.family, **dataclasses.asdict(config)}


def config_from_dict(values: dict[str, Any]) -> Config:
    """The inverse of `config_to_dict`; unknown families and fields are refused."""
    settings = dict(values)
    family = settings.pop("family", "vit")
    if family not in CONFIGS:
        raise UsageError(f"no family of models is called {family!r}{nearest(str(family), CONFIGS)}.")
    kind = CONFIGS[family]
    check_options(settings, kind)
    return kind(**settings)
