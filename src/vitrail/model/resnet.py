"""BiT ResNets, and the convolutional stem of hybrids: group norm, standardised convolutions.

    v1 unit  x -> conv1 norm1 ReLU -> conv2 norm2 ReLU -> conv3 norm3 -> + shortcut -> ReLU    (hybrids; big_vision's `bit`)
    v2 unit  x -> norm1 ReLU conv1 -> norm2 ReLU conv2 -> norm3 ReLU conv3 -> + shortcut       (the BiT paper)

conv1 and conv3 are 1x1, conv2 is 3x3 and carries the stride. Where width or stride
changes, the shortcut is a 1x1 convolution: of x, normalised (v1), or of ReLU(norm1(x)) (v2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import UsageError
from vitrail.model.config import ResNetConfig, ResNetStem
from vitrail.model.head import head_for
from vitrail.model.initial import initialise, initialise_head

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Numerics = ResNetStem | ResNetConfig

__all__ = ["HybridStem", "ResNet", "StdConv"]


SMALL_IMAGE = 128 * 128  # pixels up to which the stem of a hybrid is summed in float64 where parity counts


def is_reference(module: nn.Module, x_BCHW: Float[Tensor, "B C H W"]) -> bool:
    """Evaluation in float32 on the CPU, where parity with other implementations is checked; never in a compiled or exported graph."""
    if torch.compiler.is_compiling() or module.training or torch.is_autocast_enabled("cpu"):
        return False
    return x_BCHW.device.type == "cpu" and x_BCHW.dtype == torch.float32


class StdConv(nn.Module):
    """A convolution whose kernels are brought to mean 0 and deviation 1 before use, without bias.

    The statistics are of each output channel, over (input channels, rows, columns), with
    the deviation of a population; they are computed in float32 at least.
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int, numerics: Numerics) -> None:
        super().__init__()
        self.size, self.stride, self.padding = size, stride, numerics.padding
        self.eps, self.eps_in = float(numerics.conv_eps or 0.0), bool(numerics.conv_eps_in)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, size, size))

    def standardised(self) -> Float[Tensor, "C2 C size size"]:
        weight = self.weight.float() if self.weight.dtype in (torch.float16, torch.bfloat16) else self.weight
        centred = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
        variance = centred.square().mean(dim=(1, 2, 3), keepdim=True)
        deviation = (variance + self.eps).sqrt() if self.eps_in else variance.sqrt() + self.eps
        return (centred / deviation).to(self.weight.dtype)

    def forward(self, x_BCHW: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        return self.convolve(x_BCHW, self.standardised())

    def convolve(self, x_BCHW: Float[Tensor, "B C H W"], weight: Float[Tensor, "C2 C size size"]) -> Float[Tensor, "B C2 H2 W2"]:
        if self.padding == "same":
            return F.conv2d(pad_same(x_BCHW, self.size, self.stride, 0.0), weight, stride=self.stride)
        return F.conv2d(x_BCHW, weight, stride=self.stride, padding=self.size // 2)

    def extra_repr(self) -> str:
        outputs, inputs = self.weight.shape[:2]
        return f"{inputs}, {outputs}, size={self.size}, stride={self.stride}, padding={self.padding!r}"


def pad_same(x_BCHW: Float[Tensor, "B C H W"], size: int, stride: int, value: float) -> Float[Tensor, "B C H2 W2"]:
    """TensorFlow's SAME: ceil(side / stride) windows, an odd pixel of padding goes below and to the right."""
    height, width = x_BCHW.shape[2:]
    rows = max(0, (-(-height // stride) - 1) * stride + size - height)
    columns = max(0, (-(-width // stride) - 1) * stride + size - width)
    if rows == 0 and columns == 0:
        return x_BCHW
    return F.pad(x_BCHW, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2), value=value)


def norm(width: int, numerics: Numerics) -> nn.GroupNorm:
    return nn.GroupNorm(numerics.groups, width, eps=float(numerics.norm_eps or 0.0))


class Root(nn.Module):
    """The first convolution, and the max-pool behind it. v1 normalises and activates in between."""

    def __init__(self, channels: int, width: int, numerics: Numerics, version: str, pool_pad: str) -> None:
        super().__init__()
        self.small = numerics.root == "small"
        self.padding, self.pool_pad = numerics.padding, pool_pad
        self.conv = StdConv(channels, width, 3 if self.small else 7, 1 if self.small else 2, numerics)
        self.norm = norm(width, numerics) if version == "v1" else None

    def forward(self, x_BCHW: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        if self.norm is None:
            x = self.conv(x_BCHW)
        else:
            x = F.relu(self.norm(self.precise(x_BCHW) if is_reference(self, x_BCHW) else self.conv(x_BCHW)))
        return x if self.small else self.pool(x)

    def precise(self, x_BCHW: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """The first convolution summed in float64: the norms behind it amplify its rounding, half the noise of the logits."""
        return self.conv.convolve(x_BCHW.double(), self.conv.standardised().double()).to(x_BCHW.dtype)

    def pool(self, x_BCHW: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H2 W2"]:
        """3x3, stride 2."""
        outside = 0.0 if self.pool_pad == "zero" else float("-inf")
        if self.padding == "same":
            return F.max_pool2d(pad_same(x_BCHW, 3, 2, outside), 3, 2)
        return F.max_pool2d(F.pad(x_BCHW, (1, 1, 1, 1), value=outside), 3, 2)


class UnitV1(nn.Module):
    """A bottleneck, activated after each convolution."""

    def __init__(self, inputs: int, width: int, stride: int, numerics: Numerics) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = StdConv(inputs, width, 1, 1, numerics)
        self.norm1 = norm(width, numerics)
        self.conv2 = StdConv(width, width, 3, stride, numerics)
        self.norm2 = norm(width, numerics)
        self.conv3 = StdConv(width, outputs, 1, 1, numerics)
        self.norm3 = norm(outputs, numerics)
        changes = inputs != outputs or stride != 1
        self.projection = StdConv(inputs, outputs, 1, stride, numerics) if changes else None
        self.projection_norm = norm(outputs, numerics) if changes else None

    def forward(self, x_BCHW: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        shortcut = x_BCHW
        if self.projection is not None and self.projection_norm is not None:
            shortcut = self.projection_norm(self.projection(x_BCHW))
        y = F.relu(self.norm1(self.conv1(x_BCHW)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + shortcut)


class UnitV2(nn.Module):
    """A bottleneck, activated before each convolution."""

    def __init__(self, inputs: int, width: int, stride: int, numerics: Numerics) -> None:
        super().__init__()
        outputs = 4 * width
        self.norm1 = norm(inputs, numerics)
        self.conv1 = StdConv(inputs, width, 1, 1, numerics)
        self.norm2 = norm(width, numerics)
        self.conv2 = StdConv(width, width, 3, stride, numerics)
        self.norm3 = norm(width, numerics)
        self.conv3 = StdConv(width, outputs, 1, 1, numerics)
        self.projection = StdConv(inputs, outputs, 1, stride, numerics) if inputs != outputs or stride != 1 else None

    def forward(self, x_BCHW: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        active = F.relu(self.norm1(x_BCHW))
        shortcut = x_BCHW if self.projection is None else self.projection(active)
        y = self.conv1(active)
        y = self.conv2(F.relu(self.norm2(y)))
        y = self.conv3(F.relu(self.norm3(y)))
        return y + shortcut


def stages_for(layers: tuple[int, ...], root_width: int, numerics: Numerics, version: str) -> nn.ModuleList:
    """stages[s][u] is unit u of stage s; every stage but the first begins with stride 2."""
    unit = UnitV1 if version == "v1" else UnitV2
    stages, inputs = nn.ModuleList(), root_width
    for index, count in enumerate(layers):
        width = root_width * 2**index
        stage = nn.ModuleList()
        for number in range(count):
            stage.append(unit(inputs, width, 2 if index > 0 and number == 0 else 1, numerics))
            inputs = 4 * width
        stages.append(stage)
    return stages


def units(stages: nn.ModuleList) -> list[nn.Module]:
    """Every unit, from the root to the head."""
    return [unit for stage in stages for unit in stage.children()]


class HybridStem(nn.Module):
    """A v1 ResNet without pooling and head, in front of the patches: (B, C, H, W) -> (B, C', H / stride, W / stride)."""

    def __init__(self, stem: ResNetStem, channels: int) -> None:
        super().__init__()
        self.root = Root(channels, stem.width, stem, "v1", "inf")
        self.stages = stages_for(stem.layers, stem.width, stem, "v1")

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        if is_reference(self, x) and x.shape[2] * x.shape[3] <= SMALL_IMAGE:
            return self.precise(x)
        x = self.root(x)
        for unit in units(self.stages):
            x = unit(x)
        return x

    def precise(self, x_BCHW: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """In float64: a small picture leaves a group norm few pixels, which amplify rounding, and costs little."""
        doubled = {name: parameter.double() for name, parameter in self.named_parameters()}
        return torch.func.functional_call(self, doubled, (x_BCHW.double(),)).to(x_BCHW.dtype)


class ResNet(nn.Module):
    """A BiT ResNet with the methods of a VisionTransformer: forward, features, tokens, resize, reset_head, initialise.

    "Tokens" are the positions of the last feature map in raster order, after the final
    norm and ReLU. Being convolutional it takes any image size; `config.image_size` says
    which one it was made for. `key` is accepted for the sake of one signature: nothing is drawn here.
    """

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.recompute = False  # True: a unit's activations are recomputed in the backward pass
        self.root = Root(config.channels, config.width, config, config.version, config.pool_pad)
        self.stages = stages_for(config.layers, config.width, config, config.version)
        self.norm = norm(config.out_channels, config) if config.version == "v2" else None
        self.head = head_for(config)

    # ---- forward, from the picture to the logits ----

    def forward(self, x: Float[Tensor, "B C H W"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B *K"]:
        """Logits (B, K); without a head, the tokens."""
        y = self.tokens(x)
        return y if self.config.classes == 0 else self.head(self.pool(y))

    def feature_map(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H2 W2"]:
        """The last feature map, normalised and activated."""
        self.check_input(x)
        x = self.root(x)
        for unit in units(self.stages):
            x = checkpoint(unit, x, use_reentrant=False) if self.recompute and self.training else unit(x)
        return x if self.norm is None else F.relu(self.norm(x))

    def tokens(self, x: Float[Tensor, "B C H W"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B T D"]:
        """The last feature map as (B, rows * columns, D)."""
        return self.feature_map(x).flatten(2).transpose(1, 2)

    def features(self, x: Float[Tensor, "B C H W"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B D"]:
        """What the head reads: the mean of the tokens."""
        return self.pool(self.tokens(x))

    def pool(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        return tokens.mean(dim=1)

    def check_input(self, x_BCHW: Float[Tensor, "B C H W"]) -> None:
        if x_BCHW.ndim != 4 or x_BCHW.shape[1] != self.config.channels:
            raise UsageError(f"input of shape {tuple(x_BCHW.shape)} for a model of (batch, {self.config.channels}, height, width).")

    # ---- changes of a built model ----

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of the last feature map."""
        return self.config.grid

    def resize(self, image_size: int | tuple[int, int]) -> ResNet:
        """Another image size, in place: no parameter changes."""
        self.config = self.config.replace(image_size=image_size)
        return self

    def reset_head(self, classes: int, *, keep_representation: bool = False) -> ResNet:
        """One new zero-initialised linear layer, in place (BiT has no representation layer to keep)."""
        like = next(self.parameters())
        self.config = self.config.replace(classes=classes, head_bias_init=0.0)
        self.head = initialise_head(head_for(self.config), self.config).to(like)
        return self

    def initialise(self, seed: int = 0) -> ResNet:
        """Every parameter as the original code draws it; a parameter's draw depends on seed and name alone."""
        initialise(self, self.config, seed)
        return self
