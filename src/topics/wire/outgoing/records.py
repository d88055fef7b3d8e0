"""Record bodies: stored bytes to the JSON objects of `docs/spec/http-api.md#sec-10-6`, by splicing.

Payload texts are copied, never parsed; a blob is split only if it may hold meta. The work is done on columns and ends
in one join, because this is the inner loop of every read. Called by api and by delivery.

    {"$seq":8,"$ts":1755000000123,"$node":"n1","$tag":"t","data":{"n":8},"meta":{"k":1}}
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from topics.model.payload import DATA_AT, META_MARK, meta_at
from topics.model.run import RecordRun, StoredRecord
from topics.wire.outgoing.run_columns import Columns, joined, take_columns

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
    if (len(run) if picks is None else len(picks)) <= _SINGLES_MAX:
        return b",".join(render_list(run, picks, view))
    columns = take_columns(run, picks)
    return b"" if columns is None else _render(columns, view, b",")


def render_runs(runs: Sequence[RecordRun], view: View) -> bytes:
    """All records of a read, joined by commas. Short runs are put together first: columns pay by their length."""
    return b",".join([render_array(run, None, view) for run in (runs if len(runs) == 1 else joined(runs))])


def render_list(run: RecordRun, picks: Sequence[int] | None, view: View) -> list[bytes]:
    """As `render_array`, one object each, for a cache that serves several readers."""
    chosen = range(len(run)) if picks is None else picks
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
    at = meta_at(blob)
    if at < 0:
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
