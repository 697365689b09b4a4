"""Small models with random heads, so that their answers differ, and folders of noise to ask them about."""

import numpy as np
import pytest
import torch

from vitrail.data.encode import encode_png
from vitrail.model.variants import create_model
from vitrail.weights.card import card_of


@pytest.fixture(scope="session")
def make_model():
    def make(classes=3, names=(), seed=0):
        model = create_model("mu/16", classes=classes, image_size=32)
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(seed))
        model.card = card_of(model, name="tiny").replace(classes=tuple(names))
        return model.eval()

    return make


@pytest.fixture(scope="session")
def shapes_model(make_model):
    return make_model(3, ("circle", "square", "triangle"))


@pytest.fixture
def noise(tmp_path):
    """noise({"cat": 3}, "test") writes three pictures of noise in test/cat and gives the folder."""

    def write(counts, split="test", seed=0, size=32):
        rng = np.random.default_rng(seed)
        for name, count in counts.items():
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            for k in range(count):
                (folder / f"{k}.png").write_bytes(encode_png(rng.integers(255, size=(size, size, 3), dtype=np.uint8)))
        return tmp_path / "data"

    return write


@pytest.fixture(scope="session")
def answer_by_hand():
    """The outputs of a model for every image of a source."""

    def answer(model, source):
        view = model.card.transform()
        with torch.no_grad():
            return model(torch.stack([view(source.read(i).data) for i in range(len(source))])).numpy()

    return answer
