"""Blocking: the verbs without an event loop, for the blocking client and the embedded library.

The verbs are coroutines (`verbs`). Over a door that blocks where another would suspend, such a coroutine comes to its
end in one step, and `run` takes that step. A blocking handle has a handle of the same kind for coroutines and runs its
verbs: `append = blocking(TopicVerbs.append)` is `append` with the same arguments, result and help. Good for any thread.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from topics.client.queue_verbs import DeadLetterVerbs, QueueVerbs
from topics.client.readers import CursorVerbs, FollowFields, ReadFields, reading
from topics.client.schedule_verbs import ScheduleVerbs
from topics.client.verbs import RouterVerbs, TagSeqs, TopicVerbs, condition_of
from topics.model.paging import After, Gap, Gaps
from topics.model.results import AppendResult, JobInfo, JobState, Record
from topics.model.values import Event, Moment, Span, Unique

if TYPE_CHECKING:
    from topics.client.jobs.handling import Handler
    from topics.client.jobs.work import Work
    from topics.client.jobs.worker import Worker, WorkerFields

P = ParamSpec("P")
T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise AssertionError("a coroutine over a blocking door has suspended")


def blocking(
    verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """A method of a blocking handle: runs this verb of the handle's `_verbs`."""

    @wraps(verb)
    def method(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(verb(self._verbs, *args, **kwargs))

    return method


def each(groups: AsyncGenerator[Iterable[T], None]) -> Iterator[T]:
    """The items of pages, one by one."""
    try:
        while True:
            try:
                items = run(groups.__anext__())
            except StopAsyncIteration:
                return
            yield from items
    finally:
        run(groups.aclose())


class BlockingTopic:
    """A topic by name: cheap, stateless, good for any thread. The first write creates the topic."""

    def __init__(self, verbs: TopicVerbs) -> None:
        self._verbs = verbs
        self.name = verbs.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    append = blocking(TopicVerbs.append)
    append_many = blocking(TopicVerbs.append_many)
    page = blocking(TopicVerbs.page)
    to_arrow = blocking(TopicVerbs.to_arrow)
    to_pandas = blocking(TopicVerbs.to_pandas)
    to_polars = blocking(TopicVerbs.to_polars)
    latest_page = blocking(TopicVerbs.latest_page)
    delete = blocking(TopicVerbs.delete)
    state = blocking(TopicVerbs.state)
    configure = blocking(TopicVerbs.configure)
    drop = blocking(TopicVerbs.drop)

    get = blocking(TopicVerbs.get)
    newest = blocking(TopicVerbs.newest)
    cursors = blocking(TopicVerbs.cursors)

    @overload
    def read(
        self,
        after: After = 0,
        *,
        limit: int | None = None,
        gaps: Literal["raise"] = "raise",
        **fields: Unpack[ReadFields],
    ) -> Iterator[Record]: ...
    @overload
    def read(
        self, after: After = 0, *, limit: int | None = None, gaps: Gaps, **fields: Unpack[ReadFields]
    ) -> Iterator[Record | Gap]: ...
    def read(
        self, after: After = 0, *, limit: int | None = None, gaps: Gaps = "raise", **fields: Unpack[ReadFields]
    ) -> Iterator[Any]:
        """Everything behind the position up to the head of this moment, page by page.

        Instead of `after`, `from_ts` begins at a time and `cursor` behind a named cursor, which stays where it is.
        `tag` keeps records of one tag or, with a final `*`, of a prefix; `exclude_nodes` leaves out records of these
        nodes."""
        return each(self._verbs._pages(reading(after, fields), limit=limit, gaps=gaps))

    def latest(self, tag: str = "") -> Iterator[Record]:
        """The newest record of each tag that begins so, in the byte order of tags, page by page. A tag whose newest
        record has `null` for data is left out."""
        return each(self._verbs._latest(tag))

    @overload
    def follow(
        self, after: After = 0, *, gaps: Literal["raise"] = "raise", **fields: Unpack[FollowFields]
    ) -> Iterator[Record]: ...
    @overload
    def follow(self, after: After = 0, *, gaps: Gaps, **fields: Unpack[FollowFields]) -> Iterator[Record | Gap]: ...
    def follow(self, after: After = 0, *, gaps: Gaps = "raise", **fields: Unpack[FollowFields]) -> Iterator[Any]:
        """Everything behind the position, then whatever comes, across broken connections and restarts of a server.

        `from_ts`, `tag` and `exclude_nodes` are those of `read`. With `cursor` it goes on behind this named cursor and
        commits there what was processed: a record is when the loop asks for the next one, and the commit follows when
        a page or frame is processed, within one about every second, or with `commit="record"` each time. A cursor that
        does not exist begins at `after` or `from_ts`. `owner` takes the cursor over first.

        Ends when the client or database is closed; raises TopicNotFound when the topic is deleted."""
        verbs = self._verbs
        return each(verbs._following(after, gaps=gaps, fields=fields, follow=verbs._door.follow))

    def cursor(self, name: str) -> Cursor:
        """A handle to a named cursor of this topic; its first commit or reset creates it."""
        return Cursor(self._verbs.cursor(name))


class Cursor:
    """A named cursor of a topic: a durable position under a name. Cheap, stateless, good for any thread; the first
    commit or reset creates the cursor."""

    def __init__(self, verbs: CursorVerbs) -> None:
        self._verbs = verbs
        self.topic = verbs.topic
        self.name = verbs.name

    def __repr__(self) -> str:
        return f"Cursor({self.topic!r}, {self.name!r})"

    get = blocking(CursorVerbs.get)
    commit = blocking(CursorVerbs.commit)
    reset = blocking(CursorVerbs.reset)
    take_over = blocking(CursorVerbs.take_over)
    hold = blocking(CursorVerbs.hold)
    delete = blocking(CursorVerbs.delete)


class BlockingQueue(BlockingTopic):
    """A topic of type `queue`. Its first use creates it as one."""

    _verbs: QueueVerbs

    # Written out, because a type checker would give `blocking(QueueVerbs.append)` the arguments of a topic's.
    def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        key: str | None = None,
        if_head: After | None = None,
        if_tag_seq: int | TagSeqs | None = None,
        delay: Span | None = None,
        deliver_at: Moment | None = None,
        priority: int | None = None,
        unique: str | Unique | None = None,
    ) -> AppendResult:
        """Append one job. When this returns, it is as safe as the queue's class says.

        It is handed out after `delay` (seconds or a timedelta), or at `deliver_at` (a datetime or Unix time). Higher
        priorities go first, -9 to 9. Of jobs with one `unique` key only one is there at a time: `first_seq` of the
        answer names it, and `count` is 0 if it was there before."""
        event = Event(data, tag, node, meta, delay, deliver_at, priority, unique)
        condition = condition_of(if_head, if_tag_seq, tag)
        return run(self._verbs._append([event], node=None, key=key, condition=condition))

    configure = blocking(QueueVerbs.configure)
    claim = blocking(QueueVerbs.claim)
    ack = blocking(QueueVerbs.ack)
    nack = blocking(QueueVerbs.nack)
    extend = blocking(QueueVerbs.extend)
    workers = blocking(QueueVerbs.workers)
    cancel = blocking(QueueVerbs.cancel)
    retry = blocking(QueueVerbs.retry)
    move = blocking(QueueVerbs.move)
    pause = blocking(QueueVerbs.pause)
    resume = blocking(QueueVerbs.resume)
    purge = blocking(QueueVerbs.purge)

    def jobs(self, *, state: JobState | None = None, tag: str | None = None) -> Iterator[JobInfo]:
        """The jobs that are there, ascending by seq, without claiming any: of one state, of one tag, or all."""
        return each(self._verbs._job_pages(state, tag))

    def dead_letters(self) -> DeadLetterTopic:
        """The topic that takes the jobs which were given up, as the queue's config names it."""
        return DeadLetterTopic(run(self._verbs.dead_letters()))

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
        from topics.client.jobs.work import Work

        return Work(self, node, max=max, lease_ms=lease_ms, until_empty=until_empty, stop=stop)

    def worker(self, **options: Unpack[WorkerFields]) -> Callable[[Handler], Worker]:
        """`@queue.worker(concurrency=8)` makes a function the worker of this queue; `run()` it. The options are
        those of `WorkerOptions`."""
        from topics.client.jobs.worker import Worker, WorkerOptions

        return lambda handler: Worker(self._verbs, handler, WorkerOptions(**options))


class DeadLetterTopic(BlockingTopic):
    """The dead letters of a queue: a topic whose records say in their `headers` why they are there."""

    _verbs: DeadLetterVerbs

    redrive = blocking(DeadLetterVerbs.redrive)


class Router:
    """A router by name: copies what is written to one topic into another."""

    def __init__(self, verbs: RouterVerbs) -> None:
        self._verbs = verbs
        self.name = verbs.name

    def __repr__(self) -> str:
        return f"Router({self.name!r})"

    put = blocking(RouterVerbs.put)
    get = blocking(RouterVerbs.get)
    delete = blocking(RouterVerbs.delete)


class Schedule:
    """A schedule by name: appends a record to a topic at its ticks."""

    def __init__(self, verbs: ScheduleVerbs) -> None:
        self._verbs = verbs
        self.name = verbs.name

    def __repr__(self) -> str:
        return f"Schedule({self.name!r})"

    put = blocking(ScheduleVerbs.put)
    get = blocking(ScheduleVerbs.get)
    delete = blocking(ScheduleVerbs.delete)
    run = blocking(ScheduleVerbs.run)
    pause = blocking(ScheduleVerbs.pause)
    resume = blocking(ScheduleVerbs.resume)
