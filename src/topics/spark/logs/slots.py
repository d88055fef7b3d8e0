"""Slots: what a planner has to look up in the files themselves: times, sizes and liveness of single seqs.

Only a few blocks are ever opened for a question: bounds are found by bisecting over blocks first. Opened indexes are
kept for the life of the log object, newest few only. Driver side; executors scan (`topics.spark.scanning.task_scan`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import numpy as np

from topics.formats.buffers import Buffer
from topics.formats.segments import Idx, segment_frames_from_wal
from topics.formats.segments.columns import decode_columns, decode_frames
from topics.spark.logs.read_files import Files, open_files
from topics.spark.planning.cut import I64, Block, LogBlock, SegmentBlock, TopicCut
from topics.spark.scanning.arrow_columns import passing, refuse_bad
from topics.spark.scanning.pair import open_pair

_INDEXES_KEPT: Final = 64


class SlotLookup:
    """Looks at the blocks of cuts that are made of files."""

    def __init__(self) -> None:
        self._files: dict[str, Files] = {}
        self._indexes: OrderedDict[SegmentBlock, Idx] = OrderedDict()

    def files(self, root: str) -> Files:
        if root not in self._files:
            self._files[root] = open_files(root)
        return self._files[root]

    def index(self, block: SegmentBlock) -> Idx:
        found = self._indexes.get(block)
        if found is None:
            pair = open_pair(self.files(block.root), block)
            pair.close()
            found = self._indexes[block] = pair.idx
            if len(self._indexes) > _INDEXES_KEPT:
                self._indexes.popitem(last=False)
        return found

    def times(self, block: SegmentBlock | LogBlock) -> I64:
        """Commit time of every slot; never falls."""
        if isinstance(block, LogBlock):
            return block.ts_array
        return self.index(block)["ts"].astype(np.int64)

    def sizes(self, block: SegmentBlock | LogBlock) -> I64:
        if isinstance(block, LogBlock):
            return block.length_array
        return self.index(block)["len"].astype(np.int64)

    def seqs(self, block: SegmentBlock | LogBlock) -> I64:
        if isinstance(block, LogBlock):
            return block.seq_array
        return np.arange(block.first_seq, block.end_seq, dtype=np.int64)

    def live_seqs(self, block: SegmentBlock | LogBlock, cut: TopicCut) -> I64:
        """Seqs of the block that are not deleted; floors are the caller's."""
        if isinstance(block, LogBlock):
            return self._live_in_log(block, cut)
        files = self.files(block.root)
        pair = open_pair(files, block)
        try:
            data: Buffer = pair.data.view() if block.is_sealed else pair.data.read(0, block.bytes)
            deletes = [delete for delete in cut.tag_deletes if delete.below > block.first_seq]
            want = {"tag"} if deletes else set()
            columns = decode_columns(data, pair.idx, first_seq=block.first_seq, want=want, verify=False)
            refuse_bad(columns, file=pair.name, first_seq=block.first_seq)
            rows = passing(columns, data, tests=(), dead=cut.dead, tag_deletes=deletes)
            return columns.seq if rows is None else columns.seq[rows]
        finally:
            pair.close()

    def _live_in_log(self, block: LogBlock, cut: TopicCut) -> I64:
        if not deletes_reach(cut, block):
            return block.seq_array
        offsets, lengths = block.offset_array, block.length_array
        base, end = int(offsets[0]), int(offsets[-1] + lengths[-1])
        raw = self.files(block.root).read(block.path, base, end - base)
        frames = segment_frames_from_wal(raw, offsets - base, lengths, file=block.path)
        columns = decode_frames(frames.buffer, frames.idx["offset"], frames.idx["len"], want={"tag"}, verify=False)
        rows = passing(columns, frames.buffer, tests=(), dead=cut.dead, tag_deletes=cut.tag_deletes)
        return columns.seq if rows is None else columns.seq[rows]

    # --- questions of a planner ---------------------------------------------------------------------------------------

    def seq_at(self, cut: TopicCut, ts_ms: int) -> int:
        """See `Log.seq_at`. Times never fall, so the first block whose last slot is late enough has the answer."""
        blocks = _file_blocks(cut)
        at = _first(len(blocks), lambda i: bool(len(times := self.times(blocks[i]))) and int(times[-1]) >= ts_ms)
        if at == len(blocks):
            return cut.end_seq
        slot = int(np.searchsorted(self.times(blocks[at]), ts_ms))
        return max(int(self.seqs(blocks[at])[slot]), cut.earliest_seq)

    def bytes_end(self, cut: TopicCut, lo: int, bytes_max: int) -> int:
        """See `Log.bytes_end`."""
        left, started = bytes_max, False
        for block in _file_blocks(cut):
            if block.end_seq <= lo:
                continue
            seqs, sizes = self.seqs(block), self.sizes(block)
            sizes = sizes[int(np.searchsorted(seqs, lo)) :]
            seqs = seqs[len(seqs) - len(sizes) :]
            total = np.cumsum(sizes)
            if len(total) and total[-1] > left:
                fits = int(np.searchsorted(total, left, side="right"))
                first_used = int(np.argmax(sizes > 0))
                fits = fits if started or fits > first_used else first_used + 1
                return int(seqs[fits]) if fits < len(seqs) else block.end_seq
            left -= int(total[-1]) if len(total) else 0
            started = started or left < bytes_max
        return cut.end_seq

    def first_live(self, cut: TopicCut, lo: int) -> int:
        """See `Log.first_live`."""
        for block in _file_blocks(cut):
            if block.end_seq > lo:
                live = self.live_seqs(block, cut)
                at = int(np.searchsorted(live, lo))
                if at < len(live):
                    return int(live[at])
        return cut.end_seq

    def last_live(self, cut: TopicCut, below: int) -> int:
        """Highest live seq below `below`; 0 if there is none."""
        for block in reversed(_file_blocks(cut)):
            if block.first_seq < below:
                live = self.live_seqs(block, cut)
                at = int(np.searchsorted(live, below))
                if at:
                    return int(live[at - 1])
        return 0


def deletes_reach(cut: TopicCut, block: Block) -> bool:
    """Whether a delete that files may not show yet touches a block."""
    if any(delete.below > block.first_seq for delete in cut.tag_deletes):
        return True
    return any(low < block.end_seq and high >= block.first_seq for low, high in cut.dead)


def _file_blocks(cut: TopicCut) -> list[SegmentBlock | LogBlock]:
    return [block for block in cut.blocks if isinstance(block, SegmentBlock | LogBlock)]


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """First index for which `holds`, which is false and then true."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
