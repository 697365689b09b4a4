"""timm itself: its models read here give its logits, and ours written for it give ours there."""

import random
from argparse import Namespace

import pytest
import torch
from safetensors.torch import save_file

import vitrail
from vitrail.model.config import ResNetConfig, ResNetStem, ViTConfig
from vitrail.model.variants import build

timm = pytest.importorskip("timm")
from timm.models._hub import save_for_hf  # noqa: E402

pytestmark = pytest.mark.parity
TOLERANCE = 1e-5
CASES = 200
worst = {"reading": 0.0, "written again": 0.0, "writing": 0.0, "weights alone": 0.0, "other sizes": 0.0}


def distance(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def randomise(model, seed):
    """Every parameter away from its initial value, so that none can be forgotten."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.ndim >= 2 and not name.endswith(("token", "pos_embed", "latent", "cls", "dist", "registers", "table", "probe")):
                p.copy_(noise * p[0].numel() ** -0.5)
            elif p.ndim == 1 and name.endswith(("weight", "gamma", "scale1", "scale2")):
                p.copy_(1 + 0.3 * noise)
            else:
                p.copy_(0.3 * noise)
    return model.eval()


def drawn_for_timm(rng):
    """(entry point, arguments) of a random small model of timm's own."""
    kind = rng.choices(["plain", "distilled", "swiglu", "clip", "hybrid", "bit"], [60, 10, 10, 10, 9, 1])[0]
    heads = rng.choice([1, 2, 3, 4])
    width = heads * rng.choice([8, 16, 24])
    patch = rng.choice([4, 8, 7, (8, 4)])
    rows, columns = (patch, patch) if isinstance(patch, int) else patch
    grid = (rng.randint(2, 5), rng.randint(2, 5)) if rng.random() < 0.5 else (rng.randint(2, 5),) * 2
    args = {
        "img_size": (grid[0] * rows, grid[1] * columns), "patch_size": patch, "embed_dim": width, "num_heads": heads,
        "depth": rng.randint(1, 3),
        "mlp_ratio": rng.choice([1.5, 2, 3, 4]), "num_classes": rng.choice([0, 5, 11]), "in_chans": rng.choice([1, 3, 3, 4]),
        "qkv_bias": rng.random() < 0.7, "init_values": rng.choice([None, 1e-4, 0.5]), "qk_norm": rng.random() < 0.3,
    }  # fmt: skip
    if kind == "bit":
        return "resnetv2_50x1_bit", {"num_classes": rng.choice([0, 7]), "in_chans": rng.choice([1, 3])}
    if kind == "hybrid":
        entry, stride = rng.choice([("vit_tiny_r_s16_p8_224", 4)] * 5 + [("vit_small_r26_s32_224", 32), ("vit_base_r50_s16_224", 16)])
        patch = rng.choice([1, 2])
        args |= {"patch_size": patch, "img_size": tuple(stride * patch * side for side in (rng.randint(1, 3), rng.randint(1, 2)))}
        return entry, args
    if kind == "distilled":
        return "deit_base_distilled_patch16_224", args
    args |= {
        "class_token": rng.random() < 0.7, "reg_tokens": rng.choice([0, 0, 1, 4]), "no_embed_class": rng.random() < 0.5,
        "proj_bias": rng.random() < 0.8,
        "global_pool": rng.choice(["token", "avg", "map", ""]), "pos_embed": rng.choice(["learn", "learn", "learn", "none"]),
        "pool_include_prefix": rng.random() < 0.2, "final_norm": rng.random() < 0.9, "pre_norm": rng.random() < 0.2,
    }  # fmt: skip
    if kind == "swiglu" and args["global_pool"] == "map":
        args["global_pool"] = "avg"  # timm's pooling MLP would be twice as wide as those of the blocks
    if args["global_pool"] == "token":
        args["class_token"] = True
    if args["global_pool"] == "avg" and rng.random() < 0.5:
        args["fc_norm"] = False
    if kind == "plain" and rng.random() < 0.4:
        args["act_layer"] = rng.choice(["gelu_tanh", "quick_gelu", "silu", "relu"])
    entry = {"plain": "vit_base_patch16_224", "swiglu": "vit_giant_patch14_dinov2", "clip": "vit_base_patch16_clip_224"}[kind]
    return entry, args


@pytest.mark.parametrize("seed", range(CASES))
def test_what_timm_saved_gives_its_logits_here_and_after_being_written_again(seed, tmp_path):
    rng = random.Random(seed)
    entry, args = drawn_for_timm(rng)
    theirs = randomise(timm.create_model(entry, **args), seed)
    # args of an entry point that a saved folder does not hold are its own: everything else goes into model_args
    saved = {name: value for name, value in args.items() if name != "num_classes" and value is not None}
    save_for_hf(theirs, tmp_path / "theirs", model_args=saved, safe_serialization=True)
    size = args.get("img_size", (64, 96))
    x = torch.rand(2, args["in_chans"], *size, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    ours = vitrail.load_model(tmp_path / "theirs")
    with torch.inference_mode():
        expected = theirs(x) if args["num_classes"] else theirs.forward_features(x)
        found = ours(x)
        if expected.ndim == 4:
            expected = expected.flatten(2).transpose(1, 2)
        far = distance(found, expected)
        if args["num_classes"] == 0:
            far = max(far, distance(ours.features(x), pooled(theirs, x)))
    worst["reading"] = max(worst["reading"], far)
    assert far < TOLERANCE, (entry, args)
    if ours.config.image_size != tuple(size):
        ours.resize(tuple(size))
    vitrail.convert(ours, tmp_path / "again", to="timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'again'}", pretrained=True).eval()
    with torch.inference_mode():
        answer = again(x) if args["num_classes"] else again.forward_features(x)
        if answer.ndim == 4:
            answer = answer.flatten(2).transpose(1, 2)
    worst["written again"] = max(worst["written again"], distance(answer, expected))
    assert distance(answer, expected) < TOLERANCE


def pooled(theirs, x):
    """What timm's head would read; ResNets pool on the way to it."""
    return theirs.forward_head(theirs.forward_features(x), pre_logits=True)


def told(entry, args):
    """What a caller must say of weights that come without a config.json."""
    pools = {"token": "token", "avg": "gap", "map": "map", "": "unpooled"}
    said = {"heads": args["num_heads"], "pool": pools[args.get("global_pool", "token")], "image_size": args["img_size"]}
    if "act_layer" in args:
        said["activation"] = args["act_layer"]
    return said | ({"eps": 1e-5} if "_clip_" in entry else {})


@pytest.mark.parametrize("seed", range(10_000, 10_000 + CASES // 2))
def test_weights_alone_give_timms_logits_when_the_caller_says_what_they_cannot(seed, tmp_path):
    rng = random.Random(seed)
    entry, args = drawn_for_timm(rng)
    if entry.startswith("resnetv2") or args.get("pool_include_prefix"):
        return  # the one has nothing to say, the other no word for it
    theirs = randomise(timm.create_model(entry, **args), seed)
    x = torch.rand(2, args["in_chans"], *args["img_size"], generator=torch.Generator().manual_seed(seed)) * 2 - 1
    prefix, nest = rng.choice(["", "module.", "backbone.", "module.backbone."]), rng.choice(["model", "state_dict", "teacher"])
    state = {prefix + name: value.contiguous() for name, value in theirs.state_dict().items()}
    if rng.random() < 0.5:
        torch.save({nest: state, "epoch": 3, "args": Namespace(lr=0.1), "optimizer": {"state": {}}}, tmp_path / "checkpoint.pth")
    else:
        save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = vitrail.load_model(tmp_path, **told(entry, args))
    with torch.inference_mode():
        far = distance(ours(x), theirs(x) if args["num_classes"] else theirs.forward_features(x))
    worst["weights alone"] = max(worst["weights alone"], far)
    assert far < TOLERANCE, (entry, args)


@pytest.mark.parametrize("seed", range(20_000, 20_000 + CASES // 4))
def test_other_image_sizes_give_timms_logits(seed, tmp_path):
    rng = random.Random(seed)
    entry, args = drawn_for_timm(rng)
    while entry not in ("vit_base_patch16_224", "vit_giant_patch14_dinov2", "vit_base_patch16_clip_224"):
        entry, args = drawn_for_timm(rng)
    theirs = randomise(timm.create_model(entry, **args, dynamic_img_size=True), seed)
    save_for_hf(theirs, tmp_path, model_args={name: v for name, v in args.items() if name != "num_classes" and v is not None})
    rows, columns = theirs.patch_embed.patch_size
    size = (rows * rng.randint(1, 6), columns * rng.randint(1, 6))
    x = torch.rand(2, args["in_chans"], *size, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    ours = vitrail.load_model(tmp_path).resize(size)
    with torch.inference_mode():
        far = distance(ours(x), theirs(x) if args["num_classes"] else theirs.forward_features(x))
    worst["other sizes"] = max(worst["other sizes"], far)
    assert far < TOLERANCE, (entry, args, size)


def drawn_for_us(rng):
    """A random model of ours that timm can hold, in numerics that it can say."""
    if rng.random() < 0.01:
        return ResNetConfig((3, 4, 6, 3), classes=5, image_size=(64, 64), conv_eps=1e-8, channels=rng.choice([1, 3]))
    heads = rng.choice([1, 2, 3])
    stem = None
    if rng.random() < 0.1:
        stem = ResNetStem(rng.choice([(), (), (), (), (2, 2, 2, 2)]), norm_eps=1e-5, conv_eps=1e-8, conv_eps_in=True)
    pool = rng.choice(["token", "gap", "map", "unpooled"])
    special = rng.random() if stem is None else 1.0
    patch = (1, 1) if stem else rng.choice([(4, 4), (8, 4)])
    stride = stem.stride if stem else 1
    class_token = pool == "token" or rng.random() < 0.6
    config = ViTConfig(
        width=heads * 16, depth=rng.randint(1, 3), heads=heads, mlp_width=rng.choice([32, 50, 96]), patch_size=patch,
        image_size=(patch[0] * stride * rng.randint(1, 4), patch[1] * stride * rng.randint(1, 4)), channels=rng.choice([1, 3]),
        classes=rng.choice([5, 9]), stem=stem, class_token=class_token, registers=rng.choice([0, 0, 2]),
        position=rng.choice(["learned", "learned", "learned2d", "sincos2d", "none"]), position_class=rng.random() < 0.6,
        position_registers=rng.random() < 0.4, qkv_bias=rng.random() < 0.8, dense_bias=rng.random() < 0.8, patch_bias=rng.random() < 0.8,
        activation=rng.choice(["gelu", "gelu_tanh", "quick_gelu", "silu", "relu"]), eps=1e-6 if stem else rng.choice([1e-6, 1e-6, 1e-5]),
        qk_norm=rng.random() < 0.3, layer_scale=rng.choice([None, 0.1]), pool=pool, pool_prefix=rng.random() < 0.2,
        head_bias=rng.random() < 0.8, final_norm=rng.random() < 0.8,
    )  # fmt: skip
    if config.position_registers and not config.position_class:
        config = config.replace(position_class=True)  # rows for registers alone are no model's
    if pool == "gap" and config.final_norm and rng.random() < 0.5:
        config = config.replace(final_norm=False, fc_norm=True)
    if special < 0.1 and config.patch_bias:
        return config.replace(norm_pre=True, patch_bias=False)
    if special < 0.2:
        pool = "gap" if config.pool == "map" else config.pool
        return config.replace(mlp="swiglu", eps=1e-6, activation="gelu", pool=pool)
    if special < 0.3 and pool == "token":
        return config.replace(distilled=True, registers=0, eps=1e-6, norm_pre=False, position_registers=False)
    return config


@pytest.mark.parametrize("seed", range(CASES))
def test_what_we_write_gives_our_logits_in_timm(seed, tmp_path):
    config = drawn_for_us(random.Random(1000 + seed))
    ours = randomise(build(config), seed)
    done = vitrail.convert(ours, tmp_path / "timm", to="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    x = torch.rand(2, config.channels, *config.image_size, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    with torch.inference_mode():
        far = distance(theirs(x), ours(x))
    worst["writing"] = max(worst["writing"], far)
    assert far < TOLERANCE, (config, done.folded)


def test_the_worst_differences_are_told(capsys):
    with capsys.disabled():
        print("\ntimm:", ", ".join(f"{what} {far:.1e}" for what, far in worst.items()))
