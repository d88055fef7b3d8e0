"""DestinationRecovery: the frames of a destination, and the copies between them (`docs/spec/storage.md#sec-9-6`).

A destination's frames are held back during the replay and applied here in their order. Each says how many seqs there
were when it was written (an append its first seq, a delete its bound, a pin the router's cursor), so the copies before
it are put in first. A copy gets the next seq that no frame accounts for; one that is in a segment already is skipped.

`is_proven` falls once it cannot be told which copy had which seq; a pin that follows the gap of an earlier recovery
raises it again. Then `newest_copied` can still tell how far an `exactly_once` router had come
(`docs/spec/semantics.md#sec-15-5`): its copies say which source record they are of, and they are in source order."""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from topics.core.append import Reservation
from topics.core.apply import apply
from topics.core.reading.by_seq import PickWalk
from topics.core.reading.recent import RecentCache
from topics.core.router import RouterProgress
from topics.core.router_copy import Copy, admitted
from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.recovery.router_sources import Read, Trace
from topics.engine.routers.copies import copies_op
from topics.model.ops import Append, Delete, Evict, HeadMark, Op, Pin, RouterMark
from topics.model.payload import split_blob

log = logging.getLogger("topics.recovery")

Apply = Callable[[Op], None]
NO_CACHE = RecentCache(0)


class DestinationRecovery:
    """One destination, and the frames of it that wait for copies."""

    def __init__(self, state: State, topic: TopicLog, trace: Trace | None, mark: RouterMark | None) -> None:
        self._state = state
        self.topic = topic
        self.trace = trace
        self.ops: deque[Op] = deque()
        self.is_proven = trace is not None
        self.total = 0 if mark is None else mark.forwarded_total
        self.next_seq = 0 if mark is None else mark.dest_base + mark.forwarded_total + 1
        self.ts = 0

    def advance(self, take: Apply) -> bool:
        """Do what can be done now; did anything happen?"""
        begun = self.next_seq, len(self.ops), self.is_proven
        while self.ops and self._ready_for(self.ops[0]):
            self._take(self.ops.popleft(), take)
        if not self.ops and self.is_proven and not self.topic.config.is_ephemeral:
            self._emit_rest()
        return (self.next_seq, len(self.ops), self.is_proven) != begun

    def give_up(self, reason: str) -> None:
        """The copies that come next cannot be given their seqs again: from here on they go above the ceiling."""
        if self.is_proven:
            log.warning("topic %r: copies can no longer be placed (%s)", self.topic.name, reason)
        self.is_proven = False

    # --- frames ---------------------------------------------------------------------------------------------------

    def _ready_for(self, op: Op) -> bool:
        """Put in the copies that were there before this frame. False: their source has not come that far yet."""
        if not self.is_proven or self.topic.config.is_ephemeral:
            return True
        pin = self._pin_of(op)
        if pin is not None:
            return self._emit_before_pin(pin, lost_count(op))
        target = _seqs_before(op)
        self._emit_to(target)
        return self.next_seq >= target or not self.is_proven

    def _take(self, op: Op, take: Apply) -> None:
        pin = self._pin_of(op)
        take(op)
        if isinstance(op, Append):
            self.next_seq = max(self.next_seq, op.last_seq + 1)
        elif pin is not None and (self.is_proven or _is_jump(op)):
            self._jump_to(pin)
        self.ts = max(self.ts, self.topic.last_ts)

    def _pin_of(self, op: Op) -> Pin | None:
        """The pin of a frame, if it is ours and newer than what we know."""
        pin = op.pin if isinstance(op, HeadMark) else None
        if pin is None or self.trace is None or pin.router != self.trace.router.name:
            return None
        return pin if pin.dest_base + pin.forwarded_total >= self.next_seq else None

    def _jump_to(self, pin: Pin) -> None:
        assert self.trace is not None
        self.trace.skip_to(pin.cursor)
        self.total = pin.forwarded_total
        self.next_seq = pin.dest_base + pin.forwarded_total + 1
        self.is_proven = not self.trace.is_broken

    # --- copies ---------------------------------------------------------------------------------------------------

    def _emit_before_pin(self, pin: Pin, lost: int) -> bool:
        """Put in the copies that the pin counts, as they come: in a cycle the first ones produce the others."""
        trace = self.trace
        assert trace is not None
        wanted = pin.forwarded_total - self.total - lost
        stop = pin.cursor - lost
        while trace.read_to < stop and trace.read_more():
            pass
        there = sum(copy.source_seq <= stop for copy in trace.copies)
        if there > wanted or (there < wanted and trace.is_broken):
            self.give_up(f"a pin counts {wanted} copies up to {stop}, there are {there}")
            return True
        self._emit(there)
        return there == wanted

    def _emit_to(self, next_seq: int) -> None:
        """Put in copies until the next seq is this one, or there are no more."""
        trace = self.trace
        assert trace is not None
        while self.next_seq < next_seq and self.is_proven:
            if not trace.copies and not trace.read_more():
                self._check_trace()
                break
            self._emit(min(len(trace.copies), next_seq - self.next_seq))

    def _emit_rest(self) -> None:
        """After the last frame: put in what the destination had space for, up to its ceiling. Nobody can have seen a
        seq above that."""
        trace = self.trace
        assert trace is not None
        while self.next_seq <= self.topic.ceiling and self.is_proven:
            if not trace.copies and not trace.read_more():
                self._check_trace()
                break
            left = self.topic.ceiling + 1 - self.next_seq
            stored = self._in_segments(min(left, len(trace.copies)))
            count = stored or min(admitted(self.topic, trace.copies)[0], left)
            if not count:
                break
            self._emit(count)
        while self.is_proven and not trace.copies and trace.read_more():
            pass  # source records that are not for the destination need no seqs

    def _check_trace(self) -> None:
        if self.trace is not None and self.trace.is_broken:
            self.give_up("a source record died without saying whether it had been copied")

    def _in_segments(self, count: int) -> int:
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


def lost_count(op: Op) -> int:
    """Seqs that a router gave up as lost. A jump that a recovery made is no loss of the router's."""
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


# --- what `exactly_once` copies say about themselves ------------------------------------------------------------------


def newest_copied(topic: TopicLog, router: RouterProgress, *, from_seq: int, read: Read) -> int:
    """The highest source seq of which the destination holds a copy at or above `from_seq`; 0 if it holds none."""
    walk = PickWalk(topic, range(max(from_seq, topic.earliest_seq), topic.head + 1), NO_CACHE)
    while (extent := walk.need()) is not None:
        walk.feed(read(topic, extent))
    return max((_source_seq(run.record(at).blob, router) for run, at in walk.found.values()), default=0)


class _CopyOrigin(msgspec.Struct):
    """What the meta of an `exactly_once` copy says."""

    router: str
    source_topic_id: int
    source_seq: int


class _Meta(msgspec.Struct):
    origin: _CopyOrigin = msgspec.field(name="_topics_router")


_decode = msgspec.json.Decoder(_Meta).decode


def _source_seq(blob: bytes, router: RouterProgress) -> int:
    """Which source record this is a copy of, if the router made it; else 0."""
    if b"_topics_router" not in blob:
        return 0
    try:
        origin = _decode(split_blob(blob)[1] or b"{}").origin
    except (msgspec.DecodeError, ValueError):
        return 0
    ours = origin.router == router.name and origin.source_topic_id == router.source_id
    return origin.source_seq if ours else 0
