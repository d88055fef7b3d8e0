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

from topics.client.verbs import QueueVerbs, RouterVerbs, TopicVerbs
from topics.model.paging import After, Gap, Gaps, node_names
from topics.model.results import Record

if TYPE_CHECKING:
    from topics.client.jobs.work import Work
    from topics.client.jobs.worker import Handler, Worker, WorkerFields

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
    delete = blocking(TopicVerbs.delete)
    state = blocking(TopicVerbs.state)
    configure = blocking(TopicVerbs.configure)
    drop = blocking(TopicVerbs.drop)

    @overload
    def read(
        self,
        after: After = 0,
        *,
        limit: int | None = None,
        exclude_nodes: Iterable[str] = (),
        gaps: Literal["raise"] = "raise",
    ) -> Iterator[Record]: ...
    @overload
    def read(
        self, after: After = 0, *, limit: int | None = None, exclude_nodes: Iterable[str] = (), gaps: Gaps
    ) -> Iterator[Record | Gap]: ...
    def read(
        self, after: After = 0, *, limit: int | None = None, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise"
    ) -> Iterator[Any]:
        """Everything behind the cursor up to the head of this moment, page by page."""
        return each(self._verbs._pages(after, limit=limit, exclude_nodes=exclude_nodes, gaps=gaps))

    @overload
    def follow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Literal["raise"] = "raise"
    ) -> Iterator[Record]: ...
    @overload
    def follow(self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps) -> Iterator[Record | Gap]: ...
    def follow(self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise") -> Iterator[Any]:
        """Everything behind the cursor, then whatever comes, across broken connections and restarts of a server.

        Ends when the client or database is closed; raises TopicNotFound when the topic is deleted."""
        verbs = self._verbs
        return each(verbs._following(verbs._door.follow(self.name, after, nodes=node_names(exclude_nodes), gaps=gaps)))


class BlockingQueue(BlockingTopic):
    """A topic of type `queue`. Its first use creates it as one."""

    _verbs: QueueVerbs

    configure = blocking(QueueVerbs.configure)
    claim = blocking(QueueVerbs.claim)
    ack = blocking(QueueVerbs.ack)
    nack = blocking(QueueVerbs.nack)
    extend = blocking(QueueVerbs.extend)

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
