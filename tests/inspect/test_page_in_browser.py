"""The page in a real browser: every control does what it says, by mouse and by keyboard, and nothing is fetched."""

from __future__ import annotations

import shutil

import pytest
from kinds import small

from vitrail.inspect.report import inspect
from vitrail.model.config import ResNetConfig
from vitrail.model.variants import build

playwright = pytest.importorskip("playwright.sync_api", reason="the Python package playwright (extra 'dev') is not installed")
BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield started
        started.close()


def opened(browser, folder):
    """The report of a folder, with everything it complains of and asks for."""
    tab = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light", reduced_motion="reduce")
    tab.complaints, tab.asked_for = [], []
    tab.on("console", lambda message: tab.complaints.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
    tab.on("request", lambda request: tab.asked_for.append(request.url))
    tab.goto((folder / "report.html").as_uri())
    tab.wait_for_selector("body[data-ready]")
    tab.wait_for_function("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    return tab


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    model = small("class token", classes=4, image_size=(24, 32)).float()
    inspect(model, "builtin:shapes?size=24x32&test=12&classes=4", out=folder, count=12, show=3)
    return opened(browser, folder)


def drawn(page, canvas):
    return page.evaluate(f"document.getElementById('{canvas}').toDataURL()")


def point(page, canvas, across, down, click=True):
    """Point at a place of a canvas, given in parts of its width and height."""
    there = page.locator(f"#{canvas}")
    there.scroll_into_view_if_needed()
    box = there.bounding_box()
    place = {"x": box["width"] * across, "y": box["height"] * down}
    there.click(position=place) if click else there.hover(position=place)


def says(page):
    return page.inner_text("#map-says")


def test_it_opens_without_a_complaint_and_asks_the_network_for_nothing(page):
    assert page.complaints == []
    assert all(url.startswith(("file:", "data:")) for url in page.asked_for)
    assert page.locator("main > section:visible").count() == 6
    assert page.locator("nav a").count() == 6


def test_layer_and_head_controls_change_the_map(page):
    before = drawn(page, "map")
    assert page.is_disabled("#layer") and "Rollout" in says(page)
    page.check("[name=kind][value=head]")
    assert page.is_enabled("#layer") and page.is_enabled("#head") and "Layer 4, mean of the heads" in says(page)
    head_mean = drawn(page, "map")
    assert head_mean != before
    page.focus("#layer")
    page.keyboard.press("ArrowLeft")
    assert "Layer 3" in says(page) and drawn(page, "map") != head_mean
    page.focus("#head")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "Layer 3, head 2" in says(page)
    page.check("[name=kind][value=gradient]")
    assert "What speaks for the class that was said" in says(page) and page.is_disabled("#head")


def test_a_dot_of_the_chart_and_a_cell_of_the_atlas_choose_a_head(page):
    page.click("#attention-chart circle[data-layer='1'][data-head='2']")
    assert "Layer 2, head 3" in says(page)
    assert page.locator("#attention-chart circle.chosen").count() == 1
    point(page, "atlas", 0.5, 0.9)
    assert "Layer 4, head 2" in says(page)
    page.focus("#atlas")
    page.keyboard.press("ArrowUp")
    assert "Layer 3, head 2" in says(page)


def test_any_patch_can_be_chosen_in_the_picture(page):
    point(page, "map", 0.05, 0.05)
    assert "From the patch in row 1, column 1" in says(page) and page.is_checked("[name=kind][value=patch]")
    first = drawn(page, "map")
    page.focus("#map")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "row 2, column 2" in says(page) and drawn(page, "map") != first


def test_the_measure_of_the_chart_can_be_changed(page):
    page.check("[name=measure][value=entropy]")
    assert "entropy" in page.get_attribute("#attention-chart svg", "aria-label")
    assert page.locator("#attention-chart line.line").count() == 0
    page.check("[name=measure][value=prefix]")
    assert "no patch" in page.get_attribute("#attention-chart svg", "aria-label")
    page.check("[name=measure][value=distance]")
    assert page.locator("#attention-chart line.line").count() == 4
    page.click("#attention details summary")
    rows = page.locator("#attention-table tbody tr, #attention-table tr")
    assert rows.count() >= 4 and rows.last.is_visible(), "the numbers, as a table"


def test_strength_and_smoothing_change_what_is_drawn(page):
    before = drawn(page, "map")
    page.uncheck("#smooth")
    sharp = drawn(page, "map")
    page.focus("#strength")
    page.keyboard.press("Home")
    assert len({before, sharp, drawn(page, "map")}) == 3


def test_another_picture_can_be_chosen_by_mouse_and_by_arrow(page):
    page.click("#thumbs button:nth-child(2)")
    second = says(page).split(":")[0]
    page.keyboard.press("ArrowRight")
    assert says(page).split(":")[0] != second
    assert page.get_attribute("#thumbs button:nth-child(3)", "aria-checked") == "true"


def test_tiles_of_positions_answer_to_pointer_and_keys(page):
    page.focus("#positions-all")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "row 2, column 2" in page.inner_text("#positions-which")
    before = drawn(page, "positions-one")
    point(page, "positions-all", 0.97, 0.05, click=False)
    assert "row 1, column 8" in page.inner_text("#positions-which") and drawn(page, "positions-one") != before


def test_a_picture_on_the_map_of_the_set_says_what_it_is_and_who_is_near(page):
    page.locator("#flat .thumb").nth(4).click(force=True)
    assert "Nearest:" in page.inner_text("#flat-says")


def test_the_contents_lead_to_the_figures(page):
    for link in page.locator("nav a").all():
        link.click()
        section = link.get_attribute("href")
        assert page.evaluate(f"Math.abs(document.querySelector('{section}').getBoundingClientRect().top) < innerHeight")
    page.evaluate("window.scrollTo(0, 0)")


def test_a_table_of_positions_for_every_layer_can_be_leafed_through(browser, tmp_path):
    model = small("class token", classes=4, position_at="every").float()
    inspect(model, "builtin:shapes?size=12x20&test=4&classes=4", out=tmp_path, count=4, show=1)
    tab = opened(browser, tmp_path)
    first, tile = tab.inner_text("#positions-layer-name"), drawn(tab, "positions-all")
    tab.focus("#positions-layer")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#positions-layer-name") != first and drawn(tab, "positions-all") != tile
    assert tab.complaints == []
    tab.close()


def test_a_network_without_attention_has_a_shorter_page(browser, tmp_path):
    inspect(
        build(ResNetConfig(layers=(1,), width_factor=0.5, image_size=(32, 32), classes=4)),
        "builtin:shapes?size=32x32&test=4&classes=4", out=tmp_path, count=4, show=2,
    )  # fmt: skip
    tab = opened(browser, tmp_path)
    assert tab.locator("main > section:visible").count() == tab.locator("nav a").count() == 3
    assert not tab.is_visible("#maps") and "no self-attention" in tab.inner_text("#notes")
    assert tab.complaints == []
    tab.close()


def test_every_control_is_reached_with_the_tab_key(page):
    page.check("[name=kind][value=head]")
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.name || document.activeElement.className"))
    assert {"theme", "positions-all", "measure", "kind", "layer", "head", "strength", "smooth", "map", "atlas", "skip"} <= reached


def test_dark_and_light_follow_the_system_or_the_button(page):
    ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = ground()
    page.emulate_media(color_scheme="dark")
    dark = ground()
    assert light != dark
    page.click("#theme")  # as the system -> light
    assert ground() == light
    page.click("#theme")
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    assert ground() == dark
    page.click("#theme")
    assert ground() == light


def test_a_narrow_screen_does_not_scroll_sideways(page):
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.set_viewport_size({"width": 1100, "height": 900})


def test_no_control_made_the_page_complain(page):
    assert page.complaints == []
