"""Recent records: stored bytes that need no fetch.

`RecentCache` keeps the newest frames of all topics within one byte budget, oldest chunk out first. `Resident` keeps
what lies in no file at all (ephemeral records, router copies before their checkpoint), so nothing but death or a
checkpoint takes it away. Both hold chunks: consecutive records in one buffer. What always holds: a chunk's bytes never
change, it only grows at its end, and a `RecordRun` made from it stays right for ever.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from struct import Struct

import numpy as np
import numpy.typing as npt

from topics.core.slots.slot_range import FEW
from topics.model.run import PRESENCE_MASK, WAL_BODY_AT, RecordRun

CHUNK_BYTES = 64 * 1024  # small writes share a chunk up to here; larger ones are chunks as they are, uncopied
JOIN_BYTES_MAX = 8 * 1024  # a batch this small is copied behind the previous one
SLOT_COST_BYTES = 5  # offset and flags of a record in a chunk
_LEN = Struct("<I")  # a WAL frame starts with the number of bytes behind this one
_PRESENCE = bytes(flags & PRESENCE_MASK for flags in range(256))  # a run's flags say only what is there


class Chunk:
    """Consecutive records as whole WAL frames in one buffer; if that is a bytearray, more may follow them."""

    __slots__ = ("body_offs", "buf", "first_seq", "flags")

    def __init__(self, first_seq: int, buf: bytes | bytearray, body_offs: array[int], flags: array[int]) -> None:
        self.first_seq = first_seq
        self.buf = buf
        self.body_offs = body_offs
        self.flags = flags

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.body_offs)

    @property
    def cost_bytes(self) -> int:
        return len(self.buf) + SLOT_COST_BYTES * len(self.body_offs)

    def run(self, lo: int, hi: int) -> RecordRun:
        """Records `lo..hi-1`."""
        first, end = lo - self.first_seq, hi - self.first_seq
        return RecordRun(self.buf, self.body_offs[first:end], self.flags[first:end].tobytes())

    def pick(self, seqs: npt.NDArray[np.int64]) -> RecordRun:
        """Some of the records, ascending."""
        at = [int(seq) - self.first_seq for seq in seqs]
        offs, flags = self.body_offs, self.flags
        return RecordRun(self.buf, array("I", [offs[i] for i in at]), bytes([flags[i] for i in at]))

    def thinned(self, alive: list[bool]) -> Chunk:
        """The same records without the bytes of the dead, whose places mean nothing any more."""
        offs, buf = self.body_offs, self.buf
        body_offs = array("I", bytes(4 * len(offs)))
        pieces: list[bytes | bytearray] = []
        size = 0
        for at, lives in enumerate(alive):
            if lives:
                frame_at = offs[at] - WAL_BODY_AT
                piece = buf[frame_at : frame_at + _LEN.unpack_from(buf, frame_at)[0] + _LEN.size]
                pieces.append(piece)
                body_offs[at] = size + WAL_BODY_AT
                size += len(piece)
        return Chunk(self.first_seq, b"".join(pieces), body_offs, self.flags[:])

    def join(self, frames: bytes, offs: array[int], flags: array[int]) -> bool:
        """Take a small batch in, if there is room and nobody holds a view of the buffer."""
        buf = self.buf
        if not isinstance(buf, bytearray) or len(buf) + len(frames) > CHUNK_BYTES:
            return False
        start = len(buf)
        try:
            buf += frames
        except BufferError:
            return False
        if len(offs) == 1:
            self.body_offs.append(start + WAL_BODY_AT)
            self.flags.append(flags[0] & PRESENCE_MASK)
        else:
            self.body_offs.extend(_body_offs(offs, start))
            self.flags.frombytes(flags.tobytes().translate(_PRESENCE))
        return True


def make_chunk(first_seq: int, frames: bytes, offs: array[int], flags: array[int]) -> Chunk:
    """A chunk of its own: growing if the batch is small, else over the given bytes."""
    buf = bytearray(frames) if len(frames) <= JOIN_BYTES_MAX else frames
    return Chunk(first_seq, buf, _body_offs(offs, 0), array("B", flags.tobytes().translate(_PRESENCE)))


def _body_offs(offs: array[int], start: int) -> array[int]:
    shift = start + WAL_BODY_AT
    if len(offs) < FEW:
        return array("I", [off + shift for off in offs])
    return array("I", (np.frombuffer(offs, np.uint32) + np.uint32(shift)).tobytes())


class ChunkList:
    """The chunks of one topic, ascending."""

    __slots__ = ("chunks", "firsts")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.firsts: list[int] = []

    def find(self, seq: int) -> Chunk | None:
        at = bisect_right(self.firsts, seq)
        if at and seq < self.chunks[at - 1].next_seq:
            return self.chunks[at - 1]
        return None

    def append(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.firsts.append(chunk.first_seq)

    def last_that_ends_at(self, seq: int) -> Chunk | None:
        if not self.chunks:
            return None
        chunk = self.chunks[-1]
        return chunk if chunk.first_seq + len(chunk.body_offs) == seq else None

    def drop_first(self, count: int) -> None:
        del self.chunks[:count]
        del self.firsts[:count]


class RecentCache:
    """The newest frames of all topics. Owned by `State`; a budget of 0 keeps nothing."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._topics: dict[int, ChunkList] = {}
        self._order: deque[tuple[int, Chunk]] = deque()
        self.bytes = 0

    def add(self, topic_id: int, first_seq: int, frames: bytes, offs: array[int], flags: array[int]) -> None:
        kept = self._topics.get(topic_id)
        if kept is None:
            kept = self._topics[topic_id] = ChunkList()
        last = kept.last_that_ends_at(first_seq)
        if last is None or len(frames) > JOIN_BYTES_MAX or not last.join(frames, offs, flags):
            if kept.chunks and kept.chunks[-1].next_seq > first_seq:
                return  # recovery filled in an older record: not recent
            chunk = make_chunk(first_seq, frames, offs, flags)
            kept.append(chunk)
            self._order.append((topic_id, chunk))
        self.bytes += len(frames) + SLOT_COST_BYTES * len(offs)
        if self.bytes > self._budget_bytes:
            self._shrink()

    def find(self, topic_id: int, seq: int) -> Chunk | None:
        kept = self._topics.get(topic_id)
        return None if kept is None else kept.find(seq)

    def drop_topic(self, topic_id: int) -> None:
        dropped = self._topics.pop(topic_id, None)
        if dropped is not None:
            self.bytes -= sum(chunk.cost_bytes for chunk in dropped.chunks)
            self._order = deque(entry for entry in self._order if entry[0] != topic_id)

    def _shrink(self) -> None:
        while self.bytes > self._budget_bytes:
            topic_id, chunk = self._order.popleft()
            kept = self._topics[topic_id]
            assert kept.chunks[0] is chunk
            kept.drop_first(1)
            if not kept.chunks:
                del self._topics[topic_id]
            self.bytes -= chunk.cost_bytes


class Resident:
    """Records of one topic that lie in no file."""

    __slots__ = ("_kept", "bytes", "removed")

    def __init__(self) -> None:
        self._kept = ChunkList()
        self.bytes = 0
        self.removed = 0  # records that died one by one since the last `thin_out`

    def add(self, first_seq: int, frames: bytes, offs: array[int], flags: array[int]) -> None:
        last = self._kept.last_that_ends_at(first_seq)
        if last is None or len(frames) > JOIN_BYTES_MAX or not last.join(frames, offs, flags):
            self._kept.append(make_chunk(first_seq, frames, offs, flags))
        self.bytes += len(frames) + SLOT_COST_BYTES * len(offs)

    def find(self, seq: int) -> Chunk | None:
        return self._kept.find(seq)

    def drop_below(self, seq: int) -> None:
        """Chunks that end below `seq` are needed by nobody."""
        kept = self._kept
        count = 0
        while count < len(kept.chunks) and kept.chunks[count].next_seq <= seq:
            self.bytes -= kept.chunks[count].cost_bytes
            count += 1
        if count:
            kept.drop_first(count)

    def thin_out(self, live: Callable[[int], bool]) -> None:
        """Copy what lives into new buffers, so that the bytes of the dead are given back."""
        kept = ChunkList()
        for chunk in self._kept.chunks:
            alive = [live(seq) for seq in range(chunk.first_seq, chunk.next_seq)]
            if any(alive):
                kept.append(chunk.thinned(alive))
        self._kept = kept
        self.bytes = sum(chunk.cost_bytes for chunk in kept.chunks)
        self.removed = 0
