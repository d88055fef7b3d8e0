"""Tag walk: the live records of tags in byte order, block by block; for the table of a topic and for compaction
(`docs/spec/readers.md#sec-7`).

    walk = TagWalk(topic, limit=1000, to_seq=topic.head)
    while not walk.is_over:
        if (segment := walk.need()) is not None:    # load its columns first, or `skip` it
            ...
        else:
            walk.step()                             # a bounded piece of work
    walk.tags, walk.newest, walk.after              # the page, and behind which tag the next one begins

The topic may change between steps: what was visited is noted by segment, so records that move from the tail into a
segment meanwhile are seen at least once, and whoever acts on the outcome checks that records are still live. Only one
segment has to be loaded at a time, so a topic may have more of them than are kept mapped.

With `from_seq` only the tags of blocks that reach beyond it are looked for: compaction has dealt with the others."""

from __future__ import annotations

import numpy as np

from topics.core.retention.removal import alive_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.slot_range import I64, Slots
from topics.core.topic import TopicLog
from topics.model.names import TagMatch

STEP_TAGS = 512  # of one block in one step: about a millisecond
DEAD_ENTRIES_MAX = 16  # of one tag, before they are dropped from the tail's tags
FEW = 8  # entries: below this numpy costs more than it saves
STEP_CHUNKS = 4  # of the tail's tags that are indexed in one step; each is indexed once


class TagWalk:
    def __init__(
        self,
        topic: TopicLog,
        *,
        limit: int,
        to_seq: int,
        from_seq: int = 0,
        prefix: bytes = b"",
        after: bytes | None = None,
        want_older: bool = False,
    ) -> None:
        self._topic = topic
        self._limit = limit
        self._to_seq = to_seq
        self._from_seq = 0 if _has_hole_in_tail(topic) else from_seq
        self._prefix = prefix
        self._begin = after
        self._at: bytes | None = after  # the last tag that was looked at in the present block
        self._block: Sealed | None = None  # None: the tail
        self._visited: set[int] = set()  # segments, by first seq
        self._cutoff: bytes | None = None  # tags behind it are for the next page
        self._wanted: list[bytes] | None = None  # once blocks are asked that bring no tag of their own
        self._older: dict[bytes, list[int]] | None = {} if want_older else None
        self.newest: dict[bytes, int] = {}
        """The newest live seq of each tag."""
        self.sizes: dict[bytes, int] = {}
        """The accounted bytes of that record."""
        self.is_over = False
        self.is_complete = True
        """No segment had to be passed over."""

    # --- the outcome ----------------------------------------------------------------------------------------------

    @property
    def tags(self) -> list[bytes]:
        return sorted(self.newest)

    @property
    def after(self) -> bytes | None:
        """The last tag of the page if others follow."""
        return self._cutoff

    def superseded(self) -> I64:
        """All live records of the page's tags but the newest of each, ascending; asked for by `want_older`."""
        assert self._older is not None
        found = [seq for tag, seqs in self._older.items() for seq in seqs if seq < self.newest[tag]]
        return np.unique(np.array(found, np.int64))

    # --- walking --------------------------------------------------------------------------------------------------

    def need(self) -> Sealed | None:
        """The segment that has to be loaded before the next step."""
        block = self._block
        if block is None or self._topic.sealed.by_first_seq(block.first_seq) is not block:
            return None
        return block if not block.view.loaded or block.first_seq in self._topic.awaiting else None

    def skip(self) -> None:
        """The segment that is needed cannot be loaded."""
        self.is_complete = False
        self._leave()

    def step(self) -> None:
        block, topic = self._block, self._topic
        if block is None:
            self._step_in_tail()
        elif topic.sealed.by_first_seq(block.first_seq) is not block or not block.live:
            self._leave()  # dropped meanwhile
        elif self._wanted is not None:
            self._step_by_tag(block, self._wanted)
        else:
            self._step_in_segment(block)

    def _step_in_tail(self) -> None:
        if not self._topic.tags.index_some(STEP_CHUNKS):
            return
        found, more = self._topic.tags.tags_after(
            self._at, self._prefix, STEP_TAGS, since=self._from_seq, below=self._to_seq + 1
        )
        for tag, seqs in found:
            if self._is_behind(tag):
                break
            self._take_from_tail(tag, seqs)
        self._go_on(found[-1][0] if more else None)

    def _take_from_tail(self, tag: bytes, seqs: list[int]) -> None:
        topic = self._topic
        if self._older is None and seqs and topic.live(seqs[-1]):
            seqs = seqs[-1:]
        if len(seqs) <= FEW:
            for seq in filter(topic.live, seqs):
                if (run := topic.tail.find(seq)) is not None:
                    self._take(tag, run, [seq - run.first_seq])
            return
        wanted = np.array(seqs, np.int64)
        wanted = wanted[wanted >= topic.floors.earliest_seq]
        live: list[int] = []
        for run in topic.tail.runs_from(int(wanted[0])) if len(wanted) else ():
            lo, hi = np.searchsorted(wanted, (run.first_seq, run.next_seq))
            slots = alive_of(run, wanted[lo:hi] - run.first_seq)
            self._take(tag, run, slots.tolist())
            live += (slots + run.first_seq).tolist()
        if self._older is not None and len(seqs) - len(live) >= DEAD_ENTRIES_MAX:
            topic.tags.keep_live(tag, live, below=self._to_seq + 1)  # so that the next pass does not meet them again

    def _step_in_segment(self, block: Sealed) -> None:
        found = block.view.tags_after(self._at, self._prefix, STEP_TAGS)
        for tag, slots in found:
            if self._is_behind(tag):
                break
            self._take(tag, block, self._live_in(block, slots))
        self._go_on(found[-1][0] if len(found) == STEP_TAGS else None)

    def _step_by_tag(self, block: Sealed, wanted: list[bytes]) -> None:
        tags, self._wanted = wanted[:STEP_TAGS], wanted[STEP_TAGS:]
        for tag in tags:
            slots = block.view.tag_slots(TagMatch("Eq", tag.decode()))
            if len(slots):
                self._take(tag, block, self._live_in(block, slots))
        if not self._wanted:
            self._leave()

    def _live_in(self, block: Sealed, slots: I64) -> list[int]:
        lo, hi = self._topic.floors.earliest_seq - block.first_seq, self._to_seq + 1 - block.first_seq
        if len(slots) <= FEW:
            return [slot for slot in slots.tolist() if lo <= slot < hi and not block.is_dead(slot)]
        if lo > 0 or hi < block.count:
            slots = slots[(slots >= lo) & (slots < hi)]
        if self._older is None and len(slots) and not block.is_dead(int(slots[-1])):
            return [int(slots[-1])]
        live: list[int] = alive_of(block, slots).tolist()
        return live

    def _take(self, tag: bytes, block: Slots, slots: list[int]) -> None:
        """Live slots of a tag, ascending."""
        if not slots:
            return
        last = slots[-1]
        if block.first_seq + last > self.newest.get(tag, 0):
            self.newest[tag] = block.first_seq + last
            self.sizes[tag] = int(block.sizes_of(last, last + 1)[0])
        if self._older is not None:
            self._older.setdefault(tag, []).extend([slot + block.first_seq for slot in slots])

    def _is_behind(self, tag: bytes) -> bool:
        return self._cutoff is not None and tag > self._cutoff

    def _go_on(self, last: bytes | None) -> None:
        """After a step in a block that brings tags of its own; `last` is the last of them if others follow."""
        if len(self.newest) > 2 * self._limit:
            self._trim()
        if last is None or self._is_behind(last):
            self._trim()
            self._leave()
        else:
            self._at = last

    def _trim(self) -> None:
        if len(self.newest) > self._limit:
            kept = sorted(self.newest)[: self._limit]
            self._cutoff = kept[-1]
            for tag in [tag for tag in self.newest if tag > self._cutoff]:
                del self.newest[tag], self.sizes[tag]
                if self._older is not None:
                    del self._older[tag]

    def _leave(self) -> None:
        """On to the next block: those that may bring tags come before those that are only asked for them."""
        if self._block is not None:
            self._visited.add(self._block.first_seq)
        self._at = self._begin
        left = [
            sealed
            for sealed in self._topic.sealed.from_seq(self._topic.earliest_seq)
            if sealed.live and sealed.first_seq <= self._to_seq and sealed.first_seq not in self._visited
        ]
        bringing = [sealed for sealed in left if sealed.next_seq - 1 > self._from_seq] if self._wanted is None else []
        if bringing:
            self._block = bringing[-1]
        elif left and self.newest:
            self._wanted = self.tags
            self._block = left[-1]
        else:
            self.is_over = True


def _has_hole_in_tail(topic: TopicLog) -> bool:
    """Did recovery fill in records below sealed ones? Then the tail is not all newer than segments."""
    runs, sealed = topic.tail.runs, topic.sealed
    return bool(runs) and len(sealed) > 0 and runs[0].first_seq < sealed[len(sealed) - 1].first_seq
