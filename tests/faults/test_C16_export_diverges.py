"""C16: an exported file that does not agree with the model is not there."""

import pytest
import torch

from vitrail.errors import NumericsError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.ship import export as exporting

CONFIG = ViTConfig(width=32, depth=1, heads=2, mlp_width=64, patch_size=(8, 8), image_size=(32, 32), classes=7)


def model():
    made = build(CONFIG).eval()
    with torch.no_grad():
        made.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    return made


def wrong_gelu(monkeypatch):
    """The graph is traced with the other GELU, as a converter might."""
    plain = exporting.freeze

    def perturbed(frozen):
        for block in frozen.blocks:
            block.mlp.activation = "gelu"
        return plain(frozen)

    monkeypatch.setattr(exporting, "freeze", perturbed)


def wrong_at_other_sizes(monkeypatch):
    """Right at the size it was traced at, wrong elsewhere: the fault that one example never finds."""
    from vitrail.ship import portable

    how = {**portable.RESAMPLING, "bilinear": {"filter": "bilinear", "aligned": False}}
    monkeypatch.setattr(portable, "RESAMPLING", how)


@pytest.mark.parametrize("ending", [".pt2", pytest.param(".onnx", marks=pytest.mark.scorecard)])
@pytest.mark.parametrize("fault", [wrong_gelu, wrong_at_other_sizes])
def test_a_graph_that_differs_leaves_no_file(fault, ending, tmp_path, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(NumericsError, match="differs from the model by"):
        exporting.export(model(), tmp_path / f"m{ending}")
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_of_the_same_name_stays(tmp_path, monkeypatch):
    target = tmp_path / "m.pt2"
    target.write_bytes(b"the last good export")
    wrong_gelu(monkeypatch)
    with pytest.raises(NumericsError):
        exporting.export(model(), target)
    assert target.read_bytes() == b"the last good export"


def test_the_healthy_twin_is_written(tmp_path):
    result = exporting.export(model(), tmp_path / "m.pt2")
    assert result.images >= 64
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt2"]
