"""fp16 and int8 files, made from the verified fp32 graph and held to their accuracy on labelled images.

int8: weights by output channel, activations by tensor with ranges calibrated on data. Only the
products of dense layers become int8; residual additions, norms, softmax, the products inside an
attention, the patch projection and the head stay float. Every dense layer is first quantised alone and the damage
measured; where all together lose too much, the most sensitive ones go back to float until the
gate passes, or the export is refused.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.source import open_source
from vitrail.errors import DataError, DecodeError, NumericsError, missing_extra
from vitrail.ship.fast import Runtime, distance, speed
from vitrail.ship.predictor import Predictor
from vitrail.ship.runtimes import OnnxRuntime

if TYPE_CHECKING:
    from vitrail.ship.export import Exported

__all__ = ["lower", "sensitivity"]

BATCH = 16
SENSITIVITY_IMAGES = 32
KEPT_FLOAT = ("head", "head_dist", "patch", "pre_logits")  # a small part of the work, a large part of the damage


def lower(draft: Path, predictor: Predictor, result: Exported, *, data: Any, split: str | None, images: int, bound: float) -> None:
    """Replace the verified fp32 file by its fp16 or int8 form; NumericsError where top-1 falls by more than `bound` points."""
    pixels, labels = labelled_images(predictor, data, split, images, result.preprocess)
    calibration = max(1, len(pixels) // 4)
    gate, truth = pixels[calibration:], labels[calibration:]
    before = answers(OnnxRuntime(draft), gate)
    base_speed = speed(Runtime("fp32", OnnxRuntime(draft)), gate[:BATCH], 0.5)
    low = draft.with_name(draft.name + ".low")
    try:
        if result.dtype == "fp16":
            to_fp16(predictor, low, dynamic=result.dynamic_size, preprocess=result.preprocess)
            report = judged(low, before, gate, truth)
        else:
            report = int8_within(draft, low, predictor, pixels[:calibration], before, gate, truth, bound, result)
        report["speed_up"] = round(speed(Runtime(result.dtype, OnnxRuntime(low)), gate[:BATCH], 0.5) / base_speed, 2)
        report |= {"images": len(gate), "calibrated_on": calibration, "bound": bound}
        if report["before"] - report["after"] > bound:
            raise NumericsError(
                f"{result.dtype} takes top-1 from {report['before']:.2f} % to {report['after']:.2f} % on {len(gate)} images, "
                f"more than {bound:g} points; no file was written.",
                hint="--bound if that is enough for you, or more --images to calibrate on",
            )
        os.replace(low, draft)
        result.accuracy = report
    finally:
        low.unlink(missing_ok=True)


def labelled_images(predictor: Predictor, data: Any, split: str | None, count: int, raw: bool) -> tuple[np.ndarray, np.ndarray]:
    """Normalised views (or the uint8 views themselves) and labels of images spread evenly over the source."""
    source = open_source(data, split)
    labels = np.asarray(source.labels)
    if source.multilabel or not (labels >= 0).any():
        raise DataError(f"{source.name}: the accuracy gate needs one label an image.")
    named = {name: index for index, name in enumerate(predictor.classes)}
    by_name = all(name in named for name in source.classes)
    if not by_name and len(source.classes) != len(predictor.classes):
        raise DataError(
            f"{source.name} has {len(source.classes)} classes and the model {len(predictor.classes)}, and their names differ.",
            hint="give images of the model's own classes",
        )
    views, found = [], []
    for index in np.linspace(0, len(source) - 1, min(count, len(source))).astype(int):
        if labels[index] < 0:
            continue
        try:
            views.append(predictor.pixels(source.read(int(index)).data, source.id(int(index))))
        except DecodeError:
            continue
        found.append(named[source.classes[labels[index]]] if by_name else int(labels[index]))
    if len(views) < 2:
        raise DataError(f"{source.name}: no labelled image could be read.")
    batch = np.stack(views)
    order = np.random.default_rng(0).permutation(len(batch))
    return (batch if raw else predictor.images(batch).numpy())[order], np.asarray(found)[order]


def answers(runtime: Any, images: np.ndarray) -> np.ndarray:
    return np.concatenate([runtime(images[i : i + BATCH]) for i in range(0, len(images), BATCH)])


def judged(path: Path, before: np.ndarray, gate: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Top-1 before and after, how many answers stay, and how far the distributions moved."""
    after = answers(OnnxRuntime(path), gate)
    moved, _ = distance(before, after)
    return {
        "before": 100 * float((before.argmax(1) == truth).mean()),
        "after": 100 * float((after.argmax(1) == truth).mean()),
        "agreement": 100 * float((before.argmax(1) == after.argmax(1)).mean()),
        "total_variation": moved,
    }


# ---------------------------------------------------------------- fp16


class HalfLinear(nn.Linear):
    """Weights and product in fp16, input and output in the type around it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x.half(), self.weight, self.bias).to(x.dtype)


def to_fp16(predictor: Predictor, target: Path, *, dynamic: bool, preprocess: bool) -> None:
    """Dense layers in fp16; norms, softmax, residual additions, input and output in fp32."""
    from vitrail.ship.export import metadata, trace, write

    halved = copy.copy(predictor)
    halved.model = copy.deepcopy(predictor.model)
    for name, layer in halved.model.named_modules():
        if type(layer) is nn.Linear and name not in KEPT_FLOAT:
            layer.half().__class__ = HalfLinear
    write(trace(halved, dynamic=dynamic, preprocess=preprocess), target, "onnx", metadata(predictor, preprocess))


# ---------------------------------------------------------------- int8


def int8_within(
    draft: Path,
    low: Path,
    predictor: Predictor,
    calibration: np.ndarray,
    before: np.ndarray,
    gate: np.ndarray,
    truth: np.ndarray,
    bound: float,
    result: Exported,
) -> dict[str, Any]:
    """Quantise all dense layers, then as few less as the gate asks for."""
    folded = draft.with_name(draft.name + ".folded")
    try:
        nodes = fold_weights(draft, folded)
        inputs = torch.from_numpy(calibration[:SENSITIVITY_IMAGES])
        if result.preprocess:
            inputs = predictor.images(calibration[:SENSITIVITY_IMAGES])
        damage = {layer: value for layer, value in sensitivity(predictor.model, inputs).items() if layer in nodes}
        worst_first = sorted(damage, key=lambda layer: -damage[layer])
        keep = 0
        while True:
            float_layers = worst_first[:keep]
            quantised = [nodes[layer] for layer in worst_first[keep:]]
            to_int8(folded, low, calibration, quantised)
            report = judged(low, before, gate, truth)
            if report["before"] - report["after"] <= bound or keep >= len(worst_first):
                break
            keep = min(len(worst_first), max(1, 2 * keep))
        report["sensitivity"] = {layer: round(damage[layer], 6) for layer in worst_first}
        report["kept_float"] = [*KEPT_FLOAT, *float_layers]
        return report
    finally:
        folded.unlink(missing_ok=True)


def sensitivity(model: nn.Module, images: Tensor) -> dict[str, float]:
    """Layer -> mean total variation of the answers when only its weights and input are 8 bits."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and name not in KEPT_FLOAT}
    with torch.inference_mode():
        exact = model(images).float().numpy()
        found = {}
        for name, layer in layers.items():
            with eight_bits(layer):
                found[name] = distance(exact, model(images).float().numpy())[0]
    return found


@contextmanager
def eight_bits(layer: nn.Linear) -> Iterator[None]:
    """While open, one dense layer computes with int8 weights (by row) and 8-bit inputs (by tensor)."""
    scale = layer.weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
    rounded = (layer.weight / scale).round() * scale

    def run(_layer: nn.Module, given: tuple[Tensor, ...], _out: Tensor) -> Tensor:
        x = given[0]
        low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
        step = ((high - low) / 255).clamp(min=1e-12)
        return torch.nn.functional.linear(((x - low) / step).round() * step + low, rounded, layer.bias)

    handle = layer.register_forward_hook(run)
    try:
        yield
    finally:
        handle.remove()


def fold_weights(source: Path, target: Path) -> dict[str, str]:
    """Write the graph with transposed weights as constants; answers {layer: name of its product}.

    The quantiser takes a product whose second factor is a constant, and the exporter writes
    the transposition of a weight as a node.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(source))
    graph = model.graph
    del graph.value_info[:]
    constants = {tensor.name: tensor for tensor in graph.initializer}
    origin: dict[str, str] = {}
    for node in list(graph.node):
        if node.op_type == "Transpose" and node.input[0] in constants and len(constants[node.input[0]].dims) == 2:
            weight = numpy_helper.to_array(constants[node.input[0]])
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(weight.T), node.output[0]))
            origin[node.output[0]] = node.input[0]
            graph.node.remove(node)
    used = {name for node in graph.node for name in node.input}
    for tensor in list(graph.initializer):
        if tensor.name not in used:
            graph.initializer.remove(tensor)
    products: dict[str, str] = {}
    for number, node in enumerate(graph.node):
        if node.op_type in ("MatMul", "Gemm"):
            node.name = node.name or f"product_{number}"
            weight_name = origin.get(node.input[1], node.input[1])
            if weight_name.endswith(".weight"):
                products[weight_name.removesuffix(".weight").removeprefix("model.")] = node.name
    onnx.save(model, str(target))
    return products


def to_int8(source: Path, target: Path, calibration: np.ndarray, nodes: list[str]) -> None:
    try:
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    except ImportError:
        raise missing_extra("onnxruntime", "export", "Writing int8") from None
    quiet = logging.getLogger("root").level
    logging.getLogger("root").setLevel(logging.ERROR)
    try:
        if not nodes:  # nothing may be quantised: the float graph itself
            target.write_bytes(source.read_bytes())
            return
        quantize_static(
            str(source),
            str(target),
            Batches(calibration),
            quant_format=QuantFormat.QDQ,
            nodes_to_quantize=nodes,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            # what a product adds to the residual stream, and its bias, stay float
            extra_options={
                "MatMulConstBOnly": True,
                "ActivationSymmetric": False,
                "OpTypesToExcludeOutputQuantization": ["MatMul", "Gemm"],
            },
        )
    finally:
        logging.getLogger("root").setLevel(quiet)


class Batches:
    """The calibration images, as the quantiser asks for them."""

    def __init__(self, images: np.ndarray) -> None:
        self.parts: Iterator[np.ndarray] = iter([images[i : i + BATCH] for i in range(0, len(images), BATCH)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        part = next(self.parts, None)
        return None if part is None else {"images": part}

    def set_range(self, start_index: int, end_index: int) -> None:
        raise NotImplementedError
