"""ReadWalk: the one pipeline behind diff, watch and WebSocket (`docs/spec/semantics.md#sec-12-1`).

    walk = plan_read(topic, request, recent, now=now)
    while (extent := walk.need()) is not None:      # only for records that are not in memory
        walk.feed(fetched_run)
    outcome = walk.result()

Retention at `now` has run before. The walk goes from block to block (a sealed segment, a run of the tail). In each it
chooses the slots to look at (`_chosen`: live ones, in order; with a tag, those that the tag index names), asks for
their sizes, and takes their bytes: from the
recent cache, from a segment whose pages are in memory, or by a fetch. Whole stretches are taken at once; only a node
filter looks at single records. State may change while a fetch is under way: every step looks at the topic as it is
then, and a walk that the floor has overtaken ends or starts again, so loss is never passed in silence.

`read_fresh` is the short way for the few records just written, which is what most reads of live delivery ask for.
"""

from __future__ import annotations

import numpy as np

from topics import limits
from topics.core.lineage import epoch_of, is_foreign
from topics.core.reading.recent import Chunk, RecentCache
from topics.core.reading.request import ReadAhead, ReadOutcome, ReadRequest
from topics.core.retention.floors import SEQ_BASE
from topics.core.retention.removal import alive_of, blocks_from, index_needed
from topics.core.slots.extent import Extent, RecordPlace, extent_of, index_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.slot_range import I64, U32, Slots, shifted
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.names import TagMatch
from topics.model.results import Tombstone
from topics.model.run import BODY_HEAD_BYTES, HAS_NODE, RecordRun

__all__ = ["ReadOutcome", "ReadRequest", "ReadWalk", "plan_read", "read_fresh"]

FRESH_MAX = 16
_NODE_LEN_AT = 16
_LOOK_UP_STEPS = 15  # beside the one of passing a block: what asking its tag index costs, in records looked at


def read_fresh(topic: TopicLog, request: ReadRequest, recent: RecentCache) -> ReadOutcome | None:
    """The few records behind the reader, if nothing stands in the way: no floor, no lost range, no removal, no filter,
    all in one chunk in memory. Then the outcome, the one a walk would give, is a slice. None: walk."""
    first, head, floors = request.from_seq + 1, topic.head, topic.floors
    count = head - first + 1
    if not 0 < count <= min(FRESH_MAX, request.limit) or request.nodes is not None or request.head_limit is not None:
        return None
    if request.tag is not None:
        return None
    runs = topic.tail.runs
    if not runs or runs[-1].deleted or runs[-1].first_seq > first or runs[-1].next_seq != head + 1:
        return None
    if len(topic.lost) or floors.earliest_seq > first or is_foreign(topic, request.from_seq, request.epoch):
        return None
    size = sum(runs[-1].sizes[first - runs[-1].first_seq :])
    chunk = recent.find(topic.id, first) or topic.resident.find(first)
    if chunk is None or chunk.next_seq <= head or (count > 1 and size > request.budget_bytes):
        return None
    return ReadOutcome(
        runs=[chunk.run(first, head + 1)],
        records=count,
        size_bytes=size + BODY_HEAD_BYTES * count,
        next_from_seq=head,
        head_seq=head,
        earliest_seq=topic.earliest_seq,
        caught_up=True,
        lag=0,
        tombstone=None,
        scanned=count,
        epoch=epoch_of(topic, head),
    )


def plan_read(topic: TopicLog, request: ReadRequest, recent: RecentCache, *, now: int) -> ReadWalk:
    """Start a read; everything that is in memory is collected at once."""
    if request.touch:
        topic.touch(now, read=True)
    return ReadWalk(topic, request, recent)


class ReadWalk:
    __slots__ = (
        "_ahead",
        "_at",
        "_bytes",
        "_count",
        "_done",
        "_examined",
        "_examined_max",
        "_extent",
        "_head",
        "_loaded",
        "_matches",
        "_nodes",
        "_recent",
        "_request",
        "_runs",
        "_scanned",
        "_start",
        "_tag",
        "_tombstone",
        "_topic",
    )

    def __init__(self, topic: TopicLog, request: ReadRequest, recent: RecentCache) -> None:
        self._topic = topic
        self._request = request
        self._recent = recent
        self._ahead = request.ahead
        self._nodes = request.nodes if request.nodes and topic.config.dedupe_node else None
        tag = request.tag
        self._tag = tag.value.encode() if tag is not None and tag.op == "Eq" else None  # what filters can be asked for
        self._runs: list[RecordRun] = []
        self._count = self._bytes = self._examined = self._scanned = 0
        self._examined_max = max(limits.READ_EXAMINED_MAX, request.examined_max)
        self._extent: Extent | None = None
        self._loaded: Slots | None = None  # the segment whose columns were loaded for this walk last
        self._matches: tuple[Slots, I64] | None  # a block, and its slots whose tag matches
        self._done = False
        self._tombstone: Tombstone | None = None
        self._at = self._start = self._head = 0
        self._begin()
        self._advance()

    # --- the walk's four doors -----------------------------------------------------------------------------------

    def need(self) -> Extent | None:
        """The next records to fetch; None when the result is ready."""
        return self._extent

    def feed(self, run: RecordRun, *, seq_next: int | None = None) -> None:
        """The records of the extent. Those that are missing were found deleted, up to `seq_next` if it is given: from
        there on nothing could be read, and the walk ends in front of it."""
        extent = self._extent
        assert extent is not None, "a walk was fed that asked for nothing"
        self._extent = None
        if extent.place is not RecordPlace.INDEX:
            if self._ahead is None:
                self._take_in(extent, run, seq_next)
            else:
                self._hold(self._ahead, extent, run, seq_next)
        self._advance()

    def _hold(self, ahead: ReadAhead, extent: Extent, run: RecordRun, seq_next: int | None) -> None:
        """Now these are in memory, and the walk takes of them what fits. If some are missing, it does without."""
        if len(run) == len(extent.seqs) and (seq_next is None or seq_next > int(extent.seqs[-1])):
            ahead.hold(self._topic.id, np.asarray(extent.seqs), run)
        else:
            self._ahead = None

    def _take_in(self, extent: Extent, run: RecordRun, seq_next: int | None) -> None:
        seqs, sizes, last = extent.seqs, extent.sizes, int(extent.seqs[-1])
        if seq_next is not None and seq_next <= last:
            wanted = np.asarray(seqs)
            seqs, last, self._done = wanted[wanted < seq_next], seq_next - 1, True
        if len(run) != len(seqs):
            got = np.array([run.seq(at) for at in range(len(run))], np.int64)
            sizes = sizes[np.isin(np.asarray(extent.seqs), got)]
            seqs = got
        if self._collect(run, seqs, sizes):
            self._at = max(self._at, last)

    def replan(self) -> None:
        """The records have moved since they were located (a checkpoint, a rewrite): look again."""
        self._extent = None
        self._advance()

    def stop(self) -> bool:
        """A fetch failed for good. Is there anything to answer with? Then `result` is what came before the failure."""
        self._extent = None
        self._done = True
        return self._count > 0 or self._tombstone is not None or self._at > self._start

    def result(self) -> ReadOutcome:
        assert self._extent is None, "a read was asked for its result too early"
        head = max(self._head, self._at) if self._count or self._tombstone else self._head
        return ReadOutcome(
            runs=self._runs,
            records=self._count,
            size_bytes=self._bytes + BODY_HEAD_BYTES * self._count,
            next_from_seq=self._at,
            head_seq=head,
            earliest_seq=self._topic.earliest_seq,
            caught_up=self._at >= head,
            lag=max(head - self._at, 0),
            tombstone=self._tombstone,
            scanned=self._scanned,
            epoch=epoch_of(self._topic, self._at),
        )

    # --- where it starts -----------------------------------------------------------------------------------------

    def _begin(self) -> None:
        topic, request = self._topic, self._request
        from_seq, earliest = request.from_seq, topic.earliest_seq
        self._matches = None
        self._head = topic.head if request.head_limit is None else min(topic.head, request.head_limit)
        if is_foreign(topic, from_seq, request.epoch):
            self._note(SEQ_BASE, topic.head, "recreated")
            self._at = earliest - 1
        elif from_seq + 1 < earliest and from_seq + 1 < topic.evict_floor:
            self._note(from_seq + 1, earliest - 1, topic.floors.reason_since(from_seq + 1))
            self._at = earliest - 1
        else:
            self._at = from_seq
        self._start = self._at

    def _note(self, gap_from: int, gap_to: int, reason: str) -> None:
        topic = self._topic
        self._tombstone = Tombstone(
            gap_from, gap_to, reason, max(gap_to - gap_from + 1, 0), topic.earliest_seq, topic.head
        )

    # --- the steps -----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        while not self._done and self._extent is None:
            if self._examined >= self._examined_max:  # also by what was fetched
                self._done = True
            elif not self._overtaken():
                seq = self._at + 1
                if seq > self._head:
                    self._done = True
                elif not len(self._topic.lost):
                    self._step(seq, self._head + 1)
                elif not self._cross_lost(seq):
                    self._step(seq, min(self._topic.lost.next_lo(seq) or self._head + 1, self._head + 1))

    def _overtaken(self) -> bool:
        """Did the floor pass the walk while it waited? Then what comes next has to be announced."""
        if self._at + 1 >= self._topic.floors.earliest_seq or self._at + 1 >= self._topic.evict_floor:
            return False
        if self._count or self._tombstone is not None or self._at > self._start:
            self._done = True
        else:
            self._begin()
        return True

    def _cross_lost(self, seq: int) -> bool:
        """Announce the lost range at `seq` and go on behind it, or end in front of it; False if there is none."""
        lost = self._topic.lost.find(seq)
        if lost is None:
            return False
        if self._count or self._tombstone is not None:
            self._done = True
        else:
            self._note(seq, lost.hi, lost.reason)
            self._pass(lost.hi)
        return True

    def _pass(self, seq: int) -> None:
        """Everything up to `seq` holds nothing for this reader: one step, however far."""
        self._at = seq
        self._examined += 1

    def _step(self, seq: int, stop: int) -> None:
        """Take what can be taken from the block at `seq`, or skip to where there is something; never to `stop`."""
        topic = self._topic
        block = topic.sealed.find(seq) or next(blocks_from(topic, seq), None)
        start = max(seq, topic.floors.earliest_seq)
        if block is None or max(block.first_seq, start) >= stop:
            self._pass(stop - 1)
            return
        first_seq = block.first_seq
        lo, hi = max(start - first_seq, 0), min(stop - first_seq, block.count)
        if lo < hi:  # else it is dead by position: its files may be gone already
            if self._tag is not None and (behind := self._behind_lacking(block, stop)) > seq:
                self._at = behind - 1
                return
            needed = self._index_needed(block)
            try:
                if needed is None and self._request.tag is not None:
                    self._take_tagged(block, lo, hi, self._request.tag)
                    return
                if needed is None:
                    lo = lo if block.deleted == 0 else block.first_live(lo, hi)
                    if first_seq + lo == seq:
                        self._take(block, lo, hi)
                        return
            except ColdUnavailable:
                assert isinstance(block, Sealed)
                needed = block
            if needed is not None:
                self._loaded = needed
                self._extent = index_of(needed, max(seq, needed.first_seq))
                return
        self._pass(first_seq + lo - 1)

    def _behind_lacking(self, block: Slots, stop: int) -> int:
        """Where to go on behind this segment and those that follow it without a gap, as long as they are known to lack
        the tag; at most `stop`, 0 if this one may have it. Each is one step, so that a walk stays bounded."""
        topic, tag = self._topic, self._tag
        assert tag is not None
        if topic.awaiting or not isinstance(block, Sealed) or not block.view.lacks(tag):
            return 0
        steps, ages = self._examined_max - self._examined, topic.config.ttl_ms > 0
        behind, passed = topic.sealed.pass_lacking(block.first_seq, tag, stop=stop, steps=steps, ages=ages)
        self._examined += passed
        return min(behind, stop)

    def _index_needed(self, block: Slots) -> Sealed | None:
        """The segment whose columns have to be loaded before this block can be looked at: they would be read from a
        file on the owner's thread, or only they tell which records are still there."""
        topic = self._topic
        if block is not self._loaded and isinstance(block, Sealed) and not block.view.loaded:
            return block
        return index_needed(topic, block) if topic.awaiting or topic.config.ttl_ms else None

    def _take_tagged(self, block: Slots, lo: int, hi: int, tag: TagMatch) -> None:
        """Take the records that the block's tag index names; what lies between them costs nothing, and behind the last
        of them the walk goes on with the next block."""
        if self._matches is None or self._matches[0] is not block:  # a prefix of many tags is sorted once a walk
            self._matches = block, _matching(self._topic, block, lo, tag)
        slots = self._matches[1]
        if len(slots) and (slots[0] < lo or slots[-1] >= hi):
            first, behind = slots.searchsorted((lo, hi))
            slots = slots[first:behind]
        slots = alive_of(block, slots)
        if len(slots):
            self._take(block, lo, hi, slots)
        if not len(slots) or (self._extent is None and not self._done and self._at == block.first_seq + slots[-1]):
            self._pass(block.first_seq + hi - 1)
            self._examined += _LOOK_UP_STEPS

    def _take(self, block: Slots, lo: int, hi: int, matching: I64 | None = None) -> None:
        """The slot `lo` is live, or else these are: collect from it on, from memory, or ask for a fetch."""
        room, steps = self._request.limit - self._count, self._examined_max - self._examined
        slots, sizes, gaps = _chosen(block, lo, hi, matching, room=min(room, steps), steps=steps)
        fit = self._fitting(sizes)
        if fit == 0:
            self._done = True
            return
        slots, sizes = slots[:fit], sizes[:fit]
        seqs = shifted(slots, block.first_seq)
        runs = self._in_memory(seqs)
        if not runs and self._ahead is not None:
            self._extent = _more_of(block, lo, hi, matching, least=fit)
            return
        if not runs and self._request.in_turn and isinstance(block, Sealed):
            run = block.view.resident_run(slots)
            runs = [] if run is None else [run]
        taken = sum([len(run.body_offs) for run in runs]) or fit
        self._examined += _gaps_between(slots[:taken]) if gaps else 0
        if runs:
            self._collect_all(runs, seqs[:taken], sizes[:taken])
        else:
            self._extent = extent_of(block, slots, sizes)

    def _in_memory(self, seqs: range | I64) -> list[RecordRun]:
        """The first of these records, as far as they are in the recent cache, in no file, or were read ahead."""
        runs: list[RecordRun] = []
        first, last = int(seqs[0]), int(seqs[-1])
        while first <= last and (chunk := self._chunk(first)) is not None:
            stop = min(last + 1, chunk.next_seq)
            if isinstance(seqs, range):
                runs.append(chunk.run(first, stop))
            else:
                runs.append(chunk.pick(seqs[: int(np.searchsorted(seqs, stop))]))
                seqs = seqs[len(runs[-1]) :]
                stop = int(seqs[0]) if len(seqs) else stop
            first = stop
        return runs

    def _chunk(self, seq: int) -> Chunk | ReadAhead | None:
        topic, ahead = self._topic, self._ahead
        chunk = self._recent.find(topic.id, seq) or topic.resident.find(seq)
        return chunk if chunk is not None or ahead is None else ahead.find(topic.id, seq)

    def _fitting(self, sizes: U32) -> int:
        """How many of the next records to look at: those that fit the budget. A batch's first record always does, and
        with a node filter so does the next one, since it may be hidden."""
        left = self._request.budget_bytes - self._bytes
        if _sum(sizes) <= left:
            return len(sizes)
        fit = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), left, side="right"))
        if fit == 0 and (self._count == 0 or self._nodes is not None):
            return 1
        return fit

    def _collect_all(self, runs: list[RecordRun], seqs: range | I64, sizes: U32) -> None:
        if self._nodes is None:
            self._runs += runs
            self._count += len(seqs)
            self._looked_at(seqs, sizes)
            return
        at = 0
        for run in runs:
            stop = at + len(run)
            self._collect(run, seqs[at:stop], sizes[at:stop])
            if self._done:
                return
            at = stop

    def _collect(self, run: RecordRun, seqs: range | I64, sizes: U32) -> bool:
        """Take records in, as far as the bounds allow. Were all of them dealt with?"""
        if not len(seqs):
            return True
        seen = len(seqs)
        if self._nodes is not None:
            run, sizes, seen = self._hide_own(run, sizes)
        if taken := len(run.body_offs):
            self._runs.append(run)
            self._count += taken
        self._looked_at(seqs[:seen], sizes)
        self._done |= seen < len(seqs)
        return seen == len(seqs)

    def _looked_at(self, seqs: range | I64, taken_sizes: U32) -> None:
        """These are done with; of those that were taken the sizes count."""
        self._bytes += _sum(taken_sizes)
        self._scanned += len(seqs)
        self._examined += len(seqs)
        if len(seqs):
            self._at = int(seqs[-1])
        self._done |= self._count >= self._request.limit

    def _hide_own(self, run: RecordRun, sizes: U32) -> tuple[RecordRun, U32, int]:
        """The records that pass the filter and fit the budget, and how many were looked at for them."""
        assert self._nodes is not None
        passing = split_by_node(run, self._nodes)
        seen = len(run)
        sums = np.cumsum(sizes[passing], dtype=np.int64) + self._bytes
        over = np.flatnonzero(sums > self._request.budget_bytes)
        over = over[over > 0] if self._count == 0 else over
        if len(over):
            seen = int(passing[over[0]])
            passing = passing[: over[0]]
        if len(passing) == len(run):
            return run, sizes, seen
        at = passing.tolist()
        offs, flags = run.body_offs, run.flags
        kept = RecordRun(run.buf, [offs[i] for i in at], bytes([flags[i] for i in at]))
        return kept, sizes[passing], seen


def split_by_node(run: RecordRun, nodes: frozenset[bytes]) -> I64:
    """Indexes of the records whose node is none of `nodes`, byte for byte; a record without a node always passes
    (`docs/spec/semantics.md#sec-11`)."""
    buf, flags = run.buf, run.flags
    if not any(flag & HAS_NODE for flag in set(flags)):
        return np.arange(len(run), dtype=np.int64)
    passing = []
    for at, off in enumerate(run.body_offs):
        if flags[at] & HAS_NODE:
            node_len = buf[off + _NODE_LEN_AT] | buf[off + _NODE_LEN_AT + 1] << 8
            node_at = off + BODY_HEAD_BYTES
            if bytes(buf[node_at : node_at + node_len]) in nodes:
                continue
        passing.append(at)
    return np.array(passing, np.int64)


def _matching(topic: TopicLog, block: Slots, lo: int, tag: TagMatch) -> I64:
    """Slots from `lo` on whose tag matches, ascending, dead ones perhaps among them."""
    if isinstance(block, Sealed):
        return block.view.tag_slots(tag)
    seqs = topic.tags.between(tag, block.first_seq + lo, block.next_seq)
    return np.array(seqs, np.int64) - block.first_seq


def _chosen(
    block: Slots, lo: int, hi: int, matching: I64 | None, *, room: int, steps: int
) -> tuple[range | I64, U32, int]:
    """Up to `room` slots to look at, their sizes, and how many runs of dead slots lie between them: those that match,
    or all from the live slot `lo` on. A record is a step, and so is such a run."""
    if matching is not None:
        slots = matching[:room]
        return slots, block.sizes_of(lo, int(slots[-1]) + 1)[slots - lo], 0
    if block.deleted == 0:
        stop = min(hi, lo + room)
        return range(lo, stop), block.sizes_of(lo, stop), 0
    slots = block.live_slots(lo, min(hi, lo + 2 * room + 64))[:room]
    gaps = _gaps_between(slots)
    if len(slots) + gaps > steps:
        cost = np.arange(1, len(slots) + 1) + np.concatenate(([0], np.cumsum(np.diff(slots) > 1)))
        slots = slots[: max(1, int(np.searchsorted(cost, steps, side="right")))]
        gaps = _gaps_between(slots)
    return slots, block.sizes_of(lo, int(slots[-1]) + 1)[slots - lo], gaps


def _gaps_between(slots: range | I64) -> int:
    return int(np.count_nonzero(np.diff(slots) > 1))


def _sum(sizes: U32) -> int:
    return int(sizes[0]) if len(sizes) == 1 else int(sizes.sum(dtype=np.int64))


def _more_of(block: Slots, lo: int, hi: int, matching: I64 | None, *, least: int) -> Extent:
    """What one trip brings a reader that is going to read on."""
    room = max(limits.AHEAD_RECORDS, least)
    slots, sizes, _ = _chosen(block, lo, hi, matching, room=room, steps=limits.READ_EXAMINED_MAX)
    fit = int(np.searchsorted(np.cumsum(sizes, dtype=np.int64), limits.AHEAD_BYTES, side="right"))
    count = max(fit, least)
    return extent_of(block, slots[:count], sizes[:count])
