"""CutBuilder: from what snapshot, log and files tell of a topic to its cut at `now`.

Retention is applied as the server would: floors that are logged, the count cap (which follows from the log), and TTL at
`now`. The head is the end of what is there without a hole: a record behind a hole may be followed by the missing ones,
and a reader that had passed them would never see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from topics.spark.logs.replay import LogPiece, ReaderTopicLog
from topics.spark.logs.slots import SlotLookup, deletes_reach
from topics.spark.logs.stored import FoundSegments, StoredSegments
from topics.spark.planning.cut import I64, Block, DeadRange, LogBlock, LostSeqs, SegmentBlock, TopicCut


class CutBuilder:
    """One use: builds the cut of one topic."""

    def __init__(self, topic: ReaderTopicLog, stored: StoredSegments, slots: SlotLookup) -> None:
        self._topic = topic
        self._slots = slots
        self._root = stored._hot.root
        self._stored = stored

    def build(self, now_ms: int) -> TopicCut:
        topic = self._topic
        found = self._stored.of_topic(topic)
        head = self._head(found)
        blocks = self._blocks(found, head)
        cut = TopicCut(
            name=topic.name,
            topic_id=topic.id,
            epoch=topic.epoch,
            ancestors=topic.ancestors,
            head_seq=head,
            earliest_seq=min(max(topic.earliest_seq, topic.delete_below, topic.lost_to + 1), head + 1),
            evict_floor=1,
            blocks=blocks,
            dead=merged(topic.dead),
            tag_deletes=tuple(topic.tag_deletes),
            missing=tuple(found.missing),
        )
        self._apply_count_cap(cut)
        self._apply_ttl(cut, now_ms)
        return self._with_floors(cut)

    # --- what is there ------------------------------------------------------------------------------------------------

    def _head(self, found: FoundSegments) -> int:
        """The last seq of the log that has no hole before it."""
        topic = self._topic
        ends = [block.end_seq - 1 for block in found.blocks]
        head = max([topic.stored_seq, topic.passed_seq, topic.lost_to, topic.delete_below - 1, *ends])
        spans = [span for piece in topic.pieces for span in runs(piece.seq)]
        spans += [(lost.first, lost.last) for lost in topic.lost]
        for first, last in sorted(spans):
            if first <= head + 1:
                head = max(head, last)
        if topic.unread_seqs:
            head += topic.unread_seqs
            topic.unlogged_to = max(topic.unlogged_to, head)
        return head

    def _blocks(self, found: FoundSegments, head: int) -> tuple[Block, ...]:
        blocks: list[Block] = list(found.blocks)
        for piece in self._topic.pieces:
            blocks += self._log_blocks(piece, found, head)
        disjoint: list[Block] = []
        end = 0
        for block in sorted(blocks, key=lambda block: block.first_seq):
            # A seq that is in the log twice is the same record twice.
            rest = block.between(end, head + 1) if isinstance(block, LogBlock) and block.first_seq < end else block
            if rest.count:
                disjoint.append(rest)
                end = max(end, rest.end_seq)
        return tuple(disjoint)

    def _log_blocks(self, piece: LogPiece, found: FoundSegments, head: int) -> list[LogBlock]:
        """The frames of a piece that no segment has; one block for each run, so that a segment may lie between them."""
        keep = (piece.seq >= self._topic.earliest_seq) & (piece.seq <= head)
        for block in found.blocks:
            keep &= (piece.seq < block.first_seq) | (piece.seq >= block.end_seq)
        if not keep.any():
            return []
        whole = LogBlock(
            root=self._root,
            path=piece.path,
            seqs=piece.seq[keep].tobytes(),
            offsets=piece.offset[keep].tobytes(),
            lengths=piece.length[keep].tobytes(),
            ts=piece.ts[keep].tobytes(),
        )
        return [whole.between(first, last + 1) for first, last in runs(whole.seq_array)]

    # --- retention ----------------------------------------------------------------------------------------------------

    def _apply_count_cap(self, cut: TopicCut) -> None:
        """Count live records from the end: what lies before the newest `cap_records` of them is evicted."""
        cap = _setting(self._topic, "cap_records")
        if not cap or self._topic.config.get("discard", "old") != "old":
            return
        left = cap
        for block in reversed(cut.blocks):
            assert isinstance(block, SegmentBlock | LogBlock)
            if block.end_seq <= cut.earliest_seq:
                break
            known = block.live if isinstance(block, SegmentBlock) else None
            if known is not None and known <= left and self._count_holds(cut, block):
                left -= known
                continue
            live = self._slots.live_seqs(block, cut)
            live = live[live >= cut.earliest_seq]
            if len(live) > left:
                self._topic.cap_lost = max(self._topic.cap_lost, int(live[len(live) - left - 1]))
                return
            left -= len(live)

    def _count_holds(self, cut: TopicCut, block: Block) -> bool:
        """Whether the live count of the snapshot is still the block's."""
        return block.first_seq >= cut.earliest_seq and not deletes_reach(cut, block)

    def _apply_ttl(self, cut: TopicCut, now_ms: int) -> None:
        """Everything older than the TTL is expired; the last of it that was not deleted moves the floor."""
        ttl_ms = _setting(self._topic, "ttl_ms")
        if not ttl_ms or now_ms <= ttl_ms or not cut.blocks:
            return
        first_kept = self._slots.seq_at(cut, now_ms - ttl_ms)
        floor = max(cut.earliest_seq, self._topic.lost_to + 1)
        if first_kept > floor:
            last = self._slots.last_live(cut, first_kept)
            if last >= floor:
                self._topic.ttl_lost = max(self._topic.ttl_lost, last)

    def _unstored(self, cut: TopicCut) -> Iterator[LostSeqs]:
        """Records of an ephemeral time that ended, until a checkpoint stores them: what a restart would find lost.

        They raise no floor: while the server runs they are there, and nobody may pass them without a word."""
        topic = self._topic
        at = max(cut.earliest_seq, topic.lost_to + 1, topic.stored_seq + 1)
        covered = [(block.first_seq, block.end_seq) for block in cut.blocks]
        covered += [(gap.first, gap.last + 1) for gap in topic.lost]
        for first, end in [*sorted(covered), (topic.unlogged_to + 1, 0)]:
            if at < min(first, topic.unlogged_to + 1):
                yield LostSeqs(at, min(first, topic.unlogged_to + 1) - 1, "restart")
            at = max(at, end)

    def _with_floors(self, cut: TopicCut) -> TopicCut:
        topic = self._topic
        lost = sorted((gap.first, gap.last, gap.reason) for gap in topic.lost)
        kept: list[LostSeqs] = []
        for first, last, reason in lost:
            if first <= topic.lost_to + 1:
                _absorb(topic, last, reason)
            else:
                kept.append(LostSeqs(first, last, reason))
        earliest = min(max(cut.earliest_seq, topic.lost_to + 1), cut.end_seq)
        return replace(
            cut,
            earliest_seq=earliest,
            evict_floor=min(topic.lost_to + 1, cut.end_seq),
            causes=(
                ("cap", topic.cap_lost),
                ("ttl", topic.ttl_lost),
                ("source_trim", topic.trim_lost),
                ("restart", topic.restart_lost),
            ),
            lost=tuple(merged_gaps(sorted([*kept, *self._unstored(cut)], key=lambda gap: gap.gap_from))),
            blocks=tuple(block for block in cut.blocks if block.end_seq > earliest),
        )


def _setting(topic: ReaderTopicLog, name: str) -> int:
    value: Any = topic.config.get(name, 0)
    return int(value or 0)


def _absorb(topic: ReaderTopicLog, last: int, reason: str) -> None:
    """A lost range that the floor has reached becomes part of it."""
    cause = {"restart": "restart_lost", "source_trim": "trim_lost", "cap": "cap_lost"}[reason]
    setattr(topic, cause, max(getattr(topic, cause), last))


def runs(seqs: I64) -> list[tuple[int, int]]:
    """First and last of every run of consecutive seqs; `seqs` ascend."""
    cuts = np.flatnonzero(np.diff(seqs) > 1)
    firsts, lasts = seqs[np.concatenate(([0], cuts + 1))], seqs[np.concatenate((cuts, [len(seqs) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def merged(ranges: list[DeadRange]) -> tuple[DeadRange, ...]:
    """Ascending, disjoint, touching ones joined."""
    out: list[DeadRange] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return tuple(out)


def merged_gaps(gaps: list[LostSeqs]) -> list[LostSeqs]:
    """Adjacent gaps with one reason are one gap."""
    out: list[LostSeqs] = []
    for gap in gaps:
        if out and out[-1].reason == gap.reason and gap.gap_from <= out[-1].gap_to + 1:
            out[-1] = LostSeqs(out[-1].gap_from, max(out[-1].gap_to, gap.gap_to), gap.reason)
        else:
            out.append(gap)
    return out
