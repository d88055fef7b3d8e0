"""Watch sessions and their streams over real sockets, HTTP/1.1 and HTTP/2 (`docs/spec/http-api.md#sec-8-6`,
`docs/spec/http-api.md#sec-9` and `docs/spec/http-api.md#sec-17`)."""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from h2.connection import H2Connection
from tests.api.client import Client
from tests.api.live.sse_client import SseClient
from tests.api.server import LiveServer

_names = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data"), test_min_heartbeat_ms=100) as live:
        yield live


@pytest.fixture(params=["h1", "h2c"], scope="module")
def http2(request: pytest.FixtureRequest) -> bool:
    return str(request.param) == "h2c"


@pytest.fixture
def client(server: LiveServer, http2: bool) -> Iterator[Client]:
    made = Client(server.port, http2=http2)
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    return f"w{next(_names)}"


@pytest.fixture
def watch(server: LiveServer, client: Client, http2: bool) -> Iterator[Callable[..., SseClient]]:
    """Make a session and open its stream."""
    streams: list[SseClient] = []

    def open_stream(topics: dict[str, Any], *, headers: dict[str, str] | None = None, **fields: Any) -> SseClient:
        made = client.ok("POST", "/v0/watch", {"topics": topics, **fields})
        stream = SseClient(server.port, made["stream_url"], http2=http2, headers=headers)
        streams.append(stream)
        return stream.__enter__()

    yield open_stream
    for stream in streams:
        stream.close()


def wait_for(condition: Callable[[], bool], *, seconds: float = 5.0) -> None:
    """Sockets are real here, so what they cause has to be waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


# --- POST /v0/watch ---------------------------------------------------------------------------------------------------


def test_a_session_shows_where_each_topic_begins(client: Client, topic: str) -> None:
    client.write(topic, 1, 2, 3, status=201)
    made = client.ok("POST", "/v0/watch", {"topics": {topic: {"tail": True, "from_seq": 1}}})
    assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", made["wid"])
    assert made["stream_url"] == f"/v0/watch/{made['wid']}"
    assert made["session_ttl_ms"] == 300_000
    assert made["topics"] == {topic: {"from_seq": 3, "head_seq": 3, "earliest_seq": 1}}
    assert set(made) == {"wid", "stream_url", "session_ttl_ms", "topics", "performance"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"topics": {}},
        {"topics": []},
        {"topics": None},
        {"topics": {"a": None}},
        {"topics": {"a": 1}},
        {"topics": {"a": {"from_seq": -1}}},
        {"topics": {"a": {"from_seq": 1.0}}},
        {"topics": {"a": {"tail": 1}}},
        {"topics": {"a": {}}, "limit": "1"},
        {"topics": {"a": {}}, "limit": -1},
        {"topics": {"a": {}}, "heartbeat_ms": None},
        {"topics": {"a": {}}, "consistency": "Strong"},
        {"topics": {"a": {}}, "include_data": 1},
        {"topics": {"a": {}}, "node": 1},
        {"topics": {"a": {}}, "node": [1]},
        {"topics": {f"t{number}": {} for number in range(257)}},
    ],
)
def test_a_bad_body_is_400(client: Client, body: dict[str, Any]) -> None:
    client.refused(client.send("POST", "/v0/watch", body), 400, "invalid_request")


def test_the_order_of_the_checks(client: Client, topic: str) -> None:
    client.refused(client.raw("POST", "/v0/watch", content=b"{}"), 415, "unsupported_media_type")
    unknown = client.send("POST", "/v0/watch", {"topics": {topic: {}, "another": {}}})
    client.refused(unknown, 404, "topic_not_found", {"topic": topic})
    client.refused(client.send("GET", "/v0/watch"), 405, "method_not_allowed")


def test_256_topics_are_fine_and_unknown_ones_are_dropped_leniently(client: Client, topic: str) -> None:
    client.write(topic, 1, status=201)
    topics: dict[str, Any] = {topic: {}, **{f"unknown{number}": {} for number in range(255)}}
    assert list(client.ok("POST", "/v0/watch?lenient=1", {"topics": topics})["topics"]) == [topic]


def test_an_empty_session_ends_right_after_opening(server: LiveServer, client: Client, http2: bool) -> None:
    made = client.ok("POST", "/v0/watch?lenient=true", {"topics": {"nowhere": {}}})
    assert made["topics"] == {}
    with SseClient(server.port, made["stream_url"], http2=http2) as stream:
        assert stream.rest() == []
        assert stream.received == b"retry: 2000\n\n"


# --- the stream -------------------------------------------------------------------------------------------------------


def test_a_stream_has_its_headers_and_starts_at_once(
    watch: Callable[..., SseClient], client: Client, topic: str
) -> None:
    client.put(topic)
    stream = watch({topic: {}})
    assert stream.response.status_code == 200
    headers = stream.response.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers
    stream.until(b"\n\n")
    assert stream.received.startswith(b"retry: 2000\n\n")
    assert stream.next().event == "caught-up"


def test_every_frame_is_as_the_contract_draws_it(watch: Callable[..., SseClient], client: Client, topic: str) -> None:
    client.put(topic)
    stream = watch({topic: {}})
    stream.next("caught-up")
    client.write(topic, 1)
    stream.next("caught-up")
    for text in stream.received.split(b"\n\n")[1:-1]:
        lines = text.split(b"\n")
        assert [line.split(b": ")[0] for line in lines] == [b"id", b"event", b"data"]
        cursors = json.loads(base64.urlsafe_b64decode(lines[0][4:] + b"=="))
        assert cursors.keys() == {topic}
        assert b"=" not in lines[0]
        assert json.dumps(json.loads(lines[2][6:]), separators=(",", ":")).encode() == lines[2][6:]
    assert b"\r" not in stream.received


def test_a_write_arrives_in_every_protocol(watch: Callable[..., SseClient], client: Client, topic: str) -> None:
    client.put(topic)
    streams = [watch({topic: {}}) for _ in range(3)]
    for stream in streams:
        stream.next("caught-up")
    for number in range(10):
        client.write(topic, number)
    for stream in streams:
        seen: list[int] = []
        while len(seen) < 10:
            seen += [record["data"] for record in stream.next("record").data["records"]]
        assert seen == list(range(10))


def test_streams_resume_by_id_and_without(server: LiveServer, client: Client, topic: str, http2: bool) -> None:
    client.write(topic, 1, 2, 3, status=201)
    url = client.ok("POST", "/v0/watch", {"topics": {topic: {}}, "limit": 1})["stream_url"]
    with SseClient(server.port, url, http2=http2) as stream:
        ids = [stream.next("record").cursors for _ in range(3)]
        stream.next("caught-up")
    assert ids == [{topic: number} for number in (1, 2, 3)]
    last_id = base64.urlsafe_b64encode(json.dumps({topic: 1}).encode()).decode()
    with SseClient(server.port, url, http2=http2, headers={"Last-Event-ID": last_id}) as stream:
        assert [stream.next("record").data["to_seq"] for _ in range(2)] == [2, 3]
        stream.next("caught-up")
    for header in ("", "garbage!", "e30", last_id[:-1] + "!"):
        with SseClient(server.port, url, http2=http2, headers={"Last-Event-ID": header}) as stream:
            assert stream.next().event == "caught-up"


def test_the_longest_id_can_be_sent_back(server: LiveServer, client: Client, topic: str, http2: bool) -> None:
    client.write(topic, 1, 2, 3, status=201)
    url = client.ok("POST", "/v0/watch", {"topics": {topic: {}}})["stream_url"]
    with SseClient(server.port, url, http2=http2) as stream:
        stream.next("caught-up")
    cursors = {topic: 1, **{f"{number:255}".replace(" ", "x"): 2**64 - 1 for number in range(255)}}
    last_id = base64.urlsafe_b64encode(json.dumps(cursors, separators=(",", ":")).encode()).decode()
    with SseClient(server.port, url, http2=http2, headers={"Last-Event-ID": last_id}) as stream:
        assert stream.next("record").data["from_seq"] == 1


def test_a_silent_stream_beats(watch: Callable[..., SseClient], client: Client, topic: str) -> None:
    client.put(topic)
    stream = watch({topic: {}}, heartbeat_ms=1)
    stream.until(b": hb\n\n")


def test_a_deleted_topic_ends_its_stream(watch: Callable[..., SseClient], client: Client, topic: str) -> None:
    client.write(topic, 1, status=201)
    stream = watch({topic: {}})
    stream.next("caught-up")
    client.ok("DELETE", f"/v0/topics/{topic}")
    last = stream.rest()[-1]
    assert last.event == "topic-deleted"
    assert last.data == {"topic": topic, "head_seq": 0, "reason": "deleted"}


def test_a_strong_watch_gets_disk_records_after_the_next_sync(
    watch: Callable[..., SseClient], client: Client, topic: str
) -> None:
    client.write(topic, 1, status=201)
    stream = watch({topic: {}}, consistency="strong")
    stream.next("caught-up")
    client.write(topic, 2)
    assert stream.next("record").data["records"][0]["data"] == 2


def test_large_records_go_through(watch: Callable[..., SseClient], client: Client, topic: str) -> None:
    client.put(topic)
    stream = watch({topic: {}}, max_batch_bytes=8 << 20)
    stream.next("caught-up")
    for _ in range(2):
        client.write(topic, *["x" * 900_000] * 2)
    sizes: list[int] = []
    while len(sizes) < 4:
        sizes += [len(record["data"]) for record in stream.next("record").data["records"]]
    assert sizes == [900_000] * 4


def test_head_answers_like_get_without_a_body(client: Client, topic: str, server: LiveServer) -> None:
    client.put(topic)
    url = client.ok("POST", "/v0/watch", {"topics": {topic: {}}})["stream_url"]
    before = streams_open(server)
    response = client.raw("HEAD", url)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert streams_open(server) == before


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*", "text/html, */*;q=0.1", ""])
def test_a_suitable_accept_is_fine(watch: Callable[..., SseClient], client: Client, topic: str, accept: str) -> None:
    client.put(topic)
    assert watch({topic: {}}, headers={"accept": accept}).response.status_code == 200


def test_406_beats_404_beats_401(client: Client) -> None:
    wrong = client.raw("GET", "/v0/watch/wid_nope", headers={"accept": "application/json"})
    client.refused(wrong, 406, "not_acceptable")
    client.refused(client.raw("GET", "/v0/watch/wid_nope"), 404, "not_found")


# --- gone clients -----------------------------------------------------------------------------------------------------


def streams_open(server: LiveServer) -> int:
    return int(server.on_loop(lambda: len(server.app.live.streams)))  # type: ignore[union-attr]


@pytest.mark.parametrize("how", ["end", "reset", "half_close"])
def test_a_client_that_goes_frees_its_place_at_once(server: LiveServer, client: Client, topic: str, how: str) -> None:
    client.put(topic)
    url = client.ok("POST", "/v0/watch", {"topics": {topic: {}}, "heartbeat_ms": 60_000})["stream_url"]
    before = streams_open(server)
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.sendall(f"GET {url} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    wait_for(lambda: streams_open(server) == before + 1)
    if how == "half_close":
        raw.shutdown(socket.SHUT_WR)
    elif how == "reset":
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        raw.close()
    else:
        raw.close()
    began = time.monotonic()
    wait_for(lambda: streams_open(server) == before)
    assert time.monotonic() - began < 2
    raw.close()


def test_an_h2_stream_that_is_cancelled_frees_its_place(server: LiveServer, topic: str) -> None:
    client = Client(server.port, http2=False)
    client.put(topic)
    url = client.ok("POST", "/v0/watch", {"topics": {topic: {}}})["stream_url"]
    client.close()
    before = streams_open(server)
    peer = H2Connection()
    peer.initiate_connection()
    peer.send_headers(
        1, [(":method", "GET"), (":path", url), (":scheme", "http"), (":authority", "localhost")], end_stream=True
    )
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(peer.data_to_send())
        wait_for(lambda: streams_open(server) == before + 1)
        peer.receive_data(raw.recv(65_536))
        peer.reset_stream(1)
        raw.sendall(peer.data_to_send())
        wait_for(lambda: streams_open(server) == before)


# --- keys and caps ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    keys = "all,reader:read:open,other:read:open,writer:write"
    settings: dict[str, Any] = {
        "api_keys": keys,
        "max_sse_connections": 3,
        "max_sse_connections_per_key": 2,
        "max_watch_sessions": 6,
        "client_share": 1.0,
    }
    with LiveServer(tmp_path_factory.mktemp("guarded"), **settings) as live:
        admin = Client(live.port, http2=False, key="all")
        admin.put("open-a")
        admin.put("secret")
        admin.close()
        yield live


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def make_session(guarded: LiveServer, key: str, *topics: str) -> Any:
    client = Client(guarded.port, http2=False, key=key)
    try:
        return client.send("POST", "/v0/watch", {"topics": {name: {} for name in topics}})
    finally:
        client.close()


def status_of(guarded: LiveServer, url: str, headers: dict[str, str]) -> tuple[int, str]:
    with SseClient(guarded.port, url, headers=headers) as stream:
        code = "" if stream.response.status_code == 200 else str(stream.error()["code"])
        return stream.response.status_code, code


def test_a_session_is_open_to_its_own_key_alone(guarded: LiveServer) -> None:
    guarded.clock.ahead_ms += 300_000
    url = make_session(guarded, "reader", "open-a").json()["stream_url"]
    assert status_of(guarded, url, bearer("reader"))[0] == 200
    assert status_of(guarded, url + "?token=reader", {})[0] == 200
    for headers, query in [
        ({}, ""),
        (bearer("other"), ""),
        (bearer("all"), ""),
        (bearer("nobody"), ""),
        (bearer("other"), "?token=reader"),
        ({}, "?token=other"),
        ({"authorization": "bearer reader"}, ""),
    ]:
        assert status_of(guarded, url + query, headers) == (401, "unauthorized")
    assert status_of(guarded, "/v0/watch/wid_unknown", {}) == (404, "not_found")
    assert status_of(guarded, url, {"accept": "text/html"}) == (406, "not_acceptable")


def test_names_outside_the_allowlist_refuse_the_whole_call(guarded: LiveServer) -> None:
    refused = make_session(guarded, "reader", "open-a", "secret")
    assert refused.status_code == 403
    assert refused.json()["error"]["detail"] == {"topic": "secret"}
    unknown = make_session(guarded, "reader", "open-a", "no-such-topic-outside")
    assert unknown.status_code == 403
    assert make_session(guarded, "writer", "open-a").status_code == 403


def test_caps_on_streams_count_per_key_and_in_total(guarded: LiveServer) -> None:
    guarded.clock.ahead_ms += 300_000
    mine = make_session(guarded, "reader", "open-a").json()["stream_url"]
    theirs = make_session(guarded, "other", "open-a").json()["stream_url"]
    with (
        SseClient(guarded.port, mine, headers=bearer("reader")) as first,
        SseClient(guarded.port, mine, headers=bearer("reader")),
    ):
        first.until(b"retry")
        assert status_of(guarded, mine, bearer("reader")) == (429, "throttled")
        with SseClient(guarded.port, theirs, headers=bearer("other")) as other:
            other.until(b"retry")
            refused = SseClient(guarded.port, theirs, headers=bearer("other"))
            with refused:
                assert refused.response.status_code == 429
                assert refused.response.headers["retry-after"] == "1"
                assert refused.error()["detail"] == {"limit": "max_sse_connections", "max": 3}
    wait_for(lambda: streams_open(guarded) == 0)
    assert status_of(guarded, mine, bearer("reader"))[0] == 200


def test_the_session_cap_is_429_with_its_detail(guarded: LiveServer) -> None:
    wait_for(lambda: streams_open(guarded) == 0)  # a session's time runs from the end of its stream
    guarded.clock.ahead_ms += 300_000
    answers = [make_session(guarded, "all", "open-a") for _ in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 6 + [429]
    assert answers[-1].json()["error"]["detail"] == {"limit": "max_watch_sessions", "max": 6}
    guarded.clock.ahead_ms += 300_000
    assert make_session(guarded, "all", "open-a").status_code == 200


# --- the end ----------------------------------------------------------------------------------------------------------


def test_shutdown_is_announced_on_every_stream(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live:
        client = Client(live.port, http2=False)
        client.put("a")
        urls = [client.ok("POST", "/v0/watch", {"topics": {"a": {}}})["stream_url"] for _ in range(2)]
        streams = [SseClient(live.port, url, http2=bool(at)).__enter__() for at, url in enumerate(urls)]
        for stream in streams:
            stream.next("caught-up")
        client.close()
    for stream in streams:
        last = stream.rest()[-1]
        assert last.event == "error"
        assert last.data["code"] == "server_shutting_down"
        assert last.data["message"]
        stream.close()
