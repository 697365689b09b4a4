"""doctor: what it says of a machine, of weights and of images is true, and what does not fit is found."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.data.transform import IMAGENET_MEAN, IMAGENET_STD

FRUIT = {"apple": (200, 30, 30), "banana": (220, 200, 40), "cherry": (120, 10, 40), "date": (110, 70, 30)}


@pytest.fixture(scope="module")
def orchard(tmp_path_factory):
    """(a folder of photographs by class, a model that has learned them)."""
    folder, noise = tmp_path_factory.mktemp("orchard") / "photos", np.random.default_rng(0)
    for name, colour in FRUIT.items():
        (folder / name).mkdir(parents=True)
        for number in range(10):
            pixels = np.clip(np.array(colour) + noise.normal(0, 45, (40, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    model = vitrail.create_model("mu/16", image_size=32, classes=list(FRUIT))
    view = model.card.transform()
    x = torch.stack([torch.as_tensor(view(str(path))) for name in FRUIT for path in sorted((folder / name).iterdir())])
    y = torch.arange(len(FRUIT)).repeat_interleave(10)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return folder, model.eval()


def said(orchard, tmp_path, **card):
    """Findings about the model under another card, by what they are about."""
    folder, model = orchard
    kept, model.card = model.card, model.card.replace(**card)
    path = vitrail.save_model(model, tmp_path / "model.safetensors")
    model.card = kept
    return {finding.about: finding for finding in vitrail.doctor(str(path), str(folder)).findings}


def test_weights_and_images_that_fit_give_no_problem(orchard, tmp_path):
    found = said(orchard, tmp_path)
    assert {found[about].level for about in ("weights", "data", "classes", "input range")} == {"ok"}
    assert found["data"].text.endswith("40 images, 4 classes") and "same order" in found["classes"].text
    assert found["input range"].text.startswith("[-1, 1]: right 100 %")


@pytest.mark.parametrize(("mean", "std", "name"), [((0.0,) * 3, (1 / 255,) * 3, "[0, 255]"), ((0.9,) * 3, (0.5,) * 3, "its own")])
def test_a_wrong_normalisation_is_found_and_the_right_one_named(orchard, tmp_path, mean, std, name):
    view = orchard[1].card.transform().to_dict()
    found = said(orchard, tmp_path, preprocess={**view, "mean": mean, "std": std})
    assert found["input range"].level == "problem" and found["input range"].text.startswith(name)
    assert "but with [-1, 1] 100 %" in found["input range"].text and found["classes"].level == "ok"


def test_a_class_list_in_another_order_is_found_and_not_taken_for_a_wrong_range(orchard, tmp_path):
    found = said(orchard, tmp_path, classes=("banana", "cherry", "date", "apple"))
    assert found["classes"].level == "problem" and "the weights call 'apple' 'banana'" in found["classes"].text
    assert found["input range"].level == "ok" and "right 100 %" in found["input range"].text


def test_outputs_under_other_names_are_told_by_what_they_answer(orchard, tmp_path):
    assert "'date' 'Dattel'" in said(orchard, tmp_path, classes=("Apfel", "Banane", "Kirsche", "Dattel"))["classes"].text
    assert said(orchard, tmp_path, classes=())["classes"].text.endswith("the outputs are the data's classes, in their order")


def test_weights_for_other_classes_are_told_apart_from_a_wrong_list(orchard, tmp_path):
    fresh = vitrail.save_model(vitrail.create_model("mu/16", image_size=32, classes=["a", "b", "c"]), tmp_path / "abc.safetensors")
    found = {finding.about: finding for finding in vitrail.doctor(str(fresh), str(orchard[0])).findings}
    assert found["classes"].level == "note" and "finetune" in found["classes"].next
    assert "know none of the data's classes" in found["input range"].text


def test_grey_models_are_tried_too(orchard, tmp_path):
    grey = vitrail.create_model("mu/16", image_size=32, classes=list(FRUIT), channels=1)
    path = vitrail.save_model(grey, tmp_path / "grey.safetensors")
    found = {finding.about: finding for finding in vitrail.doctor(str(path), str(orchard[0])).findings}
    assert found["input range"].text.startswith("[-1, 1]: right 25 %")  # a zero head always says the first


@pytest.mark.parametrize("options", [{"pool": "unpooled", "classes": 4}, {"classes": 0}, {"classes": 4, "channels": 5}])
def test_what_gives_no_answer_to_compare_is_said_to_be_untried(options, orchard, tmp_path):
    path = vitrail.save_model(vitrail.create_model("mu/16", image_size=32, **options), tmp_path / "model.safetensors")
    found = {finding.about: finding for finding in vitrail.doctor(str(path), str(orchard[0])).findings}
    assert "cannot be tried" in found["input range"].text and found["input range"].level == "note"


def test_what_cannot_be_read_is_a_problem_and_the_exit_code_says_so(orchard, tmp_path, capsys):
    absent = vitrail.doctor(str(tmp_path / "nothing.safetensors"))
    assert [finding.about for finding in absent.problems] == ["weights"] and "no such file" in absent.problems[0].text
    broken = tmp_path / "photos" / "a"
    broken.mkdir(parents=True)
    (broken / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n cut")
    assert main(["doctor", "--data", str(tmp_path / "photos"), "--json"]) == 3
    printed = json.loads(capsys.readouterr().out)
    assert printed["problems"] == 1 and "1 of 1 images looked at cannot be read" in printed["findings"][-1]["text"]
    assert "vitrail data check" in printed["findings"][-1]["next"]


def test_the_machine_alone_is_looked_at_without_weights_or_images(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert torch.__version__ in text and "extras" in text and "TFLOP/s" in text


def test_imagenets_range_is_known():
    from vitrail.study.fit import RANGES

    assert RANGES["ImageNet mean and std"] == (IMAGENET_MEAN, IMAGENET_STD)
