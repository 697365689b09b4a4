"""What `vitrail push` and `vitrail convert` write, opened by transformers and timm as a user opens it: the same answers there."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.ship.predictor import Predictor
from vitrail.ship.push import push
from vitrail.weights.load import load_model

if "serving_harness" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("serving_harness", Path(__file__).parents[1] / "ship" / "harness.py")
    sys.modules["serving_harness"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["serving_harness"])
from serving_harness import CLASSES, picture, tiny_model

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def predictor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return Predictor(load_model(tiny_model(folder / "m.safetensors", arch="Ti/16", size=64, depth=3)), device="cpu")


def test_transformers_gives_the_same_probabilities_from_the_same_picture(predictor, tmp_path):
    transformers = pytest.importorskip("transformers")
    push(predictor.model, "someone/tiny", folder=tmp_path, dry_run=True)
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    photo = Image.fromarray(picture(3, (64, 64)))  # its size already: what resizing rounds is its filter's own
    with torch.no_grad():
        logits = model(**processor(photo, return_tensors="pt")).logits[0].double()
    ours = {c["class"]: c["probability"] for c in predictor([np.asarray(photo)], top=10)[0]}
    theirs = dict(zip((model.config.id2label[k] for k in range(10)), logits.softmax(0).tolist()))
    assert ours.keys() == theirs.keys() == set(CLASSES)
    assert max(abs(ours[name] - theirs[name]) for name in ours) < 1e-5
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = predictor.model(x)
        assert (model(pixel_values=x).logits - expected).abs().max() < 1e-5 * expected.abs().max()


def test_timm_opens_the_folder_and_gives_the_same_logits(predictor, tmp_path):
    timm = pytest.importorskip("timm")
    push(predictor.model, "someone/tiny", format="timm", folder=tmp_path, dry_run=True)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert tuple(model.pretrained_cfg["label_names"]) == CLASSES
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = predictor.model(x)
        assert (model(x) - expected).abs().max() < 1e-5 * expected.abs().max()
