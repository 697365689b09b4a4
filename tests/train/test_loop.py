"""`train()` from Python: what it leaves behind, what it says, and every objective from end to end."""

import json
from dataclasses import replace

import pytest
import torch

from vitrail.config import ObjectiveSpec, from_dict
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, Preempted, UsageError
from vitrail.model.variants import create_model
from vitrail.runtime.device import Precision
from vitrail.train.distill import Distilled, Teacher
from vitrail.train.loop import train
from vitrail.weights.card import card_of
from vitrail.weights.load import load_model
from vitrail.weights.store import save_model


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(**sections):
    table = {
        "name": "tiny",
        "model": {"name": "mu/8", "image_size": [32, 32]},
        "data": {"train": "builtin:shapes?n=64&size=32&classes=4&test=16", "eval_split": "test", "workers": 0, "resident": False},
        "train": {"batch_size": 16, "steps": 4, "log_every_steps": 2, "save_every_steps": 2},
    }
    for name, section in sections.items():
        table[name] = {**table.get(name, {}), **section} if isinstance(section, dict) else section
    return from_dict(table)


def test_a_run_leaves_models_lines_a_summary_and_says_what_next(tmp_path):
    out = tmp_path / "run"
    result = train(recipe(), out, progress=False, device="cpu")
    assert {p.name for p in out.iterdir()} >= {"best.safetensors", "last.safetensors", "metrics.jsonl", "run.json", "checkpoints"}
    assert result.steps == 4 and result.images == 64 and result.exaflops > 0 and result.model == out / "best.safetensors"
    assert "held-out accuracy" in str(result) and "[" in str(result) and "vitrail inspect" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["best"]["images"] == 16
    summary = json.loads((out / "run.json").read_text())
    assert summary["status"] == "finished" and summary["data"]["examples"] == 64 and len(summary["data"]["fingerprint"]) == 32
    assert {"recipe", "versions", "seed", "exaflops", "device_hours", "world", "precision"} <= summary.keys()
    assert not (out / ".lock").exists()


def test_the_model_that_is_left_behind_says_everything_of_itself(tmp_path):
    train(recipe(ema={"decay": 0.9}), tmp_path / "run", progress=False, device="cpu")
    model = load_model(tmp_path / "run" / "last.safetensors")
    card = model.card
    assert card.classes == ("circle", "square", "triangle", "cross") and card.metrics["images"] == 16
    assert card.transform().image_size == (32, 32) and card.recipe["name"] == "tiny"
    assert model.config.classes == 4 and not model.training


def test_what_is_published_is_what_was_measured(tmp_path):
    """Loading the file and scoring it again gives the figures of the last line."""
    from vitrail.data.loader import EvalStream
    from vitrail.data.source import open_source
    from vitrail.evaluate.score import score

    result = train(recipe(ema={"decay": 0.8}), tmp_path / "run", progress=False, device="cpu")
    model = load_model(tmp_path / "run" / "last.safetensors")
    source = open_source("builtin:shapes?n=64&size=32&classes=4&test=16", split="test")
    with EvalStream(source, model.card.transform(), batch_size=16, workers=0) as stream:
        counts = score(model, stream, device="cpu", classes=4)
    assert counts.to_dict()["loss"] == pytest.approx(result.metrics["loss"], rel=1e-6)
    assert counts.to_dict()["top1"] == result.metrics["top1"]


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = train(recipe(), tmp_path / "run", progress=False, device="cpu")
    stamp = (tmp_path / "run/checkpoints/LATEST").stat().st_mtime_ns
    again = train(recipe(), tmp_path / "run", progress=False, device="cpu")
    assert again.resumed_from == 4 and again.metrics == first.metrics and again.best == first.best
    assert (tmp_path / "run/checkpoints/LATEST").stat().st_mtime_ns == stamp
    with pytest.raises(UsageError, match="already holds a run"):
        train(recipe(), tmp_path / "run", progress=False, device="cpu", resume=False)


@pytest.mark.parametrize(
    "sections",
    [
        {"objective": {"loss": "sigmoid", "head_bias": -1.4}},
        {"objective": {"loss": "bce", "binarise": True, "label_smoothing": 0.1}, "augment": {"mixup": 0.8, "cutmix": 1.0}},
        {"objective": {"class_weights": "balanced"}, "data": {"sampling": "balanced"}},
        {"objective": {"loss": "masked_patches", "mask_target": "downsized"}},
        {"objective": {"loss": "mae", "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}},
        {"data": {"train": "builtin:shapes?n=64&size=32&classes=4&test=16&multilabel=1"}, "objective": {"loss": "sigmoid"}},
        {"model": {"name": "R50x1", "image_size": [32, 32], "options": {"layers": [1], "width_factor": 0.5, "root": "small"}}},
        {
            "data": {"repeats": 2, "resident": True, "crop": "random_resized"},
            "augment": {"randaugment": "timm", "randaugment_magnitude": 9.0},
        },
        {"adapt": {"frozen_blocks": 1}, "optim": {"layer_decay": 0.7, "name": "sgd", "lr": 0.1}},
    ],
    ids=["sigmoid", "bce", "balanced", "masked", "mae", "multilabel", "bit", "resident", "frozen"],
)
def test_every_objective_runs_from_recipe_to_model(tmp_path, sections):
    result = train(recipe(**sections), tmp_path / "run", progress=False, device="cpu")
    assert result.metrics["images"] == 16 and result.metrics["loss"] > 0
    assert load_model(result.model).config is not None


def test_a_head_bias_is_where_the_classes_begin(tmp_path):
    result = train(
        recipe(objective={"loss": "sigmoid", "head_bias": -10.0}, optim={"lr": 0.0}), tmp_path / "run", progress=False, device="cpu"
    )
    assert torch.equal(load_model(result.model).head.bias, torch.full((4,), -10.0))


def test_a_pretrained_model_gets_a_new_head_and_keeps_the_rest(tmp_path):
    first = train(recipe(), tmp_path / "one", progress=False, device="cpu")
    model = {"weights": str(first.model), "options": {"dropout": 0.1}}
    data = {"train": "builtin:shapes?n=64&size=32&classes=6&test=16"}
    second = train(recipe(model=model, data=data, optim={"lr": 0.0}), tmp_path / "two", progress=False, device="cpu")
    before, after = load_model(first.model), load_model(second.model)
    assert after.config.classes == 6 and after.config.dropout == 0.1 and not after.head.weight.any()
    assert torch.equal(before.blocks[0].mlp.fc1.weight, after.blocks[0].mlp.fc1.weight)
    assert str(first.model) in after.card.parents


def test_an_old_head_is_kept_for_the_same_classes_only(tmp_path):
    first = train(recipe(), tmp_path / "one", progress=False, device="cpu")
    keep = {"weights": str(first.model), "new_head": False}
    second = train(recipe(model=keep, optim={"lr": 0.0}), tmp_path / "two", progress=False, device="cpu")
    assert torch.equal(load_model(first.model).head.weight, load_model(second.model).head.weight)
    with pytest.raises(DataError, match="classes"):
        train(
            recipe(model=keep, data={"train": "builtin:shapes?n=64&size=32&classes=5&test=16"}),
            tmp_path / "three",
            progress=False,
            device="cpu",
        )


def test_a_student_learns_from_a_teacher_with_its_second_head(tmp_path):
    teacher = train(recipe(), tmp_path / "teacher", progress=False, device="cpu")
    student = {"name": "mu/8", "image_size": [32, 32], "options": {"distilled": True}}
    for kind in ("hard", "soft"):
        objective = {"teacher": str(teacher.model), "distill": kind, "distill_temperature": 2.0 if kind == "soft" else 1.0}
        result = train(recipe(model=student, objective=objective), tmp_path / kind, progress=False, device="cpu")
        model = load_model(result.model)
        assert model.head_dist.weight.any() and model.head.weight.any()
        assert not torch.equal(model.head_dist.weight, model.head.weight)
    names = (tmp_path / "hard/checkpoints/step-00000004/MANIFEST.json").read_text()
    assert "teacher" not in names


def test_several_teachers_speak_with_the_mean_of_their_probabilities():
    fp32, half = Precision("fp32"), (0.5, 0.5, 0.5)
    models = [create_model("mu/8", classes=4, image_size=32, seed=seed) for seed in range(3)]
    for number, model in enumerate(models):
        torch.nn.init.normal_(model.head.weight, 0.0, 0.3, generator=torch.Generator().manual_seed(number))
    teachers = [Teacher(model, Preprocess((32, 32)), fp32) for model in models[1:]]
    spec = ObjectiveSpec(teacher="a", more_teachers=("b",), distill="soft", distill_weight=1.0, distill_temperature=3.0)
    objective = Distilled(models[0], spec, fp32, half, half, teachers=teachers, classes=4).eval()
    images = torch.randint(0, 256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0)).float()
    losses = objective(images, None, *objective.prepare(images, torch.zeros(5, dtype=torch.int64), torch.arange(5)))
    with torch.no_grad():
        first, second, ours = ((model((images - 127.5) / 127.5) / 3.0).softmax(-1) for model in (*models[1:], models[0]))
    mean = (first + second) / 2
    torch.testing.assert_close(losses, 9.0 * (mean * (mean / ours).log()).sum(-1))
    hard = Distilled(models[0], replace(spec, distill="hard"), fp32, half, half, teachers=teachers, classes=4).eval()
    losses = hard(images, None, *hard.prepare(images, torch.zeros(5, dtype=torch.int64), torch.arange(5)))
    with torch.no_grad():
        logits = models[0]((images - 127.5) / 127.5)
    torch.testing.assert_close(losses, torch.nn.functional.cross_entropy(logits, mean.argmax(-1), reduction="none"))


def test_a_teacher_that_numbers_the_classes_otherwise_is_refused(tmp_path):
    model = create_model("mu/8", classes=4, image_size=32)
    known = ("circle", "square", "triangle", "cross")
    path = save_model(model, tmp_path / "teacher.safetensors", card=card_of(model, "t").replace(classes=known[::-1]))
    with pytest.raises(DataError, match="another order"):
        train(recipe(objective={"teacher": str(path)}), tmp_path / "run", progress=False, device="cpu")


def test_compact_checkpoints_are_half_the_size_and_go_on_nearly_where_they_were(tmp_path):
    def run(out, **keys):
        given = {"steps": 8, "batch_size": 16, "save_every_steps": 4, "log_every_steps": 1, **keys}
        return train(recipe(ema={"decay": 0.9}, optim={"lr": 1e-3}, train=given), out, progress=False, device="cpu")

    exact = run(tmp_path / "exact")
    with pytest.raises(Preempted):
        run(tmp_path / "compact", compact_checkpoints=True, stop_after_minutes=0.0)
    size = lambda out, step: sum(p.stat().st_size for p in (tmp_path / out / f"checkpoints/step-0000000{step}").glob("*.safetensors"))
    assert size("compact", 1) < 0.55 * size("exact", 4)
    gone_on = run(tmp_path / "compact", compact_checkpoints=True)
    assert gone_on.resumed_from == 1 and gone_on.metrics["loss"] == pytest.approx(exact.metrics["loss"], rel=2e-3)
    assert gone_on.metrics["loss"] != exact.metrics["loss"]


def test_models_can_be_published_in_half_precision(tmp_path):
    small = train(recipe(train={"publish_dtype": "float16"}), tmp_path / "half", progress=False, device="cpu")
    full = train(recipe(), tmp_path / "full", progress=False, device="cpu")
    assert small.model.stat().st_size < 0.6 * full.model.stat().st_size
    ours, theirs = load_model(small.model).state_dict(), load_model(full.model).state_dict()
    assert all(torch.equal(ours[name], value.half().to(ours[name].dtype)) for name, value in theirs.items())


def test_early_stopping_ends_a_run_and_it_stays_ended(tmp_path):
    given = {"train": {"steps": 40, "stop_after_evals": 2, "batch_size": 16}, "eval": {"every_steps": 1}, "optim": {"lr": 0.0}}
    result = train(recipe(**given), tmp_path / "run", progress=False, device="cpu")
    assert result.steps == 3 and result.best["step"] == 1
    assert train(recipe(**given), tmp_path / "run", progress=False, device="cpu").steps == 3


def test_micro_batches_change_no_mathematics(tmp_path):
    losses = []
    for micro in (16, 4, 1):
        given = {"model": {"options": {"dropout": 0.2, "drop_path": 0.2}}, "augment": {"mixup": 0.5}}
        keys = {"batch_size": 16, "micro_batch_size": micro, "precision": "fp64", "log_every_steps": 1}
        train(recipe(**given, train=keys), tmp_path / str(micro), progress=False, device="cpu")
        lines = [json.loads(line) for line in (tmp_path / str(micro) / "metrics.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if "loss" in line])
    assert losses[1] == pytest.approx(losses[0], rel=1e-12) and losses[2] == pytest.approx(losses[0], rel=1e-12)


def test_recomputed_blocks_change_nothing(tmp_path):
    found = []
    for on in (False, True):
        given = {"model": {"options": {"dropout": 0.2, "drop_path": 0.2, "depth": 2}}, "train": {"checkpoint_blocks": on}}
        result = train(recipe(**given), tmp_path / str(on), progress=False, device="cpu")
        found.append(load_model(tmp_path / str(on) / "last.safetensors").state_dict())
        assert result.steps == 4
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
