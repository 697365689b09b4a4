"""Public signatures of model/ carry shapes, and the shapes are true: every call of a forward pass is checked."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "src" / "vitrail" / "model"
FORWARDS = """
    import typing
    import torch, torch.utils.checkpoint
    from jaxtyping import install_import_hook
    import beartype
    typing.TYPE_CHECKING = True  # the annotations' names are imported only for checkers
    from vitrail.model.config import AxialConfig, ResNetConfig, ResNetStem, ViTConfig
    with install_import_hook("vitrail.model", "beartype.beartype"):
        from vitrail.model.variants import build
        from vitrail.model.patch import change_channels, resize_patch_kernel
    from vitrail.kernels.draws import key, sample_keys

    tiny = dict(width=16, depth=2, heads=4, mlp_width=24, patch_size=4, image_size=(8, 12), classes=5, dropout=0.1)
    bit = dict(width_factor=0.5, image_size=(32, 48), classes=5)
    configs = [
        ViTConfig(**tiny, drop_path=0.1, registers=2, qk_norm=True),
        ViTConfig(**tiny, pool="map", position="relative"),
        ViTConfig(**tiny, pool="gap", position="learned2d", position_at="every", mlp="swiglu"),
        ViTConfig(**tiny, pool="token+gap", position="sincos2d", position_at="shared"),
        ViTConfig(**tiny, pool="unpooled"),
        ViTConfig(**tiny, distilled=True),
        ViTConfig(**{**tiny, "classes": 0}),
        ViTConfig(**{**tiny, "image_size": 64, "patch_size": 1}, stem=ResNetStem(layers=(1, 1), width=32)),
        AxialConfig(**tiny),
        ResNetConfig(**bit, layers=(1, 1)),
        ResNetConfig(**bit, layers=(1, 1), version="v1"),
    ]
    for config in configs:
        for training in (True, False):
            model = build(config).train(training)
            x = torch.randn(2, 3, *config.image_size)
            model(x, sample_keys(key(0, "test"), torch.arange(2)) if training else None)
            model.features(x)
            if hasattr(model, "blocks") and config.family == "vit":
                block = model.blocks[0]
                q, k = block.attention.qk(model.embed(x))
                block.attention.logits(q, k, 1, 3)
            if config.distilled if config.family == "vit" else False:
                model.two_heads(model.tokens(x))
            model.resize((64, 32))
            model(torch.randn(1, 3, 64, 32))
    resize_patch_kernel(torch.randn(4, 3, 8, 8), (5, 6))
    change_channels(torch.randn(4, 3, 8, 8), 5)

    from jaxtyping import TypeCheckError
    try:
        build(configs[0]).encode(torch.randn(2, 16))
    except TypeCheckError:
        print("checked")
"""


def test_the_shapes_in_the_signatures_are_those_of_the_forward_passes():
    pytest.importorskip("jaxtyping")
    pytest.importorskip("beartype")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FORWARDS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.stdout.strip() == "checked", done.stderr[-3000:]


def test_every_public_tensor_of_a_signature_has_a_shape():
    bare = []
    for path in sorted(MODEL.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            for method in (item for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")):
                annotations = [argument.annotation for argument in method.args.args] + [method.returns]
                bare += [
                    f"{path.name}:{method.lineno} {method.name}"
                    for a in annotations
                    if a is not None and ast.unparse(a) in ("Tensor", "Tensor | None")
                ]
    assert not bare


def test_the_hot_path_does_not_check():
    """Annotations cost nothing: jaxtyping is not even imported."""
    code = "import sys, vitrail.model.variants as v; v.create_model('mu/16'); assert not {'jaxtyping', 'beartype'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
