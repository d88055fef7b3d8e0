"""Columns of a record run: the fixed fields of many bodies, taken apart at once.

Few records are unpacked one by one; from `_FEW` on the fields are gathered by numpy, whose fixed cost is then worth it.
Node, tag and blob bytes are sliced only when asked for. Used by `records`, and by the embedded library's own.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from topics.model.payload import DATA_AT, META_MARK
from topics.model.run import BODY_HEAD, BODY_HEAD_BYTES, HAS_NODE, HAS_TAG, Buffer, RecordRun

_FEW = 24
_JOIN_BYTES_MAX = 1 << 20
_SPAN_BYTES_MAX = 16 << 20  # a longer stretch is not copied whole for the records picked out of it
_WITHOUT_NODE = bytes(flags for flags in range(256) if not flags & HAS_NODE)
_WITHOUT_TAG = bytes(flags for flags in range(256) if not flags & HAS_TAG)


class Columns:
    """Picked records of one run, in order, at least one. `buf` is bytes, so that slices can be searched and joined.

    Record i has its node at `node_ats[i]`, then its tag at `tag_ats[i]`, then its blob at `blob_ats[i]..ends[i]`; the
    first two are empty if no record has a node or tag."""

    __slots__ = ("blob_ats", "buf", "ends", "flags", "node_ats", "seqs", "tag_ats", "ts")

    def __init__(
        self,
        buf: bytes,
        flags: bytes,
        *,
        seqs: list[int],
        ts: list[int],
        node_ats: list[int],
        tag_ats: list[int],
        blob_ats: list[int],
        ends: list[int],
    ) -> None:
        self.buf = buf
        self.flags = flags
        self.seqs = seqs
        self.ts = ts
        self.node_ats = node_ats
        self.tag_ats = tag_ats
        self.blob_ats = blob_ats
        self.ends = ends

    @property
    def has_nodes(self) -> bool:
        return bool(self.flags.translate(None, _WITHOUT_NODE))

    @property
    def has_tags(self) -> bool:
        return bool(self.flags.translate(None, _WITHOUT_TAG))

    def may_have_meta(self) -> bool:
        """False: no blob has any. True: each blob has to be looked at."""
        return self.buf.rfind(META_MARK, self.blob_ats[0], self.ends[-1]) >= 0  # twice as fast as `find` on JSON

    def nodes(self) -> list[bytes | None]:
        return self._texts(self.node_ats, self.tag_ats, HAS_NODE)

    def tags(self) -> list[bytes | None]:
        return self._texts(self.tag_ats, self.blob_ats, HAS_TAG)

    def _texts(self, starts: list[int], ends: list[int], bit: int) -> list[bytes | None]:
        buf = self.buf
        return [buf[lo:hi] if flags & bit else None for flags, lo, hi in zip(self.flags, starts, ends, strict=True)]

    def blobs(self) -> list[bytes]:
        buf = self.buf
        return [buf[lo:hi] for lo, hi in zip(self.blob_ats, self.ends, strict=True)]

    def datas(self) -> list[bytes]:
        """The data of each record, where none has any meta."""
        buf = self.buf
        return [buf[lo + DATA_AT : hi - 1] for lo, hi in zip(self.blob_ats, self.ends, strict=True)]

    def data_tails(self) -> list[bytes]:
        """Each blob from its data on; the closing brace comes along."""
        buf = self.buf
        return [buf[lo + DATA_AT : hi] for lo, hi in zip(self.blob_ats, self.ends, strict=True)]

    def ts_runs(self) -> list[tuple[int, int]]:
        """Each timestamp with the number of records that share it. It never decreases with seq."""
        runs: list[tuple[int, int]] = []
        at, count = 0, len(self.ts)
        while at < count:
            next_at = bisect_right(self.ts, self.ts[at], at)
            runs.append((self.ts[at], next_at - at))
            at = next_at
        return runs


def take_columns(run: RecordRun, picks: Sequence[int] | None) -> Columns | None:
    """The picked records of a run (None: all of it); None if that is no record."""
    offs: Sequence[int] = run.body_offs
    flags = run.flags
    if picks is not None:
        offs = [offs[at] for at in picks]
        flags = bytes([flags[at] for at in picks])
    if not len(offs):
        return None
    buf, offs = _as_bytes(run.buf, offs)
    return _unpack(buf, offs, flags) if len(offs) < _FEW else _gather(buf, offs, flags)


def joined(runs: Sequence[RecordRun]) -> list[RecordRun]:
    """The same records in one run, if that is no great copy."""
    spans = [_span(run) for run in runs if len(run)]
    if sum(end - first for _, first, end in spans) > _JOIN_BYTES_MAX:
        return list(runs)
    pieces: list[Buffer] = []
    offs = array("q")
    size = 0
    for run, first, end in spans:
        pieces.append(run.buf[first:end])
        offs.frombytes((np.asarray(run.body_offs, np.int64) + (size - first)).tobytes())
        size += end - first
    return [RecordRun(b"".join(pieces), offs, b"".join([run.flags for run, _, _ in spans]))]


def _span(run: RecordRun) -> tuple[RecordRun, int, int]:
    """A run with the stretch of its buffer that holds its bodies."""
    return run, run.body_offs[0], _body_end(run.buf, run.body_offs[-1])


def _as_bytes(buf: Buffer, offs: Sequence[int]) -> tuple[bytes, Sequence[int]]:
    """The stretch of the buffer that holds the bodies, and their offsets in it."""
    if isinstance(buf, bytes):
        return buf, offs
    first, end = offs[0], _body_end(buf, offs[-1])
    with memoryview(buf) as view:  # released at once: a growing buffer must not be held
        if end - first <= _SPAN_BYTES_MAX:
            return bytes(view[first:end]), [off - first for off in offs]
        bodies = [bytes(view[off : _body_end(view, off)]) for off in offs]
    ends = np.cumsum([0, *map(len, bodies)]).tolist()
    return b"".join(bodies), ends[:-1]


def _body_end(buf: Buffer, off: int) -> int:
    _, _, node_len, tag_len, data_len = BODY_HEAD.unpack_from(buf, off)
    end: int = off + BODY_HEAD_BYTES + node_len + tag_len + data_len
    return end


def _unpack(buf: bytes, offs: Sequence[int], flags: bytes) -> Columns:
    seqs, ts, node_ats, tag_ats, blob_ats, ends = [], [], [], [], [], []
    for off in offs:
        seq, at_ms, node_len, tag_len, data_len = BODY_HEAD.unpack_from(buf, off)
        node_at = off + BODY_HEAD_BYTES
        blob_at = node_at + node_len + tag_len
        seqs.append(seq)
        ts.append(at_ms)
        node_ats.append(node_at)
        tag_ats.append(node_at + node_len)
        blob_ats.append(blob_at)
        ends.append(blob_at + data_len)
    return Columns(buf, flags, seqs=seqs, ts=ts, node_ats=node_ats, tag_ats=tag_ats, blob_ats=blob_ats, ends=ends)


def _gather(buf: bytes, offs: Sequence[int], flags: bytes) -> Columns:
    # Every position as a little-endian u64: a body's head is three of them, wherever it lies.
    words: np.ndarray[tuple[int], np.dtype[np.int64]] = np.ndarray((len(buf) - 7,), "<i8", buf, strides=(1,))
    at = np.array(offs, np.int64)
    seqs, ts, lengths = words[at], words[at + 8], words[at + 16]
    at += BODY_HEAD_BYTES
    node_ats: list[int] = []
    tag_ats: list[int] = []
    if flags.count(0) != len(flags):
        node_ats = at.tolist()
        at += lengths & 0xFFFF
        tag_ats = at.tolist()
        at += lengths >> 16 & 0xFFFF
    blob_ats = at.tolist()
    at += lengths >> 32 & 0xFFFF_FFFF
    return Columns(
        buf,
        flags,
        seqs=seqs.tolist(),
        ts=ts.tolist(),
        node_ats=node_ats,
        tag_ats=tag_ats,
        blob_ats=blob_ats,
        ends=at.tolist(),
    )
