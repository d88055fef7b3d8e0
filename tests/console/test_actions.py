"""What changes something: offered to whom it is permitted, asked before it is done, done as it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.console.pages import Api, Console, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_topic_is_created_and_deleted_after_its_name_was_typed(console: Callable[..., Console], api: Api) -> None:
    page = console().open("topics")
    page.click("role=button[name='New topic']")
    page.get_by_label("Name").fill("made.here")
    page.get_by_role("dialog").get_by_label("Type").select_option("queue")
    page.click("role=button[name=Create]")
    page.wait_for_selector("h1 >> text=made.here")
    config = api.call("GET", "/v0/topics/made.here")["config"]
    assert (config["type"], config["max_deliveries"], config["dead_letter"]) == ("queue", 5, "made.here.dead")
    page.click("nav[aria-label='Of this topic'] >> text=Settings")
    page.click("role=button[name='Delete topic']")
    assert page.locator("role=button[name='Delete for ever']").is_disabled()
    page.get_by_label("Type made.here to go on").fill("made.here")
    page.click("role=button[name='Delete for ever']")
    page.wait_for_selector("text=made.here deleted")
    assert not api.call("DELETE", "/v0/topics/made.here")["deleted"]


def test_a_router_is_created_and_deleted(console: Callable[..., Console], api: Api) -> None:
    page = console().open("routers")
    page.click("role=button[name='New router']")
    page.get_by_label("Copy each new record of").fill("from.here")
    page.get_by_label("into").fill("to.there")
    page.get_by_label("Only with this tag").fill("a*")
    page.click("role=button[name=Create]")
    page.wait_for_selector("role=row >> text=from.here->to.there")
    assert api.call("GET", "/v0/routers/from.here->to.there")["filter"] == ["tag", "Glob", "a*"]
    page.click("role=button[name='Delete from.here->to.there']")
    page.click("role=button[name='Delete router']")
    page.wait_for_selector("role=row >> text=from.here->to.there", state="detached")


def test_a_cursor_is_reset_and_deleted(console: Callable[..., Console], api: Api) -> None:
    api.write("read", *range(20))
    api.call("POST", "/v0/topics/read/cursors/slow", {"position": 5})
    page = console().open("readers?q=slow")
    page.click("role=button[name='Reset slow']")
    page.get_by_role("dialog").get_by_label("To").select_option("place")
    page.get_by_role("dialog").get_by_role("textbox").fill("12")
    page.click("role=button[name='Reset cursor']")
    page.wait_for_selector("text=slow was reset")
    assert api.call("GET", "/v0/topics/read/cursors/slow")["seq"] == 12
    page.click("role=button[name='Reset slow']")
    page.get_by_role("dialog").get_by_label("To").select_option("end")
    page.click("role=button[name='Reset cursor']")
    page.wait_for_selector("role=row >> text=caught up")
    assert api.call("GET", "/v0/topics/read/cursors/slow")["seq"] == 20
    page.click("role=button[name='Delete slow']")
    page.click("role=button[name='Delete cursor']")
    page.wait_for_selector("text=slow deleted")
    assert not api.call("DELETE", "/v0/topics/read/cursors/slow")["deleted"]


def test_a_queue_is_purged_after_its_name_was_typed(console: Callable[..., Console], api: Api) -> None:
    api.call("PUT", "/v0/topics/full", {"type": "queue"})
    api.write("full", 1, 2, 3)
    page = console().open("topics/full/jobs")
    page.click("role=button[name=Purge]")
    page.get_by_label("Type full to go on").fill("full")
    page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    page.wait_for_selector("text=3 jobs deleted")
    assert api.call("GET", "/v0/topics/full")["count"] == 0


CHANGES = ("Send", "New topic", "New router", "Delete topic", "Send it again")


def offered(page: Console) -> set[str]:
    found: set[str] = set()
    for view, sign in (
        ("topics", "role=row >> nth=1"),
        ("routers", "h1"),
        ("topics/shop.orders?seq=1", "text=Record 1"),
        ("topics/shop.orders/config", "text=idempotency_window_ms"),
    ):
        page.open(view)
        page.page.wait_for_selector(sign)
        found |= {name for name in CHANGES if page.page.get_by_role("button", name=name, exact=True).count()}
    return found


def test_read_only_offers_no_change_and_is_remembered(console: Callable[..., Console]) -> None:
    page = console()
    assert offered(page) == set(CHANGES)
    page.page.click("role=button[name='Changes are possible']")
    assert offered(page) == set()
    page.page.reload()
    assert offered(page) == set()


KEYS = "all,reader:read,writer:rw,eu:read:eu."


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(tmp_path_factory.mktemp("guarded"), api_keys=KEYS) as server:
        api = Api(server, key="all")
        api.write("shop.orders", {"data": 1, "meta": {}})
        api.write("eu.a", 1)
        api.close()
        yield server


def sign_in(page: Console, key: str, *, keep: bool = False) -> None:
    page.open()
    page.page.get_by_label("API key").fill(key)
    if keep:
        page.page.get_by_label("Keep it until this tab is closed").check()
    page.page.click("role=button[name='Sign in']")
    page.page.wait_for_selector("text=Log and checkpoints")


def test_a_key_opens_what_it_may_and_nothing_else_is_offered(browser: Any, guarded: Any) -> None:
    for key, expected in (("all", set(CHANGES)), ("reader", set()), ("writer", {"Send", "Send it again"})):
        page = Console(browser, guarded)
        addresses: list[str] = []
        page.page.on("request", lambda request, seen=addresses: seen.append(request.url))
        sign_in(page, key)
        assert offered(page) == expected
        assert not [address for address in addresses if key in address.split("/console")[0].split("?")[-1]]
        assert page.page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        page.close()


def test_a_key_with_prefixes_sees_its_own_topics(browser: Any, guarded: Any) -> None:
    page = Console(browser, guarded)
    sign_in(page, "eu")
    page.open("topics")
    page.page.wait_for_selector("role=row >> text=eu.a")
    assert page.page.get_by_text("shop.orders").count() == 0
    page.close()


def test_a_wrong_key_is_refused_and_a_kept_one_survives_a_reload(browser: Any, guarded: Any) -> None:
    page = Console(browser, guarded)
    page.open()
    page.page.get_by_label("API key").fill("nobody")
    page.page.click("role=button[name='Sign in']")
    page.page.wait_for_selector("text=The server does not know this key.")
    sign_in(page, "reader", keep=True)
    page.page.reload()
    page.page.wait_for_selector("text=Log and checkpoints")
    page.page.click("text=Sign out")
    page.page.wait_for_selector("text=Sign in")
    page.page.reload()
    page.page.wait_for_selector("text=Sign in")
    assert page.page.evaluate("sessionStorage.length") == 0
    page.close()


def test_the_page_may_run_nothing_but_its_own_files(guarded: Any, tmp_path: Path) -> None:
    import httpx

    answer = httpx.get(guarded.url + "/console")
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200
    for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe" not in policy
    assert httpx.get(guarded.url + "/v0/topics").status_code == 401
