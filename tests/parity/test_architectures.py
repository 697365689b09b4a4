"""Every ViT that timm registers is read with timm's own numerics, or refused: never read as something it is not."""

import json
import warnings

import pytest
import torch

from vitrail.errors import CheckpointError
from vitrail.weights.archive import Archive, Entry
from vitrail.weights.format import Overrides
from vitrail.weights.load import plan_for

timm = pytest.importorskip("timm")
from timm.models._registry import _model_to_module  # noqa: E402
from timm.models.resnetv2 import ResNetV2  # noqa: E402
from timm.models.vision_transformer import Attention, Block, LayerNorm, VisionTransformer  # noqa: E402

pytestmark = pytest.mark.parity
MODULES = (
    "vision_transformer",
    "vision_transformer_hybrid",
    "deit",
    "eva",
    "beit",
    "vision_transformer_relpos",
    "naflexvit",
    "vision_transformer_sam",
)
NAMES = [name for name in timm.list_models() if _model_to_module[name] in MODULES or name.startswith("resnetv2")]
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu", "ReLU": "relu"}
read, refused = [], []


def plan_of(model, name, folder):
    """The plan for a folder as timm saves it, of which no value exists."""
    described = {"architecture": name, "num_classes": model.num_classes, "global_pool": getattr(model, "global_pool", "avg")}
    cfg = {key: value for key, value in model.default_cfg.items() if isinstance(value, (int, float, str, list, tuple))}
    (folder / "config.json").write_text(
        json.dumps({**described, "pretrained_cfg": {k: v for k, v in cfg.items() if k not in ("url", "paper_name")}})
    )
    entries = {key: Entry(tuple(value.shape), value.dtype) for key, value in model.state_dict().items()}
    return plan_for(Archive(folder / "model.safetensors", "safetensors", entries, lambda name: None), Overrides())


@pytest.mark.parametrize("name", NAMES)
def test_it_is_read_as_what_it_is_or_refused(name, tmp_path):
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model = timm.create_model(name)
    try:
        config = plan_of(model, name, tmp_path).config
    except CheckpointError:
        refused.append(name)
        blocks = model.blocks if isinstance(model, VisionTransformer) else []
        attn = getattr(blocks[0], "attn", None) if len(blocks) else None
        plain = all(type(block) is Block for block in blocks) and type(attn) is Attention and type(attn.norm) is torch.nn.Identity
        plain = plain and type(blocks[0].norm1) is LayerNorm and not any(odd in name for odd in ("_mci_", "resnet26d", "resnet50d"))
        assert not plain, "a plain ViT of timm must be read"
        return
    read.append(name)
    if isinstance(model, ResNetV2):
        assert config.layers == tuple(len(stage.blocks) for stage in model.stages) and config.classes == model.num_classes
        assert "_bit" in name, "only BiT's normalisation is Vitrail's"
        return
    assert isinstance(model, VisionTransformer) and all(type(block) is Block for block in model.blocks)
    assert type(model.blocks[0].attn) is Attention
    block = model.blocks[0]
    assert (config.depth, config.width, config.heads) == (len(model.blocks), model.embed_dim, block.attn.num_heads)
    assert config.eps == block.norm1.eps and type(block.norm1).__name__ == "LayerNorm"
    assert config.mlp == "swiglu" or config.activation == ACTIVATIONS[type(block.mlp.act).__name__]
    assert config.pool == {"token": "token", "avg": "gap", "map": "map"}[model.global_pool]
    assert config.registers == model.num_reg_tokens and config.pool_prefix == model.pool_include_prefix
    assert config.fc_norm == (type(model.fc_norm).__name__ != "Identity") and config.final_norm == (type(model.norm).__name__ != "Identity")
    assert config.grid == tuple(model.patch_embed.grid_size)
    assert (config.position_prefix == 0) == (model.no_embed_class or config.prefix == 0)


def test_how_many_is_told(capsys):
    with capsys.disabled():
        print(f"\ntimm's architectures: {len(read)} read, {len(refused)} refused")
