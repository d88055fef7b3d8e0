"""Topic: a handle to one topic by name; cheap, stateless, good for any thread.

Reads page through the log by themselves; what they do about gaps is in `model.paging`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

from topics import limits
from topics.core.reading.walk import ReadRequest
from topics.embedded.follow import afollow, follow, wait
from topics.embedded.views import read_view
from topics.model.config import TopicConfig, patch_from, resolve_config
from topics.model.doors import Reading
from topics.model.names import TagMatch
from topics.model.paging import After, Gap, Gaps, Walk, node_names
from topics.model.position import checked_position, token
from topics.model.record import WriteBatch, build_batch, build_plain_batch
from topics.model.results import AppendResult, DeleteResult, ReadResult, Record, TopicState
from topics.model.values import Event, plain_texts, record_of, records_of, several
from topics.wire.incoming.requests import DeleteRequest, DiffRequest, checked, predicate

if TYPE_CHECKING:
    from topics.embedded.database import Database


class Topic(Reading):
    """A topic by name: cheap, stateless, good for any thread. The first write creates the topic."""

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
        record = record_of(Event(data, tag=tag, node=node, meta=meta))
        return self._append(build_batch([record], idempotency_key=key))

    def append_many(self, records: Iterable[Any], *, node: str | None = None, key: str | None = None) -> AppendResult:
        """Append values or `Event`s as one batch: all of them, with consecutive seqs, or none."""
        values = list(several(records))
        texts = plain_texts(values)
        if texts is None:
            return self._append(build_batch(records_of(values), default_node=node, idempotency_key=key))
        return self._append(build_plain_batch(texts, default_node=node, idempotency_key=key))

    def _append(self, batch: WriteBatch) -> AppendResult:
        done = self._db.call(lambda engine: engine.write(self.name, batch, config=self._config))
        return AppendResult(
            topic=self.name,
            first_seq=done.first_seq,
            last_seq=done.last_seq,
            head_seq=done.head,
            count=done.count,
            created=done.created,
            deduped=done.deduped,
            position=token(done.last_seq, done.epoch),
        )

    # --- reading --------------------------------------------------------------------------------------------------

    def page(
        self,
        after: After = 0,
        *,
        limit: int = limits.DIFF_LIMIT.default,
        max_bytes: int = limits.DIFF_BATCH_BYTES.default,
        exclude_nodes: Iterable[str] = (),
        wait_ms: int = 0,
    ) -> ReadResult:
        asked = checked(DiffRequest, limit=limit, max_batch_bytes=max_bytes, wait_ms=wait_ms)
        request = self._request(after, limit=asked.limit, max_bytes=asked.max_batch_bytes, exclude_nodes=exclude_nodes)
        wait_ms = asked.wait_ms
        if not wait_ms:
            return read_view(self.name, self._db.call(lambda engine: engine.read(self.name, request)))
        polls = self._db.long_polls
        return read_view(self.name, wait(self._db, lambda: polls.read(self.name, request, wait_ms=wait_ms)))

    def _follow(self, after: After, nodes: tuple[str, ...], gaps: Gaps) -> Iterator[Record | Gap]:
        walk = Walk(self.name, after, gaps=gaps)
        for page in follow(self._db, self, after, nodes):
            yield from walk.take(page)

    @overload
    def afollow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Literal["raise"] = "raise"
    ) -> AsyncIterator[Record]: ...
    @overload
    def afollow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps
    ) -> AsyncIterator[Record | Gap]: ...
    async def afollow(
        self, after: After = 0, *, exclude_nodes: Iterable[str] = (), gaps: Gaps = "raise"
    ) -> AsyncIterator[Any]:
        """`follow` for coroutines: waiting does not hold the event loop."""
        walk = Walk(self.name, after, gaps=gaps)
        async for page in afollow(self._db, self, after, node_names(exclude_nodes)):
            for item in walk.take(page):
                yield item

    def _request(self, after: After, *, limit: int, max_bytes: int, exclude_nodes: Iterable[str]) -> ReadRequest:
        start = checked_position(after)
        nodes = frozenset(node.encode() for node in node_names(exclude_nodes))
        return ReadRequest(
            from_seq=start.seq,
            epoch=start.epoch,
            limit=limits.DIFF_LIMIT(limit),
            budget_bytes=limits.DIFF_BATCH_BYTES(max_bytes),
            nodes=nodes or None,
        )

    # --- the rest -------------------------------------------------------------------------------------------------

    def delete(self, *, before_seq: int | None = None, match: str | list[str] | TagMatch | None = None) -> DeleteResult:
        """Delete records on request: below a seq, by tag (`"x"`, `"x*"`), or both. Permanent, and no gap to readers."""
        below, selector = checked(DeleteRequest, before_seq=before_seq, match=predicate(match)).selector()
        return self._db.call(lambda engine: engine.delete_records(self.name, before_seq=below, match=selector))

    def state(self, *, touch: bool = True) -> TopicState:
        """Head, counts and config. With `touch` it counts as a read."""
        return self._db.call(lambda engine: engine.topic_state(self.name, touch=touch))

    def configure(self, **config: Any) -> TopicConfig:
        """Create the topic, or replace its config as a whole: what is left out goes back to its default."""
        resolved = resolve_config(patch_from(config))
        put = self._db.call(lambda engine: engine.put_topic(self.name, resolved))
        return put.config

    def drop(self, *, if_empty: bool = False) -> bool:
        """Delete the topic with everything in it; False if there was none."""
        return self._db.call(lambda engine: engine.drop_topic(self.name, if_empty=if_empty)).deleted
