"""Reading: `read` and `follow` of a topic, as the embedded library and the blocking client have them.

The types say what may come: records, and gaps among them only for those who asked for `gaps="yield"`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol, overload

from topics import limits
from topics.model.paging import After, Gap, Gaps, Walk, node_names
from topics.model.results import ReadResult, Record


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
