"""Evidence: what the copies of an `exactly_once` router say about themselves (`docs/spec/semantics.md#sec-15-5`).

Used at a start where the mapping of copies is not proven: copies are in source order, so the newest one in the
destination tells how far the router had come, and it does not repeat what is there.

Copies made again: after a crash, every router repeats what it had done, seq for seq (`docs/spec/storage.md#sec-9-6`).

    rederive_source    which records of a source each router had copied
    rederive_feed      where the copies go in a destination, between its own frames
    rederive_evidence  what `exactly_once` copies say where the rest does not

The mapping is *proven* as long as one router alone fed the destination and its source can tell what it copied. Where it
is not, the destination goes on above its ceiling, the range is announced, and the router repeats from where it was last
certain: a repeat, never a loss, never a seq with two records. What it had copied and its source has lost since it owes:
recovery finds out what that is, and the router's first steps make those copies again. Sources come before destinations;
in a cycle they take turns until nothing moves. Called only by `engine.replay` and `runtime.recover`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

import msgspec

from topics import limits
from topics.core.reading.by_seq import PickWalk
from topics.core.reading.recent import RecentCache
from topics.core.router import RouterProgress
from topics.core.router_copy import Copy
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.recovery.router_destinations import Apply, DestinationRecovery, lost_count
from topics.engine.recovery.router_sources import Read, SourceLog, Trace
from topics.errors import TopicsError
from topics.model.ops import Append, Delete, Evict, HeadMark, Op, RouterMark
from topics.model.payload import split_blob

NO_CACHE = RecentCache(0)


def newest_copied(topic: TopicLog, router: RouterProgress, *, from_seq: int, read: Read) -> int:
    """The highest source seq of which the destination holds a copy at or above `from_seq`; 0 if it holds none."""
    walk = PickWalk(topic, range(max(from_seq, topic.earliest_seq), topic.head + 1), NO_CACHE)
    while (extent := walk.need()) is not None:
        walk.feed(read(topic, extent))
    return max((_source_seq(run.record(at).blob, router) for run, at in walk.found.values()), default=0)


class _Evidence(msgspec.Struct):
    router: str
    source_topic_id: int
    source_seq: int


class _Meta(msgspec.Struct):
    evidence: _Evidence = msgspec.field(name="_topics_router")


_decode = msgspec.json.Decoder(_Meta).decode


def _source_seq(blob: bytes, router: RouterProgress) -> int:
    """Which source record this is a copy of, if the router made it; else 0."""
    if b"_topics_router" not in blob:
        return 0
    try:
        evidence = _decode(split_blob(blob)[1] or b"{}").evidence
    except (msgspec.DecodeError, ValueError):
        return 0
    ours = evidence.router == router.name and evidence.source_topic_id == router.source_id
    return evidence.source_seq if ours else 0


log = logging.getLogger("topics.recovery")


class RouterRecovery:
    """Everything about routers that a start has to find out."""

    def __init__(self, state: State, read: Read) -> None:
        self._state = state
        self._read = read
        self._marked: dict[int, int] = {}  # how far each topic lay in segments at its last mark
        self.places: dict[str, RouterMark] = {}
        self._sources: dict[int, SourceLog] = {}
        self._held: dict[int, list[Op]] = {}
        self._unplaced: list[Trace] = []
        self._given_up: dict[str, list[range]] = {}

    # --- before the log is replayed -------------------------------------------------------------------------------

    def begin(self, marked: dict[int, int]) -> None:
        """All routers and their last synced places are known."""
        self._marked = marked
        for router in self._state.routers:
            place = self.places.get(router.name)
            if place is not None:
                router.place(cursor=place.cursor, forwarded_total=place.forwarded_total)
                router.marked_cursor = place.cursor
            self._held.setdefault(router.dest_id, [])

    def holds(self, topic_id: int) -> bool:
        """Are this topic's frames held back, because copies may belong between them?"""
        return topic_id in self._held

    def hold(self, topic_id: int, op: Op) -> None:
        self._held[topic_id].append(op)

    def let_go(self, topic_id: int) -> list[Op]:
        """The frames of a topic that is not there, or no more."""
        return self._held.pop(topic_id, [])

    def held_ids(self) -> list[int]:
        return list(self._held)

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

    def look(self, op: Op) -> None:
        """An op of a source is about to be applied."""
        source = self._sources.get(getattr(op, "topic_id", 0))
        if source is None:
            return
        if isinstance(op, Append):
            source.appended(op)
        elif isinstance(op, Delete | Evict):
            if not source.traces:
                self._trace(source)
            source.before(op)

    def _trace(self, source: SourceLog) -> None:
        for router in self._state.routers.from_source(source.topic.id):
            place = self.places.get(router.name)
            dead = None if place is None else place.dead
            trace = Trace(router, source, dead=dead, is_deep=self._is_deep(source.topic.id))
            trace.is_broken |= dead is None and source.may_lack_deletes

    def _is_deep(self, topic_id: int) -> bool:
        """Can records of this topic have come through so many routers that the hop count matters?"""
        reached = {topic_id}
        for _ in range(limits.ROUTER_HOPS_MAX):
            reached = {router.source_id for at in reached for router in self._state.routers.into(at)}
        return bool(reached)

    # --- after it ---------------------------------------------------------------------------------------------------

    def run(self, take: Apply) -> dict[int, bool]:
        """Make the copies again. For each destination: is everything there that anyone may have seen?"""
        self._drop_orphans()
        feeds = self._feeds(take)
        for feed in feeds.values():
            source = self._sources.get(feed.topic.id)
            if source is not None:
                source.pending = feed.ops
                for op in feed.ops:
                    if isinstance(op, Delete):
                        source.doubt(op)
        while self._advance(feeds, take) or self._force(feeds):
            pass
        for feed in feeds.values():
            self._finish(feed)
        unproven = [feed.topic for feed in feeds.values() if not feed.is_proven]
        self._unplaced = [
            trace for topic in unproven if not topic.config.is_ephemeral for trace in self._read_on(topic)
        ]
        return {topic_id: feed.is_proven for topic_id, feed in feeds.items()}

    def _drop_orphans(self) -> None:
        by_id = self._state.by_id
        for router in list(self._state.routers):
            for end in (router.source_id, router.dest_id):
                if end not in by_id:
                    self._state.routers.drop_topic(end)

    def _feeds(self, take: Apply) -> dict[int, DestinationRecovery]:
        feeds: dict[int, DestinationRecovery] = {}
        for topic_id, ops in self._held.items():
            topic = self._state.by_id.get(topic_id)
            routers = self._state.routers.into(topic_id)
            if topic is None or not routers:
                for op in ops:  # its routers are gone: nothing belongs between these
                    take(op)
                continue
            router = routers[0] if len(routers) == 1 else None
            feed = DestinationRecovery(self._state, topic, self._trace_of(router), self._place_of(router))
            feed.ops.extend(ops)
            self._note_given_up(ops)
            self._reach(topic, routers)
            feed.ts = topic.last_ts if router is None else max(topic.last_ts, router.created_ts)
            feeds[topic_id] = feed
        return feeds

    def _note_given_up(self, ops: Iterable[Op]) -> None:
        """Source records that routers lost before they could copy them, and told their destination so."""
        for op in ops:
            if isinstance(op, HeadMark) and op.pin is not None and lost_count(op):
                given_up = range(op.pin.cursor - lost_count(op) + 1, op.pin.cursor + 1)
                self._given_up.setdefault(op.pin.router, []).append(given_up)

    def _reach(self, topic: TopicLog, routers: Iterable[RouterProgress]) -> None:
        """What a mark counted was there, also where its segment was dropped since and no frame tells of it."""
        marks = [self.places[router.name] for router in routers if router.name in self.places]
        topic.head = max([topic.head, *(mark.dest_base + mark.forwarded_total for mark in marks)])
        topic.reserved_head = max(topic.reserved_head, topic.head)

    def _trace_of(self, router: RouterProgress | None) -> Trace | None:
        if router is None:
            return None
        topic = self._state.by_id[router.source_id]
        self.watch(topic)
        source = self._sources[topic.id]
        if not source.traces:
            self._trace(source)
        return next(trace for trace in source.traces if trace.router is router)

    def _place_of(self, router: RouterProgress | None) -> RouterMark | None:
        if router is None:
            return None
        first = RouterMark(
            name=router.name,
            cursor=router.initial_cursor,
            forwarded_total=0,
            dest_base=router.initial_dest_base,
        )
        return self.places.get(router.name, first)

    def _advance(self, feeds: dict[int, DestinationRecovery], take: Apply) -> bool:
        moved = False
        for feed in feeds.values():
            try:
                moved |= feed.advance(take)
            except TopicsError as error:
                feed.give_up(str(error))
                moved = True
        return moved

    @staticmethod
    def _force(feeds: dict[int, DestinationRecovery]) -> bool:
        """Nothing moves, but frames still wait for copies that will not come: they are taken as they are."""
        for feed in feeds.values():
            if feed.ops:
                feed.give_up("its source no longer has what was copied")
                return True
        return False

    def _finish(self, feed: DestinationRecovery) -> None:
        trace = feed.trace
        if trace is None:
            for router in self._state.routers.into(feed.topic.id):
                self._find_evidence(feed, router)
            return
        router = trace.router
        if not feed.topic.config.is_ephemeral:
            cursor = max(trace.resolved_to, router.cursor)
            router.place(cursor=cursor, forwarded_total=max(feed.total, router.forwarded_total))
        if not feed.is_proven:
            self._find_evidence(feed, router)

    def _find_evidence(self, feed: DestinationRecovery, router: RouterProgress) -> None:
        """An `exactly_once` router does not repeat what its destination still holds."""
        topic = feed.topic
        if router.definition.guarantee != "exactly_once" or topic.config.is_ephemeral:
            return
        place = self.places.get(router.name)
        start = 1 if place is None else place.dest_base + place.forwarded_total + 1
        try:
            newest = newest_copied(topic, router, from_seq=start, read=self._read)
        except TopicsError as error:
            log.warning("router %s: its copies in %r cannot be read: %s", router.name, topic.name, error)
            return
        router.place(cursor=max(newest, router.cursor), forwarded_total=router.forwarded_total)

    # --- what is owed -----------------------------------------------------------------------------------------------

    def _read_on(self, topic: TopicLog) -> list[Trace]:
        """Everything that the routers of a destination had copied, or have to copy, while the sources still have it:
        count caps are applied when the replay ends."""
        traces = [trace for router in self._state.routers.into(topic.id) if (trace := self._trace_of(router))]
        for trace in traces:
            try:
                while trace.fill():
                    pass
            except TopicsError as error:  # the cold store does not answer; what lies there alive is copied later
                log.warning("router %s: what it had copied cannot all be read: %s", trace.router.name, error)
        return traces

    def finish_owed_copies(self) -> None:
        """All topics are what they will be. A readable copy must not vanish because its source record died
        (`docs/spec/semantics.md#sec-15-8`): its router makes it again."""
        for trace in self._unplaced:
            trace.router.owed = _owed(trace, self._given_up.get(trace.router.name, ()))
        self._unplaced = []


def _owed(trace: Trace, given_up: Collection[range]) -> list[Copy]:
    """What the router had copied, up to the last record that its source cannot give again, or may not for long. Those
    in between are copied from here too, because copies stay in order."""
    source, cursor = trace.source.topic, trace.router.cursor
    copies = [copy for copy in trace.copies if copy.source_seq > cursor]
    while copies and not source.config.ttl_ms and source.may_be_live(copies[-1].source_seq):
        copies.pop()
    return [copy for copy in copies if not any(copy.source_seq in lost for lost in given_up)]
