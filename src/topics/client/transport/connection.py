"""Connections: HTTP/1.1 exchanges with a server, over a blocking socket or an asyncio stream.

`Connection` is written once, as coroutines over a `ByteStream`; over a blocking socket they never suspend.

Always holds: every wait has a timeout; whatever breaks a connection is `Unreachable`."""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import time
from typing import Protocol

from topics.client.transport.address import Address
from topics.client.transport.http_messages import ClientAnswer, ResponseReader, error_of, plain_answer
from topics.errors import ConfigError, TopicsError, Unreachable

READ_BYTES = 64 * 1024  # the C library maps a larger block anew for every read, which costs more than the read


class ByteStream(Protocol):
    """Bytes to and from a server. What goes wrong is an OSError, a timeout included."""

    async def send(self, data: bytes, *, timeout_s: float) -> None: ...
    async def receive(self, *, timeout_s: float) -> bytes:
        """Some bytes; none at the end."""

    def is_quiet(self) -> bool:
        """Nothing came and the other side is there: if something is readable while nothing was asked, the server has
        closed the connection."""

    def wake(self) -> None:
        """End a wait of whoever uses the stream; it is the user's to close."""

    def close(self) -> None: ...


class SocketStream:
    """A blocking socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    async def send(self, data: bytes, *, timeout_s: float) -> None:
        self._limit(timeout_s)
        self.socket.sendall(data)

    async def receive(self, *, timeout_s: float) -> bytes:
        self._limit(timeout_s)
        return self.socket.recv(READ_BYTES)

    def _limit(self, timeout_s: float) -> None:
        if timeout_s != self.socket.gettimeout():  # to set it is a system call
            self.socket.settimeout(timeout_s)

    def is_quiet(self) -> bool:
        return not self._poll.poll(0)

    def wake(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        self.socket.close()


class AsyncioStream:
    """A pair of asyncio streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._in = reader
        self._out = writer

    async def send(self, data: bytes, *, timeout_s: float) -> None:
        self._out.write(data)
        if self._out.transport.get_write_buffer_size():  # else the kernel has it, and there is nothing to wait for
            async with asyncio.timeout(timeout_s):
                await self._out.drain()

    async def receive(self, *, timeout_s: float) -> bytes:
        async with asyncio.timeout(timeout_s):
            return await self._in.read(READ_BYTES)

    def is_quiet(self) -> bool:
        return not self._in.at_eof() and not self._out.is_closing()

    def wake(self) -> None:
        self.close()

    def close(self) -> None:
        self._out.close()


class Connection:
    """One connection: a call at a time, or one stream of events."""

    def __init__(self, stream: ByteStream, *, where: str, timeout_s: float) -> None:
        self.stream = stream
        self.idle_since = 0.0
        self._where = where
        self._timeout_s = timeout_s
        self._reader = ResponseReader()
        self._half_sent = False

    @property
    def keeps_alive(self) -> bool:
        """After an answer: it may carry another call."""
        return self._reader.keeps_alive and not self._half_sent

    async def ask(self, request: bytes, *, wait_ms: int) -> ClientAnswer:
        """A server may refuse a call before it has read all of it, and stop listening: what it said is read still."""
        try:
            await self.send(request)
        except Unreachable as failure:
            self._half_sent = True
            try:
                return await self.answer()
            except Unreachable:
                raise failure from None
        data = await self._received(self._timeout_s + wait_ms / 1000)
        answer = plain_answer(data)
        if answer is None:
            self._reader.feed(data)
            return await self.answer(wait_ms=wait_ms)
        self._reader.keeps_alive = True
        return answer

    async def send(self, request: bytes) -> None:
        try:
            await self.stream.send(request, timeout_s=self._timeout_s)
        except OSError as error:
            raise Unreachable(f"{self._where} did not take the call: {_why(error)}", sent=True) from None

    async def answer(self, *, wait_ms: int = 0) -> ClientAnswer:
        """The whole answer, within the timeout and what the server may wait."""
        left_s = timeout_s = self._timeout_s + wait_ms / 1000
        deadline = time.monotonic() + timeout_s
        while not self._reader.is_complete:
            if left_s <= 0:
                raise Unreachable(f"the answer of {self._where} took more than {timeout_s:g} s", sent=True)
            await self._receive(left_s)
            left_s = deadline - time.monotonic()
        return self._reader.answer()

    async def head(self) -> None:
        """Wait for the head of a stream; raises what the server says instead of opening it."""
        while not self._reader.has_head:
            await self._receive(self._timeout_s)
        if self._reader.status != 200:
            raise error_of(await self.answer())

    async def pieces(self, *, timeout_s: float) -> bytes | None:
        """What comes next on a stream; None at its proper end."""
        while not (data := self._reader.take()):
            if self._reader.is_complete:
                return None
            await self._receive(timeout_s)
        return data

    async def _receive(self, timeout_s: float) -> None:
        """Wait for some bytes and let the reader have them."""
        self._reader.feed(await self._received(timeout_s))

    async def _received(self, timeout_s: float) -> bytes:
        try:
            data = await self.stream.receive(timeout_s=timeout_s)
        except OSError as error:
            raise Unreachable(f"no answer from {self._where}: {_why(error)}", sent=True) from None
        if not data:
            raise Unreachable(f"{self._where} closed the connection before its answer was whole", sent=True)
        return data

    def close(self) -> None:
        self.stream.close()


# --- connecting ------------------------------------------------------------------------------------------------------


def connect_socket(address: Address, *, timeout_s: float, tls: ssl.SSLContext | None) -> SocketStream:
    plain: socket.socket | None = None
    try:
        plain = socket.create_connection((address.host, address.port), timeout=timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return SocketStream(plain if tls is None else tls.wrap_socket(plain, server_hostname=address.host))
    except (OSError, UnicodeError, OverflowError) as error:
        if plain is not None:
            plain.close()
        raise _refusal(address, error) from None


async def connect_asyncio(address: Address, *, timeout_s: float, tls: ssl.SSLContext | None) -> AsyncioStream:
    name = None if tls is None else address.host
    try:
        async with asyncio.timeout(timeout_s):
            streams = await asyncio.open_connection(address.host, address.port, ssl=tls, server_hostname=name)
    except (OSError, UnicodeError, OverflowError) as error:
        raise _refusal(address, error) from None
    return AsyncioStream(*streams)


def _refusal(address: Address, error: Exception) -> TopicsError:
    """Why there is no connection. What waiting does not mend is a wrong setting."""
    if isinstance(error, UnicodeError | OverflowError):
        return ConfigError(f"{address.url} is no address: {error}")
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigError(f"the certificate of {address.url} is not trusted: {error.verify_message}")
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
        return ConfigError(f"no host has the name {address.host!r}")
    assert isinstance(error, OSError)
    return Unreachable(f"cannot connect to {address.url}: {_why(error)}", sent=False)


def _why(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else (error.strerror or str(error) or type(error).__name__)
