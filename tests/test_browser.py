"""The quickstart and its panel in JupyterLab, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jupyter_browser
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

WHY_NOT = jupyter_browser.missing()
pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]

ROOT = Path(__file__).parent.parent
SCREENSHOTS = ROOT / "build" / "screenshots"
LADDER_LIMIT_MS = 900_000


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The quickstart after Run All."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(ROOT / "notebooks" / "quickstart.ipynb", folder)
    with jupyter_browser.jupyter_lab(folder) as address, jupyter_browser.browser_page() as page:
        try:
            jupyter_browser.run_all(page, address, "quickstart.ipynb")
            page.wait_for_selector(".les-panel", state="attached", timeout=LADDER_LIMIT_MS)
            yield page
        finally:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=str(SCREENSHOTS / "quickstart.png"))


def test_tables_and_figures_are_drawn_and_nothing_failed(page: Page) -> None:
    assert page.locator(".jp-RenderedHTMLCommon table").filter(has_text="bit-exact").count() >= 1
    assert page.locator(".jp-RenderedImage img").count() >= 2
    assert page.locator("[data-mime-type='application/vnd.jupyter.stderr']").filter(has_text="Error").count() == 0


def test_a_contradiction_is_said_before_running(page: Page) -> None:
    experts = page.locator(".les-side-B select").first
    experts.select_option("resident")
    page.wait_for_selector(".les-side-B .les-error >> text=contradicts experts='resident'")
    assert page.locator(".les-panel button.les-both").is_disabled()
    experts.select_option("flash")
    page.wait_for_selector(".les-panel button.les-both:not([disabled])")


def test_both_sides_run_and_are_compared(page: Page) -> None:
    page.locator(".les-side-A input[type=checkbox]").first.check()  # ready_first
    jupyter_browser.run_both(page)
    assert "Bit-exact" in page.locator(".les-verdict").inner_text()
    for side in "AB":
        figures = page.locator(f".les-side-{side} .les-figures")
        assert "tokens/s" in figures.inner_text()
        assert figures.locator("polyline").count() >= 4
        assert len(page.locator(f".les-side-{side} .les-text").inner_text()) > 150
    assert page.locator(".les-badge", has_text="emulated").is_visible()
    jupyter_browser.screenshot(page, SCREENSHOTS / "panel.png")


def test_the_timeline_zooms_pans_and_explains(page: Page) -> None:
    canvas = page.locator(".les-timeline svg")
    canvas.scroll_into_view_if_needed()

    def ticks() -> str:
        return " ".join(canvas.locator(".les-tick text").all_text_contents())

    def changed(before: str) -> str:
        page.wait_for_function(
            "before => [...document.querySelectorAll('.les-timeline svg .les-tick text')]"
            ".map(t => t.textContent).join(' ') !== before",
            arg=before,
        )
        return ticks()

    whole = ticks()
    box = canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 10
    page.mouse.move(x, y)
    page.mouse.wheel(0, -800)
    near = changed(whole)
    page.mouse.down()
    page.mouse.move(x - 200, y, steps=4)
    page.mouse.up()
    changed(near)
    canvas.dblclick(position={"x": box["width"] / 2, "y": 5})
    page.wait_for_function(
        "whole => [...document.querySelectorAll('.les-timeline svg .les-tick text')]"
        ".map(t => t.textContent).join(' ') === whole",
        arg=whole,
    )
    page.locator(".les-timeline .les-span").nth(1).hover()
    page.wait_for_selector(".les-timeline-tip:not([hidden]) >> text=/took: .*µs/")
    page.screenshot(path=str(SCREENSHOTS / "timeline.png"))
