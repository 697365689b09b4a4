"""T05: stopped and resumed at every step of two epochs; the end is that of an undisturbed run, bit for bit."""

import pytest


def stop_at_every_step(tiny, out, *assignments):
    for _ in range(11):
        done = tiny.run(out, *assignments, env={"VITRAIL_FAULT": "step.done:1=term"})
        assert done.code == 75, done.text
    done = tiny.run(out, *assignments)
    assert done.code == 0, done.text
    return tiny.digest(out)


def test_average_mixing_accumulation_and_dropout_survive_every_step(tiny, tmp_path):
    assert stop_at_every_step(tiny, tmp_path / "run") == tiny.digest(tiny.golden())


@pytest.mark.scorecard
@pytest.mark.parametrize(
    "assignments",
    [
        ("train.precision=fp16",),
        ("train.precision=bf16", "optim.momentum_dtype=bfloat16"),
        ("optim.name=sgd", "ema.debias=true"),
        ("optim.name=adafactor", "ema.ramp=true"),
        ("optim.name=lamb", "objective.loss=bce", "augment.cutmix=1.0", "augment.randaugment=timm", "augment.randaugment_magnitude=9"),
        ("objective.loss=masked_patches", "augment.mixup=0"),
        ("objective.loss=mae", "objective.decoder_width=32", "objective.decoder_depth=1", "objective.decoder_heads=2", "augment.mixup=0"),
    ],
    ids=lambda a: a[0],
)
def test_so_do_other_precisions_optimizers_and_objectives(tiny, tmp_path, assignments):
    assert stop_at_every_step(tiny, tmp_path / "run", *assignments) == tiny.digest(tiny.golden(*assignments))


def test_the_loss_scale_of_fp16_is_resumed(tiny, tmp_path):
    given = ("train.precision=fp16",)
    out = tmp_path / "run"
    assert tiny.run(out, *given, env={"VITRAIL_FAULT": "step.done:4=term"}).code == 75
    assert tiny.run(out, *given).code == 0
    digest = tiny.digest(out)
    assert "scale.safetensors" in digest and digest == tiny.digest(tiny.golden(*given))
