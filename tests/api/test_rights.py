"""`docs/spec/http-api.md#sec-3`, `docs/spec/http-api.md#sec-5`, `docs/spec/http-api.md#sec-8`,
`docs/spec/http-api.md#sec-9` and `docs/spec/http-api.md#sec-20`: order of refusals, keys, caps, probes, metrics."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.client import JSON_TYPE, Client
from tests.api.server import LiveServer

KEYS = "ops, dash:read , shop:rw:eu.|us., acme::acme:, del:delete, :read"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("guarded"), api_keys=KEYS) as live:
        yield live


AsKey = Callable[[str | None], Client]


@pytest.fixture
def as_key(guarded: LiveServer, dialect: str) -> Iterator[AsKey]:
    """Clients that present a key, closed at the end."""
    made: list[Client] = []

    def make(key: str | None) -> Client:
        made.append(Client(guarded.port, http2=dialect == "h2c", key=key))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize(
    "path", ["/v0/topics", "/v0/topics/a", "/nowhere", "/v0/metrics", "/openapi.json", "/v0/topics/a/nope"]
)
def test_without_a_key_every_path_is_401(as_key: AsKey, path: str) -> None:
    nobody = as_key(None)
    nobody.refused(nobody.send("GET", path), 401, "unauthorized")
    wrong = as_key("wrong")
    wrong.refused(wrong.send("GET", path), 401, "unauthorized")


@pytest.mark.parametrize("value", ["ops", "bearer ops", "Basic ops", "Bearer", "Token ops"])
def test_only_the_literal_bearer_form_is_a_key(guarded: LiveServer, value: str) -> None:
    response = httpx.get(f"http://127.0.0.1:{guarded.port}/v0/topics", headers={"authorization": value})
    assert response.status_code == 401


def test_the_query_token_counts_nowhere_here(guarded: LiveServer) -> None:
    assert httpx.get(f"http://127.0.0.1:{guarded.port}/v0/topics?token=ops").status_code == 401


def test_probes_need_no_key(as_key: AsKey) -> None:
    nobody = as_key(None)
    for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
        assert nobody.send("GET", path).status_code == 200


def test_a_missing_scope_is_403_before_existence_is_told(as_key: AsKey) -> None:
    dash = as_key("dash")
    for method, path in (
        ("PUT", "/v0/topics/a"),
        ("POST", "/v0/topics/a"),
        ("DELETE", "/v0/topics/a"),
        ("POST", "/v0/topics/a/claim"),
        ("POST", "/v0/topics/absent/ack"),
        ("PATCH", "/v0/topics/a"),
        ("GET", "/v0/topics/a/unknown"),
        ("PATCH", "/v0/routers/a"),
    ):
        dash.refused(dash.send(method, path), 403, "forbidden")
    assert dash.send("GET", "/v0/topics/absent").status_code == 404
    assert dash.send("PATCH", "/v0/topics").status_code == 405
    assert dash.send("GET", "/elsewhere").status_code == 404


def test_prefixes_limit_names_and_filter_lists(as_key: AsKey, dialect: str) -> None:
    ops, shop, acme = (as_key(key) for key in ("ops", "shop", "acme"))
    tail = f"{dialect}.x"
    for name in (f"eu.{tail}", f"us.{tail}", f"acme:{tail}", f"other.{tail}"):
        ops.ok("PUT", f"/v0/topics/{name}", {}, status=201)
    shop.refused(shop.send("GET", f"/v0/topics/other.{tail}"), 403, "forbidden")
    shop.refused(shop.send("POST", "/v0/topics/absent", {"records": [{"data": 1}]}), 403, "forbidden")
    assert shop.ok("POST", f"/v0/topics/eu.{tail}", {"records": [{"data": 1}]})["first_seq"] == 1
    names = [entry["topic"] for entry in shop.ok("GET", "/v0/topics?page_size=1000")["topics"]]
    assert all(name.startswith(("eu.", "us.")) for name in names)
    assert acme.ok("DELETE", f"/v0/topics/acme:{tail}")["deleted"] is True
    router = acme.send("PUT", f"/v0/routers/acme:{dialect}", {"source": "acme:s", "dest": "other"})
    acme.refused(router, 403, "forbidden", {"topic": "other"})


def test_config_on_a_creating_write_needs_admin(as_key: AsKey, dialect: str) -> None:
    shop = as_key("shop")
    name = f"eu.{dialect}.new"
    body = {"records": [{"data": 1}], "config": {"ttl_ms": 5}}
    shop.refused(shop.send("POST", f"/v0/topics/{name}", body), 403, "forbidden", {"topic": name})
    assert shop.send("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]}).status_code == 201
    assert shop.send("POST", f"/v0/topics/{name}", body).status_code == 200


def test_413_beats_415_beats_400_beats_404(tmp_path_factory: pytest.TempPathFactory, dialect: str) -> None:
    with LiveServer(tmp_path_factory.mktemp("small"), max_body_bytes=100) as live:
        client = Client(live.port, http2=dialect == "h2c")
        big, path = b"x" * 101, "/v0/topics/absent/delete"
        client.refused(
            client.raw("POST", path, content=big, headers={"content-type": "text/xml"}), 413, "payload_too_large"
        )
        client.refused(client.raw("POST", path, content=b"{"), 415, "unsupported_media_type")
        client.refused(client.raw("POST", path, content=b"{", headers=JSON_TYPE), 400, "invalid_request")
        exact = b'{"match":"' + b"x" * (100 - 12) + b'"}'
        client.refused(
            client.raw("POST", path, content=exact, headers=JSON_TYPE), 404, "topic_not_found", {"topic": "absent"}
        )
        client.close()


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 400),
        ("application/json; charset=utf-8", 400),
        ("APPLICATION/JSON", 415),
        ("application/problem+json", 415),
        ("text/plain", 415),
        ("application/xml", 415),
    ],
)
def test_content_types(client: Client, kind: str, status: int) -> None:
    assert client.raw("POST", "/v0/topics/t", content=b"{", headers={"content-type": kind}).status_code == status


def test_unknown_routes_and_methods(client: Client) -> None:
    for path in (
        "/v0",
        "/v0/",
        "/v0/topics/",
        "/v0/healthz",
        "/health",
        "/metrics/",
        "/v0/topics/a/b/c",
        "//v0/topics",
    ):
        client.refused(client.send("GET", path), 404, "not_found")
    client.refused(client.send("GET", "/v0/topics/nothere/diff"), 405, "method_not_allowed")
    client.refused(client.send("OPTIONS", "/v0/topics"), 405, "method_not_allowed")
    client.refused(client.send("POST", "/v0/health"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/v0/topics/a", {"PUT", "GET", "HEAD", "DELETE", "POST"}),
        ("/v0/topics/a/diff", {"POST"}),
        ("/v0/topics", {"GET", "HEAD"}),
        ("/%76%30/watch", {"POST"}),
    ],
)
def test_405_says_which_methods_there_are(client: Client, path: str, allow: set[str]) -> None:
    answer = client.send("PATCH", path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allow
    assert "allow" not in client.send("PATCH", "/v0/nowhere").headers


def test_head_answers_like_get_without_a_body(client: Client, topic: str) -> None:
    client.put(topic)
    response = client.raw("HEAD", f"/v0/topics/{topic}")
    assert response.status_code == 200
    assert response.content == b""
    assert client.raw("HEAD", "/v0/topics/absent").status_code == 404


def test_a_path_that_is_not_utf8(client: Client) -> None:
    client.refused(client.raw("GET", "/v0/topics/%FF"), 400, "invalid_request")


def test_a_write_that_waits_for_a_drop_brings_no_config_without_admin(tmp_path: Path) -> None:
    """When it came, the topic was there; it may not create it anew."""
    body = b'{"records":[{"data":1}],"config":{"ttl_ms":5}}'
    head = b" /v0/topics/t HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer shop\r\nContent-Type: application/json\r\n"
    with (
        LiveServer(tmp_path, api_keys="ops, shop:write+delete") as live,
        socket.socket() as one,
        socket.socket() as two,
    ):
        ops = Client(live.port, http2=False, key="ops")
        ops.put("t")
        for peer in (one, two):
            peer.settimeout(20)
            peer.connect(("127.0.0.1", live.port))
            peer.sendall(b"GET /v0/health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b'"ok"' in peer.recv(4096)

        def send_both() -> None:
            one.sendall(b"DELETE" + head + b"\r\n")
            two.sendall(b"POST" + head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

        live.on_loop(send_both)  # in one turn: the drop is not committed when the write comes
        assert b'"deleted":true' in one.recv(4096)
        answer = two.recv(4096)
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert answer.endswith(b'"detail":{"topic":"t"}}}')
        ops.refused(ops.send("GET", "/v0/topics/t"), 404, "topic_not_found", {"topic": "t"})
        ops.close()


# --- caps ------------------------------------------------------------------------------------------------------------


def test_topic_and_byte_caps(tmp_path_factory: pytest.TempPathFactory, dialect: str) -> None:
    with LiveServer(tmp_path_factory.mktemp("caps"), max_topics=2, max_routers=1, max_total_bytes=10) as live:
        client = Client(live.port, http2=dialect == "h2c")
        client.put("a")
        client.write("b", 1234, status=201)
        for response in (
            client.send("PUT", "/v0/topics/c", {}),
            client.send("POST", "/v0/topics/c", {"records": [{"data": 1}]}),
            client.send("PUT", "/v0/routers/r", {"source": "a", "dest": "c"}),
        ):
            client.refused(response, 429, "throttled", {"limit": "max_topics", "max": 2})
        client.put("a", status=200, ttl_ms=1)
        client.put("a", status=200)
        client.write("b", 123456)
        over = client.send("POST", "/v0/topics/b", {"records": [{"data": 1}]})
        client.refused(over, 429, "throttled", {"limit": "max_total_bytes", "max": 10})
        client.ok("POST", "/v0/topics/b/delete", {"before_seq": 2})
        client.write("b", 1)
        client.ok("PUT", "/v0/routers/r", {"source": "a", "dest": "b"}, status=201)
        full = client.send("PUT", "/v0/routers/r2", {"source": "b", "dest": "a", "allow_cycle": True})
        client.refused(full, 429, "throttled", {"limit": "max_routers", "max": 1})
        client.close()


# --- probes and metrics ----------------------------------------------------------------------------------------------


def test_probes(client: Client) -> None:
    health: dict[str, Any] = client.send("GET", "/v0/health").json()
    assert set(health) == {"status", "version", "uptime_ms"}
    ready = client.send("GET", "/readyz").json()
    assert set(ready) == {"status", "wal_replay_complete", "topics"}


FAMILIES = [
    "topics_topics",
    "topics_topics_by_class",
    "topics_routers",
    "topics_records_live",
    "topics_bytes_live",
    "topics_topic_head_seq",
    "topics_topic_earliest_seq",
    "topics_topic_records_live",
    "topics_topic_bytes_live",
    "topics_topic_queue_ready",
    "topics_topic_queue_in_flight",
    "topics_topic_metrics_truncated",
    "topics_queue_topics",
    "topics_queue_leases_in_flight",
    "topics_sse_connections",
    "topics_watch_sessions",
    "topics_ready",
    "topics_recovery_progress",
    "topics_uptime_ms",
    "topics_wal_frames_total",
    "topics_wal_batches_total",
    "topics_wal_fsyncs_total",
    "topics_wal_bytes_written_total",
    "topics_wal_rotations_total",
    "topics_wal_queue_depth",
    "topics_wal_queue_depth_peak",
    "topics_wal_submit_full_total",
    "topics_wal_read_only",
    "topics_wal_fsync_latency_us",
]


def test_metrics_text_has_the_families_in_order(client: Client, topic: str) -> None:
    client.put(topic, type="queue")
    response = client.send("GET", "/v0/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert typed[: len(FAMILIES)] == FAMILIES
    helped = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert helped == typed
    assert f'topics_topic_queue_ready{{topic="{topic}"}} 0' in lines
    for name in ("ephemeral", "memory", "disk", "fsync"):
        assert any(line.startswith(f'topics_topics_by_class{{class="{name}"}} ') for line in lines)
    buckets = [line for line in lines if line.startswith("topics_wal_fsync_latency_us_bucket")]
    assert len(buckets) == 10


def test_metrics_json(client: Client) -> None:
    body = client.send("GET", "/v0/metrics", accept="application/json").json()
    assert set(body) == {
        "topics", "topics_ephemeral", "topics_memory", "topics_disk", "topics_fsync", "routers", "records_live",
        "bytes_live", "queue_topics", "queue_leases_in_flight", "sse_connections", "watch_sessions", "ready",
        "replay_progress", "uptime_ms", "wal",
    }  # fmt: skip
    assert set(body["wal"]) == {
        "fsyncs", "frames", "batches", "bytes_written", "rotations", "queue_depth", "queue_depth_peak",
        "submit_full_total", "read_only", "fsync_count", "fsync_micros_total",
    }  # fmt: skip


def test_wal_frames_count_what_clients_logged(tmp_path_factory: pytest.TempPathFactory) -> None:
    with LiveServer(tmp_path_factory.mktemp("frames")) as live:
        client = Client(live.port, http2=False)

        def frames() -> int:
            return int(client.send("GET", "/v0/metrics", accept="application/json").json()["wal"]["frames"])

        client.put("a")
        assert frames() == 1
        client.write("a", *range(700))
        assert frames() == 701
        client.ok("PUT", "/v0/routers/r", {"source": "a", "dest": "b"}, status=201)
        before = frames()
        client.write("a", 1)
        client.diff("b")
        assert frames() == before + 1
        client.close()


def test_openapi_lists_every_route(client: Client) -> None:
    document = client.send("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert "/v0/topics/{topic}/diff" in document["paths"]
