"""Transport of the asyncio client: the same exchange over asyncio streams. Belongs to one event loop.

Always holds: every wait has a timeout; at most `CALLS_MAX` calls are under way at a time, others wait."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from topics.client.transport.address import Address
from topics.client.transport.http_messages import (
    ClientAnswer,
    ClientCall,
    ResponseReader,
    error_of,
    render_request,
    result_of,
)
from topics.client.transport.retry import Attempts, RetryPolicy
from topics.client.transport.transport import IDLE_MAX, IDLE_S_MAX, READ_BYTES, refusal
from topics.errors import TopicsError, Unreachable

T = TypeVar("T")

CALLS_MAX = 128


class AsyncLink:
    """One connection."""

    def __init__(self, where: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._where = where
        self._in, self._out = streams
        self._reader = ResponseReader()
        self.idle_since = 0.0

    def close(self) -> None:
        self._out.close()

    def is_fresh(self, now: float) -> bool:
        return now - self.idle_since <= IDLE_S_MAX and not self._in.at_eof() and not self._out.is_closing()

    @property
    def keeps_alive(self) -> bool:
        return self._reader.keeps_alive

    async def send(self, request: bytes) -> None:
        self._out.write(request)
        try:
            await self._out.drain()
        except OSError as error:
            raise Unreachable(f"{self._where} did not take the call: {error}", sent=True) from None

    async def receive(self) -> None:
        try:
            data = await self._in.read(READ_BYTES)
        except OSError as error:
            raise Unreachable(f"no answer from {self._where}: {error}", sent=True) from None
        if not data:
            raise Unreachable(f"{self._where} closed the connection before its answer was whole", sent=True)
        self._reader.feed(data)

    async def answer(self) -> ClientAnswer:
        while not self._reader.is_complete:
            await self.receive()
        return self._reader.answer()

    async def head(self) -> None:
        """Wait for the head of a stream; raises what the server says instead of opening it."""
        while not self._reader.has_head:
            await self.receive()
        if self._reader.status != 200:
            raise error_of(await self.answer())

    async def pieces(self, *, timeout_s: float) -> bytes | None:
        """What comes next on a stream; None at its proper end."""
        while not (data := self._reader.take()):
            if self._reader.is_complete:
                return None
            await within(timeout_s, self.receive(), self._where)
        return data


async def within(timeout_s: float, step: Any, where: str) -> Any:
    try:
        async with asyncio.timeout(timeout_s):
            return await step
    except TimeoutError:
        raise Unreachable(f"no answer from {where}: timed out", sent=True) from None


class AsyncTransport:
    def __init__(
        self, address: Address, *, timeout_s: float, policy: RetryPolicy, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.policy = policy
        self.closed = asyncio.Event()
        self._tls = (tls or ssl.create_default_context()) if address.is_tls else None
        self._fixed = address.headers()
        self._idle: list[AsyncLink] = []
        self._streams: set[AsyncLink] = set()
        self._places = asyncio.Semaphore(CALLS_MAX)
        self.before_close: dict[object, Callable[[], Awaitable[None]]] = {}
        """What still has something to send, and how it is brought to an end."""

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
                if pause_s is None or await self.pause(pause_s):
                    raise

    async def pause(self, seconds: float) -> bool:
        """True as soon as the client is closed."""
        try:
            async with asyncio.timeout(seconds):
                return await self.closed.wait()
        except TimeoutError:
            return False

    async def once(self, call: ClientCall[T]) -> T:
        async with self._places:
            return result_of(call, await self._exchange(call))

    async def _exchange(self, call: ClientCall[Any]) -> ClientAnswer:
        link = await self._take()
        request = render_request(call, self._fixed, base=self.address.base)
        try:
            answer: ClientAnswer = await within(
                self.timeout_s + call.wait_ms / 1000, _ask(link, request), self.address.url
            )
        except BaseException:
            link.close()
            raise
        self._give_back(link)
        return answer

    async def open_stream(self, call: ClientCall[Any], *, extra: bytes = b"") -> AsyncLink:
        """A connection of its own, its stream opened; given back by `end_stream`."""
        link = await self._new_link()
        request = render_request(call, self._fixed, base=self.address.base, accept=b"text/event-stream", extra=extra)
        try:
            await within(self.timeout_s, _open(link, request), self.address.url)
        except BaseException:
            link.close()
            raise
        self._streams.add(link)
        return link

    def end_stream(self, link: AsyncLink) -> None:
        self._streams.discard(link)
        link.close()

    # --- the pool -------------------------------------------------------------------------------------------------

    async def _take(self) -> AsyncLink:
        now = time.monotonic()
        while self._idle:
            link = self._idle.pop()
            if link.is_fresh(now):
                return link
            link.close()
        return await self._new_link()

    async def _new_link(self) -> AsyncLink:
        if self.closed.is_set():
            raise TopicsError("the client is closed")
        address = self.address
        name = address.host if self._tls is not None else None
        try:
            async with asyncio.timeout(self.timeout_s):
                streams = await asyncio.open_connection(address.host, address.port, ssl=self._tls, server_hostname=name)
        except (OSError, UnicodeError, OverflowError) as error:
            raise refusal(address, error) from None
        return AsyncLink(address.url, streams)

    def _give_back(self, link: AsyncLink) -> None:
        link.idle_since = time.monotonic()
        if link.keeps_alive and len(self._idle) < IDLE_MAX and not self.closed.is_set():
            self._idle.append(link)
        else:
            link.close()

    async def close(self) -> None:
        """Producers send what they have; then idle connections and streams end, and those in use with their call."""
        async with AsyncExitStack() as ends:  # all of them, also when one raises
            ends.push_async_callback(self._close_links)
            for finish in list(self.before_close.values()):
                ends.push_async_callback(finish)

    async def _close_links(self) -> None:
        self.closed.set()
        links = [*self._idle, *self._streams]
        self._idle = []
        for link in links:
            link.close()
        await asyncio.sleep(0)  # the loop closes sockets in its next turn


async def _ask(link: AsyncLink, request: bytes) -> ClientAnswer:
    await link.send(request)
    return await link.answer()


async def _open(link: AsyncLink, request: bytes) -> None:
    await link.send(request)
    await link.head()
