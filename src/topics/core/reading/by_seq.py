"""Pick: the records of given seqs, wherever they lie; for claims and dead letters.

    walk = PickWalk(topic, seqs, recent)
    while (extent := walk.need()) is not None:      # only for records that are not in memory
        walk.feed(fetched_run, seq_next)            # or `replan` when they have moved, or `skip` the first one
    walk.found                                      # seq -> run and place in it

A seq that is not live when its turn comes is left out. Same four doors as `core.read`, without order or bounds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from topics.core.reading.recent import RecentCache
from topics.core.retention.removal import blocks_from
from topics.core.slots.extent import Extent, RecordPlace, extent_of, index_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.run import RecordRun

Found = dict[int, tuple[RecordRun, int]]


class PickWalk:
    __slots__ = ("_at", "_extent", "_left", "_recent", "_topic", "found", "missed")

    def __init__(self, topic: TopicLog, seqs: Sequence[int], recent: RecentCache) -> None:
        self._topic = topic
        self._recent = recent
        self._left = sorted(seqs)
        self._at = 0  # the first of them that is still wanted
        self._extent: Extent | None = None
        self.found: Found = {}
        self.missed: list[int] = []
        self._advance()

    def need(self) -> Extent | None:
        return self._extent

    def feed(self, run: RecordRun, *, seq_next: int | None = None) -> None:
        """The records of the extent; from `seq_next` on, if it is given, nothing could be read."""
        extent = self._extent
        assert extent is not None, "a walk was fed that asked for nothing"
        self._extent = None
        if extent.place is not RecordPlace.INDEX:
            self._take(run)
            last = int(extent.seqs[-1])
            self._drop_to(last if seq_next is None else min(last, seq_next - 1))
        self._advance()

    def replan(self) -> None:
        self._extent = None
        self._advance()

    def skip(self) -> None:
        """The first record wanted cannot be read, for good."""
        self._extent = None
        self.missed.append(self._left[self._at])
        self._at += 1
        self._advance()

    def _take(self, run: RecordRun) -> None:
        for at in range(len(run)):
            self.found[run.seq(at)] = run, at

    def _drop_to(self, seq: int) -> None:
        self._at = bisect_right(self._left, seq, self._at)

    def _below(self, seq: int) -> list[int]:
        """Those left below `seq` that are live."""
        return list(filter(self._topic.live, self._left[self._at : bisect_left(self._left, seq, self._at)]))

    def _advance(self) -> None:
        while self._at < len(self._left) and self._extent is None:
            seq = self._left[self._at]
            chunk = self._recent.find(self._topic.id, seq) or self._topic.resident.find(seq)
            try:
                if not self._topic.live(seq):
                    self._at += 1
                elif chunk is None:
                    self._locate(seq)
                else:
                    self._take(chunk.pick(np.array(self._below(chunk.next_seq), np.int64)))
                    self._drop_to(chunk.next_seq - 1)
            except ColdUnavailable:
                sealed = self._topic.sealed.find(seq)
                assert sealed is not None
                self._extent = index_of(sealed, seq)

    def _locate(self, seq: int) -> None:
        block = next(blocks_from(self._topic, seq))
        if isinstance(block, Sealed) and block.first_seq in self._topic.awaiting:
            self._extent = index_of(block, seq)
            return
        slots = np.array(self._below(block.next_seq), np.int64) - block.first_seq
        lo = int(slots[0])
        sizes = block.sizes_of(lo, int(slots[-1]) + 1)[slots - lo]
        self._extent = extent_of(block, slots, sizes)
