"""SourceLog and Trace: which records each router had copied before the crash (`docs/spec/storage.md#sec-9-6`).

Copies are not in the log; but the source is, and its Delete and EvictWatermark frames say how far each router had come
when records died. So, just before such a frame takes records away, everything that a router had passed by then is noted
as copied. What died by a count cap, which has no frame, counts as copied too: if it was lost instead, the destination's
log says so. At the end everything that is left is copied as usual.

    to_copy      source seqs to be copied again, in order, dead ones included
    lost_ranges  seqs that were lost before the router came to them: only a pin in the destination's log leads past them
    is_broken    a record died in a way that leaves open whether it had been copied: nothing after it is proven
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter

import numpy as np

from topics.core.delete import bound_of
from topics.core.retention.removal import blocks_from
from topics.core.router import RouterProgress
from topics.core.router_copy import Copy, chosen, hops_of
from topics.core.slots.extent import Extent, RecordPlace, extent_of, index_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.slot_range import Slots
from topics.core.slots.tail import TailRun
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable, TopicsError
from topics.model.names import TagMatch
from topics.model.ops import DELETED, Append, Delete, Evict, Op
from topics.model.run import RecordRun

Read = Callable[[TopicLog, Extent], RecordRun]
"""Fetch records of one place, now; raises a TopicsError where that cannot be done."""

Ranges = Sequence[tuple[int, int]]
"""Ascending and disjoint, both ends included."""

READ_RECORDS = 1024


class SourceLog:
    """One source topic: where its records lie in the log, and which of them the log's deletes have killed so far.

    Flags and floors of the topic say less than they seem to: they may be younger than any frame, because a snapshot is
    captured after its log position and flags are set at once. So deletes are judged here by their frames alone, and
    what had died before the first of them is known from the mark of each router (`RouterMark.dead`)."""

    def __init__(self, topic: TopicLog, *, after: int, marked_to: int, read: Read) -> None:
        self.topic = topic
        self._read = read
        self._after = after
        self.traces: list[Trace] = []
        self.pending: Iterable[Op] = ()  # frames of it that are still to be replayed
        self._appends: list[Append] = []
        self._firsts: list[int] = []
        self._flagged = _dead_slots(topic, after=after)
        self._killed: set[int] = set()
        self._deleted_below = 0
        # For marks that do not say what was dead: what no checkpoint had marked was killed by deletes of this log.
        self._flagged_to = marked_to
        self._below = min(topic.floors.delete_below, marked_to + 1)

    # --- while its frames are replayed ----------------------------------------------------------------------------

    def appended(self, op: Append) -> None:
        if not self._firsts or op.first_seq > self._firsts[-1]:
            self._appends.append(op)
            self._firsts.append(op.first_seq)

    def before(self, op: Delete | Evict) -> None:
        """Records are about to die."""
        cursors = {mark.name: mark.cursor for mark in op.routed}
        if isinstance(op, Delete):
            self.break_unsure_traces(op)
        for trace in self.traces:
            cursor = cursors.get(trace.router.name)
            if cursor is not None:
                trace.note_copied(cursor, crosses=True)
        if isinstance(op, Evict):
            for trace in self.traces:
                if trace.router.name in cursors and trace.noted_to + 1 < op.evict_floor:
                    trace.lost_ranges.append((trace.noted_to + 1, op.evict_floor - 1))
        else:
            self._note_deletes(op)

    def break_unsure_traces(self, op: Delete) -> None:
        """Does the delete cover a record that may have been dead before? Then this delete may have killed it after it
        was copied, or not: a router whose mark does not say which records were dead cannot be traced."""
        unsure = [trace for trace in self.traces if trace.dead is None and not trace.is_broken]
        covered = op.seqs if op.seqs is not None else [seq for seq in self._oldest_dead() if seq < bound_of(op)]
        if unsure and any(map(self._was_dead, covered)):
            for trace in unsure:
                trace.is_broken = True

    def _was_dead(self, seq: int) -> bool:
        """As far as flags and floors tell. A record whose own frame comes by is alive until its delete does."""
        is_dead = seq < self._below or (seq <= self._flagged_to and seq in self._flagged)
        return is_dead and self._logged(seq) is None

    @property
    def may_lack_deletes(self) -> bool:
        """A delete flag may have reached the disk while its frame was lost: nobody can say whether the record had been
        copied."""
        return not self.topic.config.syncs_deletes and bool(self._oldest_dead())

    def _oldest_dead(self) -> list[int]:
        return [self._after + 1] if self._after + 1 < self._below else sorted(self._flagged)[:1]

    def _note_deletes(self, op: Delete) -> None:
        if op.seqs is not None:
            self._killed.update(seq for seq in op.seqs if seq > self._after)
        elif op.match is None:
            self._deleted_below = max(self._deleted_below, bound_of(op))
        else:
            try:
                self._killed.update(self._matching(op.match, bound_of(op)))
            except TopicsError:  # the cold store does not answer
                for trace in self.traces:
                    trace.is_broken = True

    def _matching(self, match: TagMatch, bound: int) -> Iterator[int]:
        """Records with such a tag, also those below floors or flagged dead, which the indexes need not have."""
        yield from (seq for seq in self.topic.tags.find(match, below=bound) if seq > self._after)
        for block in self.topic.sealed.from_seq(self._after + 1):
            if block.first_seq < bound:
                seqs = (block.view.tag_slots(match) + block.first_seq).tolist()
                yield from (seq for seq in seqs if self._after < seq < bound)
        unsure = sorted(seq for seq in self._flagged if seq < bound and seq not in self._killed)
        yield from (run.seq(at) for run, at in self.records(unsure) if match.matches(run.record(at).tag))

    def _logged(self, seq: int) -> Append | None:
        at = bisect_right(self._firsts, seq)
        if at and seq <= self._appends[at - 1].last_seq:
            return self._appends[at - 1]
        return None

    def certain_to(self, router: str) -> int:
        """Up to where a pending delete cannot change what the router had copied."""
        for op in self.pending:
            for mark in op.routed if isinstance(op, Delete | Evict) else ():
                if mark.name == router:
                    return min(mark.cursor, self.topic.head)
        return self.topic.head

    # --- what is in it --------------------------------------------------------------------------------------------

    def candidates(self, lo: int, hi: int, dead: Ranges | None) -> Iterator[int]:
        """Seqs `lo..hi` that were not deleted on request by now; ends at a hole. `dead` are those that were so before
        the first frame; None: the flags tell, as far as they do."""
        at = lo
        for block in blocks_from(self.topic, lo):
            first = max(block.first_seq, lo)
            if first > hi or first > at:
                break
            stop = min(block.next_seq, hi + 1)
            seqs: Iterable[int] = range(max(first, self._deleted_below), stop)
            if dead is not None:
                yield from (seq for seq in seqs if seq not in self._killed and not _inside(dead, seq))
            else:
                alive = set(self._alive(block, first - block.first_seq, stop - block.first_seq))
                alive |= {seq - block.first_seq for seq in self._flagged if first <= seq < stop}
                alive.difference_update(seq - block.first_seq for seq in self._killed)
                yield from (seq for seq in seqs if seq - block.first_seq in alive and not self._was_dead(seq))
            at = stop

    def _alive(self, block: Slots, lo: int, hi: int) -> list[int]:
        """Slots that are not flagged; for a cold segment its index is fetched, if it has to be."""
        try:
            alive: list[int] = block.live_slots(lo, hi).tolist()
        except ColdUnavailable:
            assert isinstance(block, Sealed)
            self._read(self.topic, index_of(block, block.first_seq + lo))
            block.keep_index()
            alive = block.live_slots(lo, hi).tolist()
        return alive

    def reaches(self, lo: int, hi: int) -> int:
        """How far from `lo` on every seq has a slot, up to `hi`; `lo - 1` if not even the first has."""
        at = lo
        for block in blocks_from(self.topic, lo):
            if block.first_seq > at or at > hi:
                break
            at = min(block.next_seq, hi + 1)
        return at - 1

    def gap_at(self, seq: int) -> int | None:
        """The last seq of the range from there on that the source itself had lost; None if it had a record there, or if
        nobody knows."""
        lost, floor = self.topic.lost.find(seq), self.topic.evict_floor
        if lost is not None or seq >= floor:
            return None if lost is None else lost.hi
        following = min(next((block.first_seq for block in blocks_from(self.topic, seq)), floor), floor)
        return following - 1 if following > seq else None

    def records(self, seqs: list[int]) -> list[tuple[RecordRun, int]]:
        """The records themselves, dead or alive: in memory, in the log, in segments."""
        found: dict[int, tuple[RecordRun, int]] = {}
        logged: dict[int, list[int]] = {}
        stored: list[int] = []
        for seq in seqs:
            chunk, op = self.topic.resident.find(seq), self._logged(seq)
            if chunk is not None:
                found[seq] = chunk.run(seq, seq + 1), 0
            elif op is not None:
                logged.setdefault(op.first_seq, []).append(seq)
            else:
                stored.append(seq)
        extents = [_extent(self._appends[bisect_right(self._firsts, first) - 1], of) for first, of in logged.items()]
        for extent in [*extents, *self._extents(stored)]:
            run = self._read(self.topic, extent)
            found.update((run.seq(at), (run, at)) for at in range(len(run)))
        return [found[seq] for seq in seqs if seq in found]

    def _extents(self, seqs: list[int]) -> Iterator[Extent]:
        """Where they lie, block by block."""
        wanted = np.array(seqs, np.int64)
        for block in blocks_from(self.topic, seqs[0]) if seqs else ():
            lo, hi = np.searchsorted(wanted, (block.first_seq, block.next_seq))
            if lo == len(wanted):
                break
            slots = wanted[lo:hi] - block.first_seq
            while len(slots):
                lo = int(slots[0])
                extent = extent_of(block, slots, block.sizes_of(lo, int(slots[-1]) + 1)[slots - lo])
                yield extent
                slots = slots[len(extent.seqs) :]

    def hops_known(self, seq: int) -> bool:
        """Hop counts are kept with records in memory; a record that lies in a segment has none."""
        run = self.topic.tail.find(seq)
        return run is not None and seq > self.topic.ckpt_seq


class Trace:
    """One router, and what it had copied."""

    def __init__(self, router: RouterProgress, source: SourceLog, *, dead: Ranges | None, counts_hops: bool) -> None:
        self.router = router
        self.dead = dead
        self.source = source
        self.noted_to = router.cursor
        self.to_copy: list[int] = []
        self.lost_ranges: list[tuple[int, int]] = []
        self.is_broken = False
        self.copies: list[Copy] = []
        self.read_to = router.cursor  # what was to copy up to here is in `copies`, or was not for the destination
        self._counts_hops = counts_hops
        source.traces.append(self)

    def note_copied(self, upto: int, *, crosses: bool = False) -> None:
        """Everything up to there had its turn. `crosses`: the router stood there, so whatever it lost on the way has a
        pin in the destination's log, which was synced before the router moved on."""
        while not self.is_broken and self.noted_to < upto:
            blocked = next(((lo, hi) for lo, hi in self.lost_ranges if hi > self.noted_to and lo <= upto), None)
            try:
                self._take(upto if blocked is None else blocked[0] - 1)
            except TopicsError:  # the cold store does not answer
                self.is_broken = True
                return
            gap = self._gap_at(self.noted_to + 1)
            if not crosses or gap is None or gap >= upto:
                return
            self.noted_to = gap

    def _take(self, upto: int) -> None:
        upto = self.source.reaches(self.noted_to + 1, upto)
        self.to_copy += self.source.candidates(self.noted_to + 1, upto, self.dead)
        self.noted_to = max(self.noted_to, upto)

    def _gap_at(self, seq: int) -> int | None:
        """The end of the lost range there, lost in the source or before the router came to it; None: none."""
        lost_to = next((hi for lo, hi in self.lost_ranges if lo <= seq <= hi), None)
        return self.source.gap_at(seq) if lost_to is None else lost_to

    def skip_to(self, cursor: int) -> None:
        """A pin says that the router stood there: everything before it is done, copied or lost."""
        self.noted_to = max(self.noted_to, cursor)
        self.read_to = max(self.read_to, cursor)
        self.to_copy = [seq for seq in self.to_copy if seq > cursor]
        self.copies = [copy for copy in self.copies if copy.source_seq > cursor]
        self.lost_ranges = [(lo, hi) for lo, hi in self.lost_ranges if hi > cursor]

    def note_new(self) -> None:
        """Note what has come to the source since."""
        self.note_copied(self.source.certain_to(self.router.name))

    def read_more(self) -> bool:
        """Read the next source records and choose copies; False if there is nothing to read, or nothing certain."""
        if self.is_broken:
            return False
        self.note_new()
        if not self.to_copy:
            self.read_to = max(self.read_to, self.noted_to)
            return False
        seqs = self.to_copy[:READ_RECORDS]
        topic = self.source.topic
        is_known = not self._counts_hops or all(map(self.source.hops_known, seqs))
        found = self.source.records(seqs) if is_known else []
        if len(found) != len(seqs):
            self.is_broken = True
            return False
        self.to_copy = self.to_copy[READ_RECORDS:]
        hops = hops_of(topic, seqs)
        for (run, at), came_through in zip(found, hops, strict=True):
            self.copies += chosen(self.router, topic, _one(run, at), [came_through])
        self.read_to = seqs[-1]
        return True

    @property
    def done_to(self) -> int:
        """The highest source seq that is done: every copy up to it is in the destination."""
        return self.copies[0].source_seq - 1 if self.copies else self.read_to


def _dead_slots(topic: TopicLog, *, after: int) -> set[int]:
    """Seqs with a slot, above `after`, that were deleted before any frame was replayed."""
    dead: set[int] = set()
    for block in blocks_from(topic, after + 1):
        if isinstance(block, TailRun):
            flags = np.frombuffer(block.flags[:], np.uint8)
            dead.update((np.flatnonzero(flags & DELETED) + block.first_seq).tolist())
        elif isinstance(block, Sealed) and block.deleted and block.view.tier == "hot":
            dead.update((np.flatnonzero(block.dead(0, block.count)) + block.first_seq).tolist())
    return {seq for seq in dead if seq > after}


def _inside(ranges: Ranges, seq: int) -> bool:
    at = bisect_right(ranges, seq, key=itemgetter(0))
    return at > 0 and seq <= ranges[at - 1][1]


def _extent(op: Append, seqs: list[int]) -> Extent:
    at = np.array(seqs, np.int64) - op.first_seq
    return Extent(
        RecordPlace.WAL,
        at + op.first_seq,
        np.frombuffer(op.sizes, np.uint32)[at],
        file=op.file,
        offs=np.frombuffer(op.offs, np.uint32)[at] + np.uint32(op.base),
        lens=np.frombuffer(op.lens, np.uint32)[at],
    )


def _one(run: RecordRun, at: int) -> RecordRun:
    return RecordRun(run.buf, [run.body_offs[at]], run.flags[at : at + 1])
