"""Reading: `read` and `follow` of a topic, as the embedded library and the blocking client have them.

The types say what may come: records, and gaps among them only for those who asked for `gaps="yield"`.

Doors: the verbs that the embedded library and the blocking client share. One contract suite runs over all doors.

`topics.open` gives a `DatabaseDoor` on a directory, `topics.connect` one on a server. The asyncio client has the same
verbs as coroutines. Handles are cheap and hold no state; nothing is created by making one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol, overload

from topics import limits
from topics.errors import InvalidRequest
from topics.model.config import TopicConfig
from topics.model.names import TagMatch
from topics.model.paging import After, Gap, Gaps, Walk, node_names
from topics.model.results import (
    AckResult,
    AppendResult,
    ClaimResult,
    DeleteResult,
    ExtendResult,
    Job,
    NackResult,
    ReadResult,
    Record,
    RouterState,
    RouterSummary,
    TopicState,
    TopicSummary,
)
from topics.model.router import Guarantee


class Reading(Protocol):
    """Whoever has pages, and a way to wait for more, can be read and followed."""

    name: str

    def page(
        self,
        after: After = 0,
        *,
        limit: int = limits.DIFF_LIMIT.default,
        max_bytes: int = limits.DIFF_BATCH_BYTES.default,
        exclude_nodes: Iterable[str] = (),
        wait_ms: int = 0,
    ) -> ReadResult:
        """One read: the records behind a position, the next position, and a tombstone if something was lost. With
        `wait_ms` a reader that is caught up waits so long for something to come."""
        raise NotImplementedError

    def _follow(self, after: After, nodes: tuple[str, ...], gaps: Gaps) -> Iterator[Record | Gap]:
        raise NotImplementedError

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
        nodes, walk = node_names(exclude_nodes), Walk(self.name, after, gaps=gaps, limit=limit)
        while not walk.is_full:
            limit = walk.page_limit(limits.DIFF_LIMIT.high)
            page = self.page(walk.position, limit=limit, exclude_nodes=nodes)
            yield from walk.take(page)
            if not walk.has_more(page):
                return

    @overload
    def follow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Literal["raise"] = "raise"
    ) -> Iterator[Record]: ...
    @overload
    def follow(self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps) -> Iterator[Record | Gap]: ...
    def follow(self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise") -> Iterator[Any]:
        """Everything behind the cursor, then whatever comes, across broken connections and restarts of a server.

        Ends when the client or database is closed; raises TopicNotFound when the topic is deleted."""
        return self._follow(after, node_names(exclude_nodes), gaps)


Match = str | list[str] | TagMatch | None
Seqs = Iterable[int | Job]
"""Jobs by their seqs. A `Job` brings its lease id along, so a lease that has passed on is not settled."""


def listed(jobs: Seqs) -> list[int | Job]:
    """What `ack`, `nack` and `extend` take: several, and no single one by itself."""
    if isinstance(jobs, int | Job):
        raise InvalidRequest("ack, nack and extend take a list of jobs or seqs; put a single one into brackets")
    return list(jobs)


class TopicDoor(Reading, Protocol):
    def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        key: str | None = None,
    ) -> AppendResult: ...
    def append_many(
        self, records: Iterable[Any], *, node: str | None = None, key: str | None = None
    ) -> AppendResult: ...
    def delete(self, *, before_seq: int | None = None, match: Match = None) -> DeleteResult: ...
    def state(self, *, touch: bool = True) -> TopicState: ...
    def configure(self, **config: Any) -> TopicConfig: ...
    def drop(self, *, if_empty: bool = False) -> bool: ...


class QueueDoor(TopicDoor, Protocol):
    """A topic of type `queue`; its first append creates it as one."""

    def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None) -> ClaimResult: ...
    def ack(self, jobs: Seqs, *, node: str) -> AckResult: ...
    def nack(self, jobs: Seqs, *, node: str, delay_ms: int = 0) -> NackResult: ...
    def extend(self, jobs: Seqs, *, node: str, lease_ms: int) -> ExtendResult: ...


class RouterDoor(Protocol):
    name: str

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
    ) -> RouterState: ...
    def get(self) -> RouterState: ...
    def delete(self) -> bool: ...


class DatabaseDoor(Protocol):
    def topic(self, name: str, **config: Any) -> TopicDoor: ...
    def queue(self, name: str, **config: Any) -> QueueDoor: ...
    def router(self, name: str) -> RouterDoor: ...
    def topics(self, prefix: str = "") -> Iterator[TopicSummary]: ...
    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> Iterator[RouterSummary]: ...
    def close(self) -> None: ...
