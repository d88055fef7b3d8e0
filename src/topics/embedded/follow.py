"""Follow: a reader that waits at the head of a log.

Waiting is the engine's long poll, so a record is there within a millisecond of its publication and nobody polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING

from topics import limits
from topics.embedded.views import read_view
from topics.engine.engine import Engine
from topics.engine.reading.long_polls import Poll
from topics.engine.reading.reads import ReadDone
from topics.engine.ticket import Ticket, resolved
from topics.errors import ShuttingDown
from topics.model.paging import After
from topics.model.results import ReadResult

if TYPE_CHECKING:
    from topics.embedded.database import Database
    from topics.embedded.topic import Topic

WAIT_MS = limits.DIFF_WAIT_MS.high


class _Place:
    """Where a follower stands, and in which life of its topic: one that was made anew meanwhile is another topic."""

    def __init__(self, db: Database, topic: Topic, after: After, nodes: tuple[str, ...]) -> None:
        self._db = db
        self._topic = topic
        self._nodes = nodes
        self._position: After = after
        self._wait_ms = 0  # first what is there, so that the reader knows where the log began
        self._epoch: int | None = None

    def begin(self) -> Poll:
        request = self._topic._request(
            self._position,
            limit=limits.DIFF_LIMIT.high,
            max_bytes=limits.DIFF_BATCH_BYTES.default,
            exclude_nodes=self._nodes,
        )
        poll = self._db.long_polls.read(self._topic.name, request, wait_ms=self._wait_ms, epoch=self._epoch)
        self._epoch = poll.topic.epoch
        return poll

    def page(self, done: ReadDone) -> ReadResult:
        page = read_view(self._topic.name, done)
        self._position, self._wait_ms = page.position, WAIT_MS
        return page


def follow(db: Database, topic: Topic, after: After, nodes: tuple[str, ...]) -> Iterator[ReadResult]:
    place = _Place(db, topic, after, nodes)
    while True:
        try:
            done = wait(db, place.begin)
        except ShuttingDown:
            return
        yield place.page(done)


async def afollow(db: Database, topic: Topic, after: After, nodes: tuple[str, ...]) -> AsyncIterator[ReadResult]:
    place = _Place(db, topic, after, nodes)
    while True:
        try:
            done = await _apoll(db, place)
        except ShuttingDown:
            return
        yield place.page(done)


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


async def _apoll(db: Database, place: _Place) -> ReadDone:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ReadDone] = loop.create_future()

    def pass_on(done: Ticket[ReadDone]) -> None:
        try:
            loop.call_soon_threadsafe(_hand_over, done, future)
        except RuntimeError:
            pass  # the loop was closed: nobody waits there, and whoever answers must not suffer for it

    def begin(_: Engine) -> Ticket[Poll]:
        poll = place.begin()
        poll.ticket.then(pass_on)
        return resolved(poll)

    poll = db.call(begin)
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
