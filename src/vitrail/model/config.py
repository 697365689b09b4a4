"""What a model is made of, as one frozen record; its fields are the public vocabulary.

ViTConfig       plain Vision Transformers, and hybrids (with a ResNetStem)    family "vit"
AxialConfig     Vision Transformers with axial attention (appendix D.6)       family "axial"
ResNetConfig    BiT ResNets                                                   family "bit"
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from vitrail.errors import UsageError, nearest

__all__ = ["POSITION_RESAMPLING", "AxialConfig", "ResNetConfig", "ResNetStem", "ViTConfig", "pair"]

Pool = Literal["token", "gap", "map", "token+gap", "unpooled"]
Position = Literal["none", "learned", "learned2d", "relative", "sincos2d"]
PositionAt = Literal["stem", "every", "shared"]
Activation = Literal["gelu_tanh", "gelu", "quick_gelu", "silu", "relu"]
Mlp = Literal["plain", "swiglu"]

# name -> what it does to the grid of positions; the first is the paper's and big_vision's
POSITION_RESAMPLING = (
    "bilinear",  # corners aligned: equal to scipy.ndimage.zoom(order=1)
    "bilinear_unaligned",  # half-pixel centres: timm reading .npz files
    "bicubic",  # half-pixel centres: transformers, MAE
    "bicubic_antialias",  # timm, DINOv2 with registers
    "bicubic_aligned",  # torchvision
    "bicubic_offset",  # DINOv2 without registers: the scale is (new + 0.1) / old
)

ROOTS = ("standard", "small")
ROOT_STRIDE = {"standard": 4, "small": 1}
PADDINGS = ("same", "fixed")
RESNET_NUMERICS = {"v2": ("fixed", 1e-5, 1e-10, True), "v1": ("same", 1e-6, 1e-5, False)}


def pair(value: Any, what: str) -> tuple[int, int]:
    """An int or (rows, columns) -> (rows, columns), both positive."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or not all(isinstance(side, int) and side > 0 for side in both):
        raise UsageError(f"{what}={value!r} is not a positive size.", hint=f"{what}=224 or {what}=(224, 160)")
    return both


def check_choices(config: Any, choices: dict[str, tuple[Any, ...]]) -> None:
    """Refuse a value that is none of its field's choices, with the nearest that is."""
    for name, known in choices.items():
        value = getattr(config, name)
        if value not in known:
            words = [choice for choice in known if choice is not None]
            raise UsageError(f"{name}={value!r} is not known{nearest(str(value), words)}.", hint=f"one of: {', '.join(words)}")


def check_groups(width: int, groups: int) -> None:
    """Group norm needs every width to divide."""
    if width < 1 or groups < 1 or width % groups:
        raise UsageError(f"{width} channels do not divide into {groups} groups of a group norm.", hint="widths are multiples of 32")


@dataclass(frozen=True)
class ResNetStem:
    """The convolutional stem of a hybrid (section 3.1): a BiT ResNet cut after its last stage.

    layers        units of each stage; () is the root alone
    width         channels of the root; stage s has units of width * 2**s (output four times that)
    root          "standard": 7x7 stride 2 and a 3x3 max-pool; "small": 3x3 stride 1, no pool (images of 32 to 64 pixels)
    padding       "same": TensorFlow's, asymmetric at stride 2 (the paper's code); "fixed": symmetric
    groups        of the group norms
    norm_eps      epsilon of the group norms
    conv_eps      epsilon of the weight standardisation
    conv_eps_in   True: w / sqrt(var + eps) (timm, BiT); False: w / (std + eps) (the paper's code)
    """

    layers: tuple[int, ...] = (3, 4, 9)
    width: int = 64
    root: Literal["standard", "small"] = "standard"
    padding: Literal["same", "fixed"] = "same"
    groups: int = 32
    norm_eps: float = 1e-6
    conv_eps: float = 1e-5
    conv_eps_in: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        check_choices(self, {"root": ROOTS, "padding": PADDINGS})
        if any(units < 1 for units in self.layers):
            raise UsageError(f"layers={self.layers} must give every stage at least one unit.", hint="() is the root alone")
        check_groups(self.width, self.groups)

    @property
    def stride(self) -> int:
        """Pixels a side of the image for one of the feature map."""
        return ROOT_STRIDE[self.root] * 2 ** max(0, len(self.layers) - 1)

    @property
    def out_channels(self) -> int:
        return 4 * self.width * 2 ** (len(self.layers) - 1) if self.layers else self.width


@dataclass(frozen=True)
class ViTConfig:
    """A Vision Transformer. The defaults are ViT-B/16 as the paper fine-tunes it.

    Shape
      width, depth, heads, mlp_width   D, L, k and the hidden width of the MLP (table 1)
      patch_size, image_size           (rows, columns) in pixels; an int means a square
      channels, classes                input channels; outputs of the head (0: no head, tokens come out)
      stem                             a ResNetStem makes it a hybrid; patches are then cut from its feature map
    Tokens
      class_token                      None: present unless pool is "gap" or "map"
      registers                        extra learned tokens after the class token, without position, dropped at the end
      distilled                        a second class token with its own head (DeiT)
      norm_pre                         LayerNorm before the first block (CLIP)
      patch_bias                       bias of the patch projection
    Positions
      position, position_at            the kind, and where it is added (appendix D.4)
      position_class                   the class (and distillation) token has its own row in the table
      position_registers               the registers too (timm without no_embed_class)
      position_resample                how a table goes to another grid, one of POSITION_RESAMPLING
    Blocks
      qkv_bias, dense_bias             biases of the q, k, v projections; of all other dense layers of a block
      activation, mlp                  GELU kind; "swiglu" gates (fc1 holds gate and value, 2 * mlp_width rows)
      eps                              epsilon of every LayerNorm
      qk_norm, layer_scale             LayerNorm on q and k of every head; initial value of LayerScale (None: off)
      dropout                          rate after every dense layer but q, k, v, and after the positions (B.1)
      drop_path, drop_path_uniform     stochastic depth: 0 in the first block to this rate in the last, or everywhere
    Head
      pool                             "token", "gap" (mean of patch tokens), "map" (attention), "token+gap"
                                       (both, concatenated: DINOv2), "unpooled" (logits for every token)
      pool_prefix                      "gap" and "map" also read the class token and the registers
      final_norm, fc_norm              LayerNorm on all tokens (eq. 4); LayerNorm after pooling
      representation                   width of the tanh layer of the pre-training head (D.3)
      head_bias, head_bias_init        the head's bias and its initial value (-10 for the paper's sigmoid loss)
    """

    family: ClassVar[str] = "vit"

    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp_width: int = 3072
    patch_size: tuple[int, int] = (16, 16)
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    classes: int = 1000
    stem: ResNetStem | None = None

    class_token: bool | None = None
    registers: int = 0
    distilled: bool = False
    norm_pre: bool = False
    patch_bias: bool = True

    position: Position = "learned"
    position_at: PositionAt = "stem"
    position_class: bool = True
    position_registers: bool = False
    position_resample: str = "bilinear"

    qkv_bias: bool = True
    dense_bias: bool = True
    activation: Activation = "gelu_tanh"
    mlp: Mlp = "plain"
    eps: float = 1e-6
    qk_norm: bool = False
    layer_scale: float | None = None
    dropout: float = 0.0
    drop_path: float = 0.0
    drop_path_uniform: bool = False

    pool: Pool = "token"
    pool_prefix: bool = False
    final_norm: bool = True
    fc_norm: bool = False
    representation: int | None = None
    head_bias: bool = True
    head_bias_init: float = 0.0

    def __post_init__(self) -> None:
        settle = lambda name, value: object.__setattr__(self, name, value)
        settle("patch_size", pair(self.patch_size, "patch_size"))
        settle("image_size", pair(self.image_size, "image_size"))
        if self.class_token is None:
            settle("class_token", self.pool not in ("gap", "map"))
        if isinstance(self.stem, dict):
            settle("stem", ResNetStem(**self.stem))
        self._check_choices()
        self._check_shapes()

    def _check_choices(self) -> None:
        choices = {
            "pool": get_args(Pool),
            "position": get_args(Position),
            "position_at": get_args(PositionAt),
            "activation": get_args(Activation),
            "mlp": get_args(Mlp),
            "position_resample": POSITION_RESAMPLING,
        }
        check_choices(self, choices)

    def _check_shapes(self) -> None:
        for name in ("width", "depth", "heads", "mlp_width", "channels"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} must be at least 1.")
        if self.classes < 0 or self.registers < 0:
            raise UsageError(f"classes={self.classes} and registers={self.registers} cannot be negative.")
        if self.width % self.heads:
            raise UsageError(f"width={self.width} does not divide into heads={self.heads} equal heads.")
        for name in ("dropout", "drop_path"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UsageError(f"{name}={getattr(self, name)} is not a rate in [0, 1).")
        if self.pool in ("token", "token+gap") and not self.class_token:
            raise UsageError(f"pool={self.pool!r} reads the class token, but class_token is False.", hint="pool='gap' needs none")
        if self.distilled and (self.pool != "token" or self.representation):
            raise UsageError("distilled=True goes with pool='token' and no representation layer.")
        if self.position in ("none", "relative") and self.position_at != "stem":
            raise UsageError(f"position={self.position!r} has nothing to add, so position_at={self.position_at!r} means nothing.")
        if self.position == "learned2d" and self.width % 2:
            raise UsageError(f"position='learned2d' halves the width, and width={self.width} is odd.")
        if self.position == "sincos2d" and (self.width % 4 or self.width < 8):
            raise UsageError(f"position='sincos2d' needs a width that is a multiple of 4 and at least 8, not {self.width}.")
        _ = self.grid

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches; an image that does not divide is refused, never cut."""
        stride = self.stem.stride if self.stem else 1
        for side, patch in zip(self.image_size, self.patch_size):
            if side % (patch * stride):
                raise UsageError(
                    f"image_size={self.image_size} does not divide into steps of {tuple(p * stride for p in self.patch_size)} pixels.",
                    hint=f"use a multiple of {patch * stride}, for example {max(1, round(side / (patch * stride))) * patch * stride}",
                )
        return (
            self.image_size[0] // (self.patch_size[0] * stride),
            self.image_size[1] // (self.patch_size[1] * stride),
        )

    @property
    def prefix(self) -> int:
        """Tokens before the patches: class, distillation, registers."""
        return int(bool(self.class_token)) + int(self.distilled) + self.registers

    @property
    def position_prefix(self) -> int:
        """How many of the prefix tokens have a row in the position table."""
        rows = (int(bool(self.class_token)) + int(self.distilled)) if self.position_class else 0
        return rows + (self.registers if self.position_registers else 0)

    @property
    def tokens(self) -> int:
        """The length of the sequence, N + 1 in the paper."""
        return self.grid[0] * self.grid[1] + self.prefix

    @property
    def pooled_width(self) -> int:
        """Width of what pooling gives."""
        return self.width * (2 if self.pool == "token+gap" else 1)

    @property
    def head_width(self) -> int:
        """Width of what the head reads."""
        return self.representation or self.pooled_width

    def replace(self, **changes: Any) -> ViTConfig:
        """The same model with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class AxialConfig(ViTConfig):
    """A ViT whose every block attends along the rows, then along the columns, each followed by its MLP.

    `depth` counts such pairs: AxialViT-B has 12, and 24 MLPs. The grid of patches is kept
    to the end, so there is no class token and no register, and what reads it is a mean ("gap"),
    an attention pool ("map"), or every patch's own logits ("unpooled").
    """

    family: ClassVar[str] = "axial"

    pool: Pool = "gap"

    def __post_init__(self) -> None:
        if self.class_token is None:
            object.__setattr__(self, "class_token", False)
        super().__post_init__()

    def _check_shapes(self) -> None:
        if self.prefix or self.pool in ("token", "token+gap"):
            raise UsageError("axial attention has no class token and no registers.", hint="pool='gap', 'map' or 'unpooled'")
        if self.position == "relative" or self.position_at != "stem":
            raise UsageError(f"axial attention takes its positions at the stem, not position={self.position!r} at {self.position_at!r}.")
        super()._check_shapes()


@dataclass(frozen=True)
class ResNetConfig:
    """A BiT ResNet: group norm and standardised convolutions (section 4.1). The defaults are R50x1.

    layers           units of each stage
    width_factor     multiplies the 64 channels of the root, and with them every width
    version          "v2": activation before the convolutions (the BiT paper); "v1": after (big_vision's `bit`)
    root             "standard": 7x7 stride 2 and a 3x3 max-pool; "small": 3x3 stride 1, no pool
    pool_pad         what surrounds the feature map in the root's pool: "zero" (original BiT) or "inf" (minus infinity,
                     big_vision). After a ReLU, so in version "v1", it makes no difference
    groups           of the group norms

    What is None follows the version:

              padding    norm_eps    conv_eps    conv_eps_in
        v2    fixed      1e-5        1e-10       True            (w - mean) / sqrt(var + eps)
        v1    same       1e-6        1e-5        False           (w - mean) / (std + eps)
    """

    family: ClassVar[str] = "bit"

    layers: tuple[int, ...] = (3, 4, 6, 3)
    width_factor: float = 1
    version: Literal["v2", "v1"] = "v2"
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    classes: int = 1000

    root: Literal["standard", "small"] = "standard"
    padding: Literal["same", "fixed"] | None = None
    pool_pad: Literal["zero", "inf"] = "zero"
    groups: int = 32
    norm_eps: float | None = None
    conv_eps: float | None = None
    conv_eps_in: bool | None = None

    head_bias: bool = True
    head_bias_init: float = 0.0

    def __post_init__(self) -> None:
        settle = lambda name, value: object.__setattr__(self, name, value)
        check_choices(self, {"version": ("v2", "v1"), "root": ROOTS, "padding": (*PADDINGS, None), "pool_pad": ("zero", "inf")})
        defaults: dict[str, Any] = dict(zip(("padding", "norm_eps", "conv_eps", "conv_eps_in"), RESNET_NUMERICS[self.version]))
        for name, value in defaults.items():
            if getattr(self, name) is None:
                settle(name, value)
        settle("layers", tuple(self.layers))
        settle("image_size", pair(self.image_size, "image_size"))
        if self.channels < 1 or self.classes < 0:
            raise UsageError(f"channels={self.channels} must be at least 1 and classes={self.classes} not negative.")
        if not self.layers or any(units < 1 for units in self.layers):
            raise UsageError(f"layers={self.layers} must give every stage at least one unit.", hint="R50 is (3, 4, 6, 3)")
        check_groups(self.width, self.groups)

    @property
    def width(self) -> int:
        """Channels of the root; stage s has units of width * 2**s, and puts out four times that."""
        return round(64 * self.width_factor)

    @property
    def out_channels(self) -> int:
        return 4 * self.width * 2 ** (len(self.layers) - 1)

    @property
    def head_width(self) -> int:
        """Width of what the head reads."""
        return self.out_channels

    @property
    def stride(self) -> int:
        return ROOT_STRIDE[self.root] * 2 ** (len(self.layers) - 1)

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of the last feature map; any image size goes, sides are rounded up."""
        return -(-self.image_size[0] // self.stride), -(-self.image_size[1] // self.stride)

    @property
    def tokens(self) -> int:
        """Positions of the last feature map."""
        return self.grid[0] * self.grid[1]

    def replace(self, **changes: Any) -> ResNetConfig:
        """The same model with some fields changed; a change of version changes its numerics too."""
        if changes.get("version", self.version) != self.version:
            changes = {**dict.fromkeys(("padding", "norm_eps", "conv_eps", "conv_eps_in")), **changes}
        return dataclasses.replace(self, **changes)
