"""Follow, blocking: drives a `Following` over the transport until the client is closed.

Topic, Queue, Router: handles of the blocking client. Each verb is a call of `calls`, run by the transport.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from topics import limits
from topics.client.following import SILENCE_S_MAX, Following
from topics.client.jobs.work import Work
from topics.client.jobs.worker import Handler, Worker, WorkerOptions
from topics.client.producing.batching import ProducerOptions
from topics.client.producing.producer import Producer
from topics.client.transport import calls
from topics.client.transport.calls import IdempotencyKeys, config_text
from topics.client.transport.request_bodies import piece_of, record_piece, whole
from topics.client.transport.sse import Frame, SseReader
from topics.client.transport.transport import Transport
from topics.errors import TopicsError, Unreachable
from topics.model.config import TopicConfig
from topics.model.doors import Match, Reading, Seqs
from topics.model.paging import After, Gap, Gaps
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


def follow(
    transport: Transport, topic: str, after: After, *, nodes: tuple[str, ...], gaps: Gaps
) -> Iterator[Record | Gap]:
    following = Following(topic, after, nodes=nodes, gaps=gaps, policy=transport.policy)
    while not transport.closed.is_set():
        try:
            if following.polls:
                page = transport.once(following.poll_call())
                yield from following.page(page)
            else:
                for frame in _frames(transport, following):
                    yield from following.frame(frame)
        except TopicsError as error:
            if transport.closed.is_set():
                return
            transport.closed.wait(following.failed(error, now=time.monotonic(), chance=random.random))


def _frames(transport: Transport, following: Following) -> Iterator[Frame]:
    """The frames of one stream, until it ends or breaks."""
    session = following.session_call()
    if session is not None:
        following.session_made(transport.once(session))
    call, mark = following.stream_call()
    link, reader = transport.open_stream(call, extra=mark), SseReader()
    try:
        while (data := link.pieces(timeout_s=SILENCE_S_MAX)) is not None:
            yield from reader.feed(data)
    finally:
        transport.end_stream(link)
    raise Unreachable("the stream came to its end", sent=True)


class Topic(Reading):
    """A topic by name: cheap, stateless, good for any thread. The first write creates the topic."""

    def __init__(self, transport: Transport, keys: IdempotencyKeys, name: str, config: bytes | None = None) -> None:
        self._transport = transport
        self._keys = keys
        self._config = config
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # --- writing --------------------------------------------------------------------------------------------------

    def append(
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
        return self._append([record_piece(data, tag=tag, node=node, meta=meta)], None, key)

    def append_many(self, records: Iterable[Any], *, node: str | None = None, key: str | None = None) -> AppendResult:
        """Append values or `Event`s as one batch: all of them, with consecutive seqs, or none."""
        return self._append(list(map(piece_of, several(records))), node, key)

    def _append(self, pieces: list[bytes], node: str | None, key: str | None) -> AppendResult:
        key = self._keys.next() if key is None else key
        return self._transport.run(calls.append(self.name, whole(pieces), key=key, node=node, config=self._config))

    def producer(self, **options: Any) -> Producer:
        """A batching producer of this topic; options are those of `ProducerOptions`."""
        return Producer(self._transport, self._keys, ProducerOptions(**options), topic=self.name, config=self._config)

    # --- reading --------------------------------------------------------------------------------------------------

    def page(
        self,
        after: After = 0,
        *,
        limit: int = limits.DIFF_LIMIT.default,
        max_bytes: int = limits.DIFF_BATCH_BYTES.default,
        exclude_nodes: Iterable[str] = (),
        wait_ms: int = 0,
    ) -> ReadResult:
        return self._transport.run(
            calls.diff(self.name, after, limit=limit, max_bytes=max_bytes, exclude_nodes=exclude_nodes, wait_ms=wait_ms)
        )

    def _follow(self, after: After, nodes: tuple[str, ...], gaps: Gaps) -> Iterator[Record | Gap]:
        return follow(self._transport, self.name, after, nodes=nodes, gaps=gaps)

    # --- the rest -------------------------------------------------------------------------------------------------

    def delete(self, *, before_seq: int | None = None, match: Match = None) -> DeleteResult:
        """Delete records on request: below a seq, by tag (`"x"`, `"x*"`), or both. Permanent, and no gap to readers."""
        return self._transport.run(calls.delete(self.name, before_seq=before_seq, match=match))

    def segments(self) -> dict[str, Any]:
        """The manifest of the topic's segments: where its history lies."""
        return self._transport.run(calls.segments(self.name))

    def state(self, *, touch: bool = True) -> TopicState:
        """Head, counts and config. With `touch` it counts as a read."""
        return self._transport.run(calls.state(self.name, touch=touch))

    def configure(self, **config: Any) -> TopicConfig:
        """Create the topic, or replace its config as a whole: what is left out goes back to its default."""
        return self._transport.run(calls.configure(self.name, config_text(config))).config

    def drop(self, *, if_empty: bool = False) -> bool:
        """Delete the topic with everything in it; False if there was none."""
        return self._transport.run(calls.drop(self.name, if_empty=if_empty)).deleted


class Queue(Topic):
    """A topic of type `queue`. Its first append creates it as one; `configure` does so by itself."""

    def configure(self, **config: Any) -> TopicConfig:
        return super().configure(**{"type": "queue", **config})

    def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """Lease up to `max` jobs to a node; none is an empty list."""
        return self._transport.run(calls.claim(self.name, node=node, max=max, lease_ms=lease_ms))

    def ack(self, jobs: Seqs, *, node: str) -> AckResult:
        """Done: the jobs are deleted."""
        return self._transport.run(calls.ack(self.name, jobs, node=node))

    def nack(self, jobs: Seqs, *, node: str, delay_ms: int = 0) -> NackResult:
        """Not done: somebody may claim them again, at once or after a delay."""
        return self._transport.run(calls.nack(self.name, jobs, node=node, delay_ms=delay_ms))

    def extend(self, jobs: Seqs, *, node: str, lease_ms: int) -> ExtendResult:
        """Hold the jobs until `lease_ms` from now."""
        return self._transport.run(calls.extend(self.name, jobs, node=node, lease_ms=lease_ms))

    def work(
        self,
        node: str | None = None,
        *,
        max: int = 1,
        lease_ms: int | None = None,
        until_empty: bool = False,
        stop: threading.Event | None = None,
    ) -> Work:
        """Jobs one by one, each acked when the loop comes back for the next; their leases are kept meanwhile.

        `max` jobs are claimed at a time. Ends when `stop` is set or, with `until_empty`, when nothing is ready."""
        return Work(self, node, max=max, lease_ms=lease_ms, until_empty=until_empty, stop=stop)

    def worker(self, **options: Any) -> Callable[[Handler], Worker]:
        """`@queue.worker(concurrency=8)` makes a function the worker of this queue; `run()` it. The options are
        those of `WorkerOptions`."""
        return lambda handler: Worker(self, handler, WorkerOptions(**options))


class Router:
    """A router by name: copies what is written to one topic into another."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name

    def __repr__(self) -> str:
        return f"Router({self.name!r})"

    def put(
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
        return self._transport.run(calls.put_router(self.name, fields))

    def get(self) -> RouterState:
        """Settings and progress."""
        return self._transport.run(calls.get_router(self.name))

    def delete(self) -> bool:
        """Forwarding stops; the copies stay. False if there was no such router."""
        return self._transport.run(calls.delete_router(self.name)).deleted
