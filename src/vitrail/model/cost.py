"""What a model costs: parameters and multiply-accumulates (MACs) of one image, one definition a layer.

    cost_of(config_for("B/16")).macs / 1e9          17.56
    exaflops(config_for("L/16"), 7 * 303e6)         783, as in table 6 of the paper

Counted are the sums of products: dense layers, convolutions, and the two products of an
attention. Norms, activations, softmax and the standardisation of kernels are not, as in the
paper; a FLOP count is twice this. Names are those of the model's modules. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vitrail.model.config import AxialConfig, ResNetConfig, ResNetStem, ViTConfig

__all__ = ["Cost", "Layer", "cost_of", "exaflops"]

Config = ViTConfig | AxialConfig | ResNetConfig


@dataclass(frozen=True)
class Layer:
    """One module that holds parameters or multiplies."""

    name: str
    parameters: int
    macs: int = 0


@dataclass(frozen=True)
class Cost:
    """A model's cost for one image. `layers` gives the MACs by module, `layer_parameters` the parameters."""

    parameters: int
    macs: int
    tokens: int
    layers: dict[str, int]
    layer_parameters: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        return {"parameters": self.parameters, "macs": self.macs, "tokens": self.tokens, "layers": self.layers}


def cost_of(config: Config) -> Cost:
    """Parameters and MACs of `model(x)` for one image, without building the model."""
    layers = list(resnet_layers(config) if isinstance(config, ResNetConfig) else vit_layers(config))
    return Cost(
        parameters=sum(layer.parameters for layer in layers),
        macs=sum(layer.macs for layer in layers),
        tokens=config.tokens,
        layers={layer.name: layer.macs for layer in layers},
        layer_parameters={layer.name: layer.parameters for layer in layers},
    )


def exaflops(config: Config, images: float, training: bool = True) -> float:
    """10^18 floating point operations for `images` images: 2 a MAC, and three passes' worth when training (table 6)."""
    return images * cost_of(config).macs * 2 * (3 if training else 1) / 1e18


# ---- one definition per kind of layer ----


def dense(name: str, inputs: int, outputs: int, positions: int, bias: bool = True) -> Layer:
    """A linear layer at `positions` places."""
    return Layer(name, inputs * outputs + (outputs if bias else 0), positions * inputs * outputs)


def convolution(name: str, inputs: int, outputs: int, size: int, positions: int) -> Layer:
    """A square kernel without bias, `positions` outputs a channel."""
    weights = inputs * outputs * size * size
    return Layer(name, weights, positions * weights)


def norm(name: str, width: int) -> Layer:
    return Layer(name, 2 * width)


def attention(name: str, width: int, queries: int, keys: int, sequences: int = 1, probe: int = 0) -> Layer:
    """q k^T and the weighted sum of v, over all heads; `probe` parameters where the query is learned."""
    return Layer(name, probe, 2 * sequences * queries * keys * width)


# ---- Vision Transformers, hybrids, axial ----


def vit_layers(config: ViTConfig) -> Iterator[Layer]:
    """In the order of the forward pass."""
    width, patches = config.width, config.grid[0] * config.grid[1]
    inputs = config.channels
    if config.stem is not None:
        yield from stem_layers("stem.", config.stem, config.channels, config.image_size, "v1")
        inputs = config.stem.out_channels
    yield dense("patch", inputs * config.patch_size[0] * config.patch_size[1], width, patches, config.patch_bias)
    for name, count in (("cls", int(bool(config.class_token))), ("dist", int(config.distilled)), ("registers", config.registers)):
        if count:
            yield Layer(name, count * width)
    if config.position in ("learned", "learned2d"):
        yield position("position", config)
    if config.norm_pre:
        yield norm("norm_pre", width)
    for index in range(config.depth):
        if isinstance(config, AxialConfig):
            rows, columns = config.grid
            yield from block_layers(f"blocks.{index}.rows.", config, length=columns, sequences=rows)
            yield from block_layers(f"blocks.{index}.columns.", config, length=rows, sequences=columns)
        else:
            yield from block_layers(f"blocks.{index}.", config, length=config.tokens)
            if config.position_at == "every" and index > 0 and config.position in ("learned", "learned2d"):
                yield position(f"blocks.{index}.position", config)
    if config.final_norm:
        yield norm("norm", width)
    yield from head_layers(config)


def position(name: str, config: ViTConfig) -> Layer:
    """A table for every token, or one for rows and one for columns."""
    rows, columns = config.grid
    if config.position == "learned":
        return Layer(name, config.width * (rows * columns + config.position_prefix))
    return Layer(name, config.width // 2 * (rows + columns) + config.width * config.position_prefix)


def block_layers(name: str, config: ViTConfig, length: int, sequences: int = 1) -> Iterator[Layer]:
    """One layer of the encoder over `sequences` sequences of `length` tokens."""
    width, tokens, head = config.width, length * sequences, config.width // config.heads
    yield norm(name + "norm1", width)
    yield dense(name + "attention.qkv", width, 3 * width, tokens, config.qkv_bias)
    if config.qk_norm:
        yield from (norm(name + "attention.q_norm", head), norm(name + "attention.k_norm", head))
    if config.position == "relative":
        offsets = 2 * length - 1
        yield Layer(name + "attention.relative", offsets * head, length * offsets * width)
    yield attention(name + "attention", width, length, length, sequences)
    yield dense(name + "attention.out", width, width, tokens, config.dense_bias)
    yield norm(name + "norm2", width)
    yield dense(name + "mlp.fc1", width, config.mlp_width * (2 if config.mlp == "swiglu" else 1), tokens, config.dense_bias)
    yield dense(name + "mlp.fc2", config.mlp_width, width, tokens, config.dense_bias)
    if config.layer_scale is not None:
        yield from (Layer(name + "scale1", width), Layer(name + "scale2", width))


def head_layers(config: ViTConfig) -> Iterator[Layer]:
    """From normalised tokens to logits. Without a head the model stops before it: its parameters stay, unused."""
    width, runs = config.width, 1 if config.classes else 0
    outputs = config.tokens if config.pool == "unpooled" else 1
    if config.pool == "map":
        keys = config.tokens - (0 if config.pool_prefix else config.prefix)
        yield dense("map.q", width, width, runs)
        yield dense("map.kv", width, 2 * width, runs * keys)
        yield attention("map", width, runs, keys, probe=width)
        yield dense("map.out", width, width, runs)
        yield norm("map.norm", width)
        yield dense("map.mlp.fc1", width, config.mlp_width, runs)
        yield dense("map.mlp.fc2", config.mlp_width, width, runs)
    if config.fc_norm:
        yield norm("fc_norm", config.pooled_width)
    if config.representation:
        yield dense("pre_logits", config.pooled_width, config.representation, runs * outputs)
    for name in ("head", "head_dist") if config.distilled else ("head",):
        if config.classes:
            yield dense(name, config.head_width, config.classes, outputs, config.head_bias)


# ---- BiT ResNets and the stems of hybrids ----


def resnet_layers(config: ResNetConfig) -> Iterator[Layer]:
    """In the order of the forward pass."""
    yield from stem_layers("", config, config.channels, config.image_size, config.version)
    if config.version == "v2":
        yield norm("norm", config.out_channels)
    if config.classes:
        yield dense("head", config.head_width, config.classes, 1, config.head_bias)


def stem_layers(name: str, config: ResNetStem | ResNetConfig, channels: int, image_size: tuple[int, int], version: str) -> Iterator[Layer]:
    """Root and stages; every stride of 2 rounds a side up."""
    small, width = config.root == "small", config.width
    side = image_size if small else halved(image_size)
    yield convolution(name + "root.conv", channels, width, 3 if small else 7, side[0] * side[1])
    if version == "v1":
        yield norm(name + "root.norm", width)
    side, inputs = side if small else halved(side), width
    for index, units in enumerate(config.layers):
        for number in range(units):
            stride = 2 if index > 0 and number == 0 else 1
            yield from unit_layers(f"{name}stages.{index}.{number}.", inputs, width * 2**index, stride, side, version)
            side, inputs = halved(side) if stride == 2 else side, 4 * width * 2**index


def unit_layers(name: str, inputs: int, width: int, stride: int, side: tuple[int, int], version: str) -> Iterator[Layer]:
    """A bottleneck whose input has `side` pixels; the stride is the 3x3 convolution's."""
    outputs, before = 4 * width, side[0] * side[1]
    smaller = halved(side) if stride == 2 else side
    after = smaller[0] * smaller[1]
    first, second, third = (width, width, outputs) if version == "v1" else (inputs, width, width)
    yield from (norm(name + "norm1", first), convolution(name + "conv1", inputs, width, 1, before))
    yield from (norm(name + "norm2", second), convolution(name + "conv2", width, width, 3, after))
    yield from (norm(name + "norm3", third), convolution(name + "conv3", width, outputs, 1, after))
    if inputs != outputs or stride != 1:
        yield convolution(name + "projection", inputs, outputs, 1, after)
        if version == "v1":
            yield norm(name + "projection_norm", outputs)


def halved(side: tuple[int, int]) -> tuple[int, int]:
    return -(-side[0] // 2), -(-side[1] // 2)
