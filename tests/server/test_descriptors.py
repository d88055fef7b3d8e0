"""Connections never use up the descriptors that the log needs, and idle ones make room for those that ask something."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.server.raw_http import RawClient

from topics.net.transport_limits import CONNECTIONS_MAX
from topics.server.listen import RESERVED_FILES, connections_max

Live = Any
StartServer = Any
FILES = 256
GET = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"


def test_a_part_of_the_descriptors_is_kept_from_connections() -> None:
    assert connections_max(1 << 20) == CONNECTIONS_MAX
    assert connections_max(4096) == 4096 - RESERVED_FILES
    assert connections_max(64) == 32


def test_the_oldest_idle_connection_makes_room(start_server: StartServer) -> None:
    live = start_server(connections_max=3)
    with ExitStack() as stack:
        clients = [stack.enter_context(live.client()) for _ in range(3)]
        for client in clients:
            client.send(GET)
            assert client.response().status == 200
        late = stack.enter_context(live.client())
        late.send(GET)
        assert late.response().status == 200
        assert clients[0].socket.recv(1) == b""
        clients[1].send(GET)
        assert clients[1].response().status == 200


def test_without_an_idle_connection_a_new_one_is_told_to_come_back(start_server: StartServer) -> None:
    live = start_server(connections_max=2)
    with ExitStack() as stack:
        busy = [stack.enter_context(live.client()) for _ in range(2)]
        for client in busy:
            client.send(b"GET /later/x HTTP/1.1\r\nHost: a\r\n\r\n")
        live.until(lambda: len(live.app.waiting) == 2)
        late = stack.enter_context(live.client()).response()
        assert (late.status, late.headers["retry-after"]) == (503, "1")
        assert not late.keeps_alive


def test_idle_connections_of_strangers_do_not_keep_the_log_from_rotating(tmp_path: Path) -> None:
    """A real server that may open few files, more connections than that, and a log that rotates all the time."""
    port_file = tmp_path / "port"
    settings = {
        "TOPICS_DATA_DIR": str(tmp_path / "data"),
        "TOPICS_PORT": "0",
        "TOPICS_PORT_FILE": str(port_file),
        "TOPICS_WAL_FILE_BYTES": str(1 << 20),
        "TOPICS_LOG": "error",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "topics", "serve"],
        env=os.environ | settings,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
    )
    try:
        while not port_file.exists():
            assert server.poll() is None, "the server did not start"
            time.sleep(0.02)
        port = int(port_file.read_text().rpartition(":")[2])
        with ExitStack() as stack:
            for _ in range(FILES + 50):
                stack.enter_context(RawClient(port))
            for at in range(40):
                body = json.dumps({"records": [{"data": "x" * 200_000}]}).encode()
                with RawClient(port) as client:
                    told = client.request(
                        "POST", f"/v0/topics/t{at}", body=body, headers="Content-Type: application/json\r\n"
                    )
                assert told.status in (200, 201), told
    finally:
        server.terminate()
        assert server.wait(30) == 0
