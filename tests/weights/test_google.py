"""Google's .npz files give Google's numbers: reference arrays made by running vit_jax and big_vision themselves."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.errors import CheckpointError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.model.vit import VisionTransformer
from vitrail.weights.archive import open_archive
from vitrail.weights.convert import convert
from vitrail.weights.format import Overrides
from vitrail.weights.load import load_model, plan_for
from vitrail.weights.npz import open_npz, write_npz

GOLDEN = Path(__file__).parents[1] / "golden"
VIT_JAX = sorted(path.name for path in GOLDEN.glob("g0*"))
BIG_VISION = ["b01_bv_vit_sincos_gap_rep", "b02_bv_vit_map", "b03_bv_vit_tok_smallres"]
MOVED = [("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"), ("LayerNorm_2", "LayerNorm_1"), ("MlpBlock_3", "MlpBlock_0")]


class Case:
    def __init__(self, name):
        self.folder = GOLDEN / name
        self.case = json.loads((self.folder / "case.json").read_text())
        self.arrays = dict(np.load(self.folder / "arrays.npz"))
        self.rel = self.case["tolerance"]["rel"]

    @property
    def checkpoint(self):
        return self.folder / self.case["checkpoints"][0]

    def image(self, name="input"):
        return torch.from_numpy(self.arrays[name]).permute(0, 3, 1, 2).contiguous()

    def meets(self, found, name):
        expected = self.arrays[name]
        found = found.detach().numpy().reshape(expected.shape)
        off = np.abs(found - expected).max() / np.abs(expected).max()
        assert off <= self.rel, f"{name}: {off:.1e} > {self.rel:.1e}"


def rewritten(source, target, change):
    """A file with other names or shapes, made without the code under test."""
    arrays = dict(np.load(source))
    np.savez(target, **change(arrays))
    return target


def as_linen(arrays):
    def spell(name):
        for old, new in MOVED:
            name = name.replace(old, new)
        return name

    return {spell(name): array for name, array in arrays.items()}


def as_scan(arrays):
    """All blocks of a big_vision file stacked along a first axis."""
    prefix = "Transformer/encoderblock_"
    blocks = sorted({int(re.search(prefix + r"(\d+)", name)[1]) for name in arrays if prefix in name})
    out = {name: array for name, array in arrays.items() if prefix not in name}
    for name in arrays:
        if f"{prefix}0/" in name:
            same = [arrays[name.replace(f"{prefix}0/", f"{prefix}{i}/")] for i in blocks]
            out[name.replace(f"{prefix}0/", "Transformer/encoderblock/")] = np.stack(same)
    return out


def bare(arrays):
    return {name.removeprefix("params/"): array for name, array in arrays.items()}


# ---- vit_jax ----


@pytest.mark.parametrize("name", VIT_JAX)
def test_vit_jax_gives_its_logits_features_tokens_and_embedding(name):
    case = Case(name)
    model = load_model(case.checkpoint)
    with torch.no_grad():
        case.meets(model(case.image()), "expected")
        case.meets(model.features(case.image()), "expected_pre_logits")
        case.meets(model.tokens(case.image()), "expected_encoder_norm")
        case.meets(model.embed_patches(case.image()), "expected_embedding")


@pytest.mark.parametrize("name", VIT_JAX)
def test_vit_jax_gives_its_blocks_and_its_attention(name):
    case = Case(name)
    model = load_model(case.checkpoint)
    with torch.no_grad():
        z = model.embed(case.image()[:1])
        blocks, maps = [], []
        for block in model.blocks:
            q, k = block.attention.qk(block.norm1(z))
            maps.append(block.attention.logits(q, k).softmax(-1))
            z = block(z)
            blocks.append(z)
        case.meets(torch.stack(blocks), "expected_blocks")
        case.meets(torch.stack(maps), "expected_attention")


@pytest.mark.parametrize("name", [n for n in VIT_JAX if "finetune_input" in Case(n).arrays])
@pytest.mark.parametrize("variant", ["drop", "keep"])
def test_fine_tuning_at_another_size_starts_where_vit_jax_starts(name, variant):
    case = Case(name)
    if f"finetune_{variant}_expected" not in case.arrays:
        return
    size = case.case["finetune"]["hw"]
    classes = case.case["finetune"]["num_classes"]
    suffix = "_keep" if variant == "keep" else ""
    model = load_model(case.checkpoint, image_size=tuple(size))
    model.reset_head(classes, keep_representation=variant == "keep")
    with torch.no_grad():
        case.meets(model.position.table, "finetune_pos_embedding")
        model.head.weight.copy_(torch.from_numpy(case.arrays[f"finetune_head_kernel{suffix}"]).T)
        model.head.bias.copy_(torch.from_numpy(case.arrays[f"finetune_head_bias{suffix}"]))
        image = case.image("finetune_input")
        case.meets(model(image), f"finetune_{variant}_expected")
        case.meets(model.features(image), f"finetune_{variant}_pre_logits")
        if f"finetune_{variant}_encoder_norm" in case.arrays:
            case.meets(model.tokens(image), f"finetune_{variant}_encoder_norm")


@pytest.mark.parametrize("name", [n for n in VIT_JAX if Case(n).case["also_linen"]])
@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/", "params/img/"])
def test_both_generations_and_every_prefix_are_the_same_model(name, prefix, tmp_path):
    case = Case(name)
    other = {"opt/state/step": np.array(7)} if prefix else {}
    if prefix == "params/img/":
        other["params/txt/Embed_0/embedding"] = np.zeros((5, 4), np.float32)
    linen = rewritten(case.checkpoint, tmp_path / "linen.npz", lambda a: {prefix + n: x for n, x in as_linen(a).items()} | other)
    model, reference = load_model(linen), load_model(case.checkpoint)
    assert model.card.origin == "npz" and reference.card.origin == "npz:prelinen"
    assert model.card.hashes == reference.card.hashes
    if prefix == "params/img/":
        assert any("params/txt" in note for note in model.card.notes)


def test_group_norms_stored_with_four_axes_are_the_same_model(tmp_path):
    case = Case("g04_hybrid_r111_smallres")
    assert any(array.shape[:3] == (1, 1, 1) and array.ndim == 4 for n, array in np.load(case.checkpoint).items() if "gn" in n)
    flat = rewritten(
        case.checkpoint, tmp_path / "flat.npz", lambda a: {n: x.squeeze() if "/gn" in n or "gn_" in n else x for n, x in a.items()}
    )
    assert load_model(flat).card.hashes == load_model(case.checkpoint).card.hashes


# ---- big_vision ----


@pytest.mark.parametrize("name", BIG_VISION)
def test_big_vision_gives_its_numbers_at_both_sizes(name):
    case = Case(name)
    model = load_model(case.checkpoint)
    with torch.no_grad():
        case.meets(model(case.image()), "expected")
        case.meets(model.features(case.image()), "expected_pre_logits")
        case.meets(model.tokens(case.image()), "expected_encoded")
        case.meets(model.embed(case.image())[:, model.config.prefix :], "expected_with_posemb")
        if "other_size_input" in case.arrays:
            image = case.image("other_size_input")
            case.meets(load_model(case.checkpoint, image_size=tuple(image.shape[2:]))(image), "other_size_expected")
            case.meets(model.resize(tuple(image.shape[2:]))(image), "other_size_expected")


@pytest.mark.parametrize("name", BIG_VISION)
def test_unpooled_gives_logits_for_every_patch(name):
    case = Case(name)
    model = load_model(case.checkpoint, pool="unpooled")
    with torch.no_grad():
        case.meets(model(case.image())[:, model.config.prefix :], "expected_logits_2d")


@pytest.mark.parametrize("name", [*BIG_VISION, "g01_vit_token_prelogits"])
def test_blocks_stacked_for_a_scan_are_the_same_model(name, tmp_path):
    case = Case(name)
    scan = rewritten(case.checkpoint, tmp_path / "scan.npz", lambda arrays: as_scan(as_linen(arrays)))
    model = load_model(scan)
    assert model.card.origin == ("big_vision:scan" if name in BIG_VISION else "npz:scan")
    assert model.card.hashes == load_model(case.checkpoint).card.hashes


def test_one_patch_has_one_position_which_is_not_the_class_tokens(tmp_path):
    config = ViTConfig(width=64, depth=1, heads=1, mlp_width=8, patch_size=8, image_size=8, classes=2, position_class=False)
    written = convert(build(config), tmp_path, to="big_vision")
    assert load_model(written.files[0]).config == config


def test_a_map_head_without_its_scope_is_the_same_model(tmp_path):
    case = Case("b02_bv_vit_map")
    inlined = rewritten(case.checkpoint, tmp_path / "old.npz", lambda a: {n.replace("MAPHead_0/", ""): x for n, x in a.items()})
    assert load_model(inlined).card.hashes == load_model(case.checkpoint).card.hashes


def test_an_image_tower_beside_a_text_tower_is_read_alone(tmp_path):
    case = Case("b02_bv_vit_map")
    text = {"params/txt/Encoder_0/encoder_norm/scale": np.ones(4, np.float32), "params/t": np.ones(1, np.float32)}
    tower = rewritten(case.checkpoint, tmp_path / "siglip.npz", lambda a: {f"params/img/{n}": x for n, x in a.items()} | text)
    model = load_model(tower)
    case.meets(model(case.image()), "expected")
    assert any("params/t" in note and "params/txt" in note for note in model.card.notes)


def test_positions_of_before_2022_have_a_row_for_the_class_token(tmp_path):
    """b04: big_vision adds that row into the class token; here it stays, and the logits are the same."""
    case, source = Case("b04_bv_reads_old_vit_jax"), Case("g02_vit_token_smallres")

    def moved(arrays):
        return {n.replace("Transformer/posembed_input/", "Transformer/"): x for n, x in as_linen(arrays).items()}

    for path in (source.checkpoint, rewritten(source.checkpoint, tmp_path / "middle.npz", moved)):
        model = load_model(path)
        assert model.config.position_class
        case.meets(model(case.image()), "expected")
        other = case.image("other_size_input")
        case.meets(load_model(path, image_size=44)(other), "other_size_expected")


def test_folding_the_class_position_gives_big_visions_own_arrays():
    from vitrail.weights.format import format_named

    case, source = Case("b04_bv_reads_old_vit_jax"), Case("g02_vit_token_smallres")
    for size, prefix in ((None, ""), (44, "other_size_")):
        model = load_model(source.checkpoint, image_size=size)
        config, state, said = format_named("big_vision").fold(model.config, {n: p.detach() for n, p in model.named_parameters()})
        assert not config.position_class and "class token" in said[0]
        case.meets(state["cls"], f"{prefix}cls")
        case.meets(state["position.table"], f"{prefix}pos_embedding")


# ---- what a file cannot say ----


def test_without_a_size_the_first_input_settles_it():
    case = Case("b01_bv_vit_sincos_gap_rep")  # sines and cosines fit any grid
    model = load_model(case.checkpoint)
    model(case.image())
    assert model.config.image_size == (48, 32)
    assert type(model) is VisionTransformer
    with pytest.raises(UsageError, match="resize"):
        model(case.image("other_size_input"))


def test_a_grid_that_is_no_square_takes_image_size_or_the_one_that_the_input_fits():
    case = Case("g05_hybrid_r2222")  # 3 x 2 positions
    case.meets(load_model(case.checkpoint, image_size=(96, 64))(case.image()), "expected")
    model = load_model(case.checkpoint)
    with pytest.raises(UsageError, match="6 positions of an unknown grid"):
        model(torch.zeros(1, 3, 64, 64))
    case.meets(model(case.image()), "expected")
    with pytest.raises(CheckpointError, match="6 positions are no square grid"):
        load_model(case.checkpoint, image_size=(128, 64))


def test_an_explicit_resize_settles_it_too_unless_the_grid_is_unknown():
    case = Case("b01_bv_vit_sincos_gap_rep")
    model = load_model(case.checkpoint).resize((48, 32))
    assert type(model) is VisionTransformer
    case.meets(model(case.image()), "expected")
    with pytest.raises(UsageError, match="not known yet"):
        load_model(Case("g05_hybrid_r2222").checkpoint).resize((128, 64))


def test_a_non_square_grid_known_by_its_size_goes_on_to_another():
    model = load_model(Case("g05_hybrid_r2222").checkpoint, image_size=(96, 64))
    model.resize((128, 128))
    assert model(torch.zeros(1, 3, 128, 128)).shape == (1, 10)


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [("eps", "eps", 1e-5), ("activation", "activation", "gelu"), ("heads", "heads", 4), ("pool", "pool", "gap")],
)
def test_conventions_can_be_overridden_and_the_card_says_so(override, field, value):
    case = Case("g01_vit_token_prelogits")
    model = load_model(case.checkpoint, **{override: value})
    assert getattr(model.config, field) == value
    assert model.card.model[field] == value


def test_wrong_heads_are_refused_with_every_shape_that_disagrees():
    with pytest.raises(CheckpointError, match=r"wrong shape \(\d+\).*query/kernel is \(48, 4, 12\), not \(48, 3, 16\)"):
        load_model(Case("g01_vit_token_prelogits").checkpoint, heads=3)


# ---- both ways ----


@pytest.mark.parametrize("name", [*VIT_JAX, *BIG_VISION])
@pytest.mark.parametrize("style", ["linen", "prelinen", "scan"])
def test_the_name_table_writes_what_it_reads(name, style, tmp_path):
    case = Case(name)
    plan = plan_for(open_archive(case.checkpoint), Overrides())
    if style not in plan.format.styles:
        return
    model = load_model(case.checkpoint)
    from vitrail.weights.rules import their_tensors

    out = tmp_path / "out.npz"
    with open(out, "wb") as stream:
        write_npz(stream, their_tensors(plan.format.rules(plan.config, style), dict(model.named_parameters())).items())
    again = load_model(out)
    assert again.card.hashes == model.card.hashes
    if style == plan.style:  # the same style: the same arrays under the same names as the file had
        read, wrote = plan.archive, open_npz(out)
        assert set(read.entries) == set(wrote.entries)
        assert all(torch.equal(read.read(n), wrote.read(n)) for n in read.entries)


@pytest.mark.parametrize(("name", "options", "arrays"), [("B/16", {}, 200), ("B/16", {"representation": 768}, 202), ("L/16", {}, 392)])
def test_real_models_have_as_many_arrays_as_googles_files(name, options, arrays):
    from vitrail.model.variants import create_model
    from vitrail.weights.format import format_named
    from vitrail.weights.rules import their_tensors

    model = create_model(name, init=False, **options)
    shapes = {n: tuple(t.shape) for n, t in their_tensors(format_named("npz").rules(model.config), dict(model.named_parameters())).items()}
    assert len(shapes) == arrays
    if name == "B/16":
        assert shapes["Transformer/encoderblock_11/MultiHeadDotProductAttention_0/query/kernel"] == (768, 12, 64)
        assert shapes["Transformer/posembed_input/pos_embedding"] == (1, 197, 768)


def test_real_hybrids_and_resnets_are_named_unit_by_unit():
    from vitrail.model.variants import create_model
    from vitrail.weights.format import format_named
    from vitrail.weights.rules import their_tensors

    def names(form, model):
        return {n: tuple(t.shape) for n, t in their_tensors(format_named(form).rules(model.config), dict(model.named_parameters())).items()}

    hybrid = names("npz", create_model("R50+ViT-B/16", init=False))
    assert hybrid["embedding/kernel"] == (1, 1, 1024, 768) and hybrid["block3/unit9/conv3/kernel"] == (1, 1, 256, 1024)
    bit = names("bit", create_model("R152x2", init=False))
    assert bit["resnet/block3/unit36/c/standardized_conv2d/kernel"] == (1, 1, 512, 2048)
    assert bit["resnet/head/conv2d/kernel"] == (1, 1, 4096, 1000)
    assert (
        "resnet/block2/unit01/a/proj/standardized_conv2d/kernel" in bit
        and "resnet/block2/unit02/a/proj/standardized_conv2d/kernel" not in bit
    )
