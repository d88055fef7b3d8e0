"""RouterRecovery: after a crash, every router's copies are made again, seq for seq (`docs/spec/storage.md#sec-9-6`).

The package's map tells the whole story. This module runs it: before the replay it takes in all routers and their marks,
during the replay it holds back the frames of destinations and observes those of sources, and after it `run` lets the
destinations take their frames and copies. Sources come before destinations; in a cycle they take turns until nothing
moves. Called only by `recovery.replay` and `runtime.recovery.recover`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from topics import limits
from topics.core.router import RouterProgress
from topics.core.router_copy import Copy
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.recovery.router_destinations import Apply, DestinationRecovery, lost_count, newest_copied
from topics.engine.recovery.router_sources import Read, SourceLog, Trace
from topics.errors import TopicsError
from topics.model.ops import Append, Delete, Evict, HeadMark, Op, RouterMark

log = logging.getLogger("topics.recovery")


class RouterRecovery:
    """Everything about routers that a start has to find out."""

    def __init__(self, state: State, read: Read) -> None:
        self._state = state
        self._read = read
        self._marked: dict[int, int] = {}  # how far each topic lay in segments at its last mark
        self.marks: dict[str, RouterMark] = {}  # the last synced one of each router
        self.held: dict[int, list[Op]] = {}
        """By destination: its frames, held back because copies may belong between them."""
        self._sources: dict[int, SourceLog] = {}
        self._unproven: list[Trace] = []  # of routers whose copies cannot be given their seqs again
        self._given_up: dict[str, list[range]] = {}  # by router: source records that were lost before their turn

    # --- before the log is replayed -------------------------------------------------------------------------------

    def begin(self, marked: dict[int, int]) -> None:
        """All routers and their last synced marks are known."""
        self._marked = marked
        for router in self._state.routers:
            mark = self.marks.get(router.name)
            if mark is not None:
                router.recover(cursor=mark.cursor, forwarded_total=mark.forwarded_total)
                router.marked_cursor = mark.cursor
            self.held.setdefault(router.dest_id, [])

    def watch(self, topic: TopicLog) -> None:
        """A source has its segments; its frames come next."""
        routers = self._state.routers.from_source(topic.id)
        if routers and topic.id not in self._sources:
            self._sources[topic.id] = SourceLog(
                topic,
                after=min(router.cursor for router in routers),
                marked_to=self._marked.get(topic.id, 0),
                read=self._read,
            )

    def observe(self, op: Op) -> None:
        """An op of a source is about to be applied."""
        source = self._sources.get(getattr(op, "topic_id", 0))
        if source is None:
            return
        if isinstance(op, Append):
            source.appended(op)
        elif isinstance(op, Delete | Evict):
            self._trace(source)
            source.before(op)

    def _trace(self, source: SourceLog) -> None:
        """Begin to trace what the source's routers had copied, if that is not under way."""
        if source.traces:
            return
        for router in self._state.routers.from_source(source.topic.id):
            mark = self.marks.get(router.name)
            dead = None if mark is None else mark.dead
            trace = Trace(router, source, dead=dead, counts_hops=self._counts_hops(source.topic.id))
            trace.is_broken |= dead is None and source.may_lack_deletes

    def _counts_hops(self, topic_id: int) -> bool:
        """Can records of this topic have come through so many routers that the hop count matters?"""
        reached = {topic_id}
        for _ in range(limits.ROUTER_HOPS_MAX):
            reached = {router.source_id for at in reached for router in self._state.routers.into(at)}
        return bool(reached)

    # --- after it ---------------------------------------------------------------------------------------------------

    def run(self, take: Apply) -> dict[int, bool]:
        """Make the copies again. For each destination: is everything there that anyone may have seen?"""
        self._drop_orphans()
        destinations = self._destinations(take)
        for destination in destinations.values():
            source = self._sources.get(destination.topic.id)
            if source is not None:
                source.pending = destination.ops
                for op in destination.ops:
                    if isinstance(op, Delete):
                        source.break_unsure_traces(op)
        while self._advance(destinations, take) or self._give_up_one(destinations):
            pass
        for destination in destinations.values():
            self._finish(destination)
        unproven = [destination.topic for destination in destinations.values() if not destination.is_proven]
        self._unproven = [
            trace for topic in unproven if not topic.config.is_ephemeral for trace in self._read_all(topic)
        ]
        return {topic_id: destination.is_proven for topic_id, destination in destinations.items()}

    def _drop_orphans(self) -> None:
        by_id = self._state.by_id
        for router in list(self._state.routers):
            for end in (router.source_id, router.dest_id):
                if end not in by_id:
                    self._state.routers.drop_topic(end)

    def _destinations(self, take: Apply) -> dict[int, DestinationRecovery]:
        destinations: dict[int, DestinationRecovery] = {}
        for topic_id, ops in self.held.items():
            topic = self._state.by_id.get(topic_id)
            routers = self._state.routers.into(topic_id)
            if topic is None or not routers:
                for op in ops:  # its routers are gone: no copies belong between these frames
                    take(op)
                continue
            router = routers[0] if len(routers) == 1 else None
            destination = DestinationRecovery(self._state, topic, self._trace_of(router), self._mark_of(router))
            destination.ops.extend(ops)
            self._note_given_up(ops)
            self._restore_head(topic, routers)
            destination.ts = topic.last_ts if router is None else max(topic.last_ts, router.created_ts)
            destinations[topic_id] = destination
        return destinations

    def _note_given_up(self, ops: Iterable[Op]) -> None:
        """Source records that routers lost before they could copy them, and told their destination so."""
        for op in ops:
            if isinstance(op, HeadMark) and op.pin is not None and lost_count(op):
                given_up = range(op.pin.cursor - lost_count(op) + 1, op.pin.cursor + 1)
                self._given_up.setdefault(op.pin.router, []).append(given_up)

    def _restore_head(self, topic: TopicLog, routers: Iterable[RouterProgress]) -> None:
        """The copies that a mark counts were there, even if their segment was dropped since and no frame tells of
        it."""
        marks = [self.marks[router.name] for router in routers if router.name in self.marks]
        topic.head = max([topic.head, *(mark.dest_base + mark.forwarded_total for mark in marks)])
        topic.reserved_head = max(topic.reserved_head, topic.head)

    def _trace_of(self, router: RouterProgress | None) -> Trace | None:
        if router is None:
            return None
        topic = self._state.by_id[router.source_id]
        self.watch(topic)
        source = self._sources[topic.id]
        self._trace(source)
        return next(trace for trace in source.traces if trace.router is router)

    def _mark_of(self, router: RouterProgress | None) -> RouterMark | None:
        if router is None:
            return None
        first = RouterMark(
            name=router.name,
            cursor=router.initial_cursor,
            forwarded_total=0,
            dest_base=router.initial_dest_base,
        )
        return self.marks.get(router.name, first)

    def _advance(self, destinations: dict[int, DestinationRecovery], take: Apply) -> bool:
        moved = False
        for destination in destinations.values():
            try:
                moved |= destination.advance(take)
            except TopicsError as error:
                destination.give_up(str(error))
                moved = True
        return moved

    @staticmethod
    def _give_up_one(destinations: dict[int, DestinationRecovery]) -> bool:
        """Nothing moves, but a destination's frames wait for copies that will not come: apply them without."""
        for destination in destinations.values():
            if destination.ops:
                destination.give_up("its source no longer has what was copied")
                return True
        return False

    def _finish(self, destination: DestinationRecovery) -> None:
        trace = destination.trace
        if trace is None:
            for router in self._state.routers.into(destination.topic.id):
                self._skip_copies_that_are_there(destination, router)
            return
        router = trace.router
        if not destination.topic.config.is_ephemeral:
            cursor = max(trace.done_to, router.cursor)
            router.recover(cursor=cursor, forwarded_total=max(destination.total, router.forwarded_total))
        if not destination.is_proven:
            self._skip_copies_that_are_there(destination, router)

    def _skip_copies_that_are_there(self, destination: DestinationRecovery, router: RouterProgress) -> None:
        """An `exactly_once` router does not repeat what its destination still holds."""
        topic = destination.topic
        if router.definition.guarantee != "exactly_once" or topic.config.is_ephemeral:
            return
        mark = self.marks.get(router.name)
        start = 1 if mark is None else mark.dest_base + mark.forwarded_total + 1
        try:
            newest = newest_copied(topic, router, from_seq=start, read=self._read)
        except TopicsError as error:
            log.warning("router %s: its copies in %r cannot be read: %s", router.name, topic.name, error)
            return
        router.recover(cursor=max(newest, router.cursor), forwarded_total=router.forwarded_total)

    # --- copies to restore
    # -----------------------------------------------------------------------------------------------

    def _read_all(self, topic: TopicLog) -> list[Trace]:
        """Read everything that the routers of a destination had copied, or have to copy, while the sources still have
        it: count caps are applied when the replay ends."""
        traces = [trace for router in self._state.routers.into(topic.id) if (trace := self._trace_of(router))]
        for trace in traces:
            try:
                while trace.read_more():
                    pass
            except TopicsError as error:  # the cold store does not answer; what lies there alive is copied later
                log.warning("router %s: what it had copied cannot all be read: %s", trace.router.name, error)
        return traces

    def finish_copies_to_restore(self) -> None:
        """All topics are recovered. A readable copy must not vanish because its source record died
        (`docs/spec/semantics.md#sec-15-8`): its router makes it again."""
        for trace in self._unproven:
            trace.router.copies_to_restore = _copies_to_restore(trace, self._given_up.get(trace.router.name, ()))
        self._unproven = []


def _copies_to_restore(trace: Trace, given_up: Collection[range]) -> list[Copy]:
    """What the router had copied, up to the last record that its source cannot give again, or may lose soon. Records
    before that one are copied from here too, although the source has them, because copies stay in order."""
    source, cursor = trace.source.topic, trace.router.cursor
    copies = [copy for copy in trace.copies if copy.source_seq > cursor]
    while copies and not source.config.ttl_ms and source.may_be_live(copies[-1].source_seq):
        copies.pop()
    return [copy for copy in copies if not any(copy.source_seq in lost for lost in given_up)]
