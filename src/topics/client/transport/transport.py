"""Transport: calls of a server with retries, over a small pool of kept-alive connections; streams have their own.

`Transport` is written once, as coroutines. `BlockingTransport` never suspends and is good for any thread;
`AsyncTransport` belongs to one event loop and has at most `CALLS_MAX` calls under way at a time, others wait.

Always holds: a connection is in the pool or in one caller's hands; one whose exchange did not end well is closed."""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from topics.client.transport.address import Address
from topics.client.transport.connection import ByteStream, Connection, connect_asyncio, connect_socket
from topics.client.transport.forks import tell_of_forks
from topics.client.transport.http_messages import ClientCall, render_request, result_of
from topics.client.transport.retry import Attempts, RetryPolicy
from topics.errors import TopicsError

T = TypeVar("T")

IDLE_MAX = 16  # kept-alive connections that wait for the next call
IDLE_S_MAX = 50.0  # the server may close an idle connection after 60 s
CALLS_MAX = 128


class Transport:
    """What both transports have in common. `closed` is set by `close`."""

    closed: threading.Event | asyncio.Event

    def __init__(
        self, address: Address, *, timeout_s: float, policy: RetryPolicy, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self.policy = policy
        self.before_close: dict[object, Callable[[], Awaitable[None]]] = {}
        """What still has something to send, and how it is brought to an end."""
        self._timeout_s = timeout_s
        self._tls = (tls or ssl.create_default_context()) if address.is_tls else None
        self._fixed = address.headers()
        self._idle: list[Connection] = []
        self._streams: set[Connection] = set()
        self._lock = threading.Lock()

    # --- what differs ---------------------------------------------------------------------------------------------

    async def _connect(self) -> ByteStream:
        raise NotImplementedError

    async def pause(self, seconds: float) -> bool:
        """True as soon as the client is closed."""
        raise NotImplementedError

    # --- calls ----------------------------------------------------------------------------------------------------

    async def run(self, call: ClientCall[T]) -> T:
        """The result of a call, tried again where that is safe and helps."""
        attempts: Attempts | None = None
        while True:
            try:
                return await self.once(call)
            except TopicsError as error:
                now = time.monotonic()
                attempts = attempts or Attempts(self.policy, now=now)
                pause_s = attempts.pause_s(error, repeatable=call.repeatable, now=now, chance=random.random)
                if pause_s is None:
                    raise
                attempts.tell(error, now=now)
                if await self.pause(pause_s):
                    raise

    async def once(self, call: ClientCall[T]) -> T:
        connection = self._idle_connection() or await self._new_connection()
        try:
            request = render_request(call, self._fixed, base=self.address.base)
            answer = await connection.ask(request, wait_ms=call.wait_ms)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return result_of(call, answer)

    async def open_stream(self, call: ClientCall[Any], *, extra: bytes = b"") -> Connection:
        """A connection of its own, its stream opened; given back by `end_stream`."""
        connection = await self._new_connection()
        try:
            await connection.send(
                render_request(call, self._fixed, base=self.address.base, accept=b"text/event-stream", extra=extra)
            )
            await connection.head()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._streams.add(connection)
        return connection

    def end_stream(self, connection: Connection) -> None:
        with self._lock:
            self._streams.discard(connection)
        connection.close()

    # --- the pool -------------------------------------------------------------------------------------------------

    def _idle_connection(self) -> Connection | None:
        now = time.monotonic()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if now - connection.idle_since <= IDLE_S_MAX and connection.stream.is_quiet():
                return connection
            connection.close()

    async def _new_connection(self) -> Connection:
        if self.closed.is_set():
            raise TopicsError("the client is closed")
        return Connection(await self._connect(), where=self.address.url, timeout_s=self._timeout_s)

    def _give_back(self, connection: Connection) -> None:
        connection.idle_since = time.monotonic()
        with self._lock:
            if connection.keeps_alive and len(self._idle) < IDLE_MAX and not self.closed.is_set():
                self._idle.append(connection)
                return
        connection.close()

    async def close(self) -> None:
        """Producers send what they have; then idle connections and streams end, and those in use with their call."""
        async with AsyncExitStack() as ends:  # all of them, also when one raises
            ends.push_async_callback(self._close_connections)
            for finish in list(self.before_close.values()):
                ends.push_async_callback(finish)

    async def _close_connections(self) -> None:
        self.closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
            streams = list(self._streams)
        for connection in idle:
            connection.close()
        for connection in streams:
            connection.stream.wake()


class BlockingTransport(Transport):
    def __init__(
        self, address: Address, *, timeout_s: float, policy: RetryPolicy, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(address, timeout_s=timeout_s, policy=policy, tls=tls)
        self.closed: threading.Event = threading.Event()
        tell_of_forks(self)

    def forked(self) -> None:
        """The connections are the parent's. Closing our copies does not end them."""
        self._lock = threading.Lock()
        idle, self._idle = self._idle, []
        self._streams = set()
        for connection in idle:
            connection.close()

    async def _connect(self) -> ByteStream:
        return connect_socket(self.address, timeout_s=self._timeout_s, tls=self._tls)

    async def pause(self, seconds: float) -> bool:
        return self.closed.wait(seconds)


class AsyncTransport(Transport):
    def __init__(
        self, address: Address, *, timeout_s: float, policy: RetryPolicy, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(address, timeout_s=timeout_s, policy=policy, tls=tls)
        self.closed: asyncio.Event = asyncio.Event()
        self._calls = asyncio.Semaphore(CALLS_MAX)

    async def once(self, call: ClientCall[T]) -> T:
        async with self._calls:
            return await super().once(call)

    async def _connect(self) -> ByteStream:
        return await connect_asyncio(self.address, timeout_s=self._timeout_s, tls=self._tls)

    async def pause(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self.closed.wait()
        except TimeoutError:
            return False

    async def _close_connections(self) -> None:
        await super()._close_connections()
        await asyncio.sleep(0)  # the loop closes sockets in its next turn
