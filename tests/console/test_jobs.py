"""Jobs and schedules: each state is told, and each action is asked for first and then done on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.console.conftest import fill_queue
from tests.console.pages import Api, Console, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def answer(page: Any, button: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=button).click()


def states(api: Api, queue: str) -> dict[int, str]:
    return {job["seq"]: job["state"] for job in api.call("GET", f"/v0/topics/{queue}/jobs")["jobs"]}


def test_each_state_of_a_job_is_told(console: Callable[..., Console], api: Api) -> None:
    fill_queue(api, "told")
    page = console().open("topics/told/jobs")
    page.wait_for_selector("role=row >> text=worker-2")
    shown = page.locator("section[aria-label=Jobs]").inner_text().split("\n")
    figures = {name: shown[shown.index(name) + 1] for name in ("Ready", "In flight", "Delayed", "Dead")}
    assert figures == {"Ready": "4", "In flight": "2", "Delayed": "1", "Dead": "1"}
    for state, sign in (
        ("In flight", "left"),
        ("Delayed", "in 59 min"),
        ("Done", '{"sent":true}'),
        ("Dead", "no mailbox"),
        ("Workers", "worker-2"),
    ):
        page.click(f"role=group[name=Shown] >> text={state}")
        page.wait_for_selector(f"role=row >> text={sign} >> nth=0")
    page.click("role=group[name=Shown] >> text=All")
    page.wait_for_selector('role=row >> text={"job": 3}')
    page.get_by_label("With this tag").fill("later")
    page.wait_for_function("() => document.querySelectorAll('.rows .tr').length === 1")


def test_jobs_are_cancelled_retried_moved_and_redriven(console: Callable[..., Console], api: Api) -> None:
    fill_queue(api, "acted")
    api.call("PUT", "/v0/topics/elsewhere", {"type": "queue"})
    page = console().open("topics/acted/jobs")
    page.click("role=button[name='Retry job 9 now']")
    assert states(api, "acted")[9] == "delayed"  # nothing before it is confirmed
    answer(page, "Retry now")
    page.wait_for_selector("text=job 9 is ready")
    assert states(api, "acted")[9] == "ready"
    page.click("role=button[name='Cancel job 8']")
    answer(page, "Cancel job")
    page.wait_for_selector("text=job 8 cancelled")
    assert 8 not in states(api, "acted")
    page.click("role=button[name='Move job 7']")
    page.get_by_label("To the queue").fill("elsewhere")
    answer(page, "Move job")
    page.wait_for_selector("text=job 7 is in elsewhere")
    assert api.call("GET", "/v0/topics/elsewhere")["count"] == 1
    page.click("role=group[name=Shown] >> text=Dead")
    page.click("role=button[name='Redrive job 2']")
    answer(page, "Redrive")
    page.wait_for_selector("text=1 job back in acted")
    assert api.call("GET", "/v0/topics/acted.dead")["count"] == 0
    claimed = api.call("POST", "/v0/topics/acted/claim", {"node": "worker-1", "max": 2})["claimed"]
    failed = {"node": "worker-1", "seqs": [job["$seq"] for job in claimed], "error": "again", "final": True}
    api.call("POST", "/v0/topics/acted/nack", failed)
    page.click("role=button[name=Redrive]")
    answer(page, "Redrive")
    page.wait_for_selector("text=2 jobs back in acted")
    assert api.call("GET", "/v0/topics/acted.dead")["count"] == 0


def test_a_queue_is_paused_and_resumed_and_the_overview_says_so(console: Callable[..., Console], api: Api) -> None:
    fill_queue(api, "stopped")
    page = console().open("topics/stopped/jobs")
    page.click("role=button[name=Pause]")
    answer(page, "Pause queue")
    page.wait_for_selector("text=stopped is paused")
    assert api.call("GET", "/v0/topics/stopped")["config"]["paused"] is True
    page = console().open()
    page.wait_for_selector("text=stopped is paused with 4 ready jobs")
    page.click("text=stopped gave up on 1 job")
    page.wait_for_selector("role=row >> text=no mailbox")
    page.click("role=button[name=Resume]")
    answer(page, "Resume queue")
    page.wait_for_selector("text=stopped goes on")
    assert "paused" not in api.call("GET", "/v0/topics/stopped")["config"]


def test_a_schedule_is_created_run_paused_and_deleted(console: Callable[..., Console], api: Api) -> None:
    page = console().open("schedules")
    page.click("role=button[name='New schedule']")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("nightly")
    dialog.get_by_label("Appends to the topic").fill("reports")
    dialog.get_by_label("Time zone").fill("Europe/Berlin")
    dialog.get_by_label("Data, any JSON").fill('{"id": 12345678901234567890}')
    dialog.get_by_role("button", name="Create").click()
    page.click("role=row >> text=nightly")
    page.wait_for_selector("text=0 3 * * * Europe/Berlin")
    page.wait_for_selector("text=12345678901234567890")
    page.click("role=button[name='Run nightly now']")
    answer(page, "Run now")
    page.wait_for_selector('role=row >> text="appended"')  # exactly: a column is called Appended
    assert len(api.records("reports")) == 1
    page.click("role=button[name='Pause nightly']")
    answer(page, "Pause schedule")
    page.wait_for_selector("role=button[name='Resume nightly']")
    assert api.call("GET", "/v0/schedules/nightly")["paused"] is True
    page.click("role=button[name='Resume nightly']")
    answer(page, "Resume schedule")
    page.wait_for_selector("role=button[name='Pause nightly']")
    assert not api.call("GET", "/v0/schedules/nightly").get("paused")
    page.click("role=button[name='Delete nightly']")
    answer(page, "Delete schedule")
    page.wait_for_selector("text=nightly deleted")
    assert not api.call("DELETE", "/v0/schedules/nightly")["deleted"]


def test_a_failing_schedule_is_told_on_the_overview(console: Callable[..., Console]) -> None:
    page = console().open()
    page.click("text=schedule refused: topic 'full.up' is full")
    page.wait_for_selector("role=alert >> text=is full and refuses new records")


HOSTILE = "<img src=x onerror=window.hit=1>\u202e"


def test_hostile_workers_tags_and_errors_do_nothing_but_show(console: Callable[..., Console], api: Api) -> None:
    config = {"type": "queue", "dead_letter": "evil.dead", "max_deliveries": 9, "done": "evil.done"}
    api.call("PUT", "/v0/topics/evil", config)
    api.write("evil", *({"data": "x" * 1_000_000, "tag": HOSTILE} for _ in range(3)))
    one, two, three = (
        job["$seq"] for job in api.call("POST", "/v0/topics/evil/claim", {"node": HOSTILE, "max": 3})["claimed"]
    )
    api.call("POST", "/v0/topics/evil/nack", {"node": HOSTILE, "seqs": [one], "error": HOSTILE, "delay_ms": 600_000})
    api.call("POST", "/v0/topics/evil/nack", {"node": HOSTILE, "seqs": [two], "error": HOSTILE, "final": True})
    api.call("POST", "/v0/topics/evil/ack", {"node": HOSTILE, "seqs": [three], "results": [{"<b>": HOSTILE}]})
    api.call("PUT", "/v0/schedules/evil", {"topic": "evil.log", "every_ms": 60_000, "data": HOSTILE, "tag": HOSTILE})
    page = console()
    for view in ("all", "delayed", "done", "dead", "workers"):
        page.open(f"topics/evil/jobs?state={view}")
        page.page.wait_for_selector("role=row >> text=onerror >> nth=0")
        page.check_layout()
    page.open("schedules/evil")
    page.page.wait_for_selector("text=onerror >> nth=0")
    page.check_layout()
    assert page.page.evaluate("[window.hit, document.querySelectorAll('main img').length]") == [None, 0]


def test_a_job_is_cancelled_by_keyboard_alone(console: Callable[..., Console], api: Api) -> None:
    fill_queue(api, "keys")
    page = console().open("topics/keys/jobs?state=delayed")
    button = page.get_by_role("button", name="Cancel job 9")
    button.wait_for()
    for _ in range(60):
        if button.evaluate("element => element === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").focus()
    page.keyboard.press("Enter")
    wait_for(lambda: 9 not in states(api, "keys"))
