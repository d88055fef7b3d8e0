"""Client: a server through the verbs of the embedded library, blocking. Good for any thread.

with topics.connect("http://127.0.0.1:4000") as client:
    client.topic("jobs").append({"id": 1})
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from topics.client.producing.batching import ProducerOptions
from topics.client.producing.producer import Producer
from topics.client.topic import Queue, Router, Topic
from topics.client.transport import calls
from topics.client.transport.address import checked_timeout, parse_address
from topics.client.transport.calls import IdempotencyKeys, config_text
from topics.client.transport.retry import RetryPolicy
from topics.client.transport.transport import Transport
from topics.config import ClientSettings
from topics.model.results import RouterSummary, TopicSummary

TIMEOUT_S = 30.0
RETRY_S = 30.0


def connect(
    url: str = ClientSettings().url,
    api_key: str | None = None,
    *,
    timeout: float = TIMEOUT_S,
    retry_s: float = RETRY_S,
    tls: ssl.SSLContext | None = None,
) -> Client:
    """A client of the server at `url`. No connection is made before the first call.

    `timeout` is in seconds, for a connection to open and for an answer to come. `retry_s` is for how long a call that
    may be repeated goes on trying while the server is away; 0 tries once. `tls` replaces the system's trust."""
    address = parse_address(url, api_key=api_key)
    return Client(Transport(address, timeout_s=checked_timeout(timeout), policy=RetryPolicy(total_s=retry_s), tls=tls))


class Client:
    """A server, as `connect` gives it: topics, queues and routers by name. Good for any thread; close it at the end."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._keys = IdempotencyKeys()

    def __repr__(self) -> str:
        return f"Client({self._transport.address.url!r})"

    # --- handles --------------------------------------------------------------------------------------------------

    def topic(self, name: str, **config: Any) -> Topic:
        """A handle. With config, a topic that does not exist yet gets it from its first write; an existing topic keeps
        its own (`configure` changes it)."""
        return Topic(self._transport, self._keys, name, config_text(config) if config else None)

    def queue(self, name: str, **config: Any) -> Queue:
        """A handle to a queue, which the first append creates if it does not exist yet."""
        return Queue(self._transport, self._keys, name, config_text({"type": "queue", **config}))

    def router(self, name: str) -> Router:
        """A handle to a router; `put` creates it."""
        return Router(self._transport, name)

    def producer(self, **options: Any) -> Producer:
        """A batching producer of any topics; options are those of `ProducerOptions`."""
        return Producer(self._transport, self._keys, ProducerOptions(**options))

    # --- lists ----------------------------------------------------------------------------------------------------

    def topics(self, prefix: str = "") -> Iterator[TopicSummary]:
        """All topics whose names begin so, in byte order of their names."""
        cursor: str | None = None
        while True:
            page = self._transport.run(calls.list_topics(prefix, cursor))
            yield from page.topics
            cursor = page.next_cursor
            if cursor is None:
                return

    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> Iterator[RouterSummary]:
        """All routers whose names begin so, and of these ends if given."""
        cursor: str | None = None
        while True:
            page = self._transport.run(calls.list_routers(prefix, cursor, source=source, dest=dest))
            yield from page.routers
            cursor = page.next_cursor
            if cursor is None:
                return

    # --- the server itself ----------------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Status, version and uptime of the server, and `problems` in sentences while there are any."""
        return self._transport.run(calls.HEALTH)

    def ready(self) -> dict[str, Any]:
        """Raises NotReady while the server recovers."""
        return self._transport.once(calls.READY)

    def metrics(self) -> dict[str, Any]:
        """Counters and gauges of the server."""
        return self._transport.run(calls.METRICS)

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Producers send what they have, followers end, calls that are under way get their answers."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
