"""RawClient: HTTP/1.1 over a plain socket, byte by byte, for what a client library would hide."""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType
from typing import NamedTuple, Self

TIMEOUT_S = 10.0


class RawResponse(NamedTuple):
    status: int
    line: bytes
    headers: dict[str, str]  # lower-case names
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class RawClient:
    def __init__(self, port: int, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.socket: socket.socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> Self:
        self.socket.sendall(data)
        return self

    def request(self, method: str, target: str, *, body: bytes | None = None, headers: str = "") -> RawResponse:
        """One request with its length, and its answer. `headers` is whole lines, each with its line end."""
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}{headers}\r\n"
        self.send(head.encode("latin-1") + (body or b""))
        return self.response(method)

    def end_sending(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Close so that the peer gets a reset instead of an end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    # --- receiving ----------------------------------------------------------------------------------------------------

    def response(self, method: str = "GET") -> RawResponse:
        head = self.until(b"\r\n\r\n")
        line, *fields = head[:-4].split(b"\r\n")
        headers = {}
        for field in fields:
            name, _, value = field.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        status = int(line.split()[1])
        return RawResponse(status, line, headers, self._body(method, status, headers))

    def head(self) -> RawResponse:
        """Only the head of an answer whose body never ends."""
        return self.response("HEAD")

    def _body(self, method: str, status: int, headers: dict[str, str]) -> bytes:
        if method == "HEAD" or status in (101, 204, 304) or status == 100:
            return b""
        if headers.get("transfer-encoding") == "chunked":
            chunks = []
            while chunk := self.chunk():
                chunks.append(chunk)
            return b"".join(chunks)
        if "content-length" in headers:
            return self.exactly(int(headers["content-length"]))
        return self.rest()

    def chunk(self) -> bytes:
        """The next chunk of a chunked body; empty for the last one."""
        size = int(self.until(b"\r\n"), 16)
        data = self.exactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._receive()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def until(self, mark: bytes) -> bytes:
        """Up to the mark and with it."""
        while mark not in self._buffer:
            self._receive()
        return self.exactly(self._buffer.index(mark) + len(mark))

    def rest(self) -> bytes:
        """Everything up to the peer's end."""
        parts = [self._buffer]
        self._buffer = b""
        while part := self.socket.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)

    def ended(self) -> bool:
        """Whether the peer's end comes next, and no byte before it."""
        return self.rest() == b""

    def _receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(f"the peer ended after {self._buffer!r}")
        self._buffer += data
