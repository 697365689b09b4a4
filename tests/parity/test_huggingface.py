"""transformers itself: its models read here give its outputs, and ours written for it give ours there."""

import json
import random

import pytest
import torch

import vitrail
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity
TOLERANCE = 1e-5
CASES = 200
worst = {"reading": 0.0, "other sizes": 0.0, "written again": 0.0, "writing": 0.0, "weights alone": 0.0, "towers": 0.0}


def distance(found, expected):
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float((found - expected).abs().max() / expected.abs().max())


def note(what, far, said):
    worst[what] = max(worst[what], far)
    assert far < TOLERANCE, said


def randomise(model, seed):
    """Every parameter away from its initial value, so that none can be forgotten."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            table = any(word in name for word in ("token", "position", "probe", "cls", "dist", "registers", "class_embedding"))
            if p.ndim >= 2 and not table:
                p.copy_(noise * p[0].numel() ** -0.5)
            elif p.ndim == 1 and name.endswith(("weight", "lambda1", "scale1", "scale2")):
                p.copy_(1 + 0.3 * noise)
            else:
                p.copy_(0.3 * noise)
    return model.eval()


def drawn_for_transformers(rng):
    """A random small model of transformers' own."""
    kind = rng.choice(["ViT"] * 4 + ["DeiT", "Dinov2", "Dinov2", "Dinov2WithRegisters", "Dinov2WithRegisters", "ViTMSN", "IJepa"])
    heads = rng.choice([1, 2, 3])
    patch = rng.choice([4, 7, 8])
    side = rng.randint(2, 5)
    settings = {
        "hidden_size": heads * rng.choice([8, 16]), "num_hidden_layers": rng.randint(1, 3), "num_attention_heads": heads,
        "image_size": side * patch, "patch_size": patch, "num_channels": rng.choice([1, 3, 3]), "qkv_bias": rng.random() < 0.7,
        "layer_norm_eps": rng.choice([1e-12, 1e-6, 1e-5]),
        "hidden_act": rng.choice(["gelu", "gelu", "gelu_pytorch_tanh", "quick_gelu", "relu"]),
    }  # fmt: skip
    if kind.startswith("Dinov2"):
        settings |= {"mlp_ratio": rng.choice([1, 2, 4]), "use_swiglu_ffn": rng.random() < 0.4, "layerscale_value": 0.5}
        if kind.endswith("Registers"):
            settings["num_register_tokens"] = rng.choice([1, 2, 4])
    else:
        settings["intermediate_size"] = rng.choice([24, 50])
        if kind == "ViT" and rng.random() < 0.3:
            settings["image_size"] = [patch * rng.randint(1, 4), patch * rng.randint(1, 4)]
    config = getattr(transformers, f"{kind}Config")(**settings)
    headless = rng.random() < 0.3
    if headless:
        return kind, getattr(transformers, f"{kind}Model")(config)
    config.num_labels = rng.choice([3, 7])
    if kind == "DeiT" and rng.random() < 0.6:
        return kind, transformers.DeiTForImageClassificationWithTeacher(config)
    return kind, getattr(transformers, f"{kind}ForImageClassification")(config)


def answer(model, x, **options):
    """(output, pooled or None)."""
    out = model(pixel_values=x, **options)
    if hasattr(out, "logits"):
        return out.logits, None
    return out.last_hidden_state, getattr(out, "pooler_output", None)


@pytest.mark.parametrize("seed", range(CASES))
def test_what_transformers_saved_gives_its_outputs_here_and_after_being_written_again(seed, tmp_path):
    rng = random.Random(seed)
    kind, theirs = drawn_for_transformers(rng)
    randomise(theirs, seed)
    theirs.save_pretrained(tmp_path / "theirs")
    size = theirs.config.image_size
    size = tuple(size) if isinstance(size, (list, tuple)) else (size, size)
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2, theirs.config.num_channels, *size, generator=generator) * 2 - 1
    if rng.random() < 0.5:  # the names of the modules themselves
        from safetensors.torch import save_file

        save_file({name: value.contiguous() for name, value in theirs.state_dict().items()}, tmp_path / "theirs" / "model.safetensors")
    ours = vitrail.load_model(tmp_path / "theirs")
    with torch.inference_mode():
        expected, pooled = answer(theirs, x)
        note("reading", distance(ours(x), expected), theirs.config)
        if pooled is not None:
            note("reading", distance(ours.features(x), pooled), theirs.config)
    vitrail.convert(ours, tmp_path / "again", to="hf", style="hub")
    again = type(theirs).from_pretrained(tmp_path / "again").eval()
    with torch.inference_mode():
        note("written again", distance(answer(again, x)[0], expected), theirs.config)
    if size[0] == size[1]:
        patch = theirs.config.patch_size
        other = (patch * rng.randint(2, 6), patch * rng.randint(2, 6))
        y = torch.rand(1, theirs.config.num_channels, *other, generator=generator) * 2 - 1
        options = {} if kind.startswith("Dinov2") else {"interpolate_pos_encoding": True}
        with torch.inference_mode():
            note("other sizes", distance(ours.resize(other)(y), answer(theirs, y, **options)[0]), theirs.config)


@pytest.mark.parametrize("seed", range(10_000, 10_000 + CASES // 2))
def test_weights_alone_give_its_outputs_when_the_caller_says_what_they_cannot(seed, tmp_path):
    rng = random.Random(seed)
    kind, theirs = drawn_for_transformers(rng)
    randomise(theirs, seed)
    config = theirs.config
    if rng.random() < 0.5:
        torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")  # the modules' own names
    else:
        theirs.save_pretrained(tmp_path)
        (tmp_path / "config.json").unlink()
    size = config.image_size if isinstance(config.image_size, (list, tuple)) else (config.image_size,) * 2
    activation = {"gelu_pytorch_tanh": "gelu_tanh"}.get(config.hidden_act, config.hidden_act)
    ours = vitrail.load_model(
        tmp_path, heads=config.num_attention_heads, eps=config.layer_norm_eps, activation=activation, image_size=tuple(size)
    )
    x = torch.rand(2, config.num_channels, *size, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    with torch.inference_mode():
        note("weights alone", distance(ours(x), answer(theirs, x)[0]), (kind, config))


def drawn_for_us(rng):
    """A random model of ours that transformers can hold."""
    heads = rng.choice([1, 2, 3])
    patch = rng.choice([(4, 4), (8, 8), (8, 4)])
    rows, columns = rng.randint(1, 4), rng.randint(1, 4)
    kind = rng.choice(["vit", "vit", "vit", "distilled", "dino", "dino", "registers", "pooler"])
    settings = {
        "width": heads * 16, "depth": rng.randint(1, 3), "heads": heads, "mlp_width": rng.choice([24, 50]), "patch_size": patch,
        "channels": rng.choice([1, 3]), "classes": rng.choice([3, 6]),
        "position": rng.choice(["learned", "learned", "learned2d", "sincos2d", "none"]),
        "position_class": rng.random() < 0.7, "qkv_bias": rng.random() < 0.8,
        "dense_bias": rng.random() < 0.8, "patch_bias": rng.random() < 0.8,
        "activation": rng.choice(["gelu", "gelu_tanh", "quick_gelu", "silu", "relu"]), "eps": rng.choice([1e-12, 1e-6, 1e-5]),
        "head_bias": rng.random() < 0.8,
    }  # fmt: skip
    if kind in ("dino", "registers"):
        rows = columns = max(2, rows)
        patch = (patch[0], patch[0])
        settings |= {"patch_size": patch, "mlp_width": settings["width"] * rng.choice([1, 2, 4]), "layer_scale": 0.3}
        settings |= {"pool": "token+gap"}
        if kind == "registers":
            settings |= {"registers": rng.choice([2, 3]), "position_registers": rng.random() < 0.5, "layer_scale": rng.choice([None, 0.3])}
        if rng.random() < 0.4:
            settings |= {"mlp": "swiglu", "mlp_width": (int(settings["width"] * 4 * 2 / 3) + 7) // 8 * 8}
    if settings.get("position_registers"):
        settings["position_class"] = True  # rows for registers alone are no model's
    if kind == "distilled":
        settings["distilled"] = True
    if kind == "pooler":
        settings |= {"classes": 0, "representation": rng.choice([16, 24])}
    return ViTConfig(image_size=(rows * patch[0], columns * patch[1]), **settings)


@pytest.mark.parametrize("seed", range(CASES))
def test_what_we_write_gives_our_outputs_in_transformers(seed, tmp_path):
    config = drawn_for_us(random.Random(1000 + seed))
    ours = randomise(build(config), seed)
    done = vitrail.convert(ours, tmp_path / "hf", to="hf")
    described = json.loads((tmp_path / "hf" / "config.json").read_text())
    theirs = getattr(transformers, described["architectures"][0]).from_pretrained(tmp_path / "hf").eval()
    x = torch.rand(2, config.channels, *config.image_size, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    with torch.inference_mode():
        found, pooled = answer(theirs, x)
        note("writing", distance(found, ours(x)), (config, done.folded))
        if pooled is not None and config.representation:
            note("writing", distance(pooled, ours.features(x)), (config, done.folded))
    if config.channels == 3:
        processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
        assert tuple(processor.image_mean) == vitrail.load_model(tmp_path / "hf").card.transform().mean


@pytest.mark.parametrize("seed", range(20))
def test_masked_autoencoders_give_their_encoder(seed, tmp_path):
    config = transformers.ViTMAEConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=50, image_size=24, patch_size=8, mask_ratio=0.0,
        decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=16,
    )  # fmt: skip
    theirs = randomise(transformers.ViTMAEForPreTraining(config), seed)
    theirs.save_pretrained(tmp_path)
    ours = vitrail.load_model(tmp_path)
    x = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    with torch.inference_mode():
        out = theirs.vit(x, noise=torch.arange(9.0).expand(2, 9))  # nothing masked, nothing shuffled
        note("towers", distance(ours(x), out.last_hidden_state), config)


@pytest.mark.parametrize("seed", range(30))
def test_image_towers_give_their_embeddings(seed, tmp_path):
    rng = random.Random(seed)
    heads = rng.choice([1, 2, 3])
    settings = {
        "hidden_size": heads * 16, "num_hidden_layers": 2, "num_attention_heads": heads, "intermediate_size": 50, "patch_size": 8,
        "image_size": 8 * rng.randint(2, 4),
    }  # fmt: skip
    text = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 50,
        "max_position_embeddings": 8,
    }
    kind = rng.choice(["clip", "whole clip", "siglip", "whole siglip", "siglip classifier"])
    if "clip" in kind and "sig" not in kind:
        act = rng.choice(["quick_gelu", "gelu"])
        if kind == "clip":
            theirs = transformers.CLIPVisionModelWithProjection(
                transformers.CLIPVisionConfig(**settings, projection_dim=12, hidden_act=act)
            )
        else:
            theirs = transformers.CLIPModel(
                transformers.CLIPConfig(vision_config=settings | {"hidden_act": act}, text_config=text, projection_dim=12)
            )
    elif kind == "siglip":
        theirs = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**settings))
    else:
        cls = transformers.SiglipModel if kind == "whole siglip" else transformers.SiglipForImageClassification
        theirs = cls(transformers.SiglipConfig(vision_config=settings, text_config=text))
    randomise(theirs, seed)
    theirs.save_pretrained(tmp_path)
    ours = vitrail.load_model(tmp_path)
    x = torch.rand(2, 3, settings["image_size"], settings["image_size"], generator=torch.Generator().manual_seed(seed)) * 2 - 1
    with torch.inference_mode():
        if kind == "siglip classifier":
            expected, found = theirs(pixel_values=x).logits, ours(x)
        elif kind == "clip":
            expected, found = theirs(pixel_values=x).image_embeds, ours(x)
        elif kind == "whole clip":
            expected, found = theirs.visual_projection(theirs.vision_model(x).pooler_output), ours(x)
        else:
            tower = theirs if kind == "siglip" else theirs.vision_model
            expected, found = tower(pixel_values=x).pooler_output, ours.features(x)
        note("towers", distance(found, expected), kind)


def test_the_worst_differences_are_told(capsys):
    with capsys.disabled():
        print("\ntransformers:", ", ".join(f"{what} {far:.1e}" for what, far in worst.items()))
