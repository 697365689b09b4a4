"""JSON beside weights: found by name, bounded, and plain (what is hostile is in tests/attacks)."""

import json

import pytest

from vitrail.errors import CheckpointError
from vitrail.weights import sidecar
from vitrail.weights.sidecar import read_sidecar


def test_known_files_of_the_folder_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "id2label": {"0": "../odd but a label"}}))
    (tmp_path / "preprocessor_config.json").write_text('{"size": 224}')
    (tmp_path / "other.json").write_text("{")
    with pytest.raises(CheckpointError, match="leaves the folder"):
        read_sidecar(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", "_name_or_path": "../somewhere", "url": "https://a/b"}))
    found = read_sidecar(tmp_path / "model.safetensors")
    assert found.config["model_type"] == "vit" and found.processor == {"size": 224}


def test_without_files_there_is_an_empty_sidecar(tmp_path):
    found = read_sidecar(tmp_path / "model.npz")
    assert found.config == {} and found.processor == {}


def test_a_description_of_a_model_is_not_huge(tmp_path, monkeypatch):
    monkeypatch.setattr(sidecar, "_MAX_BYTES", 10)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(CheckpointError, match="too many"):
        read_sidecar(tmp_path / "model.safetensors")
