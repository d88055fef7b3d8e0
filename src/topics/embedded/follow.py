"""Follow: a reader that waits at the head of a log.

Waiting is the engine's long poll, so a record is there within a millisecond of its publication and nobody polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from topics import limits
from topics.embedded.views import read_view
from topics.engine.engine import Engine
from topics.engine.longpoll import Poll
from topics.engine.reads import ReadDone
from topics.engine.ticket import Ticket, resolved
from topics.errors import ShuttingDown
from topics.model.results import ReadResult

if TYPE_CHECKING:
    from topics.embedded.database import Database
    from topics.embedded.topic import Topic

WAIT_MS = limits.DIFF_WAIT_MS.high


def follow(db: Database, topic: Topic, after: int, nodes: tuple[str, ...]) -> Iterator[ReadResult]:
    cursor, wait_ms = after, 0  # first what is there, so that the reader knows where the log began
    while True:
        try:
            page = read_view(topic.name, wait(db, partial(_begin_poll, db, topic, cursor, nodes, wait_ms)))
        except ShuttingDown:
            return
        cursor, wait_ms = page.next_from_seq, WAIT_MS
        yield page


async def afollow(db: Database, topic: Topic, after: int, nodes: tuple[str, ...]) -> AsyncIterator[ReadResult]:
    cursor, wait_ms = after, 0
    while True:
        try:
            page = read_view(topic.name, await _apoll(db, topic, cursor, nodes, wait_ms))
        except ShuttingDown:
            return
        cursor, wait_ms = page.next_from_seq, WAIT_MS
        yield page


def wait(db: Database, begin: Callable[[], Poll]) -> ReadDone:
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


async def _apoll(db: Database, topic: Topic, cursor: int, nodes: tuple[str, ...], wait_ms: int) -> ReadDone:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ReadDone] = loop.create_future()

    def settle(done: Ticket[ReadDone]) -> None:
        try:
            loop.call_soon_threadsafe(_hand_over, done, future)
        except RuntimeError:
            pass  # the loop was closed: nobody waits there, and whoever answers must not suffer for it

    def begin(_: Engine) -> Ticket[Poll]:
        poll = _begin_poll(db, topic, cursor, nodes, wait_ms)
        poll.ticket.then(settle)
        return resolved(poll)

    poll = db.call(begin)
    try:
        return await future
    finally:
        if not poll.ticket.done:  # cancelled
            db.post(poll.cancel)


def _begin_poll(db: Database, topic: Topic, cursor: int, nodes: tuple[str, ...], wait_ms: int) -> Poll:
    request = topic._request(
        cursor, limit=limits.DIFF_LIMIT.high, max_bytes=limits.DIFF_BATCH_BYTES.default, exclude_nodes=nodes
    )
    return db.long_polls.read(topic.name, request, wait_ms=wait_ms)


def _hand_over(done: Ticket[ReadDone], future: asyncio.Future[ReadDone]) -> None:
    if future.cancelled():
        return
    if done.error is not None:
        future.set_exception(done.error)
    else:
        future.set_result(done.result())
