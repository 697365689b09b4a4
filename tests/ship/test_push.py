"""`push` sends a folder that reads back as the same model; nothing here leaves this machine."""

import json

import pytest
import torch
from serving_harness import CLASSES

from vitrail.errors import ResourceError, UsageError
from vitrail.ship.push import push
from vitrail.weights.load import load_model

EXPECTED = {"transformers": {"config.json", "preprocessor_config.json"}, "timm": {"config.json"}, "vitrail": set()}


@pytest.fixture
def hub(monkeypatch):
    """What would be said to the hub."""
    said = []

    class Api:
        endpoint = "https://hub.example"

        def __init__(self, **_):
            pass

        def create_repo(self, name, **options):
            said.append(("create", name, options))

        def upload_folder(self, *, repo_id, folder_path, commit_message):
            from pathlib import Path

            said.append(("upload", repo_id, sorted(file.name for file in Path(folder_path).iterdir()), commit_message))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    return said


@pytest.mark.parametrize("format", EXPECTED)
def test_a_dry_run_writes_the_files_and_sends_nothing(weights, hub, tmp_path, format):
    result = push(weights, "someone/tiny", format=format, folder=tmp_path / "out", dry_run=True)
    assert hub == [] and result.url is None and "nothing was sent" in str(result)
    assert {"model.safetensors", "README.md"} | EXPECTED[format] <= set(result.files)
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "out")(images), load_model(weights)(images))
    readme = (tmp_path / "out" / "README.md").read_text()
    assert f"library_name: {format}" in readme and "0. ant" in readme
    if format == "transformers":
        assert json.loads((tmp_path / "out" / "config.json").read_text())["id2label"] == {str(k): name for k, name in enumerate(CLASSES)}


def test_one_commit_goes_to_a_private_repository_unless_told(weights, hub):
    result = push(weights, "someone/tiny", message="first")
    assert hub[0] == ("create", "someone/tiny", {"private": True, "exist_ok": True})
    kind, name, files, message = hub[1]
    assert (kind, name, message, len(hub)) == ("upload", "someone/tiny", "first", 2)
    assert set(files) == set(result.files) and result.url == "https://hub.example/someone/tiny"
    push(weights, "someone/tiny", private=False)
    assert hub[2][2]["private"] is False


def test_a_hub_that_refuses_is_one_error_that_says_what_to_do(weights, monkeypatch, hub):
    def refuse(*_, **__):
        raise OSError("403 Forbidden: no write access")

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", refuse)
    with pytest.raises(ResourceError, match="403 Forbidden") as error:
        push(weights, "someone/tiny")
    assert "HF_TOKEN" in error.value.hint


def test_wrong_names_are_refused_before_anything_is_read():
    with pytest.raises(UsageError, match="did you mean 'timm'"):
        push("nowhere", "someone/tiny", format="tim")
    with pytest.raises(UsageError, match="is no repository"):
        push("nowhere", "tiny")
