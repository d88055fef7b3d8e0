"""`docs/spec/http-api.md#sec-8-5` and `docs/spec/http-api.md#sec-8-7`: a key bound to prefixes neither reaches nor
learns a name outside them."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.client import JSON_TYPE, Client
from tests.api.live.sse_client import SseClient
from tests.api.server import LiveServer
from websockets.sync.client import connect

from topics.wire.endpoints import ENDPOINTS

SENTINEL = "s3nt1nel"
SECRET = f"us.{SENTINEL}"
OWN = ["eu.a", "eu.b", "eu.c", "eu.d", "eu.e", "eu.q", "eu.absent"]
OWN_ROUTERS = ["eu.out", "eu.in", "eu.own", "eu.absent"]
TIMEOUT_S = 10.0


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path, api_keys="ops,eu::eu.") as server:
        yield server


@pytest.fixture
def ops(live: LiveServer) -> Iterator[Client]:
    client = Client(live.port, http2=False, key="ops")
    yield client
    client.close()


@pytest.fixture
def bound(live: LiveServer) -> Iterator[Client]:
    client = Client(live.port, http2=False, key="eu")
    yield client
    client.close()


def lay_links(ops: Client) -> None:
    """Everything of the bound key's that an operator may have tied to topics outside: dead letters, routers from
    there and to there, and a chain through there that a new router could close."""
    ops.send("PUT", "/v0/topics/eu.q", {"type": "queue", "dead_letter": SECRET, "max_deliveries": 1, "lease_ms": 100})
    for router, source, dest in (
        ("eu.out", "eu.a", f"{SECRET}.b"),
        ("eu.in", f"{SECRET}.c", "eu.b"),
        (f"{SECRET}.r", "eu.a", "eu.c"),
        (f"{SECRET}.x", "eu.e", f"{SECRET}.d"),
        (f"{SECRET}.y", f"{SECRET}.d", "eu.d"),
    ):
        ops.send("PUT", f"/v0/routers/{router}", {"source": source, "dest": dest})
    ops.send("POST", f"/v0/topics/{SECRET}.c", {"records": [{"data": 1}]})
    ops.send("POST", "/v0/topics/eu.q", {"records": [{"data": 1}, {"data": 2}]})


# --- reaching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_a_bound_key_cannot_send_dead_letters_out_of_its_prefixes(ops: Client, bound: Client, kind: str) -> None:
    config = {"type": kind, "dead_letter": SECRET, "max_deliveries": 1}
    put = bound.send("PUT", "/v0/topics/eu.escape", config)
    bound.refused(put, 403, "forbidden", {"topic": SECRET})
    write = bound.send("POST", "/v0/topics/eu.escape", {"records": [{"data": 1}], "config": config})
    bound.refused(write, 403, "forbidden", {"topic": SECRET})
    ops.refused(ops.send("GET", "/v0/topics/eu.escape"), 404, "topic_not_found", {"topic": "eu.escape"})
    bound.ok("PUT", "/v0/topics/eu.kept", {**config, "dead_letter": "eu.dead"}, status=201)
    again = bound.send("POST", "/v0/topics/eu.kept", {"records": [{"data": 1}], "config": config})
    bound.refused(again, 403, "forbidden", {"topic": SECRET})  # although a config has no effect there
    ops.ok("DELETE", "/v0/topics/eu.kept")


def test_a_bound_key_cannot_reach_out_by_websocket(live: LiveServer, ops: Client) -> None:
    config = {"type": "queue", "dead_letter": SECRET}
    with connect(
        f"ws://127.0.0.1:{live.port}/v0/ws", additional_headers={"Authorization": "Bearer eu"}, compression=None
    ) as ws:
        for command in (
            {"op": "publish", "topic": "eu.ws", "records": [{"data": 1}], "config": config},
            {"op": "publish", "topic": SECRET, "records": [{"data": 1}]},
            {"op": "subscribe", "topics": {"eu.a": {}, SECRET: {}}, "lenient": True},
            {"op": "unsubscribe", "topic": SECRET},
        ):
            ws.send(json.dumps(command))
            assert json.loads(ws.recv(timeout=TIMEOUT_S))["code"] == "forbidden", command
    ops.refused(ops.send("GET", "/v0/topics/eu.ws"), 404, "topic_not_found", {"topic": "eu.ws"})


def test_a_start_names_queues_that_send_dead_letters_out_of_a_keys_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They may be from the time when the key could make them itself."""
    with LiveServer(tmp_path) as open_server:
        client = Client(open_server.port, http2=False)
        client.put("eu.q", type="queue", dead_letter=SECRET)
        client.put("eu.own", type="queue", dead_letter="eu.dead")
        client.put("us.q", type="queue", dead_letter="eu.dead")
        client.close()
    for keys, named in (("ops,eu::eu.", ["eu.q"]), ("ops,dash:read", []), (None, [])):
        caplog.clear()
        with LiveServer(tmp_path, api_keys=keys):
            told = [record.getMessage() for record in caplog.records if "dead letters of queue" in record.getMessage()]
        assert [re.findall("queue '([^']*)'", sentence)[0] for sentence in told] == named


# --- learning --------------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_said(ops: Client, bound: Client) -> None:
    lay_links(ops)
    state = bound.ok("GET", "/v0/topics/eu.q")
    assert (state["config"]["dead_letter"], state["hidden"]) == (None, ["config.dead_letter"])
    assert "hidden" not in ops.ok("GET", "/v0/topics/eu.q")
    bound.refused(bound.send("GET", "/v0/routers/eu.out"), 403, "forbidden")
    cycle = bound.send("PUT", "/v0/routers/eu.new", {"source": "eu.d", "dest": "eu.e"})
    bound.refused(cycle, 409, "router_cycle", {"cycle": ["eu.d", "eu.e", "eu.d"], "hidden": ["cycle"]})
    repoint = bound.send("PUT", "/v0/routers/eu.out", {"source": "eu.a", "dest": "eu.z"})
    expected = {
        "router": "eu.out",
        "reason": "router_repoint_forbidden",
        "hidden": ["existing_source", "existing_dest"],
    }
    bound.refused(repoint, 409, "topic_exists_incompatible", expected)
    metrics = bound.send("GET", "/v0/metrics").text
    assert 'topics_topic_head_seq{topic="eu.q"}' in metrics
    assert SENTINEL not in metrics
    assert SENTINEL in ops.send("GET", "/v0/metrics").text
    dropped = bound.ok("DELETE", "/v0/topics/eu.a")
    assert (dropped["routers_removed"], dropped["hidden"]) == ([], ["routers_removed"])


def revealed(text: bytes) -> bool:
    """Is the name there, plainly or in one of the texts that cursors and ids are made of?"""
    if SENTINEL.encode() in text:
        return True
    for token in re.findall(rb"[A-Za-z0-9_-]{16,}", text):
        if SENTINEL.encode() in base64.urlsafe_b64decode(token[: len(token) // 4 * 4]):
            return True
    return False


def random_config(rng: random.Random) -> dict[str, Any]:
    config: dict[str, Any] = {"type": rng.choice(["log", "queue"]), "ttl_ms": rng.choice([0, 60_000])}
    if rng.random() < 0.5:
        config |= {"dead_letter": rng.choice([*OWN, "eu bad", ""]), "max_deliveries": 1}
    return config


def random_body(rng: random.Random, handler: str) -> Any:
    name = rng.choice(OWN)
    seqs = [rng.randrange(4) for _ in range(3)]
    bodies: dict[str, Any] = {
        "put_topic": random_config(rng),
        "write": {"records": [{"data": 1}], "config": rng.choice([None, random_config(rng)])},
        "diff": {"from_seq": rng.randrange(5)},
        "delete_records": {"before_seq": rng.randrange(3)},
        "claim": {"node": "n", "max": 3, "lease_ms": 100},
        "ack": {"node": "n", "seqs": seqs},
        "nack": {"node": "n", "seqs": seqs},
        "extend": {"node": "n", "seqs": seqs, "lease_ms": 1000},
        "put_router": {"source": name, "dest": rng.choice(OWN), "create_dest": rng.random() < 0.5},
        "create_watch": {"topics": {name: {}, rng.choice(OWN): {"tail": True}}},
    }
    return bodies.get(handler)


QUERIES = ["", "", "page_size=1", "cursor=eyJhZnRlciI6InVzLiJ9", "prefix=us.", "if_empty=1", "lenient=1", "from_seq=1"]


def random_request(rng: random.Random) -> tuple[str, str, Any]:
    row = rng.choice([row for row in ENDPOINTS if row.media != "text/event-stream"])
    path = row.path.replace("{topic}", rng.choice(OWN)).replace("{router}", rng.choice(OWN_ROUTERS))
    path = path.replace("{file}", "app.js")
    method = row.method if rng.random() < 0.95 else rng.choice(["PATCH", "HEAD", "OPTIONS", "DELETE"])
    query = rng.choice(QUERIES)
    return method, f"{path}?{query}" if query else path, random_body(rng, row.handler)


def answer_bytes(response: httpx.Response) -> bytes:
    return b"\n".join(name + b": " + value for name, value in response.headers.raw) + b"\n\n" + response.content


@pytest.mark.parametrize("seed", range(6))
def test_no_answer_to_a_bound_key_contains_a_foreign_name(
    live: LiveServer, ops: Client, bound: Client, seed: int
) -> None:
    rng = random.Random(seed)
    statuses = set()
    for step in range(240):
        if step % 12 == 0:
            lay_links(ops)
        method, path, body = random_request(rng)
        headers = {"accept": "application/json"} if rng.random() < 0.3 else {}
        content = None if body is None else json.dumps(body).encode()
        response = bound.raw(method, path, content=content, headers={**JSON_TYPE, **headers})
        statuses.add(response.status_code)
        assert not revealed(answer_bytes(response)), (seed, step, method, path, body, response.text)
    assert {200, 403, 404, 409} <= statuses


@pytest.mark.parametrize("seed", range(2))
def test_no_stream_to_a_bound_key_contains_a_foreign_name(
    live: LiveServer, ops: Client, bound: Client, seed: int
) -> None:
    lay_links(ops)
    key = {"authorization": "Bearer eu"}
    topics = ["eu.a", "eu.b", "eu.c", "eu.d", "eu.q"]
    wid = bound.ok("POST", "/v0/watch", {"topics": {name: {} for name in topics}})["wid"]
    with (
        SseClient(live.port, f"/v0/watch/{wid}", headers=key) as watch,
        SseClient(live.port, "/v0/topics/eu.q/work?node=w&max=5&lease_ms=100", headers=key) as work,
        connect(f"ws://127.0.0.1:{live.port}/v0/ws", additional_headers=key, compression=None) as ws,
    ):
        ws.send(json.dumps({"op": "subscribe", "topics": {name: {} for name in topics}}))
        heard = [ws.recv(timeout=TIMEOUT_S)]
        for name in topics:
            ops.write(name, seed)
        work.until(b"event: job")
        for name in topics:
            ops.ok("DELETE", f"/v0/topics/{name}")
        while sum('"topic_deleted"' in str(message) for message in heard) < len(topics):
            heard.append(ws.recv(timeout=TIMEOUT_S))
        work.until(b"event: error")
        while watch.received.count(b"event: topic-deleted") < len(topics):
            watch.received += next(watch._bytes)
        for received in (watch.received, work.received, *(str(message).encode() for message in heard)):
            assert not revealed(received)
