"""Records: exact, live, sought, filtered, sent and sent again, and whatever they hold only shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.console.pages import Api, Console, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def shown_seqs(page: Any) -> list[str]:
    found: list[str] = page.locator("[role=grid] .rows [role=row] [role=gridcell]:first-child").all_inner_texts()
    return found


def test_what_is_appended_appears_and_pause_holds_it_back(console: Callable[..., Console], api: Api) -> None:
    api.write("live", 1)
    page = console().open("topics/live")
    page.wait_for_selector("text=Live")
    api.write("live", {"data": {"n": 2}, "tag": "two"})
    page.wait_for_selector("role=row >> text=two")
    page.click("role=button[name=Live]")
    page.wait_for_selector("role=button[name=Paused]")
    api.write("live", {"data": 3, "tag": "three"})
    page.click("role=button[name=Paused]")
    page.wait_for_selector("role=row >> text=three")
    assert shown_seqs(page) == ["3", "2", "1"]


def test_the_stream_goes_on_after_a_restart_of_the_server(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        api = Api(server)
        api.write("news", "one")
        api.close()
        page = Console(browser, server)
        page.open("topics/news")
        page.page.wait_for_selector("text=Live")
        server.stop()
        server.start()
        api = Api(server)
        api.write("news", "two")
        page.page.wait_for_selector("role=row >> text=two")
        assert shown_seqs(page.page) == ["2", "1"]
        api.close()
        page.close()


def test_seek_by_seq_by_age_and_to_the_ends(console: Callable[..., Console]) -> None:
    page = console().open("topics/shop.orders")
    page.wait_for_selector("role=row >> text=300")
    seek = page.get_by_label("Seek to a seq, a time or an age")
    for typed, first in (("1", "1"), ("150", "150"), ("-10", "291"), ("1d", "1")):
        seek.fill(typed)
        seek.press("Enter")
        page.wait_for_function(
            "seq => [...document.querySelectorAll('.rows .tr')].some(r => r.firstChild.innerText === seq)", arg=first
        )
    page.click("role=button[name=Newest]")
    page.wait_for_selector("role=row >> text=300")
    page.click("role=button[name=Oldest]")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.rows .tr')].some(r => r.firstChild.innerText === '1')"
    )


def test_all_of_a_topic_is_reached_by_scrolling(console: Callable[..., Console]) -> None:
    page = console().open("topics/shop.orders")
    page.wait_for_selector("role=row >> text=300")
    for _ in range(40):
        page.locator("role=grid[name=Records]").evaluate("grid => { grid.scrollTop = grid.scrollHeight; }")
        page.wait_for_timeout(30)
        if "1" in shown_seqs(page):
            return
    raise AssertionError(shown_seqs(page))


def test_filters_by_tag_and_text_are_in_the_address(console: Callable[..., Console]) -> None:
    page = console().open("topics/shop.orders")
    page.wait_for_selector("role=row >> text=300")
    page.get_by_label("Filter by tag").fill("order:b*")
    page.wait_for_selector("role=row >> text=order:lima", state="detached")
    page.get_by_label("Text in what is loaded").fill("U297")
    page.wait_for_function("() => document.querySelectorAll('.rows .tr').length === 1")
    page.wait_for_url("**tag=order%3Ab**q=u297**")
    assert shown_seqs(page) == ["297"]


def test_sending_keeps_the_text_as_it_was_typed(console: Callable[..., Console], api: Api) -> None:
    api.write("exact", 0)
    page = console().open("topics/exact")
    page.click("role=button[name=Send]")
    data = page.get_by_label("Data, any JSON")
    data.fill('{"id": 12345678901234567890, "x": 1.0,}')
    page.wait_for_selector("text=a string expected")
    assert page.locator("role=button[name='Send one record']").is_disabled()
    data.fill('{"id": 12345678901234567890, "x": 1.0}')
    page.get_by_role("dialog").get_by_label("Tag").fill("big")
    page.click("role=button[name='Send one record']")
    page.click('role=row >> text={"id": 12345678901234567890, "x": 1.0}')
    page.wait_for_selector("role=complementary >> text=12345678901234567890")
    page.click("role=button[name='Send it again']")
    page.click("role=button[name='Send again']")
    page.wait_for_selector("text=One record will be appended to exact")
    assert len(api.records("exact")) == 2
    page.click("role=button[name='Yes, send it again']")
    page.wait_for_selector("text=Sent to exact as seq 3")
    assert [record.get("$tag") for record in api.records("exact")] == [None, "big", "big"]


def test_a_record_is_taken_elsewhere(console: Callable[..., Console]) -> None:
    page = console(permissions=["clipboard-read", "clipboard-write"]).open("topics/shop.orders?seq=7")
    page.wait_for_selector("text=Record 7")
    page.click("role=button[name='Copy a link to this record']")
    page.wait_for_selector("text=Link copied")
    assert page.evaluate("navigator.clipboard.readText()").endswith("/console#/topics/shop.orders?seq=7")
    page.locator("aside").get_by_role("button", name="As curl, Python or Spark").click()
    for language, sign in (("curl", "curl -s"), ("Python", "topics.connect"), ("Spark", 'format("topics")')):
        page.click(f"role=dialog >> text={language}")
        page.wait_for_selector(f"role=dialog >> text={sign}")
    page.keyboard.press("Escape")
    page.click("role=button[name=Close]")
    with page.expect_download() as download:
        page.click("role=button[name='Export as JSON lines']")
    lines = Path(download.value.path()).read_text().splitlines()
    assert json.loads(lines[-1])["$seq"] == 300
    assert json.loads(lines[-1])["data"] == {"user": "u300", "amount": 450.0}


HOSTILE = [
    b'{"html":"<script>window.hit=1</script><img src=x onerror=window.hit=1>","rtl":"a\\u202eb"}',
    b'"\\u003cscript\\u003ewindow.hit=1\\u003c/script\\u003e"',
    '{"\u202ekey":"\u2066\u200fx\u0085"}'.encode(),
    b'"{broken json"',
    b'{"__proto__":{"polluted":1},"constructor":1,"a":1,"a":2}',
    b"1e999999",
    b'{"long":"' + b"x" * 1_000_000 + b'"}',
    b"[" * 100 + b"]" * 100,
]


def test_hostile_payloads_do_nothing_but_show(console: Callable[..., Console], api: Api) -> None:
    for data in HOSTILE:
        tag = b'"tag":"<img src=x onerror=window.hit=1>\\u202e","meta":{"<b>":"</script>"}'
        api.call("POST", "/v0/topics/hostile", b'{"records":[{"data":' + data + b"," + tag + b"}]}")
    page = console()
    page.open("topics/hostile")
    page.page.wait_for_selector("role=row >> text=broken json")
    for seq in range(1, len(HOSTILE) + 1):
        page.open(f"topics/hostile?seq={seq}")
        page.page.wait_for_selector(f"role=complementary >> text=Record {seq}")
        page.check_layout()
    page.open("topics/hostile/plot")
    page.page.wait_for_selector("role=img")
    assert page.page.evaluate(
        "[window.hit, {}.polluted, document.querySelectorAll('main script, main img').length]"
    ) == [None, None, 0]


def test_hostile_names_in_the_address_only_show(console: Callable[..., Console]) -> None:
    page = console()
    page.page.goto(page.server.url + "/console#/topics/%3Cimg%20src%3Dx%20onerror%3Dwindow.hit%3D1%3E")
    page.page.wait_for_selector("text=There is no such topic")
    assert page.page.evaluate("[window.hit, document.querySelectorAll('main img').length]") == [None, 0]
    assert "404" in page.complaints.pop()  # the browser says itself that the topic is not there
    page.complaints.clear()
