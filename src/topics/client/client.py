"""Client and AsyncClient: a server through the verbs of the embedded library, blocking and for asyncio.

with topics.connect("http://127.0.0.1:4000") as client:
    client.topic("jobs").append({"id": 1})

async with topics.aconnect("http://127.0.0.1:4000") as client:
    await client.topic("jobs").append({"id": 1})
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from topics import limits
from topics.client import blocking_handles, routes, verbs
from topics.client.blocking_handles import BlockingQueue, BlockingTopic, DeadLetterTopic, Router, Schedule
from topics.client.http_door import HttpDoor
from topics.client.jobs.handling import AsyncHandler
from topics.client.jobs.work import AsyncWork
from topics.client.jobs.worker import AsyncWorker, WorkerFields, WorkerOptions
from topics.client.producing.batching import ProducerFields, ProducerOptions
from topics.client.producing.producer import AsyncProducer, Producer
from topics.client.queue_verbs import DeadLetterVerbs, QueueVerbs
from topics.client.readers import FollowFields, cursor_pages, several_followed
from topics.client.schedule_verbs import ScheduleVerbs, schedule_pages
from topics.client.transport.address import checked_timeout, parse_address
from topics.client.transport.retry import RetryPolicy
from topics.client.transport.transport import AsyncTransport, BlockingTransport
from topics.client.verbs import RouterVerbs, TopicVerbs, config_text
from topics.config import ClientSettings
from topics.model.config import ConfigFields
from topics.model.paging import After, Gap, Gaps
from topics.model.results import CursorState, Record, TopicSummary
from topics.model.router import RouterSummary
from topics.model.schedules.schedule_answers import ScheduleState
from topics.wire.access.stream_tokens import StreamToken
from topics.wire.incoming.requests import TokenRequest, checked

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
    address, policy = parse_address(url, api_key=api_key), RetryPolicy(total_s=retry_s)
    return Client(BlockingTransport(address, timeout_s=checked_timeout(timeout), policy=policy, tls=tls))


def aconnect(
    url: str = ClientSettings().url,
    api_key: str | None = None,
    *,
    timeout: float = TIMEOUT_S,
    retry_s: float = RETRY_S,
    tls: ssl.SSLContext | None = None,
) -> AsyncClient:
    """`connect` for asyncio, to be called where the event loop runs; `async with` or `await client.close()` ends it."""
    address, policy = parse_address(url, api_key=api_key), RetryPolicy(total_s=retry_s)
    return AsyncClient(AsyncTransport(address, timeout_s=checked_timeout(timeout), policy=policy, tls=tls))


# --- asyncio ---------------------------------------------------------------------------------------------------------


class AsyncTopic(TopicVerbs):
    """A topic by name: cheap and stateless. The first write creates the topic."""

    _door: HttpDoor

    async def segments(self) -> dict[str, Any]:
        """The manifest of the topic's stored segments, tier by tier; does not count as a read."""
        return await self._door.run(routes.SEGMENTS, self.name, None)

    def producer(self, **options: Unpack[ProducerFields]) -> AsyncProducer:
        """A batching producer of this topic; options are those of `ProducerOptions`."""
        return AsyncProducer(self._door, ProducerOptions(**options), topic=self.name, config=self._config)


class AsyncQueue(QueueVerbs, AsyncTopic):
    """A topic of type `queue`. Its first use creates it as one."""

    def work(
        self,
        node: str | None = None,
        *,
        max: int = 1,
        lease_ms: int | None = None,
        until_empty: bool = False,
    ) -> AsyncWork:
        """Jobs one by one, each acked when the loop comes back for the next; their leases are kept meanwhile."""
        return AsyncWork(self, node, max=max, lease_ms=lease_ms, until_empty=until_empty)

    def worker(self, **options: Unpack[WorkerFields]) -> Callable[[AsyncHandler], AsyncWorker]:
        """`@queue.worker(concurrency=8)` makes a coroutine function the worker of this queue; `await run()` it. The
        options are those of `WorkerOptions`."""
        return lambda handler: AsyncWorker(self, handler, WorkerOptions(**options))


class AsyncDeadLetterTopic(DeadLetterVerbs):
    """The dead letters of a queue: a topic whose records say in their `headers` why they are there."""


class AsyncRouter(RouterVerbs):
    """A router by name: copies what is written to one topic into another."""


class AsyncSchedule(ScheduleVerbs):
    """A schedule by name: appends a record to a topic at its ticks."""


class AsyncClient:
    """A server, as `aconnect` gives it: the verbs of `Client`, awaited. Belongs to one event loop."""

    def __init__(self, transport: AsyncTransport | BlockingTransport) -> None:
        self._transport = transport
        self._door = HttpDoor(transport)

    def __repr__(self) -> str:
        return f"AsyncClient({self._transport.address.url!r})"

    def topic(self, name: str, **config: Unpack[ConfigFields]) -> AsyncTopic:
        """A handle. With config, its first use creates a topic that does not exist, with this config; an existing topic
        keeps its own, and a warning says where the two differ (`configure` changes it)."""
        return AsyncTopic(self._door, name, config_text(config) if config else None)

    def queue(self, name: str, **config: Unpack[ConfigFields]) -> AsyncQueue:
        """A handle to a queue, which its first use creates if it does not exist; config as for `topic`. Unless config
        says otherwise, a new queue tries a job 20 times, with growing pauses, and then puts it into `NAME.dead`."""
        return AsyncQueue(self._door, name, config)

    def dead_letters(self, name: str) -> AsyncDeadLetterTopic:
        """A handle to a topic of dead letters: `redrive` takes them back."""
        return AsyncDeadLetterTopic(self._door, name)

    def router(self, name: str) -> AsyncRouter:
        """A handle to a router; `put` creates it."""
        return AsyncRouter(self._door, name)

    def schedule(self, name: str) -> AsyncSchedule:
        """A handle to a schedule; `put` creates it."""
        return AsyncSchedule(self._door, name)

    def schedules(self, prefix: str = "", *, topic: str | None = None) -> AsyncIterator[ScheduleState]:
        """All schedules whose names begin so, and of this topic if given."""
        return verbs.each(schedule_pages(self._door, prefix, topic))

    def producer(self, **options: Unpack[ProducerFields]) -> AsyncProducer:
        """A batching producer of any topics; options are those of `ProducerOptions`."""
        return AsyncProducer(self._door, ProducerOptions(**options))

    def topics(self, prefix: str = "") -> AsyncIterator[TopicSummary]:
        """All topics whose names begin so, in byte order of their names."""
        return verbs.each(verbs.topic_pages(self._door, prefix))

    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> AsyncIterator[RouterSummary]:
        """All routers whose names begin so, and of these ends if given."""
        return verbs.each(verbs.router_pages(self._door, prefix, source, dest))

    @overload
    def follow(
        self,
        topics: Iterable[str] | Mapping[str, After],
        *,
        gaps: Literal["raise"] = "raise",
        **fields: Unpack[FollowFields],
    ) -> AsyncIterator[tuple[str, Record]]: ...
    @overload
    def follow(
        self, topics: Iterable[str] | Mapping[str, After], *, gaps: Gaps, **fields: Unpack[FollowFields]
    ) -> AsyncIterator[tuple[str, Record | Gap]]: ...
    def follow(
        self, topics: Iterable[str] | Mapping[str, After], *, gaps: Gaps = "raise", **fields: Unpack[FollowFields]
    ) -> AsyncIterator[tuple[str, Any]]:
        """What comes in several topics, as pairs of topic and record: `Topic.follow` of all of them at once.

        `topics` are names, or names with the positions to begin behind. In each topic the order is that of its seqs;
        between topics it is the order of arrival. With `cursor` each topic has its own cursor of this name."""
        return verbs.each(several_followed(self._door, topics, gaps=gaps, fields=fields))

    def cursors(self, prefix: str = "") -> AsyncIterator[CursorState]:
        """Every reader of the topics whose names begin so, with its lag: named cursors, routers and queues."""
        return verbs.each(cursor_pages(self._door, prefix))

    async def stream_token(
        self,
        topics: Iterable[str] | None = None,
        *,
        ttl_ms: int = limits.TOKEN_TTL_MS.default,
        scopes: Iterable[str] | None = None,
    ) -> StreamToken:
        """A short-lived token for a web page, which opens streams and sockets with it instead of the key.

        It has the rights of this client's key, cut to `topics` (names, or prefixes that end in `*`) and to `scopes`."""
        given = {"topics": None if topics is None else list(topics), "scopes": None if scopes is None else list(scopes)}
        return await self._door.run(routes.TOKEN, "", checked(TokenRequest, **given, ttl_ms=ttl_ms))

    async def health(self) -> dict[str, Any]:
        """Status, version and uptime of the server, and `problems` in sentences while there are any."""
        return await self._door.run(routes.HEALTH, "", None)

    async def ready(self) -> dict[str, Any]:
        """Raises NotReady while the server recovers."""
        return await self._transport.once(routes.READY.call("", None))

    async def metrics(self) -> dict[str, Any]:
        """Counters and gauges of the server."""
        return await self._door.run(routes.METRICS, "", None)

    async def close(self) -> None:
        """Producers send what they have, followers end, calls that are under way get their answers."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


# --- blocking --------------------------------------------------------------------------------------------------------


class Topic(BlockingTopic):
    """A topic by name: cheap, stateless, good for any thread. The first write creates the topic."""

    _verbs: AsyncTopic

    segments = blocking_handles.blocking(AsyncTopic.segments)

    def producer(self, **options: Unpack[ProducerFields]) -> Producer:
        """A batching producer of this topic; options are those of `ProducerOptions`."""
        topic = self._verbs
        return Producer(topic._door, ProducerOptions(**options), topic=topic.name, config=topic._config)


class Queue(BlockingQueue, Topic):
    """A topic of type `queue`. Its first use creates it as one."""

    _verbs: AsyncQueue


class Client:
    """A server, as `connect` gives it: topics, queues and routers by name. Good for any thread; close it at the end."""

    def __init__(self, transport: BlockingTransport) -> None:
        self._transport = transport
        self._verbs = AsyncClient(transport)

    def __repr__(self) -> str:
        return f"Client({self._transport.address.url!r})"

    def topic(self, name: str, **config: Unpack[ConfigFields]) -> Topic:
        """A handle. With config, its first use creates a topic that does not exist, with this config; an existing topic
        keeps its own, and a warning says where the two differ (`configure` changes it)."""
        return Topic(self._verbs.topic(name, **config))

    def queue(self, name: str, **config: Unpack[ConfigFields]) -> Queue:
        """A handle to a queue, which its first use creates if it does not exist; config as for `topic`. Unless config
        says otherwise, a new queue tries a job 20 times, with growing pauses, and then puts it into `NAME.dead`."""
        return Queue(self._verbs.queue(name, **config))

    def dead_letters(self, name: str) -> DeadLetterTopic:
        """A handle to a topic of dead letters: `redrive` takes them back."""
        return DeadLetterTopic(self._verbs.dead_letters(name))

    def router(self, name: str) -> Router:
        """A handle to a router; `put` creates it."""
        return Router(self._verbs.router(name))

    def schedule(self, name: str) -> Schedule:
        """A handle to a schedule; `put` creates it."""
        return Schedule(self._verbs.schedule(name))

    def schedules(self, prefix: str = "", *, topic: str | None = None) -> Iterator[ScheduleState]:
        """All schedules whose names begin so, and of this topic if given."""
        return blocking_handles.each(schedule_pages(self._verbs._door, prefix, topic))

    def producer(self, **options: Unpack[ProducerFields]) -> Producer:
        """A batching producer of any topics; options are those of `ProducerOptions`."""
        return Producer(self._verbs._door, ProducerOptions(**options))

    def topics(self, prefix: str = "") -> Iterator[TopicSummary]:
        """All topics whose names begin so, in byte order of their names."""
        return blocking_handles.each(verbs.topic_pages(self._verbs._door, prefix))

    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> Iterator[RouterSummary]:
        """All routers whose names begin so, and of these ends if given."""
        return blocking_handles.each(verbs.router_pages(self._verbs._door, prefix, source, dest))

    @overload
    def follow(
        self,
        topics: Iterable[str] | Mapping[str, After],
        *,
        gaps: Literal["raise"] = "raise",
        **fields: Unpack[FollowFields],
    ) -> Iterator[tuple[str, Record]]: ...
    @overload
    def follow(
        self, topics: Iterable[str] | Mapping[str, After], *, gaps: Gaps, **fields: Unpack[FollowFields]
    ) -> Iterator[tuple[str, Record | Gap]]: ...
    def follow(
        self, topics: Iterable[str] | Mapping[str, After], *, gaps: Gaps = "raise", **fields: Unpack[FollowFields]
    ) -> Iterator[tuple[str, Any]]:
        """What comes in several topics, as pairs of topic and record: `Topic.follow` of all of them at once.

        `topics` are names, or names with the positions to begin behind. In each topic the order is that of its seqs;
        between topics it is the order of arrival. With `cursor` each topic has its own cursor of this name."""
        door = self._verbs._door
        return blocking_handles.each(several_followed(door, topics, gaps=gaps, fields=fields))

    def cursors(self, prefix: str = "") -> Iterator[CursorState]:
        """Every reader of the topics whose names begin so, with its lag: named cursors, routers and queues."""
        return blocking_handles.each(cursor_pages(self._verbs._door, prefix))

    stream_token = blocking_handles.blocking(AsyncClient.stream_token)
    health = blocking_handles.blocking(AsyncClient.health)
    ready = blocking_handles.blocking(AsyncClient.ready)
    metrics = blocking_handles.blocking(AsyncClient.metrics)
    close = blocking_handles.blocking(AsyncClient.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
