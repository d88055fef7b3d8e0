"""Database: an open data directory in this process.

Always holds: one process per directory (`DataDirLocked` otherwise; a forked child is another process and is refused);
every method is good for any thread, and a signal ends no change half done; `close` waits for what was accepted, writes
a last snapshot and lets go of the directory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from topics.client import blocking_handles, verbs
from topics.client.blocking_handles import BlockingQueue, BlockingTopic, DeadLetterTopic, Router, Schedule
from topics.client.queue_verbs import DeadLetterVerbs, QueueVerbs
from topics.client.readers import FollowFields, cursor_pages, several_followed
from topics.client.schedule_verbs import ScheduleVerbs, schedule_pages
from topics.client.verbs import RouterVerbs, TopicVerbs, config_text
from topics.clock import SystemClock, SystemHost
from topics.config import Settings
from topics.embedded.engine_door import EngineDoor
from topics.engine.delivery.delivery import DeliveryLoop
from topics.engine.engine import Engine
from topics.engine.reading.long_polls import LongPolls
from topics.engine.ticket import Ticket
from topics.errors import ShuttingDown, TopicsError
from topics.model.config import ConfigFields
from topics.model.paging import After, Gap, Gaps
from topics.model.results import CursorState, Record, TopicSummary
from topics.model.router import RouterSummary
from topics.model.schedules.schedule_answers import ScheduleState
from topics.runtime.drivers.blocking import BlockingDriver, undisturbed
from topics.runtime.kernel import Kernel, recover
from topics.storage.osfs import OsFs, RetryingFs

T = TypeVar("T")


def open_database(path: str | os.PathLike[str], **settings: Any) -> Database:
    """Open a data directory, creating it if it is missing. Settings are those of the server, without their prefix:
    `wal_shards=1`, `segment_max_events=10_000`."""
    resolved = Settings.from_kwargs(data_dir=os.fsdecode(path), **settings)
    recovered = recover(RetryingFs(OsFs()), settings=resolved, clock=SystemClock(), host=SystemHost())
    opened: list[Database] = []

    def begin() -> None:
        driver = BlockingDriver(cold_threads=resolved.cold_io_threads)
        opened.append(Database(Kernel(recovered, settings=resolved, driver=driver), driver))

    try:
        undisturbed(begin)
    except BaseException:  # a signal that came meanwhile: nobody will have what was opened
        for database in opened:
            database.close()
        raise
    return opened[0]


class DatabaseClosed(ShuttingDown):
    """Unlike a server that shuts down, a closed database does not come back: waiting is of no use."""

    status = 500
    retryable = False
    default_message = "the database was closed"


class DatabaseForked(TopicsError):
    default_message = "the database belongs to the process that opened it, and this is a forked child of it"


class Topic(BlockingTopic):
    """A topic by name: cheap, stateless, good for any thread. The first write creates the topic."""

    @overload
    def afollow(
        self, after: After = 0, *, gaps: Literal["raise"] = "raise", **fields: Unpack[FollowFields]
    ) -> AsyncIterator[Record]: ...
    @overload
    def afollow(
        self, after: After = 0, *, gaps: Gaps, **fields: Unpack[FollowFields]
    ) -> AsyncIterator[Record | Gap]: ...
    def afollow(self, after: After = 0, *, gaps: Gaps = "raise", **fields: Unpack[FollowFields]) -> AsyncIterator[Any]:
        """`follow` for coroutines: waiting does not hold the event loop."""
        door = self._verbs._door
        assert isinstance(door, EngineDoor)
        return verbs.each(self._verbs._following(after, gaps=gaps, fields=fields, follow=door.afollow))


class Queue(BlockingQueue, Topic):
    """A topic of type `queue`. Its first use creates it as one."""


class Database:
    """An open data directory, as `topics.open` gives it: topics, queues and routers by name. Good for any thread."""

    def __init__(self, kernel: Kernel, driver: BlockingDriver) -> None:
        self._kernel = kernel
        self._driver = driver
        self._door = EngineDoor(self)
        engine = kernel.engine
        delivery = DeliveryLoop(engine.context, engine.reads, soon=driver.soon, later=driver.later)
        engine.attach_delivery(delivery)
        self.long_polls = LongPolls(engine, delivery)
        kernel.scheduler.every_tick += (delivery.tick, self.long_polls.tick)
        self._closed = False
        self._ended = False
        self._forked = False
        driver.attach(flush=kernel.flush, tick=kernel.tick)
        _opened.add(self)

    # --- topics ---------------------------------------------------------------------------------------------------

    def topic(self, name: str, **config: Unpack[ConfigFields]) -> Topic:
        """A handle. With config, its first use creates a topic that does not exist, with this config; an existing topic
        keeps its own, and a warning says where the two differ (`configure` changes it)."""
        return Topic(TopicVerbs(self._door, name, config_text(config) if config else None))

    def queue(self, name: str, **config: Unpack[ConfigFields]) -> Queue:
        """A handle to a queue, which its first use creates if it does not exist; config as for `topic`. Unless config
        says otherwise, a new queue tries a job 20 times, with growing pauses, and then puts it into `NAME.dead`."""
        return Queue(QueueVerbs(self._door, name, config))

    def dead_letters(self, name: str) -> DeadLetterTopic:
        """A handle to a topic of dead letters: `redrive` takes them back."""
        return DeadLetterTopic(DeadLetterVerbs(self._door, name))

    def router(self, name: str) -> Router:
        """A handle to a router; `put` creates it."""
        return Router(RouterVerbs(self._door, name))

    def schedule(self, name: str) -> Schedule:
        """A handle to a schedule; `put` creates it. It ticks while the directory is open."""
        return Schedule(ScheduleVerbs(self._door, name))

    def schedules(self, prefix: str = "", *, topic: str | None = None) -> Iterator[ScheduleState]:
        """All schedules whose names begin so, and of this topic if given."""
        return blocking_handles.each(schedule_pages(self._door, prefix, topic))

    def topics(self, prefix: str = "") -> Iterator[TopicSummary]:
        """All topics whose names begin so, in byte order of their names."""
        return blocking_handles.each(verbs.topic_pages(self._door, prefix))

    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> Iterator[RouterSummary]:
        """All routers whose names begin so, and of these ends if given."""
        return blocking_handles.each(verbs.router_pages(self._door, prefix, source, dest))

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
        return blocking_handles.each(several_followed(self._door, topics, gaps=gaps, fields=fields))

    def cursors(self, prefix: str = "") -> Iterator[CursorState]:
        """Every reader of the topics whose names begin so, with its lag: named cursors, routers and queues."""
        return blocking_handles.each(cursor_pages(self._door, prefix))

    # --- commands -------------------------------------------------------------------------------------------------

    def call(self, command: Callable[[Engine], Ticket[T]]) -> T:
        """Run a command of the engine and wait for its answer."""
        self._check_process()
        return self._driver.call(lambda: self._start(command))

    def post(self, step: Callable[[], None]) -> None:
        """Run a step on the engine's state, without an answer."""
        self._check_process()
        self._driver.post(step)

    def _start(self, command: Callable[[Engine], Ticket[T]]) -> Ticket[T]:
        if self._closed:
            raise DatabaseClosed
        self._kernel.check_open()
        return command(self._kernel.engine)

    def checkpoint(self) -> None:
        """Move what lies only in the log into segments now, instead of at the next interval."""
        self.call(lambda _: self._kernel.checkpointer.run())

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Every step may be done twice: a close that a signal interrupted is finished by the next one."""
        if self._ended or self._forked:
            return
        self._closed = True
        self._driver.post(self._refuse_waiters)
        self._driver.call(self._kernel.begin_close)
        self._kernel.finish_close()
        self._driver.close()
        self._ended = True

    def _check_process(self) -> None:
        if self._forked:
            raise DatabaseForked

    def disown(self) -> None:
        """In a forked child, which has the files but not the threads: it must change nothing, wait for no lock that
        a thread of the parent held, and not keep the directory locked when the parent has gone."""
        self._forked = True
        self._kernel.store.lock.close()

    def _refuse_waiters(self) -> None:
        self.long_polls.fail_all(DatabaseClosed())
        self._kernel.engine.queues.waiting.fail_all(DatabaseClosed())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_opened: WeakSet[Database] = WeakSet()


def _disown_all() -> None:
    for database in _opened:
        database.disown()


os.register_at_fork(after_in_child=_disown_all)
