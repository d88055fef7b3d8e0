"""Record bodies: stored bytes to the JSON objects of `docs/spec/http-api.md#sec-10-6`, by splicing.

Payload texts are copied, never parsed; a blob is split only if it may hold meta. The work is done on columns and ends
in one join, because this is the inner loop of every read. Called by api and by delivery.

    {"$seq":8,"$ts":1755000000123,"$node":"n1","$tag":"t","data":{"n":8},"meta":{"k":1}}"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from topics.model.payload import DATA_AT, META_MARK, meta_at
from topics.model.run import BODY_HEAD, BODY_HEAD_BYTES, HAS_NODE, HAS_TAG, Buffer, RecordRun, StoredRecord

_FEW = 24
_JOIN_BYTES_MAX = 1 << 20
_SPAN_BYTES_MAX = 16 << 20  # a longer stretch is not copied whole for the records picked out of it
_WITHOUT_NODE = bytes(flags for flags in range(256) if not flags & HAS_NODE)
_WITHOUT_TAG = bytes(flags for flags in range(256) if not flags & HAS_TAG)


class Columns:
    """The fixed fields of many bodies, taken apart at once.

    Few records are unpacked one by one; from `_FEW` on the fields are gathered by numpy, whose fixed cost is then worth
    it. Node, tag and blob bytes are sliced only when asked for. Used by `records`, and by the embedded library's own.

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


_SAFE_IN_JSON = bytes(code for code in range(256) if code >= 0x20 and code not in b'"\\')
_SINGLES_MAX = 3
Column = bytes | list[bytes]
"""One piece for every record: the same bytes, or bytes of its own."""


class View(NamedTuple):
    """What a reader wants to see of each record: 8 variants, shared by all readers who want the same."""

    data: bool = True
    tags: bool = False
    meta: bool = True


def render_array(run: RecordRun, picks: Sequence[int] | None, view: View) -> bytes:
    """The picked records (None: all of them), joined by commas, ready to stand between brackets."""
    if len(run.body_offs if picks is None else picks) <= _SINGLES_MAX:
        return b",".join(render_list(run, picks, view))
    columns = take_columns(run, picks)
    return b"" if columns is None else _render(columns, view, b",")


def render_runs(runs: Sequence[RecordRun], view: View) -> bytes:
    """All records of a read, joined by commas. Short runs are put together first: columns pay by their length."""
    return b",".join([render_array(run, None, view) for run in (runs if len(runs) == 1 else joined(runs))])


def render_list(run: RecordRun, picks: Sequence[int] | None, view: View) -> list[bytes]:
    """As `render_array`, one object each, for a cache that serves several readers."""
    chosen = range(len(run.body_offs)) if picks is None else picks
    if len(chosen) <= _SINGLES_MAX:
        return [_render_one(run.record(at), view) for at in chosen]
    columns = take_columns(run, picks)
    return [] if columns is None else _render(columns, view, b"\0").split(b"\0")  # no NUL occurs in JSON text


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
    tags = (_tag_column(columns.tags()) if columns.has_tags else None) or [b""] * len(columns.seqs)
    rows = zip(columns.seqs, lease_ids, deadlines, columns.ts, tags, deliveries, columns.blobs(), strict=True)
    return [
        b'{"$seq":%d,"lease_id":"%b","deadline":%d,"$ts":%d%b,"deliveries":%d%b'
        % (seq, lease_id.encode(), deadline, ts, tag, delivered, _with_data_and_meta(blob))
        for seq, lease_id, deadline, ts, tag, delivered, blob in rows
    ]


def json_text(text: bytes) -> bytes:
    """A UTF-8 text as a JSON string."""
    if text.translate(None, _SAFE_IN_JSON):
        return msgspec.json.encode(text.decode())
    return b'"%b"' % text


def _render_one(record: StoredRecord, view: View) -> bytes:
    """The same by itself: live delivery is mostly one record at a time, too few for columns to pay."""
    return b'{"$seq":%d,"$ts":%d%b%b%b' % (
        record.seq,
        record.ts,
        b"" if record.node is None else b',"$node":' + json_text(record.node),
        b"" if record.tag is None or not view.tags else b',"$tag":' + json_text(record.tag),
        _TAILS[view.data, view.meta](record.blob),
    )


# --- columns to text -------------------------------------------------------------------------------------------------


def _render(columns: Columns, view: View, separator: bytes) -> bytes:
    pieces: list[Column] = [separator + b'{"$seq":', _decimals(columns.seqs), b',"$ts":', _ts_column(columns.ts_runs())]
    if columns.has_nodes:
        pieces.append(_node_column(columns.nodes()))
    if view.tags and columns.has_tags:
        pieces.append(_tag_column(columns.tags()) or b"")
    pieces.extend(_payload_columns(columns, view))
    texts = _interleave(pieces, len(columns.seqs))
    texts[0] = b'{"$seq":'
    return b"".join(texts)


def _interleave(columns: list[Column], count: int) -> list[bytes]:
    columns = _folded(columns)
    stride = len(columns)
    texts = [b""] * (stride * count)
    for at, column in enumerate(columns):
        texts[at::stride] = [column] * count if isinstance(column, bytes) else column
    return texts


def _folded(columns: list[Column]) -> list[Column]:
    """Neighbours that are the same for every record become one: a join costs by its pieces."""
    folded: list[Column] = columns[:1]
    for column in columns[1:]:
        last = folded[-1]
        if isinstance(column, bytes) and isinstance(last, bytes):
            folded[-1] = last + column
        else:
            folded.append(column)
    return folded


def _decimals(numbers: list[int]) -> list[bytes]:
    return msgspec.json.encode(numbers)[1:-1].split(b",")


def _ts_column(runs: list[tuple[int, int]]) -> Column:
    if len(runs) == 1:
        return b"%d" % runs[0][0]
    texts: list[bytes] = []
    for ts, count in runs:
        texts += [b"%d" % ts] * count
    return texts


def _node_column(nodes: list[bytes | None]) -> list[bytes]:
    texts = {node: b"" if node is None else b',"$node":' + json_text(node) for node in set(nodes)}
    return [texts[node] for node in nodes]


def _tag_column(tags: list[bytes | None]) -> list[bytes] | None:
    """None if no record has a tag."""
    given = [tag for tag in tags if tag is not None]
    if not given:
        return None
    if b"".join(given).translate(None, _SAFE_IN_JSON):
        return [b"" if tag is None else b',"$tag":' + json_text(tag) for tag in tags]
    return [b"" if tag is None else b',"$tag":"%b"' % tag for tag in tags]


def _payload_columns(columns: Columns, view: View) -> list[Column]:
    """What follows the tag, the closing brace included."""
    if not view.data and not view.meta:
        return [b"}"]
    if columns.may_have_meta():
        return [list(map(_TAILS[view.data, view.meta], columns.blobs()))]
    return [b',"data":', columns.data_tails()] if view.data else [b"}"]


def _with_data_and_meta(blob: bytes) -> bytes:
    if META_MARK not in blob or (at := meta_at(blob)) < 0:
        return b',"data":' + blob[DATA_AT:]
    return b',"data":%b,"meta":%b' % (blob[DATA_AT:at], blob[at + len(META_MARK) :])


def _with_data(blob: bytes) -> bytes:
    at = meta_at(blob)
    return b',"data":' + blob[DATA_AT:] if at < 0 else b',"data":%b}' % blob[DATA_AT:at]


def _with_meta(blob: bytes) -> bytes:
    at = meta_at(blob)
    return b"}" if at < 0 else b',"meta":' + blob[at + len(META_MARK) :]


_TAILS: dict[tuple[bool, bool], Callable[[bytes], bytes]] = {
    (True, True): _with_data_and_meta,
    (True, False): _with_data,
    (False, True): _with_meta,
    (False, False): lambda _: b"}",
}
