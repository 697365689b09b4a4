"""A model whose blocks go through the kernels, beside the same model in plain torch."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the kernels need triton (extra kernels-test)")

from vitrail.errors import UsageError
from vitrail.kernels import draws
from vitrail.model.fused import fuse
from vitrail.model.variants import create_model

_spec = importlib.util.spec_from_file_location("kernels_conftest", Path(__file__).parent / "conftest.py")
_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_conftest)
error, HERE = _conftest.error, _conftest.HERE

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value", "ignore:TRITON_DEFAULT_FP_FUSION")
TINY = {"classes": 7, "image_size": 32, "width": 64, "depth": 2, "heads": 2, "mlp_width": 96, "patch_size": 8}
CLOSE = 3e-6 if HERE.type == "cpu" else 0.03  # float32 under the interpreter, bfloat16 on a GPU
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(HERE)
KEY = draws.sample_keys(draws.key(0, "model"), torch.arange(2)).to(HERE)


def tiny(name="B/16", **options):
    model = create_model(name, seed=1, **TINY | options)
    if hasattr(model.head, "weight"):
        torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    return model.to(HERE).train()


def passed(model, x=X, how=None, half=HERE.type == "cuda"):
    """(logits, gradients by name)."""
    model.zero_grad()
    with torch.autocast(HERE.type, torch.bfloat16 if HERE.type == "cuda" else torch.float16, enabled=half):
        y = (model if how is None else how)(x, KEY)
    (y.float() * torch.arange(y.shape[-1], device=y.device)).sum().backward()
    return y.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_agree(mine, exact, close=CLOSE):
    assert error(mine[0], exact[0]) < close
    assert mine[1].keys() == exact[1].keys()
    whole = torch.cat([g.flatten().double().cpu() for g in exact[1].values()]).norm()
    for name, gradient in mine[1].items():
        distance = (gradient.double().cpu() - exact[1][name].double().cpu()).norm()
        assert distance < close * (exact[1][name].double().norm().cpu() + 0.01 * whole), name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"drop_path": 0.4, "layer_scale": 0.1, "activation": "gelu"},
        {"pool": "gap", "registers": 2},
        {"qkv_bias": False, "dense_bias": False, "layer_scale": 0.1},
        {"position": "relative"},
        {"position_at": "every", "qk_norm": True},
        {"heads": 1, "width": 80},  # a head of a width the attention kernel does not know
    ],
    ids=str,
)
def test_fused_and_plain_models_agree(options):
    model = tiny(**options)
    exact = passed(model)
    assert fuse(model, HERE).startswith("fused")
    assert_agree(passed(model), exact)
    assert fuse(model, HERE, "plain") == "plain (asked for)"
    again = passed(model)
    assert torch.equal(again[0], exact[0])


def test_axial_attention_keeps_its_own_way():
    model = create_model("AxialViT-B/16", seed=1, **TINY | {"depth": 1}).to(HERE).train()
    torch.nn.init.normal_(model.head.weight)
    exact = passed(model)
    assert "attention by torch: AxialAttention" in fuse(model, HERE)
    assert_agree(passed(model), exact)


def test_the_last_block_computes_only_the_class_token():
    model = tiny()
    fuse(model, HERE)
    seen = []
    model.blocks[-1].mlp.fc2.register_forward_hook(lambda layer, given, out: seen.append(tuple(out.shape)))
    model.blocks[0].mlp.fc2.register_forward_hook(lambda layer, given, out: seen.append(tuple(out.shape)))
    passed(model)
    assert seen == [(2, 17, 64), (2, 1, 64)]
    with torch.no_grad():
        assert model.tokens(X).shape == (2, 17, 64)  # whoever asks for all tokens gets them


def test_two_steps_of_the_same_batch_are_bit_equal():
    model = tiny(drop_path=0.3)
    fuse(model, HERE)
    first, second = passed(model), passed(model)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


def test_recomputed_blocks_give_the_same_bits():
    model = tiny(drop_path=0.3)
    fuse(model, HERE)
    kept = passed(model)
    model.recompute = True
    again = passed(model)
    assert all(torch.equal(kept[1][name], again[1][name]) for name in kept[1])


def test_it_compiles_into_one_graph():
    model = tiny(drop_path=0.3)
    fuse(model, HERE)
    exact = passed(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager" if HERE.type == "cpu" else "inductor")
    assert_agree(passed(model, how=compiled), exact)


def test_frozen_blocks_learn_nothing_and_the_rest_learns():
    model = tiny()
    exact = passed(model)
    for parameter in [*model.patch.parameters(), *model.blocks[0].parameters()]:
        parameter.requires_grad_(False)
    fuse(model, HERE)
    mine = passed(model)
    assert not any(name.startswith("blocks.0.") for name in mine[1])
    assert_agree(mine, (exact[0], {name: g for name, g in exact[1].items() if name in mine[1]}))


def test_low_rank_updates_go_through_the_kernels():
    from vitrail.config import AdaptSpec
    from vitrail.train.adapt import adapt

    model = adapt(tiny(), AdaptSpec(train="lora", lora_rank=2)).to(HERE)
    exact = passed(model)
    fuse(model, HERE)
    assert_agree(passed(model), exact)


def test_products_in_fp8_go_between_the_kernels():
    from vitrail.kernels.fp8 import freeze_fp8, train_fp8

    if HERE.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no fp8 products on this GPU")
    model = tiny()
    scales = train_fp8(model)
    found = []
    for choice in ("plain", "auto"):
        fuse(model, HERE, choice, precision="fp8")
        with scales.step():
            found.append(passed(model))
    assert error(found[1][0], found[0][0]) < 0.05
    assert found[1][1].keys() == found[0][1].keys()
    frozen = freeze_fp8(tiny()).eval()
    answers = []
    for choice in ("plain", "auto"):
        fuse(frozen, HERE, choice, precision="fp8")
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=HERE.type == "cuda"):
            answers.append(frozen(X))
    assert error(answers[1], answers[0]) < 0.05


def test_a_hook_on_a_part_of_a_block_gets_the_plain_path():
    model = tiny()
    exact = passed(model)
    fuse(model, HERE)
    seen = []
    handle = model.blocks[0].attention.register_forward_pre_hook(lambda layer, given: seen.append(given[0].shape))
    passed(model)
    assert len(seen) == 1
    handle.remove()
    assert_agree(passed(model), exact)
    assert len(seen) == 1


def test_a_copied_model_stays_fused():
    model = tiny()
    fuse(model, HERE)
    twin = copy.deepcopy(model)
    assert torch.equal(passed(twin)[0], passed(model)[0])
    assert twin.blocks[0].fused is not None


def test_the_residual_sum_may_be_of_half_precision():
    model = tiny()
    exact = passed(model)
    fuse(model, HERE, residual="bfloat16")
    if HERE.type == "cpu":  # the interpreter multiplies no bfloat16
        model.residual = torch.float16
    seen = []
    model.blocks[1].mlp.fc1.register_forward_hook(lambda layer, given, out: seen.append(given[0].dtype))
    assert_agree(passed(model, half=True), exact, 0.05)
    assert seen == [torch.bfloat16 if HERE.type == "cuda" else torch.float16]
    fuse(model, HERE)
    assert model.residual is None


@pytest.mark.parametrize(
    ("options", "reason"), [({"dropout": 0.1}, "dropout"), ({"mlp": "swiglu"}, "gated"), ({"activation": "silu"}, "silu")]
)
def test_a_block_the_kernels_do_not_know_stays_plain_and_says_why(options, reason):
    model = tiny(**options)
    assert reason in fuse(model, HERE)
    assert model.blocks[0].fused is None
    with pytest.raises(UsageError, match=reason):
        fuse(model, HERE, "fused")


def test_a_residual_network_has_no_blocks():
    assert fuse(create_model("R50x1", classes=2, init=False), HERE) == "plain (no transformer blocks)"


def test_double_precision_is_never_fused():
    model = tiny().double()
    fuse(model, HERE)
    fused = model(X.double(), KEY)
    fuse(model, HERE, "plain")
    assert torch.equal(fused, model(X.double(), KEY))
