"""A real server beside clients that never read: its memory stays within the budget, and those who read are served."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.raw_http import RawClient

from topics.limits import KIB, MIB

READERS = 60
RECORD_BYTES = 256 * KIB
RECORDS = 96  # three frames of 8 MiB
GROWTH_BYTES_MAX = 384 * MIB  # the budget of 256 MiB, and one frame in all its stages
ASKED = {"max_batch_bytes": 8 * MIB, "limit": 1000}


class Server:
    def __init__(self, folder: Path) -> None:
        port_file = folder / "port"
        settings = {
            "TOPICS_DATA_DIR": str(folder / "data"),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_LOG": "error",
        }
        self.process = subprocess.Popen([sys.executable, "-m", "topics", "serve"], env=os.environ | settings)
        while not port_file.exists():
            assert self.process.poll() is None, "the server did not start"
            time.sleep(0.02)
        self.port = int(port_file.read_text().rpartition(":")[2])

    def private_bytes(self) -> int:
        """Resident, without the pages of mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * KIB

    def ask(self, path: str, body: object) -> dict[str, object]:
        with RawClient(self.port) as client:
            answer = client.request(
                "POST", path, body=json.dumps(body).encode(), headers="Content-Type: application/json\r\n"
            )
            assert answer.status in (200, 201), answer
            told: dict[str, object] = json.loads(answer.body)
            return told

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    try:
        for _ in range(RECORDS // 32):
            server.ask("/v0/topics/large", {"records": [{"data": "x" * RECORD_BYTES}] * 32})
        yield server
    finally:
        server.stop()


def ask_for_stream(server: Server) -> bytes:
    told = server.ask("/v0/watch", {"topics": {"large": {"from_seq": 0}}, **ASKED})
    return f"GET {told['stream_url']} HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n".encode()


def ask_for_socket(server: Server) -> bytes:
    key = base64.b64encode(bytes(16)).decode()
    fields = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    command = json.dumps({"op": "subscribe", "topics": {"large": {"from_seq": 0}}, **ASKED}).encode()
    assert len(command) < 126
    return (
        f"GET /v0/ws HTTP/1.1\r\nHost: a\r\n{fields}\r\n".encode()
        + bytes([0x81, 0x80 | len(command)])
        + bytes(4)
        + command
    )


def ask_for_pages(server: Server) -> bytes:
    body = json.dumps({"from_seq": 0, **ASKED}).encode()
    fields = f"Host: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (b"POST /v0/topics/large/diff HTTP/1.1\r\n" + fields.encode() + body) * 8


def deaf_reader(server: Server, first: bytes) -> socket.socket:
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    door.connect(("127.0.0.1", server.port))
    door.sendall(first)
    return door


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("ask", [ask_for_stream, ask_for_socket, ask_for_pages], ids=["stream", "socket", "pages"])
def test_clients_that_never_read_cost_no_more_than_the_budget_and_others_are_served(
    server: Server, ask: object
) -> None:
    assert callable(ask)
    before, most = server.private_bytes(), 0
    readers = [deaf_reader(server, ask(server)) for _ in range(READERS)]
    answered: set[socket.socket] = set()
    until_s = time.monotonic() + 60
    while len(answered) < READERS and time.monotonic() < until_s:  # each was begun to be sent something
        answered |= set(select.select(readers, [], [], 0.05)[0])
        most = max(most, server.private_bytes())
    for _ in range(40):  # and the honest one writes and reads meanwhile
        server.ask("/v0/topics/small", {"records": [{"data": "y"}]})
        page = server.ask("/v0/topics/small/diff", {"from_seq": 0, "limit": 5})
        assert page["records"]
        most = max(most, server.private_bytes())
    for reader in readers:
        reader.close()
    assert most - before < GROWTH_BYTES_MAX
