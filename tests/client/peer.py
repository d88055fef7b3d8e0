"""A server that says exactly what a test wants, byte by byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

Script = Callable[[socket.socket, int], None]


class Peer:
    """Each connection is handed to `script` with its number, then closed."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                connection.settimeout(10)
                try:
                    self._script(connection, self.connections)
                except OSError:
                    pass


def read_request(connection: socket.socket) -> bytes:
    """One whole request; empty if the client has gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    wanted = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            wanted = int(line.split(b":")[1])
    while len(body) < wanted:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def response(body: bytes, status: int = 200, extra: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b" % (
        status,
        extra,
        len(body),
        body,
    )
