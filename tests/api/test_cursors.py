"""Named cursors over HTTP: commit, reset, take-over, hold, lists (`docs/spec/readers.md#sec-1`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.client import Client
from tests.api.server import LiveServer


def commit(client: Client, topic: str, name: str, position: int | str, *, status: int = 200, **more: Any) -> Any:
    return client.ok("POST", f"/v0/topics/{topic}/cursors/{name}", {"position": position, **more}, status=status)


def put(client: Client, topic: str, name: str, *, status: int = 200, **fields: Any) -> Any:
    return client.ok("PUT", f"/v0/topics/{topic}/cursors/{name}", fields, status=status)


def shown(client: Client, topic: str, name: str) -> Any:
    return client.ok("GET", f"/v0/topics/{topic}/cursors/{name}")


def test_a_first_commit_makes_the_cursor_and_a_later_one_moves_it(client: Client, topic: str) -> None:
    written = client.write(topic, 1, 2, 3, status=201)
    answer = commit(client, topic, "billing", 1, status=201)
    assert (answer["seq"], answer["moved"], answer["created"], answer["kind"]) == (1, True, True, "cursor")
    assert answer["lag"]["records"] == 2
    assert answer["lag"]["bytes"] == 2
    assert answer["lag"]["ms"] >= 0
    answer = commit(client, topic, "billing", written["position"], meta={"host": "a"})
    assert (answer["seq"], answer["position"], answer["created"]) == (3, written["position"], False)
    assert answer["lag"] == {"records": 0, "bytes": 0, "ms": 0}
    assert shown(client, topic, "billing")["meta"] == {"host": "a"}


def test_a_commit_never_moves_a_cursor_back(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3, status=201)
    commit(client, topic, "c", 3, status=201)
    answer = commit(client, topic, "c", 1)
    assert (answer["seq"], answer["moved"]) == (3, False)


def test_a_commit_beyond_the_head_or_of_another_life_is_refused_and_moves_nothing(client: Client, topic: str) -> None:
    old = client.write(topic, *range(5), status=201)["position"]
    client.ok("DELETE", f"/v0/topics/{topic}")
    client.write(topic, *range(9), status=201)
    commit(client, topic, "c", 1, status=201)
    for position in (10, old):
        refusal = client.send("POST", f"/v0/topics/{topic}/cursors/c", {"position": position})
        client.refused(refusal, 409, "cursor_foreign", {"topic": topic, "cursor": "c", "head_seq": 9})
    assert shown(client, topic, "c")["seq"] == 1


def test_a_reset_goes_anywhere(client: Client, topic: str) -> None:
    client.write(topic, *range(5), status=201)
    assert put(client, topic, "c", status=201)["seq"] == 0
    assert put(client, topic, "c", to="end")["seq"] == 5
    assert put(client, topic, "c", to={"seq": 2})["seq"] == 2
    assert put(client, topic, "c", to="start")["seq"] == 0
    assert put(client, topic, "c", to={"ts": 2**52})["seq"] == 5
    assert put(client, topic, "c", to={"ts": 1})["seq"] == 0
    assert put(client, topic, "c", meta={"only": "this"})["seq"] == 0


def test_whoever_took_a_cursor_over_fences_the_owner_before(client: Client, topic: str) -> None:
    client.write(topic, *range(5), status=201)
    first = put(client, topic, "c", owner="one", status=201)["fence"]
    commit(client, topic, "c", 1, fence=first)
    second = put(client, topic, "c", owner="two")["fence"]
    assert second == first + 1
    for fence in ({"fence": first}, {}):
        refusal = client.send("POST", f"/v0/topics/{topic}/cursors/c", {"position": 4, **fence})
        client.refused(refusal, 409, "cursor_fenced", {"topic": topic, "cursor": "c", "owner": "two", "fence": second})
    assert commit(client, topic, "c", 2, fence=second)["seq"] == 2


def test_many_commits_are_each_judged_for_themselves(client: Client, topic: str) -> None:
    client.write(topic, *range(3), status=201)
    commits = [
        {"topic": topic, "cursor": "a", "position": 2},
        {"topic": topic, "cursor": "b", "position": 9},
        {"topic": "absent", "cursor": "a", "position": 0},
        {"topic": topic, "cursor": "bad name", "position": 1},
    ]
    results = client.ok("POST", "/v0/cursors", {"commits": commits})["results"]
    assert results[0] == {"topic": topic, "cursor": "a", "seq": 2, "moved": True}
    codes = [result["error"]["code"] for result in results[1:]]
    assert codes == ["cursor_foreign", "topic_not_found", "invalid_request"]


def test_one_list_shows_cursors_routers_and_queues(client: Client, topic: str) -> None:
    client.put(f"{topic}.q", type="queue")
    client.write(f"{topic}.q", 1, 2)
    client.write(f"{topic}.s", 1, status=201)
    client.ok("PUT", f"/v0/routers/{topic}r", {"source": f"{topic}.s", "dest": f"{topic}.d"}, status=201)
    commit(client, f"{topic}.s", "z", 0, status=201)
    commit(client, f"{topic}.s", "a", 1, status=201)
    listed = client.ok("GET", f"/v0/cursors?prefix={topic}.")["cursors"]
    assert [(one["topic"], one["kind"], one["cursor"]) for one in listed] == [
        (f"{topic}.q", "queue", f"{topic}.q"),
        (f"{topic}.s", "cursor", "a"),
        (f"{topic}.s", "cursor", "z"),
        (f"{topic}.s", "router", f"{topic}r"),
    ]
    assert [one["lag"]["records"] for one in listed] == [2, 0, 1, 0]
    pages, token = [], ""
    while True:
        page = client.ok("GET", f"/v0/cursors?prefix={topic}.&page_size=1{token}")
        pages += page["cursors"]
        if page["next_cursor"] is None:
            break
        token = f"&cursor={page['next_cursor']}"
    assert [one["cursor"] for one in pages] == [one["cursor"] for one in listed]
    assert len(client.ok("GET", f"/v0/topics/{topic}.s/cursors")["cursors"]) == 3


def test_a_dropped_cursor_is_gone_and_dropping_it_again_says_so(client: Client, topic: str) -> None:
    client.write(topic, 1, status=201)
    commit(client, topic, "c", 1, status=201)
    path = f"/v0/topics/{topic}/cursors/c"
    assert client.ok("DELETE", path)["deleted"] is True
    assert client.ok("DELETE", path)["deleted"] is False
    client.refused(client.send("GET", path), 404, "cursor_not_found", {"topic": topic, "cursor": "c"})


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("POST", {}),
        ("POST", {"position": "nonsense"}),
        ("POST", {"position": 1, "meta": [1]}),
        ("POST", {"position": 1, "meta": {"x": "y" * 5000}}),
        ("PUT", {"to": "middle"}),
        ("PUT", {"to": {"seq": 1, "ts": 2}}),
        ("PUT", {"to": {}}),
        ("PUT", {"hold": {}}),
        ("PUT", {"owner": ""}),
        ("PUT", {"owner": "x" * 129}),
    ],
)
def test_bad_input_is_named_and_changes_nothing(client: Client, topic: str, method: str, body: Any) -> None:
    client.write(topic, 1, status=201)
    client.refused(client.send(method, f"/v0/topics/{topic}/cursors/c", body), 400, "invalid_request")
    assert client.ok("GET", f"/v0/topics/{topic}/cursors")["cursors"] == []


def test_a_hold_keeps_what_a_cap_would_take_up_to_its_bound(client: Client, topic: str) -> None:
    client.put(topic, cap_records=2)
    client.write(topic, 1)
    put(client, topic, "slow", to="start", hold={"records": 5}, status=201)
    for number in range(2, 6):
        client.write(topic, number)
    assert client.state(topic)["count"] == 5
    client.write(topic, 6)  # past the bound: the oldest goes, and is announced
    read = client.diff(topic)
    assert read["tombstone"]["reason"] == "cap"
    assert (read["tombstone"]["gap_to"], len(read["records"])) == (1, 5)
    commit(client, topic, "slow", 3)
    assert client.state(topic)["earliest_seq"] == 4
    put(client, topic, "slow", hold=None)
    assert client.state(topic)["count"] == 2


def test_a_hold_keeps_what_a_byte_cap_would_take(client: Client, topic: str) -> None:
    client.put(topic, cap_bytes=4)
    put(client, topic, "slow", hold={"bytes": 8}, status=201)
    for number in range(1, 10):
        client.write(topic, number)
    state = client.state(topic)
    assert (state["bytes"], state["earliest_seq"]) == (8, 2)
    commit(client, topic, "slow", 9)
    assert client.state(topic)["bytes"] == 4


def test_thousands_of_cursors_are_listed_in_several_turns(client: Client, topic: str) -> None:
    client.write(topic, *range(10), status=201)
    names = [f"c{number:04}" for number in range(1200)]
    for first in (0, 600):
        commits = [{"topic": topic, "cursor": name, "position": 4} for name in names[first : first + 600]]
        client.ok("POST", "/v0/cursors", {"commits": commits})
    listed = client.ok("GET", f"/v0/topics/{topic}/cursors")["cursors"]
    assert [state["cursor"] for state in listed] == names
    assert {state["lag"]["records"] for state in listed} == {6}
    paged: list[str] = []
    token: str | None = ""
    while token is not None:
        page = client.ok("GET", f"/v0/cursors?prefix={topic}&page_size=500&cursor={token}")
        paged += [state["cursor"] for state in page["cursors"] if state["topic"] == topic]
        token = page["next_cursor"]
    assert paged == names


def test_cursors_survive_a_restart_and_a_snapshot(tmp_path: Path) -> None:
    def run(step: Any) -> Any:
        with LiveServer(tmp_path) as live:
            client = Client(live.port, http2=False)
            try:
                return step(client)
            finally:
                client.close()

    def first(client: Client) -> None:
        client.write("t", *range(9), status=201)
        commit(client, "t", "a", 4, status=201, meta={"k": 1})
        put(client, "t", "b", owner="me", hold={"records": 100}, to="end", status=201)
        commit(client, "t", "gone", 1, status=201)
        client.ok("DELETE", "/v0/topics/t/cursors/gone")

    def listed(client: Client) -> Any:
        return client.ok("GET", "/v0/cursors")["cursors"]

    run(first)
    after = run(listed)
    assert [(one["cursor"], one["seq"], one.get("fence", 0)) for one in after] == [("a", 4, 0), ("b", 9, 1)]
    assert after[0]["meta"] == {"k": 1}
    assert after[1]["hold"] == {"records": 100}
    assert run(listed)[0]["updated_ts"] == after[0]["updated_ts"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("guarded"), api_keys="ops, dash:read:eu., shop:rw:eu.") as live:
        yield live


def test_a_key_commits_and_sees_only_what_its_prefixes_permit(guarded: LiveServer, dialect: str) -> None:
    ops, dash, shop = (Client(guarded.port, http2=dialect == "h2c", key=key) for key in ("ops", "dash", "shop"))
    try:
        for name in ("eu.a", "us.b"):
            ops.send("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]})
        ops.send("POST", "/v0/topics/us.b/cursors/c", {"position": 1})
        dash.send("POST", "/v0/topics/eu.a/cursors/c", {"position": 1})
        assert [one["topic"] for one in dash.ok("GET", "/v0/cursors")["cursors"]] == ["eu.a"]
        dash.refused(dash.send("POST", "/v0/topics/us.b/cursors/c", {"position": 1}), 403, "forbidden")
        dash.refused(dash.send("PUT", "/v0/topics/eu.a/cursors/c", {"to": "start"}), 403, "forbidden")
        hold = shop.send("PUT", "/v0/topics/eu.a/cursors/c", {"hold": {"records": 5}})
        shop.refused(hold, 403, "forbidden")
        many = dash.send("POST", "/v0/cursors", {"commits": [{"topic": "us.b", "cursor": "c", "position": 1}]})
        dash.refused(many, 403, "forbidden", {"topic": "us.b"})
    finally:
        for client in (ops, dash, shop):
            client.close()
