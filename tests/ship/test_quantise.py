"""int8 and fp16 files keep their accuracy, or are not there."""

import numpy as np
import pytest
import torch

from vitrail.data.source import open_source
from vitrail.errors import NumericsError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.ship import quantise
from vitrail.ship.export import export
from vitrail.weights.card import Card, card_of

CONFIG = ViTConfig(width=64, depth=2, heads=2, mlp_width=128, patch_size=(7, 7), image_size=(28, 28), classes=10)


@pytest.fixture(scope="module")
def trained():
    """A small model that knows some of Fashion-MNIST: 120 steps."""
    source = open_source("builtin:fashion", "train[:2000]")
    images = np.stack([np.broadcast_to(source.read(i).data.reshape(28, 28, 1), (28, 28, 3)) for i in range(2000)])
    model = build(CONFIG, seed=0)
    model.card = Card(name="fashion", classes=source.classes)
    model.card = card_of(model)
    x = model.card.transform().normalise(torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))))
    y = torch.as_tensor(np.asarray(source.labels))
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    pick = torch.Generator().manual_seed(0)
    for _ in range(120):
        chosen = torch.randint(0, 2000, (48,), generator=pick)
        loss = torch.nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


@pytest.fixture(scope="module")
def lowered(trained, tmp_path_factory):
    """What `export` says of each dtype; written once."""
    return {
        dtype: export(trained, tmp_path_factory.mktemp(dtype) / "m.onnx", dtype=dtype, data="builtin:fashion", split="test", images=600)
        for dtype in ("int8", "fp16")
    }


@pytest.mark.parametrize("dtype", ["int8", "fp16"])
def test_a_low_precision_file_keeps_top_1_within_a_point(lowered, dtype):
    told = lowered[dtype].accuracy
    assert told["before"] > 55, "the model knows something"
    assert told["before"] - told["after"] <= 1.0
    assert told["agreement"] >= 97
    assert 0 < told["total_variation"] < 0.05, "it is another file, and nearly the same answers"
    assert [file.name for file in lowered[dtype].path.parent.iterdir()] == ["m.onnx"]


def test_int8_says_how_much_each_layer_minds(lowered):
    assert set(lowered["int8"].accuracy["sensitivity"]) == {
        f"blocks.{b}.{layer}" for b in (0, 1) for layer in ("attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2")
    }


def test_residual_additions_stay_float_and_products_become_int8(lowered):
    import onnx

    graph = onnx.load(str(lowered["int8"].path)).graph
    makes = {name: node for node in graph.node for name in node.output}
    int8_weights = {name for name in (t.name for t in graph.initializer) if name.endswith("_quantized")}
    assert len(int8_weights) == 8, "four dense layers a block"
    for node in graph.node:
        if node.op_type == "Add":
            assert all(makes[name].op_type != "DequantizeLinear" for name in node.input if name in makes)


def test_a_file_that_loses_more_than_the_bound_is_refused(trained, tmp_path, monkeypatch):
    plain = quantise.judged
    monkeypatch.setattr(quantise, "judged", lambda *a: {**plain(*a), "after": 12.5})
    with pytest.raises(NumericsError, match=r"to 12.50 % on \d+ images, more than 1 points; no file was written"):
        export(trained, tmp_path / "m.onnx", dtype="fp16", data="builtin:fashion", split="test", images=100, fixed_size=True)
    assert list(tmp_path.iterdir()) == []


def test_sensitivity_finds_the_layer_that_was_made_fragile(trained):
    import copy

    fragile = copy.deepcopy(trained)
    with torch.no_grad():  # one outlier a row of the weights, cancelled by an input that is almost never on
        fragile.blocks[1].mlp.fc2.weight[:, 0] = 300.0
        fragile.blocks[1].mlp.fc1.weight[0] = 0.0
        fragile.blocks[1].mlp.fc1.bias[0] = -30.0
    images = torch.randn(8, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    found = quantise.sensitivity(fragile, images)
    assert max(found, key=found.get) == "blocks.1.mlp.fc2"
