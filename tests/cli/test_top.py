"""`topics top`: what it tells, and the page on a pseudo-terminal."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import Shell

from topics.cli.data.top import Glance, told_of
from topics.model.results import CursorLag, CursorState, QueueCounters, TopicSummary


def topic(name: str, head: int, **more: Any) -> TopicSummary:
    return TopicSummary(
        topic=name, head_seq=head, earliest_seq=1, count=head, bytes=10, durable=True, effective_priority=0, **more
    )


def look(at_s: float, frames: int, *topics: TopicSummary, readers: tuple[CursorState, ...] = ()) -> Glance:
    names = ("topics", "routers", "records_live", "bytes_live", "sse_connections", "queue_leases_in_flight")
    wal = {"frames": frames, "bytes_written": 0, "batches": 0, "fsyncs": 0}
    queue = QueueCounters(3, 1, 0, 0)
    metrics = {**dict.fromkeys(names, 0), "ready": True, "wal": wal}
    return Glance(at_s, {"version": "1", "uptime_ms": 5}, metrics, list(topics), {"jobs": queue}, list(readers))


def reader(name: str, behind: int) -> CursorState:
    lag = CursorLag(behind, 0, behind)
    return CursorState(topic="a", cursor=name, kind="cursor", seq=0, position="0", lag=lag, updated_ts=None)


def test_rates_are_differences_and_the_busiest_come_first() -> None:
    before = look(10.0, 100, topic("a", 50), topic("b", 50))
    now = look(12.0, 300, topic("a", 52), topic("b", 70), topic("new", 4), readers=(reader("x", 1), reader("y", 9)))
    told = told_of(before, now, rows=2)
    assert told["per_s"]["frames"] == 100
    assert [(row["topic"], row["records_per_s"]) for row in told["topics"]] == [("b", 10), ("new", 2)]
    assert [row["reader"] for row in told["readers"]] == ["y", "x"]


def test_a_server_that_began_anew_has_no_negative_rate() -> None:
    told = told_of(look(0.0, 900, topic("a", 9)), look(1.0, 5, topic("a", 1)), rows=5)
    assert (told["per_s"]["frames"], told["topics"][0]["records_per_s"]) == (0, 0)


def test_once_as_json_tells_what_is_there(shell: Shell) -> None:
    shell.client.queue("top-jobs").append(1)
    shell.client.topic("top-a").append(1)
    shell.client.router("top-r").put(source="top-a", dest="top-b")
    (line,) = shell.lines("top", "--once", "--json", "--interval", "0.1", "--prefix", "top-")
    told = json.loads(line)
    assert {row["topic"] for row in told["topics"]} == {"top-a", "top-b", "top-jobs"}
    assert [(row["queue"], row["ready"]) for row in told["queues"]] == [("top-jobs", 1)]
    assert ("top-r", "router") in {(row["reader"], row["kind"]) for row in told["readers"]}


def test_a_pipe_gets_the_page_as_text(shell: Shell) -> None:
    shell.client.topic("top-a").append(1)
    shown = shell.run("top", "--once", "--interval", "0.1").stdout
    assert "frames/s" in shown
    assert "top-a" in shown
    assert "\x1b" not in shown


def test_a_terminal_gets_a_page_of_its_own_that_ends_with_q(shell: Shell) -> None:
    shell.client.topic("top-a").append(1)
    shown = shell.on_terminal("top", "--interval", "0.1", "--prefix", "top-a", answer="q", after="records/s")
    assert shown.count("\x1b[?1049h") == shown.count("\x1b[?1049l") == 1  # the other screen, and back
    assert "top-a" in shown


def test_ctrl_c_ends_it_as_well(shell: Shell) -> None:
    shown = shell.on_terminal("top", "--interval", "0.1", answer="\x03", after="frames/s")
    assert "Traceback" not in shown
