"""The page at `/`, in a real browser."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from serving_harness import Server, encoded, tiny_model

sync_api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright (extra 'dev') is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
KEEP = os.environ.get("VITRAIL_SCREENSHOTS")  # a folder: the pictures of docs/ship.md are made by this test


def scene() -> np.ndarray:
    """A picture with something in it: a bright disc on a slope."""
    y, x = np.mgrid[0:360, 0:480]
    image = np.stack([x / 3, 160 - y / 4, 60 + (x + y) / 8], axis=-1)
    disc = (y - 150) ** 2 + (x - 300) ** 2 < 80**2
    image[disc] = (250, 190, 60)
    return image.clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    path.write_bytes(encoded(scene()))
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    one = tiny_model(folder / "one.safetensors", name="tiny", arch="Ti/16", size=128, depth=3)
    two = tiny_model(folder / "two.safetensors", name="other", seed=2)
    running = Server(one, two, log=folder / "log").ready()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as engine:
        chromium = engine.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, site):
    context = browser.new_context(viewport={"width": 1000, "height": 900}, permissions=["clipboard-read", "clipboard-write"])
    one = context.new_page()
    one.elsewhere, one.problems = [], []
    one.on(
        "request", lambda r: None if r.url.startswith((f"http://127.0.0.1:{site.port}", "data:", "blob:")) else one.elsewhere.append(r.url)
    )
    one.on("pageerror", lambda error: one.problems.append(str(error)))
    one.on("console", lambda message: one.problems.append(message.text) if message.type == "error" else None)
    one.goto(f"http://127.0.0.1:{site.port}/")
    yield one
    assert one.elsewhere == [], "nothing is loaded from anywhere else"
    assert one.problems == [], "no script failed, and the content policy was not touched"
    context.close()


def keep(page, name):
    if KEEP:
        page.screenshot(path=str(Path(KEEP) / f"serve-{name}.png"))


def pixels(page) -> int:
    """A number that changes with what is drawn over the picture."""
    return page.evaluate(
        "() => { const c = document.querySelector('#canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " let h = 0; for (let i = 0; i < d.length; i += 97) h = (h * 31 + d[i]) >>> 0; return h; }"
    )


def choose(page, photo):
    page.set_input_files("#file", str(photo))
    page.wait_for_selector("#looks:not([hidden])")


def test_a_chosen_image_gets_its_classes_as_bars(page, photo, site):
    choose(page, photo)
    rows = page.locator("#classes li")
    assert rows.count() == 5
    said = site.post("/predict", photo.read_bytes()).json()["classes"]
    assert rows.nth(0).inner_text().split("\n")[0] == said[0]["class"]
    widths = [row.evaluate("e => parseFloat(e.querySelector('i').style.width)") for row in rows.all()]
    assert widths == pytest.approx([100 * c["probability"] for c in said], rel=1e-3)
    keep(page, "page")


def test_sliders_walk_through_layers_and_heads_and_the_switch_turns_rollout_off(page, photo):
    choose(page, photo)
    rollout = pixels(page)
    assert page.locator("#layer").is_disabled(), "rollout is of all layers"
    page.uncheck("#rollout")
    seen = {rollout, pixels(page)}
    for layer in (1, 2):
        page.locator("#layer").fill(str(layer))
        for head in (0, 1, 3):
            page.locator("#head").fill(str(head))
            seen.add(pixels(page))
    assert len(seen) >= 7, "every layer and head draws something else"
    assert page.locator("#layer").get_attribute("max") == "3"
    assert page.locator("#head").get_attribute("max") == "3"
    keep(page, "head")
    page.check("#rollout")
    assert pixels(page) == rollout
    page.locator("#strength").fill("0")
    bare = pixels(page)
    assert bare != rollout and page.inner_text("#strengthout") == "0 %"
    page.locator("#layer").evaluate("e => e.dispatchEvent(new Event('input'))")
    assert pixels(page) == bare, "without a veil the picture alone is there"


def test_a_dropped_and_a_pasted_image_are_taken(page, photo):
    give = """([bytes, kind]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], 'photo.png', {type: 'image/png'}));
        const event = kind === 'drop' ? new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true})
                                      : new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true});
        document.dispatchEvent(event); }"""
    for kind in ("drop", "paste"):
        page.evaluate("() => document.querySelector('#classes').replaceChildren()")
        page.evaluate(give, [list(photo.read_bytes()), kind])
        page.wait_for_selector("#classes li")


def test_a_file_that_is_no_image_is_answered_in_words(page, tmp_path):
    wrong = tmp_path / "wrong.png"
    wrong.write_text("no image")
    page.set_input_files("#file", str(wrong))
    page.wait_for_selector("#status.error")
    assert "no image this server reads" in page.inner_text("#status")
    page.problems.clear()  # the browser itself logs the 422


def test_the_keyboard_is_enough(page, photo):
    page.wait_for_selector("#modelbox:not([hidden])")
    page.keyboard.press("Tab")
    if page.evaluate("() => document.activeElement.id") == "model":
        page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "drop"
    page.evaluate("() => document.querySelector('#file').addEventListener('click', e => { e.preventDefault(); window.asked = true; })")
    page.keyboard.press("Enter")
    assert page.evaluate("() => window.asked"), "Enter opens the file dialogue"
    choose(page, photo)
    page.focus("#rollout")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "layer"
    before = page.input_value("#layer")
    page.keyboard.press("ArrowLeft")
    assert int(page.input_value("#layer")) == int(before) - 1


def test_the_curl_line_is_copied_and_works(page, photo, site):
    choose(page, photo)
    page.click("#copy")
    line = page.evaluate("() => navigator.clipboard.readText()")
    assert line == f"curl --data-binary @photo.jpg -H 'Content-Type: image/png' http://127.0.0.1:{site.port}/models/tiny/predict"
    if shutil.which("curl"):
        words = shlex.split(line.replace("@photo.jpg", f"@{photo}"))
        assert '"classes"' in subprocess.run([*words, "-s"], capture_output=True, text=True, check=True).stdout


def test_another_model_answers_when_it_is_chosen(page, photo, site):
    choose(page, photo)
    first = page.inner_text("#classes")
    page.select_option("#model", "other")
    page.wait_for_function("first => document.querySelector('#classes').innerText !== first", arg=first)
    assert "/models/other/predict" in page.inner_text("#curl")


def test_it_fits_a_phone(browser, site, photo):
    context = browser.new_context(viewport={"width": 360, "height": 740}, device_scale_factor=2, is_mobile=True, has_touch=True)
    phone = context.new_page()
    phone.goto(f"http://127.0.0.1:{site.port}/")
    choose(phone, photo)
    assert phone.evaluate("() => document.documentElement.scrollWidth") <= 360
    for control in ("#drop", "#copy", "#layer", "#model"):
        box = phone.locator(control).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360
        assert box["height"] >= 24, "large enough for a finger"
    keep(phone, "phone")
    context.close()
