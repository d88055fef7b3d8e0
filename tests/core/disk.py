"""A disk for core tests: a log, an active segment and sealed segments per topic, all in memory, with exact places.

Frames in segments are the WAL frames themselves, so that a body lies at the same distance everywhere and a wrong
location shows at once: every fetch compares the seq it finds with the seq that was asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from topics.core.slots import checkpoint
from topics.core.slots.extent import Extent, RecordPlace
from topics.core.slots.restore import ActiveColumns
from topics.core.slots.sealed_slots import Tier
from topics.core.topic import TopicLog
from topics.errors import ColdUnavailable
from topics.model.names import TagMatch
from topics.model.ops import DELETED, HAS_NODE, HAS_TAG, Append
from topics.model.payload import split_blob
from topics.model.run import BODY_HEAD, BODY_HEAD_BYTES, WAL_BODY_AT, RecordRun

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


class Stored:
    """One record as bytes: a frame and what an index entry says of it."""

    __slots__ = ("flags", "frame", "seq", "tag", "ts")

    def __init__(self, seq: int, ts: int, frame: bytes, flags: int) -> None:
        self.seq = seq
        self.ts = ts
        self.frame = frame  # b"": an empty slot
        self.flags = flags
        self.tag = tag_of(frame) if flags & HAS_TAG and frame else None

    @property
    def size(self) -> int:
        return accounted(self.frame) if self.frame else 0


def parts(frame: bytes) -> tuple[int, int, bytes, bytes, bytes]:
    seq, ts, node_len, tag_len, data_len = BODY_HEAD.unpack_from(frame, WAL_BODY_AT)
    at = WAL_BODY_AT + BODY_HEAD_BYTES
    node = frame[at : at + node_len]
    tag = frame[at + node_len : at + node_len + tag_len]
    blob = frame[at + node_len + tag_len : at + node_len + tag_len + data_len]
    return seq, ts, node, tag, blob


def tag_of(frame: bytes) -> bytes:
    return parts(frame)[3]


def accounted(frame: bytes) -> int:
    data, meta = split_blob(parts(frame)[4])
    return len(data) + len(meta or b"")


class FakeView:
    """A sealed segment in memory. `loaded` False: the index lies in a cold store that nobody asked yet."""

    def __init__(self, records: Sequence[Stored], tier: Tier = "hot") -> None:
        self.records = list(records)
        self.first_seq = records[0].seq
        self.count = len(records)
        self.tier: Tier = tier
        self.loaded = True
        self.has_sidecar = True  # tags and sizes, which stay at hand when the segment goes cold
        self.tag_lookups = 0
        self._flags = np.array([record.flags & (HAS_TAG | HAS_NODE | DELETED) for record in records], np.uint8)

    def _ask(self) -> None:
        if not self.loaded:
            raise ColdUnavailable("fake", reason="not loaded")

    @property
    def data_len(self) -> int:
        return sum(len(record.frame) for record in self.records)

    @property
    def first_ts(self) -> int:
        self._ask()
        return self.records[0].ts

    @property
    def last_ts(self) -> int:
        self._ask()
        return self.records[-1].ts

    @property
    def ts(self) -> U64:
        self._ask()
        return np.array([record.ts for record in self.records], np.uint64)

    @property
    def flags(self) -> U8:
        self._ask()
        return self._flags

    @property
    def lens(self) -> U32:
        self._ask()
        return np.array([len(record.frame) for record in self.records], np.uint32)

    def sizes(self, lo: int, hi: int) -> U32:
        if not self.has_sidecar:
            self._ask()
        return np.array([record.size for record in self.records[lo:hi]], np.uint32)

    def resident_run(self, slots: range | I64) -> RecordRun | None:
        return None  # so that every read of a segment goes through a fetch, which checks it

    def tag_slots(self, match: TagMatch) -> I64:
        self.tag_lookups += 1
        return np.array([at for at, record in enumerate(self.records) if match.matches(record.tag)], np.int64)

    def lacks(self, tag: bytes) -> bool:
        return len(tag) % 2 == 0 and all(record.tag != tag for record in self.records)  # of some tags nothing is known

    def tags_after(self, after: bytes | None, prefix: bytes, limit: int) -> list[tuple[bytes, I64]]:
        slots: dict[bytes, list[int]] = {}
        for at, record in enumerate(self.records):
            if record.tag is not None and record.tag.startswith(prefix) and (after is None or record.tag > after):
                slots.setdefault(record.tag, []).append(at)
        return [(tag, np.array(slots[tag], np.int64)) for tag in sorted(slots)[:limit]]

    def checked_ts(self, slot: int) -> int:
        return self.records[slot].ts

    def flip(self, slots: I64) -> None:
        """The delete flags of these slots are durable."""
        self._flags[slots] |= DELETED

    def rewritten(self, dead: npt.NDArray[np.bool_]) -> FakeView:
        """The same seqs without the bytes of the dead."""
        kept = [
            Stored(record.seq, record.ts, b"", DELETED)
            if gone or self._flags[at] & DELETED
            else Stored(record.seq, record.ts, record.frame, record.flags)
            for at, (record, gone) in enumerate(zip(self.records, dead, strict=True))
        ]
        return FakeView(kept, self.tier)

    def moved(self, tier: Tier) -> FakeView:
        view = FakeView(self.records, tier)
        view._flags = self._flags.copy()
        view.loaded = tier == "hot"
        return view


class Disk:
    """The files of all topics. WAL file 0 takes every append; `rotate` starts the next one."""

    def __init__(self) -> None:
        self.wal: list[bytearray] = [bytearray()]
        self.active: dict[int, list[Stored]] = {}
        self.sealed: dict[int, list[FakeView]] = {}
        self.fetches = 0

    # --- log ------------------------------------------------------------------------------------------------------

    def rotate(self) -> None:
        self.wal.append(bytearray())

    def log(self, op: Append) -> None:
        assert op.frames is not None
        op.file = len(self.wal) - 1
        op.base = len(self.wal[-1])
        self.wal[-1] += op.frames

    # --- segments -------------------------------------------------------------------------------------------------

    def checkpoint(self, topic: TopicLog) -> None:
        """Move everything pending into the active segment; a gap in the seqs seals first."""
        for batch in checkpoint.pending(topic):
            source = self.wal[batch.source] if isinstance(batch.source, int) else batch.source
            active = self.active.setdefault(topic.id, [])
            if active and active[-1].seq + 1 != batch.first_seq:
                self.seal(topic)
                active = self.active.setdefault(topic.id, [])
            base = sum(len(record.frame) for record in active)
            offs, lens = [], []
            for at, (off, length, ts, dead) in enumerate(
                zip(batch.offs.tolist(), batch.lens.tolist(), batch.ts.tolist(), batch.dead.tolist(), strict=True)
            ):
                frame = b"" if dead else bytes(source[off : off + length])
                seq = batch.first_seq + at
                assert not frame or parts(frame)[0] == seq
                active.append(Stored(seq, ts, frame, DELETED if dead else frame[5] & (HAS_TAG | HAS_NODE)))
                offs.append(0 if dead else base)
                lens.append(len(frame))
                base += len(frame)
            late = checkpoint.placed(topic, batch.first_seq, np.array(offs, np.uint32), np.array(lens, np.uint32))
            assert not len(late)  # nothing died meanwhile: this disk is instant

    def flag_active(self, topic: TopicLog, seqs: I64) -> None:
        active = self.active[topic.id]
        for seq in seqs.tolist():
            active[seq - active[0].seq].flags |= DELETED

    def seal(self, topic: TopicLog) -> None:
        active = self.active.pop(topic.id, None)
        if active:
            view = FakeView(active)
            self.sealed.setdefault(topic.id, []).append(view)
            late = checkpoint.sealed(topic, view)
            view.flip(late)
            checkpoint.flagged(topic, view.first_seq)

    def active_columns(self, topic_id: int) -> ActiveColumns | None:
        active = self.active.get(topic_id)
        if not active:
            return None
        lens = np.array([len(record.frame) for record in active], np.uint32)
        offs = np.concatenate(([0], np.cumsum(lens)[:-1])).astype(np.uint32)
        return ActiveColumns(
            first_seq=active[0].seq,
            offs=np.where(lens > 0, offs, 0).astype(np.uint32),
            lens=lens,
            ts=np.array([record.ts for record in active], np.uint64),
            sizes=np.array([record.size for record in active], np.uint32),
            flags=np.array([record.flags for record in active], np.uint8),
            tags=[record.tag for record in active],
        )

    # --- fetch ----------------------------------------------------------------------------------------------------

    def fetch(self, topic: TopicLog, extent: Extent) -> RecordRun:
        self.fetches += 1
        if extent.place is RecordPlace.SEALED:
            assert isinstance(extent.view, FakeView)
            frames = [extent.view.records[slot].frame for slot in extent.slots]
        else:
            data = self._file(topic, extent)
            places = zip(extent.offs.tolist(), extent.lens.tolist(), strict=True)
            frames = [data[off : off + length] for off, length in places]
        for frame, seq in zip(frames, list(map(int, extent.seqs)), strict=True):
            assert parts(frame)[0] == seq
            assert struct.unpack_from("<I", frame)[0] + 4 == len(frame)
        offs = np.cumsum([0, *map(len, frames)])[:-1] + WAL_BODY_AT
        return RecordRun(b"".join(frames), offs.tolist(), bytes(frame[5] & 3 for frame in frames))

    def _file(self, topic: TopicLog, extent: Extent) -> bytes:
        if extent.place is RecordPlace.WAL:
            return bytes(self.wal[extent.file])
        assert extent.place is RecordPlace.ACTIVE
        return b"".join(record.frame for record in self.active[topic.id])
