"""EngineDoor: the verbs carried out by the engine in this process.

Each route of a verb has one function here, which runs a command of the engine and shows its answer as users see it.
Nothing here suspends: whoever calls waits on the engine's own lock and files. `afollow` is the one exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from topics import limits
from topics.client import routes
from topics.client.routes import DropQuery, ListQuery, Route, StateQuery
from topics.client.verbs import Items
from topics.core.reading.walk import ReadRequest
from topics.embedded.views import job_view, read_view
from topics.engine.engine import Engine
from topics.engine.queues.claim_pass import Claimed, Claimer
from topics.engine.reading.long_polls import Poll
from topics.engine.reading.reads import ReadDone
from topics.engine.reading.starts import ReadStart
from topics.engine.ticket import Ticket, resolved
from topics.errors import ShuttingDown
from topics.model.config import TopicConfig, patch_from, resolve_config
from topics.model.names import TagMatch, check_router_name
from topics.model.paging import After, Gaps, Walk, end_of
from topics.model.position import Position, checked_position, position_of, token
from topics.model.record import build_batch, build_plain_batch
from topics.model.results import (
    AckResult,
    AppendResult,
    ClaimResult,
    DeleteResult,
    ExtendResult,
    NackResult,
    ReadResult,
    RouterPage,
    RouterState,
    TopicPage,
    TopicState,
)
from topics.model.router import RouterDef
from topics.model.values import plain_texts, records_of
from topics.wire.incoming.queue_requests import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    NackRequest,
)
from topics.wire.incoming.requests import (
    DeleteRequest,
    DiffRequest,
    NodeFilter,
    PutRouterRequest,
    node_set,
    tag_match,
)

if TYPE_CHECKING:
    from topics.embedded.database import Database

Q = TypeVar("Q")
T = TypeVar("T")

WAIT_MS = limits.DIFF_WAIT_MS.high


class EngineDoor:
    def __init__(self, database: Database) -> None:
        self._db = database
        self.compared: set[tuple[str, bytes]] = set()

    async def run(self, route: Route[Q, T], name: str, request: Q) -> T:
        answer: T = _COMMANDS[route](self._db, name, request)
        return answer

    async def append(
        self, topic: str, values: Sequence[Any], *, node: str | None, key: str | None, config: bytes | None
    ) -> AppendResult:
        texts = plain_texts(values)
        if texts is None:
            batch = build_batch(records_of(values), default_node=node, idempotency_key=key)
        else:
            batch = build_plain_batch(texts, default_node=node, idempotency_key=key)
        first = None if config is None else _config_from(config)
        done = self._db.call(lambda engine: engine.write(topic, batch, config=first))
        return AppendResult(
            topic=topic,
            first_seq=done.first_seq,
            last_seq=done.last_seq,
            head_seq=done.head,
            count=done.count,
            created=done.created,
            deduped=done.deduped,
            position=token(done.last_seq, done.epoch),
        )

    def follow(self, topic: str, after: After, *, nodes: tuple[str, ...], gaps: Gaps) -> AsyncGenerator[Items, None]:
        async def blocked(begin: Callable[[], Poll]) -> ReadDone:
            return _wait(self._db, begin)

        return _follow(_Follower(self._db, topic, after, nodes), gaps, blocked)

    def afollow(self, topic: str, after: After, *, nodes: tuple[str, ...], gaps: Gaps) -> AsyncGenerator[Items, None]:
        """`follow` for coroutines: waiting does not hold the event loop."""
        return _follow(_Follower(self._db, topic, after, nodes), gaps, lambda begin: _await(self._db, begin))


@lru_cache(1024)
def _config_from(text: bytes) -> TopicConfig:
    return resolve_config(patch_from(msgspec.json.decode(text)))


# --- commands: one for each route ------------------------------------------------------------------------------------

_COMMANDS: dict[Route[Any, Any], Callable[[Database, str, Any], Any]] = {}


def _carries_out(
    route: Route[Q, T],
) -> Callable[[Callable[[Database, str, Q], T]], Callable[[Database, str, Q], T]]:
    def register(command: Callable[[Database, str, Q], T]) -> Callable[[Database, str, Q], T]:
        _COMMANDS[route] = command
        return command

    return register


@_carries_out(routes.DIFF)
def _diff(db: Database, topic: str, asked: DiffRequest) -> ReadResult:
    start = position_of(asked.from_seq)
    if asked.from_ts is not None or asked.cursor is not None:
        elsewhere = ReadStart(from_ts=asked.from_ts, cursor=asked.cursor)
        start = db.call(lambda engine: engine.starts.find(engine.state.topic(topic), elsewhere))
    request = _read_request(
        start, limit=asked.limit, max_bytes=asked.max_batch_bytes, nodes=asked.node, tag=tag_match(asked.tag)
    )
    if not asked.wait_ms:
        return read_view(topic, db.call(lambda engine: engine.read(topic, request)))
    return read_view(topic, _wait(db, lambda: db.long_polls.read(topic, request, wait_ms=asked.wait_ms)))


def _read_request(
    start: Position, *, limit: int, max_bytes: int, nodes: NodeFilter, tag: TagMatch | None = None
) -> ReadRequest:
    return ReadRequest(
        from_seq=start.seq,
        epoch=start.epoch,
        limit=limit,
        budget_bytes=max_bytes,
        nodes=node_set(nodes),
        tag=tag,
        in_turn=True,
    )


@_carries_out(routes.DELETE)
def _delete(db: Database, topic: str, asked: DeleteRequest) -> DeleteResult:
    below, selector = asked.selector()
    return db.call(lambda engine: engine.delete_records(topic, before_seq=below, match=selector))


@_carries_out(routes.STATE)
def _state(db: Database, topic: str, asked: StateQuery) -> TopicState:
    return db.call(lambda engine: engine.topic_state(topic, touch=asked.touch))


@_carries_out(routes.CONFIGURE)
def _configure(db: Database, topic: str, text: bytes) -> TopicConfig:
    return db.call(lambda engine: engine.put_topic(topic, _config_from(text))).config


@_carries_out(routes.DROP)
def _drop(db: Database, topic: str, asked: DropQuery) -> bool:
    return db.call(lambda engine: engine.drop_topic(topic, if_empty=asked.if_empty)).deleted


@_carries_out(routes.TOPICS)
def _topics(db: Database, _: str, asked: ListQuery) -> TopicPage:
    page, after = db.call(
        lambda engine: engine.page_of_topics(prefix=asked.prefix, after=asked.cursor or None, page_size=asked.page_size)
    )
    return TopicPage(page, after)


@_carries_out(routes.CLAIM)
def _claim(db: Database, queue: str, asked: ClaimRequest) -> ClaimResult:
    begun: list[Claimer] = []

    def begin(engine: Engine) -> Ticket[Claimed]:
        begun.append(
            engine.queues.ask(queue, node=asked.node, max=asked.max, lease_ms=asked.lease_ms, wait_ms=asked.wait_ms)
        )
        return begun[0].ticket

    try:
        done = db.call(begin)
    finally:
        for claimer in begun:
            if not claimer.ticket.done:
                db.call(partial(_leave, claimer))
    jobs = [job_view(job) for job in done.jobs]
    return ClaimResult(topic=queue, claimed=jobs, count=len(jobs), ready=done.ready)


def _leave(claimer: Claimer, engine: Engine) -> Ticket[None]:
    engine.queues.waiting.leave(claimer)
    return resolved(None)


@_carries_out(routes.ACK)
def _ack(db: Database, queue: str, asked: AckRequest) -> AckResult:
    fences = asked.check()
    return db.call(lambda engine: engine.queues.ack(queue, node=asked.node, seqs=asked.seqs, fences=fences)).result


@_carries_out(routes.NACK)
def _nack(db: Database, queue: str, asked: NackRequest) -> NackResult:
    fences = asked.check()
    return db.call(
        lambda engine: engine.queues.nack(
            queue,
            node=asked.node,
            seqs=asked.seqs,
            fences=fences,
            delay_ms=asked.delay_ms,
            error=asked.error or "",
            final=asked.final,
        )
    )


@_carries_out(routes.EXTEND)
def _extend(db: Database, queue: str, asked: ExtendRequest) -> ExtendResult:
    fences = asked.check()
    return db.call(
        lambda engine: engine.queues.extend(
            queue, node=asked.node, seqs=asked.seqs, fences=fences, lease_ms=asked.lease_ms
        )
    )


@_carries_out(routes.PUT_ROUTER)
def _put_router(db: Database, router: str, asked: PutRouterRequest) -> RouterState:
    check_router_name(router)
    definition = asked.definition(router)
    done = db.call(lambda engine: engine.routers.put(definition))
    return _router_state(done.definition, created=done.created)


@_carries_out(routes.GET_ROUTER)
def _get_router(db: Database, router: str, _: None) -> RouterState:
    shown = db.call(lambda engine: engine.routers.get(router))
    return _router_state(shown.definition, forwarded_total=shown.forwarded_total)


def _router_state(definition: RouterDef, **more: Any) -> RouterState:
    return RouterState(**definition.to_json(), **more)


@_carries_out(routes.DELETE_ROUTER)
def _delete_router(db: Database, router: str, _: None) -> bool:
    return db.call(lambda engine: engine.routers.delete(router))


@_carries_out(routes.ROUTERS)
def _routers(db: Database, _: str, asked: ListQuery) -> RouterPage:
    page, more = db.call(
        lambda engine: resolved(
            engine.routers.page(
                prefix=asked.prefix,
                source=asked.source,
                dest=asked.dest,
                after=asked.cursor or None,
                page_size=asked.page_size,
            )
        )
    )
    return RouterPage(page, page[-1].router if more else None)


# --- follow ----------------------------------------------------------------------------------------------------------
# Waiting is the engine's long poll, so a record is there within a millisecond of its publication and nobody polls.


class _Follower:
    """Where a follower stands, and in which life of its topic: one that was made anew meanwhile is another topic."""

    def __init__(self, db: Database, topic: str, after: After, nodes: tuple[str, ...]) -> None:
        self.topic = topic
        self.position = checked_position(after)
        self._db = db
        self._nodes = list(nodes)
        self._wait_ms = 0  # first what is there, so that the reader knows where the log began
        self._epoch: int | None = None

    def begin(self) -> Poll:
        request = _read_request(
            self.position,
            limit=limits.DIFF_LIMIT.high,
            max_bytes=limits.DIFF_BATCH_BYTES.default,
            nodes=self._nodes,
        )
        poll = self._db.long_polls.read(self.topic, request, wait_ms=self._wait_ms, epoch=self._epoch)
        self._epoch = poll.topic.epoch
        return poll

    def page(self, done: ReadDone) -> ReadResult:
        page = read_view(self.topic, done)
        self.position, self._wait_ms = end_of(page), WAIT_MS
        return page


async def _follow(
    follower: _Follower, gaps: Gaps, poll: Callable[[Callable[[], Poll]], Awaitable[ReadDone]]
) -> AsyncGenerator[Items, None]:
    walk = Walk(follower.topic, follower.position, gaps=gaps)
    while True:
        try:
            done = await poll(follower.begin)
        except ShuttingDown:
            return
        yield walk.take(follower.page(done))


def _wait(db: Database, begin: Callable[[], Poll]) -> ReadDone:
    """The answer of a long poll. It ends with its caller: an interrupted one waits for nothing any more."""
    begun: list[Poll] = []

    def begin_once(_: Engine) -> Ticket[ReadDone]:
        begun.append(begin())
        return begun[0].ticket

    try:
        return db.call(begin_once)
    finally:
        for poll in begun:
            if not poll.ticket.done:
                db.post(poll.cancel)


async def _await(db: Database, begin: Callable[[], Poll]) -> ReadDone:
    """The answer of a long poll, awaited on an event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ReadDone] = loop.create_future()

    def pass_on(done: Ticket[ReadDone]) -> None:
        try:
            loop.call_soon_threadsafe(_hand_over, done, future)
        except RuntimeError:
            pass  # the loop was closed: nobody waits there, and whoever answers must not suffer for it

    def begin_once(_: Engine) -> Ticket[Poll]:
        poll = begin()
        poll.ticket.then(pass_on)
        return resolved(poll)

    poll = db.call(begin_once)
    try:
        return await future
    finally:
        if not poll.ticket.done:  # cancelled
            db.post(poll.cancel)


def _hand_over(done: Ticket[ReadDone], future: asyncio.Future[ReadDone]) -> None:
    if future.cancelled():
        return
    if done.error is not None:
        future.set_exception(done.error)
    else:
        future.set_result(done.result())
