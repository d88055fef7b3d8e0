"""Topic: a handle to one topic by name; cheap, stateless, good for any thread.

Reads page through the log by themselves. A gap is never passed in silence: where the caller had a cursor (`after` above
0, or a gap in the middle), it raises `DataLoss`, or comes as a `Gap` among the records if `gaps="yield"`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from topics import limits
from topics.core.read import ReadRequest
from topics.embedded.follow import afollow, follow
from topics.embedded.paging import Gap, read_pages
from topics.embedded.views import read_view
from topics.model.config import TopicConfig, patch_from, resolve_config
from topics.model.match import TagMatch, parse_match
from topics.model.record import build_batch
from topics.model.results import AppendResult, DeleteResult, ReadResult, Record, TopicState
from topics.model.values import Event, record_of, records_of

if TYPE_CHECKING:
    from topics.embedded.database import Database

Gaps = Literal["raise", "yield"]


class Topic:
    def __init__(self, database: Database, name: str, config: TopicConfig | None = None) -> None:
        self._db = database
        self.name = name
        self._config = config

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

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
        """Append one record. When this returns, it is as safe as the topic's class says."""
        return self._append([record_of(Event(data, tag=tag, node=node, meta=meta))], None, key)

    def append_many(self, records: Iterable[Any], *, node: str | None = None, key: str | None = None) -> AppendResult:
        """Append values or `Event`s as one batch: all of them, with consecutive seqs, or none."""
        return self._append(records_of(records), node, key)

    def _append(self, records: list[Any], node: str | None, key: str | None) -> AppendResult:
        batch = build_batch(records, default_node=node, idempotency_key=key)
        done = self._db.call(lambda engine: engine.write(self.name, batch, config=self._config))
        return AppendResult(
            topic=self.name,
            first_seq=done.first_seq,
            last_seq=done.last_seq,
            head_seq=done.head,
            count=done.count,
            created=done.created,
            deduped=done.deduped,
        )

    # --- reading --------------------------------------------------------------------------------------------------

    def page(
        self,
        after: int = 0,
        *,
        limit: int = limits.DIFF_LIMIT.default,
        max_bytes: int = limits.DIFF_BATCH_BYTES.default,
        exclude_nodes: Iterable[str] = (),
    ) -> ReadResult:
        """One read: the records behind a cursor, the next cursor, and a tombstone if something was lost."""
        request = self._request(after, limit=limit, max_bytes=max_bytes, exclude_nodes=exclude_nodes)
        return read_view(self.name, self._db.call(lambda engine: engine.read(self.name, request)))

    def read(
        self, after: int = 0, *, limit: int | None = None, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise"
    ) -> Iterator[Record | Gap]:
        """Everything behind the cursor up to the head of this moment, page by page."""
        nodes = tuple(exclude_nodes)
        pages = read_pages(lambda at: self.page(at, limit=limits.DIFF_LIMIT.high, exclude_nodes=nodes), after)
        return _items(self.name, pages, after, limit, gaps)

    def follow(
        self, after: int = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise"
    ) -> Iterator[Record | Gap]:
        """Everything behind the cursor, then whatever comes, until the database is closed or the topic deleted."""
        return _items(self.name, follow(self._db, self, after, tuple(exclude_nodes)), after, None, gaps)

    async def afollow(
        self, after: int = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise"
    ) -> AsyncIterator[Record | Gap]:
        """`follow` for coroutines: waiting does not hold the event loop."""
        async for page in afollow(self._db, self, after, tuple(exclude_nodes)):
            for item in _page_items(self.name, page, after, gaps):
                yield item

    def _request(self, after: int, *, limit: int, max_bytes: int, exclude_nodes: Iterable[str]) -> ReadRequest:
        nodes = frozenset(node.encode() for node in exclude_nodes)
        return ReadRequest(
            from_seq=after,
            limit=limits.DIFF_LIMIT(limit),
            budget_bytes=limits.DIFF_BATCH_BYTES(max_bytes),
            nodes=nodes or None,
        )

    # --- the rest -------------------------------------------------------------------------------------------------

    def delete(self, *, before_seq: int | None = None, match: str | list[str] | TagMatch | None = None) -> DeleteResult:
        """Delete records on request: below a seq, by tag (`"x"`, `"x*"`), or both. Permanent, and no gap to readers."""
        selector = match if match is None or isinstance(match, TagMatch) else parse_match(match)
        done = self._db.call(lambda engine: engine.delete_records(self.name, before_seq=before_seq, match=selector))
        return DeleteResult(
            topic=self.name,
            deleted=done.deleted,
            earliest_seq=done.earliest_seq,
            head_seq=done.head,
            count=done.count,
            bytes=done.bytes,
        )

    def state(self, *, touch: bool = True) -> TopicState:
        return self._db.call(lambda engine: engine.topic_state(self.name, touch=touch))

    def configure(self, **config: Any) -> TopicConfig:
        """Create the topic, or replace its config as a whole: what is left out goes back to its default."""
        resolved = resolve_config(patch_from(config))
        put = self._db.call(lambda engine: engine.put_topic(self.name, resolved))
        return put.topic.config

    def drop(self, *, if_empty: bool = False) -> bool:
        """Delete the topic with everything in it; False if there was none."""
        return self._db.call(lambda engine: engine.drop_topic(self.name, if_empty=if_empty)).deleted


def _items(
    topic: str, pages: Iterator[ReadResult], after: int, limit: int | None, gaps: Gaps
) -> Iterator[Record | Gap]:
    left = limit
    for page in pages:
        for item in _page_items(topic, page, after, gaps):
            if left is not None:
                if left == 0:
                    return
                left -= isinstance(item, Record)
            yield item


def _page_items(topic: str, page: ReadResult, after: int, gaps: Gaps) -> Iterator[Record | Gap]:
    tombstone = page.tombstone
    if tombstone is not None:
        gap = Gap(topic, tombstone.gap_from, tombstone.gap_to, tombstone.reason)
        if gaps == "yield":
            yield gap
        elif after > 0 or tombstone.gap_from > 1:
            raise gap.as_error()
    yield from page.records
