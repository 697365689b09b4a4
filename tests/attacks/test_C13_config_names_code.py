"""C13: a config beside the weights, or the card inside them, is data: no name in it is imported, no path opened."""

import importlib
import json

import pytest

import vitrail
from vitrail.errors import CheckpointError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.weights.archive import open_archive
from vitrail.weights.card import Card
from vitrail.weights.convert import convert
from vitrail.weights.safe import write_safetensors


@pytest.fixture
def folder(tmp_path):
    model = build(ViTConfig(width=64, depth=1, heads=1, mlp_width=128, patch_size=8, image_size=16, classes=3))
    convert(model, tmp_path / "timm", to="timm")
    return tmp_path / "timm"


@pytest.fixture
def watched(monkeypatch):
    """Every name that is imported at run time by name, other than our own."""
    names = []
    original = importlib.import_module

    def spy(name, package=None):
        names.append(name)
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", spy)
    return names


def edit(folder, **entries):
    path = folder / "config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, **entries}))


HOSTILE = {
    "a module with a function": {"architectures": ["os.system"]},
    "code of the repository": {"auto_map": {"AutoModel": "modeling_evil.Evil"}},
    "a class to instantiate": {"model_args": {"_target_": "subprocess.Popen", "args": ["touch", "canary"]}},
    "a function as activation": {"hidden_act": "os.system('touch canary')"},
    "a module path as activation": {"hidden_act": "torch.nn.GELU"},
    "a path out of the folder": {"pretrained_cfg": {"file": "../../etc/passwd"}},
    "a file address": {"pretrained_cfg": {"url": "file:///etc/passwd"}},
    "an architecture that is a path": {"architecture": "../../../evil"},
    "jsonpickle": {"x": {"py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["id"]}]}},
    "a pipeline": {"custom_pipelines": {"x": {"impl": "evil.Pipeline"}}},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_config_that_names_code_or_a_path_is_refused_and_nothing_is_imported(what, folder, watched, monkeypatch):
    edit(folder, **HOSTILE[what])
    opened = []
    import builtins

    original = builtins.open
    monkeypatch.setattr(builtins, "open", lambda file, *a, **k: (opened.append(str(file)), original(file, *a, **k))[1])
    with pytest.raises(CheckpointError, match="names code or a path"):
        vitrail.load_model(folder)
    assert not [name for name in watched if not name.startswith("vitrail")]
    assert not [path for path in opened if "passwd" in path or "evil" in path]
    assert not list(folder.rglob("canary"))


def test_all_complaints_are_in_one_error(folder):
    edit(folder, auto_map={"AutoModel": "evil.Evil"}, hidden_act="os.system")
    with pytest.raises(CheckpointError, match=r"auto_map.*hidden_act"):
        vitrail.load_model(folder)


@pytest.mark.parametrize("content", [b"[1, 2]", b"{", b"\xff\xfe", b'{"a": ' + b"[" * 100_000])
def test_a_config_that_is_no_object_is_refused(content, folder):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="JSON"):
        vitrail.load_model(folder)


CARDS = {
    "another class": {"model": {"family": "os.system"}},
    "an option nobody has": {"model": {"family": "vit", "__class__": "os.system"}},
    "text for a number": {"model": {"family": "vit", "width": "768"}},
    "a list for a number": {"model": {"family": "vit", "width": [768]}},
    "layers without end": {"model": {"family": "vit", "depth": 10**9}},
    "positions without end": {"model": {"family": "vit", "position": "sincos2d", "image_size": [10**6, 10**6], "patch_size": [1, 1]}},
    "a width without end": {"model": {"family": "vit", "width": 2**62, "heads": 1, "depth": 1}},
    "negative width": {"model": {"family": "vit", "width": -64}},
    "classes that are no text": {"classes": [1, 2]},
    "an entry nobody has": {"exec": "import os"},
    "a version of the future": {"version": 99},
}


def with_card(folder, tmp_path, change):
    """The healthy file with another card, and a matching hash of it: only what it says is wrong."""
    model = vitrail.load_model(folder)
    archive = open_archive(vitrail.save_model(model, tmp_path / "healthy.safetensors"))
    table = {**Card.from_metadata(archive.metadata).to_dict(), **change}
    metadata = {"vitrail": json.dumps(table)}
    with open(tmp_path / "hostile.safetensors", "wb") as stream:
        write_safetensors(stream, {name: archive.read(name) for name in archive.entries}, metadata)
    return tmp_path / "hostile.safetensors"


@pytest.mark.parametrize("what", CARDS)
def test_a_hostile_card_is_refused_before_anything_is_built(what, folder, tmp_path, watched):
    path = with_card(folder, tmp_path, CARDS[what])
    with pytest.raises(CheckpointError):
        vitrail.load_model(path)
    assert not [name for name in watched if not name.startswith("vitrail")]


def test_a_card_that_was_altered_is_refused(folder, tmp_path):
    path = vitrail.save_model(vitrail.load_model(folder), tmp_path / "a.safetensors")
    data = path.read_bytes()
    assert data.count(b'\\"depth\\":1') == 1
    path.write_bytes(data.replace(b'\\"depth\\":1', b'\\"depth\\":2'))
    with pytest.raises(CheckpointError, match="does not match its hash"):
        vitrail.load_model(path)


def test_the_healthy_twins_load(folder, tmp_path):
    assert vitrail.load_model(folder).config.depth == 1
    assert vitrail.load_model(with_card(folder, tmp_path, {"notes": ["hello"]})).card.notes == ("hello",)
