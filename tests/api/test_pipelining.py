"""HTTP/1.1 requests that are sent before the answers to earlier ones have come."""

from __future__ import annotations

import json
import re
import socket
import time
from pathlib import Path
from typing import Any

from tests.api.server import LiveServer

from topics.engine.ticket import Ticket
from topics.errors import Internal


def request(method: str, path: str, body: Any = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    lines = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    return lines.encode() + text


def answers(peer: socket.socket, count: int) -> list[Any]:
    file, found = peer.makefile("rb"), []
    for _ in range(count):
        length = 0
        while (line := file.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        found.append(json.loads(file.read(length)))
    return found


def test_each_request_sees_what_those_before_it_did(server: LiveServer, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    write = request("POST", path, {"records": [{"data": 1, "tag": "a"}]})
    packet = [
        write,
        request("POST", f"{path}/diff", {"from_seq": 0}),
        write,
        write,
        request("GET", path),
        request("POST", f"{path}/delete", {"match": "a"}),
        request("GET", path),
        request("DELETE", path),
        request("GET", path),
        write,
    ]
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
        peer.sendall(b"".join(packet))
        first, diff, second, third, state, _, emptied, _, gone, again = answers(peer, len(packet))
    assert [first["created"], second["first_seq"], third["first_seq"]] == [True, 2, 3]
    assert [record["$seq"] for record in diff["records"]] == [1]
    assert [state["head_seq"], state["count"], emptied["count"]] == [3, 3, 0]
    assert gone["error"]["code"] == "topic_not_found"
    assert [again["created"], again["first_seq"]] == [True, 1]


def test_a_write_whose_key_is_busy_is_not_overtaken(server: LiveServer, topic: str) -> None:
    """It waits for the write that has the key, on another connection; that fails, and then it appends after all."""
    path = f"/v0/topics/{topic}"
    first: Ticket[Any] = Ticket()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
        peer.sendall(request("PUT", path, {}))
        answers(peer, 1)
        state = server.kernel.engine.state.topics[topic]
        by_key = server.kernel.engine.writes._by_key

        def begin_the_first() -> None:
            state.idem.staged.add(b"k")
            by_key[state.id, b"k"] = first

        def fail_the_first() -> None:
            state.idem.staged.discard(b"k")
            del by_key[state.id, b"k"]
            first.fail(Internal())

        server.on_loop(begin_the_first)
        keyed = request("POST", path, {"records": [{"data": "keyed"}], "idempotency_key": "k"})
        plain = request("POST", path, {"records": [{"data": "plain"}]}).ljust(len(keyed))
        length = re.search(rb"Content-Length: (\d+)", keyed)
        assert length is not None
        plain = re.sub(rb"Content-Length: \d+", length[0], plain)  # of one head: they may overlap
        peer.sendall(keyed + plain)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as other:
            for _ in range(5):
                other.sendall(request("GET", path))
                answers(other, 1)
        server.on_loop(fail_the_first)
        assert [answer["first_seq"] for answer in answers(peer, 2)] == [1, 2]


def test_a_client_that_sends_no_more_is_not_kept_waiting(server: LiveServer, topic: str) -> None:
    """Most of those have gone; a long poll of theirs would hold its place until its deadline."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
        peer.sendall(request("PUT", f"/v0/topics/{topic}", {}))
        answers(peer, 1)
        began = time.monotonic()
        peer.sendall(request("POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000}))
        peer.shutdown(socket.SHUT_WR)
        (diff,) = answers(peer, 1)
    assert diff["records"] == []
    assert time.monotonic() - began < 15


def test_a_write_that_waits_for_what_has_expired_is_not_overtaken(tmp_path: Path) -> None:
    """The small write would fit at once, the large one only when the record that has expired is gone."""
    large, small = ({"records": [{"data": "x" * size}]} for size in (60, 1))
    with (
        LiveServer(tmp_path, max_total_bytes=100) as live,
        socket.create_connection(("127.0.0.1", live.port), timeout=20) as peer,
    ):
        peer.sendall(request("PUT", "/v0/topics/a", {"ttl_ms": 1000}) + request("POST", "/v0/topics/a", large))
        answers(peer, 2)
        live.clock.ahead_ms += 2000
        peer.sendall(request("POST", "/v0/topics/a", large) + request("POST", "/v0/topics/a", small))
        assert [answer["first_seq"] for answer in answers(peer, 2)] == [2, 3]
