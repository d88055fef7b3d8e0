"""Copies made again: after a crash, every router repeats what it had done, seq for seq (storage.md section 9.6).

A destination's own frames are held back during replay and taken here in their order. Each says how many seqs there were
when it was written (an append its first seq, a delete its bound, a pin the router's place), so the copies before it are
put in first. A copy goes where the next unaccounted seq is; one that is in a segment already is passed over.

The mapping is *proven* as long as one router alone fed the destination and its source can tell what it copied. Where it
is not, the destination goes on above its ceiling, the range is announced, and the router repeats from where it was last
certain: a repeat, never a loss, never a seq with two records. Sources come before destinations; in a cycle they take
turns until nothing moves.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from topics import limits
from topics.core.append import Reservation
from topics.core.apply import apply
from topics.core.pick import PickWalk
from topics.core.router import Router
from topics.core.router_copy import Copy, admitted
from topics.core.state import State
from topics.core.topic import TopicState
from topics.engine.copies import copies_op
from topics.engine.rederive_source import NO_CACHE, Read, SourceLog, Trace
from topics.errors import TopicsError
from topics.model.ops import Append, Delete, Evict, HeadMark, Op, Pin, RouterMark
from topics.model.payload import split_blob

log = logging.getLogger("topics.recovery")

Apply = Callable[[Op], None]


class Feed:
    """One destination, and the frames of it that wait for copies."""

    def __init__(self, state: State, topic: TopicState, trace: Trace | None, place: RouterMark | None) -> None:
        self._state = state
        self.topic = topic
        self.trace = trace
        self.ops: deque[Op] = deque()
        self.is_proven = trace is not None
        self.total = 0 if place is None else place.forwarded_total
        self.next_seq = 0 if place is None else place.dest_base + place.forwarded_total + 1
        self.started_at = self.next_seq
        self.ts = 0

    def advance(self, read: Read, take: Apply) -> bool:
        """Do what can be done now; did anything happen?"""
        begun = self.next_seq, len(self.ops), self.is_proven
        while self.ops and self._ready_for(self.ops[0], read):
            self._take(self.ops.popleft(), take)
        if not self.ops and self.is_proven and not self.topic.config.is_ephemeral:
            self._emit_rest(read)
        return (self.next_seq, len(self.ops), self.is_proven) != begun

    def give_up(self, reason: str) -> None:
        """What comes next cannot be derived: from here on copies go above the ceiling."""
        if self.is_proven:
            log.warning("topic %r: copies can no longer be placed (%s)", self.topic.name, reason)
        self.is_proven = False

    # --- frames ---------------------------------------------------------------------------------------------------

    def _ready_for(self, op: Op, read: Read) -> bool:
        """Put in the copies that were there before this frame. False: their source has not come that far yet."""
        if not self.is_proven or self.topic.config.is_ephemeral:
            return True
        pin = self._pin_of(op)
        if pin is not None:
            return self._emit_before_pin(pin, _lost_count(op), read)
        target = _seqs_before(op)
        self._emit_to(target, read)
        return self.next_seq >= target or not self.is_proven

    def _take(self, op: Op, take: Apply) -> None:
        pin = self._pin_of(op)
        take(op)
        if isinstance(op, Append):
            self.next_seq = max(self.next_seq, op.last_seq + 1)
        elif pin is not None and (self.is_proven or _is_jump(op)):
            self._place(pin)
        self.ts = max(self.ts, self.topic.last_ts)

    def _pin_of(self, op: Op) -> Pin | None:
        """The pin of a frame, if it is ours and newer than what we know."""
        pin = op.pin if isinstance(op, HeadMark) else None
        if pin is None or self.trace is None or pin.router != self.trace.router.name:
            return None
        return pin if pin.dest_base + pin.forwarded_total >= self.next_seq else None

    def _place(self, pin: Pin) -> None:
        assert self.trace is not None
        self.trace.passed(pin.cursor)
        self.total = pin.forwarded_total
        self.next_seq = pin.dest_base + pin.forwarded_total + 1
        self.is_proven = not self.trace.is_broken

    # --- copies ---------------------------------------------------------------------------------------------------

    def _emit_before_pin(self, pin: Pin, lost: int, read: Read) -> bool:
        """The copies that the pin counts, as they come: in a cycle the first ones bring forth the others."""
        trace = self.trace
        assert trace is not None
        wanted = pin.forwarded_total - self.total - lost
        stop = pin.cursor - lost
        while trace.scanned < stop and trace.fill(read):
            pass
        there = sum(copy.source_seq <= stop for copy in trace.copies)
        if there > wanted or (there < wanted and trace.is_broken):
            self.give_up(f"a pin counts {wanted} copies up to {stop}, there are {there}")
            return True
        self._emit(there)
        return there == wanted

    def _emit_to(self, next_seq: int, read: Read) -> None:
        """Copies until the next seq is this one, or there are no more."""
        trace = self.trace
        assert trace is not None
        while self.next_seq < next_seq and self.is_proven:
            if not trace.copies and not trace.fill(read):
                if trace.is_broken:
                    self.give_up("a source record died without saying whether it had been copied")
                break
            self._emit(min(len(trace.copies), next_seq - self.next_seq))

    def _emit_rest(self, read: Read) -> None:
        """Behind the last frame: what the destination had room for, as far as anyone may have seen it."""
        trace = self.trace
        assert trace is not None
        while self.next_seq <= self.topic.ceiling and self.is_proven:
            if not trace.copies and not trace.fill(read):
                break
            left = self.topic.ceiling + 1 - self.next_seq
            known = self._known(min(left, len(trace.copies)))
            count = known or min(admitted(self.topic, trace.copies)[0], left)
            if not count:
                break
            self._emit(count)

    def _known(self, count: int) -> int:
        """How many of the next seqs are in a segment already."""
        return sum(map(self.topic.has_slot, range(self.next_seq, self.next_seq + count)))

    def _emit(self, count: int) -> None:
        assert self.trace is not None
        copies, self.trace.copies = self.trace.copies[:count], self.trace.copies[count:]
        for run in self._runs(copies):
            self._append(run)
        self.total += count

    def _runs(self, copies: list[Copy]) -> Iterable[list[Copy]]:
        """Copies that one op can hold: consecutive, not there yet, of one time. Moves `next_seq` past all of them."""
        run: list[Copy] = []
        for copy in copies:
            known = self.topic.has_slot(self.next_seq + len(run))
            if run and (known or copy.ts > self.ts):
                yield run
                self.next_seq += len(run)
                run = []
                known = self.topic.has_slot(self.next_seq)
            if known:
                self.next_seq += 1
            else:
                self.ts = max(self.ts, copy.ts)
                run.append(copy)
        if run:
            yield run
            self.next_seq += len(run)

    def _append(self, copies: list[Copy]) -> None:
        size = sum(copy.size for copy in copies)
        reservation = Reservation(self.next_seq, len(copies), size, self.ts, None)
        op = copies_op(self.topic, reservation, copies)
        op.ts = array("Q", (self.ts,)) * len(copies)
        apply(self._state, op)


class Rederive:
    """Everything about routers that a start has to find out."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.places: dict[str, RouterMark] = {}
        self._sources: dict[int, SourceLog] = {}
        self._held: dict[int, list[Op]] = {}

    # --- before the log is replayed -------------------------------------------------------------------------------

    def begin(self) -> None:
        """All routers and their last synced places are known."""
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

    def watch(self, topic: TopicState) -> None:
        """A source has its segments; its frames come next."""
        routers = self._state.routers.from_source(topic.id)
        if routers and topic.id not in self._sources:
            self._sources[topic.id] = SourceLog(topic, after=min(router.cursor for router in routers))

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
            Trace(router, source, is_deep=self._is_deep(source.topic.id))

    def _is_deep(self, topic_id: int) -> bool:
        """Can records of this topic have come through so many routers that the hop count matters?"""
        reached = {topic_id}
        for _ in range(limits.ROUTER_HOPS_MAX):
            reached = {router.source_id for at in reached for router in self._state.routers.into(at)}
        return bool(reached)

    # --- after it ---------------------------------------------------------------------------------------------------

    def run(self, read: Read, take: Apply) -> dict[int, bool]:
        """Make the copies again. For each destination: is everything there that anyone may have seen?"""
        self._drop_orphans()
        feeds = self._feeds(take)
        for feed in feeds.values():
            source = self._sources.get(feed.topic.id)
            if source is not None:
                source.pending = feed.ops
        while self._advance(feeds, read, take) or self._force(feeds):
            pass
        for feed in feeds.values():
            self._settle(feed, read)
        return {topic_id: feed.is_proven for topic_id, feed in feeds.items()}

    def _drop_orphans(self) -> None:
        by_id = self._state.by_id
        for router in list(self._state.routers):
            for end in (router.source_id, router.dest_id):
                if end not in by_id:
                    self._state.routers.drop_topic(end)

    def _feeds(self, take: Apply) -> dict[int, Feed]:
        feeds: dict[int, Feed] = {}
        for topic_id, ops in self._held.items():
            topic = self._state.by_id.get(topic_id)
            routers = self._state.routers.into(topic_id)
            if topic is None or not routers:
                for op in ops:  # its routers are gone: nothing belongs between these
                    take(op)
                continue
            router = routers[0] if len(routers) == 1 else None
            feed = Feed(self._state, topic, self._trace_of(router), self._place_of(router))
            feed.ops.extend(ops)
            self._reach(topic, routers)
            feed.ts = topic.last_ts if router is None else max(topic.last_ts, router.created_ts)
            feeds[topic_id] = feed
        return feeds

    def _reach(self, topic: TopicState, routers: Iterable[Router]) -> None:
        """What a mark counted was there, also where its segment was dropped since and no frame tells of it."""
        marks = [self.places[router.name] for router in routers if router.name in self.places]
        topic.head = max([topic.head, *(mark.dest_base + mark.forwarded_total for mark in marks)])
        topic.reserved_head = max(topic.reserved_head, topic.head)

    def _trace_of(self, router: Router | None) -> Trace | None:
        if router is None:
            return None
        topic = self._state.by_id[router.source_id]
        self.watch(topic)
        source = self._sources[topic.id]
        if not source.traces:
            self._trace(source)
        return next(trace for trace in source.traces if trace.router is router)

    def _place_of(self, router: Router | None) -> RouterMark | None:
        if router is None:
            return None
        first = RouterMark(
            name=router.name,
            cursor=router.initial_cursor,
            forwarded_total=0,
            dest_base=router.initial_dest_base,
        )
        return self.places.get(router.name, first)

    def _advance(self, feeds: dict[int, Feed], read: Read, take: Apply) -> bool:
        moved = False
        for feed in feeds.values():
            try:
                moved |= feed.advance(read, take)
            except TopicsError as error:
                feed.give_up(str(error))
                moved = True
        return moved

    @staticmethod
    def _force(feeds: dict[int, Feed]) -> bool:
        """Nothing moves, but frames still wait for copies that will not come: they are taken as they are."""
        for feed in feeds.values():
            if feed.ops:
                feed.give_up("its source no longer has what was copied")
                return True
        return False

    def _settle(self, feed: Feed, read: Read) -> None:
        trace = feed.trace
        if trace is None:
            for router in self._state.routers.into(feed.topic.id):
                self._find_evidence(feed, router, read)
            return
        router = trace.router
        if not feed.topic.config.is_ephemeral:
            cursor = max(trace.settled_to, router.cursor)
            router.place(cursor=cursor, forwarded_total=max(feed.total, router.forwarded_total))
        if not feed.is_proven:
            self._find_evidence(feed, router, read)

    def _find_evidence(self, feed: Feed, router: Router, read: Read) -> None:
        """An `exactly_once` router does not repeat what its destination still holds: copies are in source order, so the
        newest of them tells."""
        topic = feed.topic
        if router.definition.guarantee != "exactly_once" or topic.config.is_ephemeral:
            return
        place = self.places.get(router.name)
        start = 1 if place is None else place.dest_base + place.forwarded_total + 1
        newest = router.cursor
        try:
            walk = PickWalk(topic, range(max(start, topic.earliest_seq), topic.head + 1), NO_CACHE)
            while (extent := walk.need()) is not None:
                walk.feed(read(topic, extent))
        except TopicsError as error:
            log.warning("router %s: its copies in %r cannot be read: %s", router.name, topic.name, error)
            return
        for run, at in walk.found.values():
            newest = max(newest, _source_seq(run.record(at).blob, router))
        router.place(cursor=newest, forwarded_total=router.forwarded_total)


class _Evidence(msgspec.Struct):
    router: str
    source_topic_id: int
    source_seq: int


class _Meta(msgspec.Struct):
    evidence: _Evidence = msgspec.field(name="_topics_router")


_decode = msgspec.json.Decoder(_Meta).decode


def _source_seq(blob: bytes, router: Router) -> int:
    """Which source record this is a copy of, if the router made it; else 0."""
    if b"_topics_router" not in blob:
        return 0
    try:
        evidence = _decode(split_blob(blob)[1] or b"{}").evidence
    except (msgspec.DecodeError, ValueError):
        return 0
    ours = evidence.router == router.name and evidence.source_topic_id == router.source_id
    return evidence.source_seq if ours else 0


def _lost_count(op: Op) -> int:
    """Seqs that a router gave up. A jump of recovery is no loss of the router's."""
    if not isinstance(op, HeadMark) or _is_jump(op):
        return 0
    return sum(last - first + 1 for first, last, _ in op.lost)


def _is_jump(op: Op) -> bool:
    return isinstance(op, HeadMark) and op.resume_at is not None


def _seqs_before(op: Op) -> int:
    """The next seq of the topic when this op was decided, as far as it says."""
    if isinstance(op, Append):
        return op.first_seq
    if isinstance(op, Delete):
        return op.bound_head or 0
    if isinstance(op, Evict):
        return op.earliest_seq
    if isinstance(op, HeadMark) and op.lost:
        return op.lost[0][0]
    return 0
