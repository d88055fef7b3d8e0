"""Readers that wait at the head of topics of the engine in this process.

Waiting is the engine's long poll, one for each topic, so a record is there within a millisecond of its publication and
nobody looks again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from topics import limits
from topics.client.readers import Reading, Stretch, Stretches
from topics.core.reading.walk import ReadRequest
from topics.embedded.views import read_view
from topics.engine.engine import Engine
from topics.engine.reading.long_polls import Poll
from topics.engine.reading.reads import ReadDone
from topics.engine.ticket import Ticket, resolved
from topics.errors import ShuttingDown
from topics.model.names import TagMatch
from topics.model.paging import Gaps
from topics.model.position import Position
from topics.wire.incoming.requests import NodeFilter, node_set, tag_match

if TYPE_CHECKING:
    from topics.embedded.database import Database

WAIT_MS = limits.DIFF_WAIT_MS.high

Begin = Callable[[Engine], Ticket[None]]


def read_request(
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
        examined_max=0 if nodes else limit,
    )


def poll_answer(db: Database, begin: Callable[[], Poll]) -> ReadDone:
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


class _Follower:
    """Where a follower stands in one topic, and in which life of it: one that was made anew meanwhile is another
    topic."""

    def __init__(self, topic: str, wanted: Reading, gaps: Gaps) -> None:
        self.topic = topic
        self.poll: Poll | None = None
        self._walk = wanted.walk(topic, gaps=gaps)
        self._nodes = list(wanted.nodes)
        self._tag = tag_match(wanted.tag)
        self._wait_ms = 0  # first what is there, so that the reader knows where the log began
        self._epoch: int | None = None

    def begin(self, db: Database) -> Poll:
        request = read_request(
            self._walk.position,
            limit=limits.DIFF_LIMIT.high,
            max_bytes=limits.DIFF_BATCH_BYTES.default,
            nodes=self._nodes,
            tag=self._tag,
        )
        self.poll = db.long_polls.read(self.topic, request, wait_ms=self._wait_ms, epoch=self._epoch)
        self._epoch = self.poll.topic.epoch
        return self.poll

    def take(self, poll: Poll) -> Stretch:
        self.poll = None
        page = read_view(self.topic, poll.ticket.result())
        self._wait_ms = WAIT_MS
        items = list(self._walk.take(page))
        return Stretch(self.topic, items, self._walk.position)


class _Followers:
    """Several followers whose polls run side by side; `news` is answered when one of them is."""

    def __init__(self, db: Database, followers: list[_Follower]) -> None:
        self._db = db
        self._followers = followers
        self._news: Ticket[None] = Ticket()

    def begin(self, _: Engine) -> Ticket[None]:
        """Begin the polls that are not running. A poll that waits on goes on over several of these calls."""
        self._news = Ticket()
        for follower in self._followers:
            if follower.poll is None:
                follower.begin(self._db).ticket.then(self._over)
        if not self._news.done and self.answered():  # while the reader was busy with another topic
            self._news.resolve(None)
        return self._news

    def _over(self, _: Ticket[ReadDone]) -> None:
        if not self._news.done:
            self._news.resolve(None)

    def answered(self) -> list[tuple[_Follower, Poll]]:
        polls = [(follower, follower.poll) for follower in self._followers]
        return [(follower, poll) for follower, poll in polls if poll is not None and poll.ticket.done]

    def leave(self) -> None:
        """Nobody waits for the polls that still run."""
        for follower in self._followers:
            if follower.poll is not None and not follower.poll.ticket.done:
                self._db.post(follower.poll.cancel)


async def follow_engine(
    db: Database, readings: Mapping[str, Reading], gaps: Gaps, wait: Callable[[Begin], Awaitable[None]]
) -> Stretches:
    followers = _Followers(db, [_Follower(topic, wanted, gaps) for topic, wanted in readings.items()])
    try:
        while True:
            await wait(followers.begin)
            for follower, poll in followers.answered():
                yield follower.take(poll)
    except ShuttingDown:
        return
    finally:
        followers.leave()


async def awaited(db: Database, begin: Begin) -> None:
    """`begin`'s ticket, awaited on an event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def pass_on(done: Ticket[None]) -> None:
        try:
            loop.call_soon_threadsafe(_hand_over, done, future)
        except RuntimeError:
            pass  # the loop was closed: nobody waits there, and whoever answers must not suffer for it

    def begin_once(engine: Engine) -> Ticket[None]:
        begin(engine).then(pass_on)
        return resolved(None)

    db.call(begin_once)
    await future


def _hand_over(done: Ticket[None], future: asyncio.Future[None]) -> None:
    if future.cancelled():
        return
    if done.error is not None:
        future.set_exception(done.error)
    else:
        future.set_result(None)
