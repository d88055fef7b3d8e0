"""What a read asks for and what it gives. Made by the engine's readers; planned and answered by `core.reading.walk`.

ReadRequest  from where, how much, and what is left out
ReadOutcome  the records as runs, and where the reader stands then
ReadAhead    records that a reader of old history was brought together with those it had asked for
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from topics.core.slots.slot_range import I64
from topics.model.names import TagMatch
from topics.model.results import Tombstone
from topics.model.run import EMPTY_RUN, RecordRun


class ReadAhead:
    """Records in seq order, some seqs perhaps missing between them; empty at first.

    A trip to the files costs several times what the records of a batch cost, and it takes the GIL from everybody else.
    So a reader that is going to read on is brought more than its batch, and finds the next ones here. Only bytes are
    kept: which records live, and which of them the reader may see, the topic is asked by every read. Always holds: what
    is here was checked when it was fetched; it belongs to one life of one topic. Owned by a reader for as long as it is
    on its way to the head."""

    __slots__ = ("_run", "_seqs", "_topic_id", "next_seq", "size_bytes")

    def __init__(self) -> None:
        self.let_go()

    def let_go(self) -> None:
        """Forget them, and the file they may lie in."""
        self._topic_id = -1
        self._run = EMPTY_RUN
        self._seqs = np.empty(0, np.int64)
        self.next_seq = 0
        self.size_bytes = 0

    def hold(self, topic_id: int, seqs: I64, run: RecordRun) -> None:
        """These instead of the ones before."""
        assert len(seqs) == len(run) > 0
        self._topic_id = topic_id
        self._run = run
        self._seqs = seqs
        self.next_seq = int(seqs[-1]) + 1
        self.size_bytes = run.span_bytes()

    def find(self, topic_id: int, seq: int) -> ReadAhead | None:
        """Itself, if it has the record."""
        if topic_id != self._topic_id or seq >= self.next_seq or seq < int(self._seqs[0]):
            return None
        return self if int(self._seqs[np.searchsorted(self._seqs, seq)]) == seq else None

    def run(self, lo: int, hi: int) -> RecordRun:
        """Records `lo..hi-1`. All of them live, so they lived when they were fetched, and are here."""
        first, stop = np.searchsorted(self._seqs, (lo, hi)).tolist()
        assert stop - first == hi - lo, "a record that lives was not fetched"
        run = self._run
        return RecordRun(run.buf, run.body_offs[first:stop], run.flags[first:stop])

    def pick(self, seqs: I64) -> RecordRun:
        """Some of the records, ascending."""
        slots = np.searchsorted(self._seqs, seqs)
        assert np.array_equal(self._seqs[slots], seqs), "a record that lives was not fetched"
        at = slots.tolist()
        offs, flags = self._run.body_offs, self._run.flags
        return RecordRun(self._run.buf, [offs[i] for i in at], bytes([flags[i] for i in at]))


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Bounds are clamped already. `epoch` is that of the cursor, None if its owner does not know; `head_limit` is the
    highest seq a strong reader may see; `nodes` are left out; with `tag` only records whose tag matches are
    given; `touch` is off for reads that are no consumption; `ahead`
    belongs to a reader that is going to read on. `in_turn`: records of a segment whose pages are in memory are read at
    once, on the owner's thread. It is for readers that ask for one page; a stream or a router that reads on would take
    turn after turn. `shows_floor` is off where nothing but a tombstone tells the reader of the topic's
    `earliest_seq`. `examined_max` is how many seqs may be looked at, if that is more than
    `READ_EXAMINED_MAX`: for large pages of a reader that leaves nothing out."""

    from_seq: int
    limit: int = 256
    budget_bytes: int = 1 << 20
    nodes: frozenset[bytes] | None = None
    tag: TagMatch | None = None
    epoch: int | None = None
    head_limit: int | None = None
    touch: bool = True
    ahead: ReadAhead | None = None
    in_turn: bool = False
    shows_floor: bool = True
    examined_max: int = 0


class ReadOutcome(NamedTuple):
    """`size_bytes` is about what the records take: their payloads, as retention counts them, and their heads. `scanned`
    counts the live records looked at, hidden ones included. `epoch` is that of `next_from_seq`."""

    runs: list[RecordRun]
    records: int
    size_bytes: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: Tombstone | None
    scanned: int
    epoch: int
