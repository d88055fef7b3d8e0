"""Records for readers: the JSON objects of `docs/spec/http-api.md#sec-10-6`, and columns for the embedded library.

The texts are made by `topics.formats.codec`, a whole run at a time, because this is the inner loop of every read.
Called by api and by delivery."""

from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np

from topics.formats import codec
from topics.formats.codec.plain_render import json_text
from topics.model.payload import DATA_AT, META_MARK, meta_at
from topics.model.run import BODY_HEAD, BODY_HEAD_BYTES, HAS_NODE, HAS_TAG, Buffer, RecordRun

render_records = codec.render.render_records

_FEW = 24
_SPAN_BYTES_MAX = 16 << 20  # a longer stretch is not copied whole for the records picked out of it
_WITHOUT_NODE = bytes(flags for flags in range(256) if not flags & HAS_NODE)
_WITHOUT_TAG = bytes(flags for flags in range(256) if not flags & HAS_TAG)


class Columns:
    """The fixed fields of many bodies, taken apart at once.

    Few records are unpacked one by one; from `_FEW` on the fields are gathered by numpy, whose fixed cost is then worth
    it. Node, tag and blob bytes are sliced only when asked for. Used for jobs, and by the embedded library's own.

    Picked records of one run, in order, at least one. `buf` is bytes, so that slices can be searched and joined.

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


class View(NamedTuple):
    """What a reader wants to see of each record: 8 variants, shared by all readers who want the same."""

    data: bool = True
    tags: bool = False
    meta: bool = True


class RenderedText(NamedTuple):
    """Records joined by commas, and where each of them ends."""

    whole: bytes
    ends: Sequence[int]

    def part(self, lo: int, hi: int) -> bytes:
        """Records `lo..hi-1` of it, joined by commas."""
        if lo == 0 and hi == len(self.ends):
            return self.whole
        return self.whole[self.ends[lo - 1] + 1 if lo else 0 : self.ends[hi - 1]]

    def each(self) -> list[bytes]:
        """One object each."""
        return [self.whole[lo + 1 : hi] for lo, hi in pairwise((-1, *self.ends))]


def render(run: RecordRun, picks: Sequence[int] | None, view: View) -> RenderedText:
    """The picked records of a run (None: all of it) as JSON objects."""
    offs, flags = run.body_offs, run.flags
    if picks is not None:
        offs, flags = [offs[at] for at in picks], bytes([flags[at] for at in picks])
    return RenderedText(*render_records(run.buf, offs, flags, *view))


def render_runs(runs: Sequence[RecordRun], view: View) -> bytes:
    """All records of a read, joined by commas, ready to stand between brackets."""
    texts = [render_records(run.buf, run.body_offs, run.flags, *view)[0] for run in runs]
    return texts[0] if len(texts) == 1 else b",".join(filter(None, texts))


def render_jobs(
    run: RecordRun,
    picks: Sequence[int] | None,
    *,
    lease_ids: Sequence[str],
    deadlines: Sequence[int],
    deliveries: Sequence[int],
) -> list[bytes]:
    """Entries of `claimed`: tag and meta if the record has them, the node never."""
    columns = take_columns(run, picks)
    if columns is None:
        return []
    given = columns.tags() if columns.has_tags else repeat(None, len(columns.seqs))
    tags = [b"" if tag is None else b',"$tag":' + json_text(tag) for tag in given]
    rows = zip(columns.seqs, lease_ids, deadlines, columns.ts, tags, deliveries, columns.blobs(), strict=True)
    return [
        b'{"$seq":%d,"lease_id":"%b","deadline":%d,"$ts":%d%b,"deliveries":%d%b'
        % (seq, lease_id.encode(), deadline, ts, tag, delivered, _with_data_and_meta(blob))
        for seq, lease_id, deadline, ts, tag, delivered, blob in rows
    ]


def _with_data_and_meta(blob: bytes) -> bytes:
    """What follows the other fields, the closing brace included."""
    if META_MARK not in blob or (at := meta_at(blob)) < 0:
        return b',"data":' + blob[DATA_AT:]
    return b',"data":%b,"meta":%b' % (blob[DATA_AT:at], blob[at + len(META_MARK) :])
