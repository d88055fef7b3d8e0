"""Follow for coroutines: drives a `Following` over the asyncio transport until the client is closed.

AsyncTopic, AsyncQueue, AsyncRouter: the handles of `topic`, for coroutines. The same calls, awaited.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Literal, overload

from topics import limits
from topics.client.following import SILENCE_S_MAX, Following
from topics.client.jobs.awork import AsyncHandler, AsyncWork, AsyncWorker
from topics.client.jobs.worker import WorkerOptions
from topics.client.producing.aproducer import AsyncProducer
from topics.client.producing.batching import ProducerOptions
from topics.client.transport import calls
from topics.client.transport.atransport import AsyncTransport
from topics.client.transport.calls import IdempotencyKeys, config_text
from topics.client.transport.request_bodies import piece_of, record_piece, whole
from topics.client.transport.sse import Frame, SseReader
from topics.errors import TopicsError, Unreachable
from topics.model.config import TopicConfig
from topics.model.doors import Match, Seqs
from topics.model.paging import After, Gap, Gaps, Walk, node_names
from topics.model.results import (
    AckResult,
    AppendResult,
    ClaimResult,
    DeleteResult,
    ExtendResult,
    NackResult,
    ReadResult,
    Record,
    RouterState,
    TopicState,
)
from topics.model.router import Guarantee
from topics.model.values import several


async def afollow(
    transport: AsyncTransport, topic: str, after: After, *, nodes: tuple[str, ...], gaps: Gaps
) -> AsyncIterator[Record | Gap]:
    following = Following(topic, after, nodes=nodes, gaps=gaps, policy=transport.policy)
    while not transport.closed.is_set():
        try:
            if following.polls:
                page = await transport.once(following.poll_call())
                for item in following.page(page):
                    yield item
            else:
                async for frame in _frames(transport, following):
                    for item in following.frame(frame):
                        yield item
        except TopicsError as error:
            if transport.closed.is_set():
                return
            await transport.pause(following.failed(error, now=time.monotonic(), chance=random.random))


async def _frames(transport: AsyncTransport, following: Following) -> AsyncIterator[Frame]:
    """The frames of one stream, until it ends or breaks."""
    session = following.session_call()
    if session is not None:
        following.session_made(await transport.once(session))
    call, mark = following.stream_call()
    link, reader = await transport.open_stream(call, extra=mark), SseReader()
    try:
        while (data := await link.pieces(timeout_s=SILENCE_S_MAX)) is not None:
            for frame in reader.feed(data):
                yield frame
    finally:
        transport.end_stream(link)
    raise Unreachable("the stream came to its end", sent=True)


class AsyncTopic:
    """A topic by name: cheap and stateless. The first write creates the topic."""

    def __init__(
        self, transport: AsyncTransport, keys: IdempotencyKeys, name: str, config: bytes | None = None
    ) -> None:
        self._transport = transport
        self._keys = keys
        self._config = config
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # --- writing --------------------------------------------------------------------------------------------------

    async def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        key: str | None = None,
    ) -> AppendResult:
        """Append one record. When this returns, it is as safe as the topic's class says.

        Without a `key` the call gets one of its own, so that it can be repeated when a connection breaks."""
        return await self._append([record_piece(data, tag=tag, node=node, meta=meta)], None, key)

    async def append_many(
        self, records: Iterable[Any], *, node: str | None = None, key: str | None = None
    ) -> AppendResult:
        """Append values or `Event`s as one batch: all of them, with consecutive seqs, or none."""
        return await self._append(list(map(piece_of, several(records))), node, key)

    async def _append(self, pieces: list[bytes], node: str | None, key: str | None) -> AppendResult:
        key = self._keys.next() if key is None else key
        return await self._transport.run(
            calls.append(self.name, whole(pieces), key=key, node=node, config=self._config)
        )

    def producer(self, **options: Any) -> AsyncProducer:
        """A batching producer of this topic; options are those of `ProducerOptions`."""
        wanted = ProducerOptions(**options)
        return AsyncProducer(self._transport, self._keys, wanted, topic=self.name, config=self._config)

    # --- reading --------------------------------------------------------------------------------------------------

    async def page(
        self,
        after: After = 0,
        *,
        limit: int = limits.DIFF_LIMIT.default,
        max_bytes: int = limits.DIFF_BATCH_BYTES.default,
        exclude_nodes: Iterable[str] = (),
        wait_ms: int = 0,
    ) -> ReadResult:
        """One read: the records behind a cursor, the next cursor, and a tombstone if something was lost. With `wait_ms`
        a reader that is caught up waits so long for something to come."""
        return await self._transport.run(
            calls.diff(self.name, after, limit=limit, max_bytes=max_bytes, exclude_nodes=exclude_nodes, wait_ms=wait_ms)
        )

    @overload
    def read(
        self,
        after: After = 0,
        *,
        limit: int | None = None,
        exclude_nodes: Iterable[str] = (),
        gaps: Literal["raise"] = "raise",
    ) -> AsyncIterator[Record]: ...
    @overload
    def read(
        self, after: After = 0, *, limit: int | None = None, exclude_nodes: Iterable[str] = (), gaps: Gaps
    ) -> AsyncIterator[Record | Gap]: ...
    async def read(
        self, after: After = 0, *, limit: int | None = None, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise"
    ) -> AsyncIterator[Any]:
        """Everything behind the cursor up to the head of this moment, page by page."""
        nodes, walk = node_names(exclude_nodes), Walk(self.name, after, gaps=gaps, limit=limit)
        while not walk.is_full:
            page = await self.page(walk.position, limit=walk.page_limit(limits.DIFF_LIMIT.high), exclude_nodes=nodes)
            for item in walk.take(page):
                yield item
            if not walk.has_more(page):
                return

    @overload
    def follow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Literal["raise"] = "raise"
    ) -> AsyncIterator[Record]: ...
    @overload
    def follow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps
    ) -> AsyncIterator[Record | Gap]: ...
    def follow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise"
    ) -> AsyncIterator[Any]:
        """Everything behind the cursor, then whatever comes, across broken connections and restarts of the server.

        Ends when the client is closed; raises TopicNotFound when the topic is deleted."""
        return afollow(self._transport, self.name, after, nodes=node_names(exclude_nodes), gaps=gaps)

    # --- the rest -------------------------------------------------------------------------------------------------

    async def delete(self, *, before_seq: int | None = None, match: Match = None) -> DeleteResult:
        """Delete records on request: below a seq, by tag (`"x"`, `"x*"`), or both. Permanent, and no gap to readers."""
        return await self._transport.run(calls.delete(self.name, before_seq=before_seq, match=match))

    async def segments(self) -> dict[str, Any]:
        """The manifest of the topic's stored segments, tier by tier; does not count as a read."""
        return await self._transport.run(calls.segments(self.name))

    async def state(self, *, touch: bool = True) -> TopicState:
        """Head, counts and config. With `touch` it counts as a read."""
        return await self._transport.run(calls.state(self.name, touch=touch))

    async def configure(self, **config: Any) -> TopicConfig:
        """Create the topic, or replace its config as a whole: what is left out goes back to its default."""
        return (await self._transport.run(calls.configure(self.name, config_text(config)))).config

    async def drop(self, *, if_empty: bool = False) -> bool:
        """Delete the topic with everything in it; False if there was none."""
        return (await self._transport.run(calls.drop(self.name, if_empty=if_empty))).deleted


class AsyncQueue(AsyncTopic):
    """A topic of type `queue`. Its first append creates it as one; `configure` does so by itself."""

    async def configure(self, **config: Any) -> TopicConfig:
        return await super().configure(**{"type": "queue", **config})

    async def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """Lease up to `max` jobs to a node; none is an empty list."""
        return await self._transport.run(calls.claim(self.name, node=node, max=max, lease_ms=lease_ms))

    async def ack(self, jobs: Seqs, *, node: str) -> AckResult:
        """Done: the jobs are deleted."""
        return await self._transport.run(calls.ack(self.name, jobs, node=node))

    async def nack(self, jobs: Seqs, *, node: str, delay_ms: int = 0) -> NackResult:
        """Not done: somebody may claim them again, at once or after a delay."""
        return await self._transport.run(calls.nack(self.name, jobs, node=node, delay_ms=delay_ms))

    async def extend(self, jobs: Seqs, *, node: str, lease_ms: int) -> ExtendResult:
        """Hold the jobs until `lease_ms` from now."""
        return await self._transport.run(calls.extend(self.name, jobs, node=node, lease_ms=lease_ms))

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

    def worker(self, **options: Any) -> Callable[[AsyncHandler], AsyncWorker]:
        """`@queue.worker(concurrency=8)` makes a coroutine function the worker of this queue; `await run()` it. The
        options are those of `WorkerOptions`."""
        return lambda handler: AsyncWorker(self, handler, WorkerOptions(**options))


class AsyncRouter:
    """A router by name: copies what is written to one topic into another."""

    def __init__(self, transport: AsyncTransport, name: str) -> None:
        self._transport = transport
        self.name = name

    def __repr__(self) -> str:
        return f"AsyncRouter({self.name!r})"

    async def put(
        self,
        source: str,
        dest: str,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        filter: Match = None,
        allow_cycle: bool = False,
        guarantee: Guarantee = "at_least_once",
    ) -> RouterState:
        """Copy what is committed to `source` from now on into `dest`. All but the ends of a router may be replaced."""
        fields = {name: value for name, value in locals().items() if name != "self"}
        return await self._transport.run(calls.put_router(self.name, fields))

    async def get(self) -> RouterState:
        """Settings and progress."""
        return await self._transport.run(calls.get_router(self.name))

    async def delete(self) -> bool:
        """Forwarding stops; the copies stay. False if there was no such router."""
        return (await self._transport.run(calls.delete_router(self.name))).deleted
