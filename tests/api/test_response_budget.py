"""Pages for clients that do not take them: read when there is room, and none is lost by waiting."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from h2.settings import SettingCodes
from tests.api.server import LiveServer
from tests.api.test_pipelining import answers, request
from tests.server.raw_http import RawClient
from tests.server.test_h2 import H2Client

from topics.server.connections import budget, h2_answers, h2_connection

RECORD_BYTES = 700_000
STREAMS = 12


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "UNSENT_BYTES_MAX", 2_000_000)
    monkeypatch.setattr(h2_answers, "UNSENT_BYTES_MAX", 2_000_000)


def unsent_bytes(server: LiveServer) -> int:
    """Once there is as much as there may be, and whatever was on its way then has come."""
    assert server.server.hub is not None
    peers = server.server.hub.peers

    def now() -> int:
        connections = [peer for peer in peers if isinstance(peer, h2_connection.H2Connection)]
        return sum(connection.output.unsent_bytes() for connection in connections)

    while server.on_loop(now) < 2_000_000:
        pass
    unsent: int = max(server.on_loop(now) for _ in range(200))
    return unsent


def asking(server: LiveServer, path: str, body: dict[str, Any]) -> tuple[H2Client, list[int]]:
    """A client that asks the same on many streams and takes from none."""
    client = H2Client(RawClient(server.port), take=False)
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.flush()
    streams = []
    for _ in range(STREAMS):
        stream_id = client.open("POST", path, ("content-type", "application/json"), end=False)
        client.send_body(stream_id, json.dumps(body).encode())
        streams.append(stream_id)
    return client, streams


def take_all(client: H2Client, streams: list[int]) -> list[Any]:
    for stream_id in streams:
        client.h2.increment_flow_control_window(2 * RECORD_BYTES, stream_id)
    client.flush()
    return [json.loads(client.body(stream_id)) for stream_id in streams]


@pytest.mark.parametrize("wait_ms", [0, 20_000])
def test_a_client_that_takes_nothing_holds_a_few_pages_and_gets_all_of_them(
    server: LiveServer, topic: str, wait_ms: int
) -> None:
    path = f"/v0/topics/{topic}"
    record = {"records": [{"data": "x" * RECORD_BYTES}]}
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as writer:
        writer.sendall(request("PUT", path, {}))
        answers(writer, 1)
        if not wait_ms:
            writer.sendall(request("POST", path, record))
            answers(writer, 1)
        client, streams = asking(server, f"{path}/diff", {"wait_ms": wait_ms})
        client.request("HEAD", "/healthz")  # all that was sent before has been read
        if wait_ms:
            writer.sendall(request("POST", path, record))
            answers(writer, 1)
        writer.sendall(request("POST", f"{path}/diff", {}))  # another connection does not notice
        assert len(answers(writer, 1)[0]["records"]) == 1
    assert unsent_bytes(server) < 4_000_000
    diffs = take_all(client, streams)
    assert [[record["$seq"] for record in diff["records"]] for diff in diffs] == [[1]] * STREAMS
    client.raw.close()


def test_claims_of_a_client_that_takes_nothing_wait_too(server: LiveServer, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as writer:
        writer.sendall(request("PUT", path, {"type": "queue"}))
        for _ in range(STREAMS):
            writer.sendall(request("POST", path, {"records": [{"data": "x" * RECORD_BYTES}]}))
        answers(writer, STREAMS + 1)
    client, streams = asking(server, f"{path}/claim", {"node": "a"})
    client.request("HEAD", "/healthz")
    assert unsent_bytes(server) < 4_000_000
    claims = take_all(client, streams)
    assert sorted(job["$seq"] for claim in claims for job in claim["claimed"]) == list(range(1, STREAMS + 1))
    client.raw.close()
