"""AsyncClient: a server through the verbs of the embedded library, as coroutines. Belongs to one event loop.

async with topics.aconnect("http://127.0.0.1:4000") as client:
    await client.topic("jobs").append({"id": 1})
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

from topics.client.atopic import AsyncQueue, AsyncRouter, AsyncTopic
from topics.client.client import RETRY_S, TIMEOUT_S
from topics.client.producing.aproducer import AsyncProducer
from topics.client.producing.batching import ProducerOptions
from topics.client.transport import calls
from topics.client.transport.address import checked_timeout, parse_address
from topics.client.transport.atransport import AsyncTransport
from topics.client.transport.calls import IdempotencyKeys, config_text
from topics.client.transport.retry import RetryPolicy
from topics.config import ClientSettings
from topics.model.results import RouterSummary, TopicSummary


def aconnect(
    url: str = ClientSettings().url,
    api_key: str | None = None,
    *,
    timeout: float = TIMEOUT_S,
    retry_s: float = RETRY_S,
    tls: ssl.SSLContext | None = None,
) -> AsyncClient:
    """`connect` for asyncio, to be called where the event loop runs; `async with` or `await client.close()` ends it."""
    address = parse_address(url, api_key=api_key)
    return AsyncClient(
        AsyncTransport(address, timeout_s=checked_timeout(timeout), policy=RetryPolicy(total_s=retry_s), tls=tls)
    )


class AsyncClient:
    """A server, as `aconnect` gives it: the verbs of `Client`, awaited."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._keys = IdempotencyKeys()

    def __repr__(self) -> str:
        return f"AsyncClient({self._transport.address.url!r})"

    # --- handles --------------------------------------------------------------------------------------------------

    def topic(self, name: str, **config: Any) -> AsyncTopic:
        """A handle. With config, a topic that does not exist yet gets it from its first write; an existing topic keeps
        its own (`configure` changes it)."""
        return AsyncTopic(self._transport, self._keys, name, config_text(config) if config else None)

    def queue(self, name: str, **config: Any) -> AsyncQueue:
        """A handle to a queue, which the first append creates if it does not exist yet."""
        return AsyncQueue(self._transport, self._keys, name, config_text({"type": "queue", **config}))

    def router(self, name: str) -> AsyncRouter:
        """A handle to a router; `put` creates it."""
        return AsyncRouter(self._transport, name)

    def producer(self, **options: Any) -> AsyncProducer:
        """A batching producer of any topics; options are those of `ProducerOptions`."""
        return AsyncProducer(self._transport, self._keys, ProducerOptions(**options))

    # --- lists ----------------------------------------------------------------------------------------------------

    async def topics(self, prefix: str = "") -> AsyncIterator[TopicSummary]:
        """All topics whose names begin so, in byte order of their names."""
        cursor: str | None = None
        while True:
            page = await self._transport.run(calls.list_topics(prefix, cursor))
            for topic in page.topics:
                yield topic
            cursor = page.next_cursor
            if cursor is None:
                return

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> AsyncIterator[RouterSummary]:
        """All routers whose names begin so, and of these ends if given."""
        cursor: str | None = None
        while True:
            page = await self._transport.run(calls.list_routers(prefix, cursor, source=source, dest=dest))
            for router in page.routers:
                yield router
            cursor = page.next_cursor
            if cursor is None:
                return

    # --- the server itself ----------------------------------------------------------------------------------------

    async def health(self) -> dict[str, Any]:
        """Status, version and uptime of the server, and `problems` in sentences while there are any."""
        return await self._transport.run(calls.HEALTH)

    async def ready(self) -> dict[str, Any]:
        """Raises NotReady while the server recovers."""
        return await self._transport.once(calls.READY)

    async def metrics(self) -> dict[str, Any]:
        """Counters and gauges of the server."""
        return await self._transport.run(calls.METRICS)

    # --- the end --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Producers send what they have, followers end, calls that are under way get their answers."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
