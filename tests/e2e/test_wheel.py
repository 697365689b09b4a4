"""What users install: a wheel and an sdist, in an environment of their own, away from the clone."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command, cwd, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VITRAIL", "COV"))}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "-q", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_wheel_and_sdist_hold_data_weights_recipes_and_licences(dist):
    wheel = zipfile.ZipFile(next(dist.glob("*.whl"))).namelist()
    sdist = tarfile.open(next(dist.glob("*.tar.gz"))).getnames()
    needed = ["data/builtin/fashion.npz", "data/builtin/LICENSE-fashion-mnist", "recipes/table-3.toml", "ship/serve/page.html"]
    needed += [f"weights/builtin/{p.name}" for p in (ROOT / "src/vitrail/weights/builtin").glob("*.safetensors")]
    for name in needed:
        assert f"vitrail/{name}" in wheel
        assert any(entry.endswith(f"src/vitrail/{name}") for entry in sdist)
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert not [name for name in wheel if name.startswith(("tests/", "benchmarks/"))]


@pytest.mark.timeout(300)
def test_the_wheel_works_in_an_empty_environment(dist, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    wheel = next(dist.glob("*.whl"))
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    vitrail = tmp_path / "venv/bin/vitrail"
    assert "finetune" in run(vitrail, "--help", cwd=tmp_path)
    script = (
        "import json, vitrail\n"
        "source = vitrail.open_source('builtin:fashion', split='test')\n"
        "model = vitrail.create_model('mu/16', classes=3, image_size=32)\n"
        "print(json.dumps([vitrail.__file__, len(source), model.config.classes]))"
    )
    where, images, classes = json.loads(run(python, "-c", script, cwd=tmp_path))
    assert str(tmp_path) in where and images == 2000 and classes == 3
    models = json.loads(run(vitrail, "models", "--json", cwd=tmp_path))
    assert models
