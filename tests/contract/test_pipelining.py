"""HTTP/1.1 requests that are sent before the answers to earlier ones have come."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from tests.contract.server import LiveServer


def request(method: str, path: str, body: Any = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    lines = (
        f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
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
