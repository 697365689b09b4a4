import pytest
import torch

from vitrail.config import AdaptSpec
from vitrail.errors import UsageError
from vitrail.model.variants import create_model
from vitrail.train.adapt import adapt, merged_state

X = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)


def tiny():
    model = create_model("mu/16", classes=3, image_size=16, depth=3)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(1))
    return model


def learning(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_the_head_alone_learns_when_told():
    assert learning(adapt(tiny(), AdaptSpec(train="head"))) == {"head.weight", "head.bias"}


def test_frozen_blocks_freeze_everything_below_them_too():
    names = learning(adapt(tiny(), AdaptSpec(frozen_blocks=2)))
    assert {n.split(".")[1] for n in names if n.startswith("blocks.")} == {"2"}
    assert "patch.weight" not in names and "cls" not in names and "norm.weight" in names and "head.weight" in names


def test_more_frozen_blocks_than_there_are_is_refused():
    with pytest.raises(UsageError, match="3 blocks"):
        adapt(tiny(), AdaptSpec(frozen_blocks=4))


def test_lora_starts_as_the_original_and_merges_to_what_it_learned():
    model, plain = adapt(tiny(), AdaptSpec(train="lora", lora_rank=2)), tiny()
    assert torch.equal(model(X), plain(X))
    before = learning(model)
    assert all(".parametrizations.weight.0." in n or n.startswith("head.") for n in before)
    for name, p in model.named_parameters():
        if name.endswith(".0.b"):
            torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(2))
    moved = model(X)
    assert not torch.allclose(moved, plain(X))
    plain.load_state_dict(merged_state(model))
    torch.testing.assert_close(plain(X), moved)
    assert torch.equal(model(X), moved)


def test_lora_draws_depend_on_the_seed_and_the_layer_alone():
    a, b, c = (adapt(tiny(), AdaptSpec(train="lora"), seed=s).state_dict() for s in (0, 0, 1))
    name = "blocks.1.attention.qkv.parametrizations.weight.0.a"
    assert torch.equal(a[name], b[name]) and not torch.equal(a[name], c[name])
    assert not torch.equal(a[name], a[name.replace("blocks.1", "blocks.0")])


def test_an_unknown_lora_target_names_the_layers_there_are():
    with pytest.raises(UsageError) as refused:
        adapt(tiny(), AdaptSpec(train="lora", lora_targets=("query",)))
    assert "attention.qkv" in refused.value.hint
