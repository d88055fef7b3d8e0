"""`docs/spec/http-api.md#sec-6`: what a request had that nobody knows is named in its answer, through every door."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from tests.api.client import Client
from tests.api.server import LiveServer
from websockets.sync.client import connect

import topics
from topics.client.blocking_handles import run
from topics.client.transport import http_messages as exchange


def test_a_misspelt_setting_is_taken_and_named(client: Client, topic: str) -> None:
    answer = client.put(topic, type="queue", max_delivries=3)
    assert answer["config"]["max_deliveries"] == 0
    assert answer["warnings"] == ['unknown field "max_delivries" is ignored; did you mean "max_deliveries"?']
    assert "warnings" not in client.put(topic, type="queue", status=200)


def test_every_endpoint_with_a_body_says_so(client: Client, topic: str) -> None:
    client.put(topic, type="queue")
    for method, path, body, status in (
        ("POST", f"topics/{topic}", {"records": [{"data": 1}]}, 200),
        ("POST", f"topics/{topic}/diff", {}, 200),
        ("POST", f"topics/{topic}/claim", {"node": "n"}, 200),
        ("POST", f"topics/{topic}/ack", {"node": "n", "seqs": [1]}, 200),
        ("POST", f"topics/{topic}/nack", {"node": "n", "seqs": [1]}, 200),
        ("POST", f"topics/{topic}/extend", {"node": "n", "seqs": [1], "lease_ms": 1000}, 200),
        ("POST", f"topics/{topic}/delete", {"before_seq": 1}, 200),
        ("PUT", f"routers/{topic}", {"source": topic, "dest": topic + "d"}, 201),
        ("POST", "watch", {"topics": {topic: {}}}, 200),
    ):
        fields: dict[str, Any] = {**body, "zzzzz": 1}
        answer = client.ok(method, f"/v0/{path}", fields, status=status)
        assert answer["warnings"] == ['unknown field "zzzzz" is ignored'], path
    refused = client.send("POST", f"/v0/topics/{topic}/claim", {"nodee": "n"})
    client.refused(refused, 400, "invalid_request")


def test_writes_that_repeat_a_head_say_so_too(client: Client, topic: str) -> None:
    for status in (201, 200, 200):
        answer = client.ok("POST", f"/v0/topics/{topic}", {"records": [{"data": 1, "tga": "x"}]}, status=status)
        assert answer["warnings"] == ['unknown field "records[].tga" is ignored; did you mean "tag"?']
        assert "warnings" not in client.write(topic, 1)


def test_a_socket_says_so(server: LiveServer, topic: str) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/v0/ws", compression=None) as ws:

        def ask(**command: Any) -> dict[str, Any]:
            ws.send(json.dumps(command))
            reply: dict[str, Any] = json.loads(ws.recv(timeout=10))
            return reply

        ack = ask(op="publish", topic=topic, records=[{"data": 1}], confg={})
        assert ack["warnings"] == ['unknown field "confg" is ignored; did you mean "config"?']
        assert "warnings" not in ask(op="ping")
        assert ask(op="ping", x=1)["warnings"] == ['unknown field "x" is ignored']
        assert "warnings" not in ask(op="unsubscribe", x=1)  # an error
        assert "warnings" not in ask(op="ping")


def test_the_client_warns_once(server: LiveServer, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_warned", set())
    with topics.connect(f"http://127.0.0.1:{server.port}") as client:
        call = exchange.ClientCall(b"PUT", f"/v0/topics/{topic}", json.loads, body=b'{"tll_ms":5}')
        with pytest.warns(topics.TopicsWarning, match="did you mean"):
            run(client._transport.run(call))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(client._transport.run(call))
