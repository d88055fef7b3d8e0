"""Every view at three sizes, in light and dark: no overlap, no overflow, no complaint, nothing serious for axe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.console.pages import SIZES, Console

pytestmark = [pytest.mark.browser, pytest.mark.slow]

VIEWS = {
    "overview": ("", "text=Log and checkpoints"),
    "topics": ("topics", "role=row >> text=shop.orders"),
    "records": ("topics/shop.orders", "role=row >> text=order:lima >> nth=0"),
    "record": ("topics/shop.orders?seq=290", "role=complementary >> text=trace"),
    "gap": ("topics/capped", "text=let go by the topic's cap"),
    "plot": ("topics/shop.orders/plot?field=amount&by=tag", "role=img[name=/mean of amount/]"),
    "settings": ("topics/shop.orders/config", "text=Delete this topic"),
    "queues": ("queues", "role=row >> text=jobs"),
    "jobs": ("topics/jobs/jobs", "text=In flight"),
    "readers": ("readers", "role=row >> text=projection"),
    "spark": ("spark", "text=orders to lake"),
    "routers": ("routers", "role=row >> text=shop.orders->audit"),
}
ARTIFACTS = Path(__file__).parents[2] / "artifacts" / "console"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_fits_and_is_readable(console: Callable[..., Console], size: str, scheme: str) -> None:
    page = console(size, color_scheme=scheme)
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    for name, (view, sign) in VIEWS.items():
        page.open(view)
        # On a phone some columns are left out, and what is seen there is the rest of the row.
        waited = "role=row >> nth=1" if size == "phone" and "role=row" in sign else sign
        page.page.wait_for_selector(waited)
        page.page.screenshot(path=ARTIFACTS / f"{name}-{size}-{scheme}.png")
        page.check_layout()
        if (size, scheme) in (("desk", "light"), ("phone", "dark")):  # each colour and each layout once: axe is slow
            page.check_accessible()


def test_every_view_has_an_address_and_back_works(console: Callable[..., Console]) -> None:
    page = console().open()
    page.click("nav[aria-label=Views] >> text=Topics")
    page.click("role=row >> text=shop.orders")
    page.click("role=row >> text=300")
    page.wait_for_selector("role=complementary >> text=Record 300")
    assert page.url.endswith("#/topics/shop.orders?seq=300")
    page.reload()
    page.wait_for_selector("role=complementary >> text=Record 300")
    page.click("nav[aria-label='Of this topic'] >> text=Plot")
    page.wait_for_selector("role=img[name=/amount/]")
    for sign in ("text=Record 300", "role=toolbar[name=Records]", "role=grid[name=Topics]", "text=Log and checkpoints"):
        page.go_back()
        page.wait_for_selector(sign)


def test_it_can_be_used_by_keyboard_alone(console: Callable[..., Console]) -> None:
    page = console().open("topics")
    page.wait_for_selector("role=row >> text=shop.orders")
    reach(page, "role=searchbox")
    page.keyboard.type("shop")
    page.wait_for_selector("text=1 of")
    reach(page, "role=grid[name=Topics]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("role=row >> text=order:lima >> nth=0")
    reach(page, "role=grid[name=Records]")
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Record 299")
    reach(page, "role=button[name='Send it again']")
    page.keyboard.press("Enter")
    page.wait_for_selector("role=dialog")
    page.keyboard.press("Escape")
    page.wait_for_selector("role=dialog", state="detached")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Record 299", state="detached")


def reach(page, selector: str) -> None:  # type: ignore[no-untyped-def]
    """Press Tab until it has the focus."""
    for _ in range(60):
        if page.locator(selector).evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached by Tab")
