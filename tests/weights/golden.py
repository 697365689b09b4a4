"""Reference numbers of the original implementations, from tests/golden: files rebuilt, and what a model must give for them."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

GOLDEN = Path(__file__).parents[1] / "golden"


class Case:
    """One case: `arrays`, `weights` (in the origin's names) and what `case.json` says."""

    def __init__(self, name):
        folder = GOLDEN / name
        self.said = json.loads((folder / "case.json").read_text())
        with np.load(folder / "arrays.npz") as stored:
            self.arrays = {key: torch.from_numpy(stored[key]) for key in stored}
        with np.load(folder / "weights.npz") as stored:
            self.weights = {key: torch.from_numpy(stored[key]) for key in stored}
        self.tolerance = self.said["tolerance"]

    def write(self, folder, names=None, config=None):
        """A folder as its origin would have it."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file({(names or {}).get(key, key): value for key, value in self.weights.items()}, folder / "model.safetensors")
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        return folder


def distance(found, expected):
    """max |a - b| relative to max |expected|."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float((found - expected).abs().max() / expected.abs().max())


@torch.inference_mode()
def layers(model, x):
    """(embeddings and block outputs, attention weights) of a ViT, stacked."""
    z = model.embed(x)
    outputs, weights = [z], []
    for block in model.blocks:
        q, k = block.attention.qk(block.norm1(z))
        weights.append(block.attention.logits(q, k).softmax(-1))
        z = block(z)
        outputs.append(z)
    return torch.stack(outputs), torch.stack(weights)
