"""Every view at three sizes, in light and dark: no overlap, no overflow, no complaint, nothing serious for axe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.console.pages import SIZES, Api, Console

pytestmark = [pytest.mark.browser, pytest.mark.slow]

VIEWS = {
    "overview": ("", "text=Log and checkpoints"),
    "topics": ("topics", "role=row >> text=archive"),
    "records": ("topics/shop.orders", "role=row >> text=order:lima >> nth=0"),
    "record": ("topics/shop.orders?seq=290", "role=complementary >> text=trace"),
    "gap": ("topics/capped", "text=let go by the topic's cap"),
    "plot": ("topics/shop.orders/plot?field=amount&by=tag", "role=img[name=/order:lima: last/]"),
    "settings": ("topics/shop.orders/config", "text=Delete this topic"),
    "queues": ("queues", "role=row >> text=jobs"),
    "jobs": ("topics/jobs/jobs", "text=In flight"),
    "jobs-done": ("topics/jobs/jobs?state=done", "role=row >> text=acked"),
    "jobs-dead": ("topics/jobs/jobs?state=dead", "role=row >> text=no mailbox"),
    "workers": ("topics/jobs/jobs?state=workers", "role=row >> text=worker-2"),
    "schedules": ("schedules", "role=row >> text=failing"),
    "schedule": ("schedules/often", "role=row >> text=appended >> nth=0"),
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


DIALOGS = (
    ("topics", "role=button[name='New topic']"),
    ("topics/shop.orders", "role=button[name=Send]"),
    ("topics/shop.orders", "role=button[name='As curl, Python or Spark']"),
    ("topics/shop.orders?seq=1", "role=button[name='Send it again']"),
    ("topics/shop.orders/config", "role=button[name='Delete topic']"),
    ("topics/jobs/jobs", "role=button[name=Purge]"),
    ("topics/jobs/jobs?state=delayed", "role=button[name='Retry job 9 now']"),
    ("topics/jobs/jobs?state=dead", "role=button[name='Redrive job 2']"),
    ("schedules", "role=button[name='New schedule']"),
    ("schedules/often", "role=button[name='Delete often']"),
    ("readers?q=projection", "role=button[name='Reset projection']"),
    ("routers", "role=button[name='New router']"),
    ("routers", "role=button[name='Delete audit->archive']"),
)


@pytest.mark.parametrize("size", SIZES)
def test_every_action_is_offered_and_its_dialog_fits(console: Callable[..., Console], size: str) -> None:
    page = console(size)
    for view, button in DIALOGS:
        page.open(view)
        page.page.click(button)
        page.page.wait_for_selector("role=dialog")
        page.check_layout()
        box = page.page.locator("role=dialog").bounding_box()
        width, height = SIZES[size]
        assert 0 <= box["x"] <= width - box["width"], (button, box)
        assert 0 <= box["y"] <= height - box["height"], (button, box)
        page.page.keyboard.press("Escape")
        page.page.wait_for_selector("role=dialog", state="detached")


def test_lists_are_searched_sorted_and_narrowed_by_their_address(console: Callable[..., Console]) -> None:
    page = console().open("topics?type=queue")
    page.wait_for_selector("role=row >> text=jobs >> nth=0")
    assert page.locator("role=row >> text=shop.orders").count() == 0
    page.click("role=group[name=Type] >> text=Logs")
    page.click("role=columnheader >> text=Readers")
    page.wait_for_url("**type=log**sort=readers**")
    page.wait_for_function("() => document.querySelector('.rows .tr').innerText.startsWith('shop.orders')")
    page.get_by_label("Find a topic").fill("no such name")
    page.wait_for_selector("text=No topic has this in its name")
    page.goto(page.url.split("#")[0] + "#/queues?q=job")
    page.wait_for_selector("role=row >> text=jobs")
    page.goto(page.url.split("#")[0] + "#/readers?kind=router")
    page.wait_for_selector("role=row >> text=shop.orders->audit")
    assert page.locator("role=row >> text=projection").count() == 0


def test_a_plot_is_changed_and_its_lines_are_hidden(console: Callable[..., Console]) -> None:
    page = console().open("topics/shop.orders/plot")
    page.get_by_label("Field").select_option("amount")
    page.get_by_label("Show").select_option("max")
    page.get_by_label("by tag").check()
    page.wait_for_url("**field=amount**how=max**by=tag**")
    page.wait_for_selector("role=img[name=/max of amount.*order:berlin: last 450/]")
    page.click("role=button[name='order:lima']")
    page.wait_for_selector("role=button[name='order:lima'][pressed=false]")
    page.get_by_label("Of the last").select_option("1000")
    page.click("role=toolbar[name=Plot] >> text=Live")
    page.wait_for_selector("role=toolbar[name=Plot] >> text=Paused")


def test_colours_are_chosen_and_remembered(console: Callable[..., Console]) -> None:
    page = console(color_scheme="light").open("topics")
    page.click("role=button[name='Dark colours']")
    page.wait_for_selector("html[data-theme=dark]")
    page.reload()
    page.wait_for_selector("html[data-theme=dark]")


def test_what_an_old_stream_still_brings_does_not_take_the_place_that_was_sought(
    console: Callable[..., Console], api: Api
) -> None:
    api.write("busy", *range(1500))
    over = threading.Event()

    def write() -> None:
        own = Api(page.server)
        while not over.wait(0.005):
            own.write("busy", 1)
        own.close()

    page = console()
    page.open("topics/busy")
    page.page.wait_for_selector("text=Live")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for seq in (20, 40, 60, 80):
            page.open(f"topics/busy?seq={seq}")
            page.page.wait_for_selector(f"role=row[selected] >> role=gridcell >> text=/^{seq}$/")
            page.open("topics/busy")
            page.page.click("role=button[name=Newest]")
            page.page.wait_for_selector("role=button[name=Live]")
    finally:
        over.set()
        writer.join()


def test_every_view_has_an_address_and_back_works(console: Callable[..., Console]) -> None:
    page = console().open()
    page.click("nav[aria-label=Views] >> text=Topics")
    page.get_by_label("Find a topic").fill("shop")
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
    page.wait_for_selector("role=row >> nth=1")
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
