"""Compaction: takes what is superseded out of topics with `compact: "tag"` (`docs/spec/readers.md#sec-7`).

    Compaction      which topics have something to do
    CompactionPass  one pass over one topic, a bounded piece of work at a time

A pass fixes a bound, the last record that is older than the grace time. Page by page it finds the tags that were
written since the last pass, their older records, and which of their newest records have a payload of null; it logs the
deletes in batches and waits for each. Always holds: a delete is synced before it is applied, so that what superseded
the records is safe; a null goes behind all older records of its tag, and only if every segment could be asked for
them. Runs on the owner's thread; files are read on pools. Whoever drives it decides when (`runtime.background`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from topics.core.retention.superseded import decide_compact, is_due, removes_tag, settled_to
from topics.core.slots.extent import index_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.tag_walk import TagWalk
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.deletes import Deletes
from topics.engine.floor_log import FloorLog
from topics.engine.reading.reads import Payload, PayloadSearch
from topics.engine.ticket import Ticket
from topics.errors import TopicsError
from topics.limits import META_BYTES_MAX
from topics.model.results import DeleteResult

PAGE_TAGS = 16_384  # whose records are kept in memory at a time
BATCH_SEQS = 2_048  # of one delete: about two milliseconds to apply
BATCH_NULLS = 256  # payloads that are looked at together
NULL_BYTES_MAX = len("null") + META_BYTES_MAX


class Compaction:
    def __init__(self, context: Context, floor_log: FloorLog, deletes: Deletes) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._deletes = deletes
        self.removed_total = 0
        """Records that compaction took."""

    def begin(self, topic: TopicLog) -> CompactionPass | None:
        """A pass over the topic, if it may find something."""
        return CompactionPass(self._ctx, self._floor_log, topic, self._log) if is_due(topic) else None

    def _log(self, topic: TopicLog, seqs: list[int]) -> Ticket[DeleteResult]:
        ticket = self._deletes.log(topic, decide_compact(topic, seqs))
        ticket.then(self._count)
        return ticket

    def _count(self, done: Ticket[DeleteResult]) -> None:
        if done.value is not None:
            self.removed_total += done.value.deleted


class CompactionPass:
    def __init__(
        self,
        context: Context,
        floor_log: FloorLog,
        topic: TopicLog,
        log: Callable[[TopicLog, list[int]], Ticket[DeleteResult]],
    ) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._log = log
        self._from_seq = topic.compacted_to
        self._to_seq = 0
        self._waits = False
        self._walk: TagWalk | None = None
        self._after: bytes | None = None
        self._doomed: deque[int] = deque()
        self._candidates: deque[int] = deque()  # newest records of tags that may be null
        self.topic = topic
        self.is_over = False
        self.is_complete = True
        """Nothing had to be left for another pass."""

    def step(self) -> None:
        """Do a bounded piece of work, unless something is being waited for."""
        topic, ctx = self.topic, self._ctx
        if not ctx.exists(topic) or topic.config.compact is None:
            self.is_over = True
        elif not self._waits and topic.name not in ctx.name_locks.held and topic.id not in ctx.changing:
            try:
                self._step()
            except TopicsError:
                self._give_up()

    def _step(self) -> None:
        walk = self._walk
        if self._to_seq == 0:
            self._begin()
        elif walk is None:
            self._walk = TagWalk(
                self.topic,
                limit=PAGE_TAGS,
                from_seq=self._from_seq,
                to_seq=self._to_seq,
                after=self._after,
                want_older=True,
            )
        elif not walk.is_over:
            self._go_on(walk)
        elif self._candidates:
            self._look_for_nulls()
        elif self._doomed:
            self._remove()
        elif walk.after is not None:
            self._after, self._walk = walk.after, None
        else:
            self._end()

    def _wait_for(self, ticket: Ticket[Any], then: Callable[[Ticket[Any]], None]) -> None:
        self._waits = True

        def came(done: Ticket[Any]) -> None:
            self._waits = False
            then(done)

        ticket.then(came, lambda _: self._give_up())

    def _give_up(self) -> None:
        self.is_over = True
        self.is_complete = False

    # --- the bound ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Retention comes first: what has expired is lost, not superseded."""
        self._wait_for(self._floor_log.ensure_logged(self.topic), self._find_bound)

    def _find_bound(self, ready: Ticket[Any]) -> None:
        topic = self.topic
        if ready.error is not None or not self._ctx.exists(topic):
            self._give_up()
            return
        bound = settled_to(topic, now=self._ctx.clock.now_ms(), fed=topic.id in self._ctx.fed)
        if isinstance(bound, Sealed):
            self._wait_for(self._ctx.files.fetch(topic, index_of(bound, bound.first_seq)), self._find_bound)
        elif bound <= self._from_seq:
            self.is_over = True
        else:
            self._to_seq = bound

    # --- what is superseded ---------------------------------------------------------------------------------------

    def _go_on(self, walk: TagWalk) -> None:
        segment = walk.need()
        if segment is not None:
            loaded = self._ctx.files.fetch(self.topic, index_of(segment, segment.first_seq))
            self._wait_for(loaded, lambda done: None if done.error is None else walk.skip())
            return
        walk.step()
        if walk.is_over:
            self.is_complete = self.is_complete and walk.is_complete
            self._doomed.extend(walk.superseded().tolist())
            if walk.is_complete:
                newest = (seq for tag, seq in walk.newest.items() if walk.sizes[tag] <= NULL_BYTES_MAX)
                self._candidates.extend(sorted(seq for seq in newest if self._may_be_looked_at(seq)))

    def _may_be_looked_at(self, seq: int) -> bool:
        """One that the last pass saw was no null. The cold store is not asked for payloads."""
        sealed = self.topic.sealed.find(seq)
        return seq > self._from_seq and (sealed is None or sealed.view.tier == "hot")

    def _look_for_nulls(self) -> None:
        seqs = [self._candidates.popleft() for _ in range(min(BATCH_NULLS, len(self._candidates)))]
        self._wait_for(PayloadSearch(self._ctx, self.topic, seqs).begin(), self._looked)

    def _looked(self, done: Ticket[Payload]) -> None:
        found = done.result()
        if found.error is not None:
            self.is_complete = False
        nulls = [seq for seq, (run, at) in found.found.items() if removes_tag(run.record(at).blob)]
        self._doomed.extend(sorted(nulls))  # behind all that they removed

    # --- its end --------------------------------------------------------------------------------------------------

    def _remove(self) -> None:
        seqs = [self._doomed.popleft() for _ in range(min(BATCH_SEQS, len(self._doomed)))]
        self._wait_for(self._log(self.topic, seqs), self._removed)

    def _removed(self, done: Ticket[DeleteResult]) -> None:
        if done.error is not None:
            self._give_up()

    def _end(self) -> None:
        self.is_over = True
        if self.is_complete:
            self.topic.compacted_to = max(self.topic.compacted_to, self._to_seq)
