"""Record bodies: every view of every record, from every kind of buffer, with payloads byte for byte."""

import json
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.codec.plain_render import json_text
from topics.model.payload import make_blob
from topics.model.run import BODY_HEAD, HAS_NODE, HAS_TAG, Buffer, RecordRun
from topics.wire.outgoing import records as columns
from topics.wire.outgoing.records import View, render, render_jobs

VIEWS = [View(data, tags, meta) for data in (True, False) for tags in (True, False) for meta in (True, False)]


class Stored(NamedTuple):
    seq: int = 8
    ts: int = 1755000000123
    node: str | None = None
    tag: str | None = None
    data: bytes = b'{"n":8}'
    meta: bytes | None = None


def run_of(records: Sequence[Stored], pad: bytes = b'\xff,"m":') -> RecordRun:
    """Bodies as they lie in a log, with other bytes around each."""
    buf, offs, flags = bytearray(pad), array("I"), bytearray()
    for one in records:
        node, tag, blob = (one.node or "").encode(), (one.tag or "").encode(), make_blob(one.data, one.meta)
        offs.append(len(buf))
        buf += BODY_HEAD.pack(one.seq, one.ts, len(node), len(tag), len(blob)) + node + tag + blob + pad
        flags.append((one.node is not None) * HAS_NODE | (one.tag is not None) * HAS_TAG)
    return RecordRun(bytes(buf), offs, bytes(flags))


def plainly(one: Stored, view: View) -> bytes:
    """One record as the contract describes it, written out by hand."""
    parts = [b'"$seq":%d' % one.seq, b'"$ts":%d' % one.ts]
    if one.node is not None:
        parts.append(b'"$node":' + json.dumps(one.node, ensure_ascii=False).encode())
    if one.tag is not None and view.tags:
        parts.append(b'"$tag":' + json.dumps(one.tag, ensure_ascii=False).encode())
    if view.data:
        parts.append(b'"data":' + one.data)
    if one.meta is not None and view.meta:
        parts.append(b'"meta":' + one.meta)
    return b"{" + b",".join(parts) + b"}"


FULL = Stored(node="n1", tag="t", meta=b'{"k":1}')


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_of_a_full_and_of_a_bare_record(view: View) -> None:
    for one in (FULL, Stored(), Stored(data=b"null"), Stored(tag="", node=""), Stored(meta=b"[]")):
        assert render(run_of([one]), None, view).whole == plainly(one, view)


def test_the_example_of_the_contract() -> None:
    assert render(run_of([Stored()]), None, View()).whole == b'{"$seq":8,"$ts":1755000000123,"data":{"n":8}}'


TRICKY = [
    b'{"a":1,"m":2}', b'[{"x":{},"m":{}}]', b'{"m":1,"m":2,"d":3}', b'",\\"m\\":"', b'"\\ud800"',
    b'{"a":"\\ud800","m":{}}',
    b'{ "a" :\n1 }', b"9" * 400, b'"\xc3\xa9"', b"null", b'{"d":1},"m":'[:7], b"[[],[]]",
]  # fmt: skip


@pytest.mark.parametrize("data", TRICKY)
@pytest.mark.parametrize("meta", [None, *TRICKY])
def test_payloads_are_split_where_they_were_joined(data: bytes, meta: bytes | None) -> None:
    one = Stored(data=data, meta=meta)
    for view in VIEWS:
        assert render(run_of([one]), None, view).whole == plainly(one, view)


texts = (
    st.none() | st.text(max_size=4) | st.sampled_from(['"', "\\", "\x00", "\x1f", "\x7f", "é", "\u2028", "a\nb", "😀"])
)
stored = st.builds(
    Stored, st.just(0), st.just(0), texts, texts, st.sampled_from(TRICKY), st.none() | st.sampled_from(TRICKY)
)


@given(
    st.lists(stored, max_size=6),
    st.integers(1, 12),
    st.integers(0, 2**40),
    st.lists(st.integers(0, 2), min_size=72, max_size=72),
    st.sampled_from(VIEWS),
)
def test_many_records_agree_with_one_at_a_time(
    kinds: list[Stored], repeat: int, first: int, steps: list[int], view: View
) -> None:
    """Both ways of taking columns are met: up to 72 records, with gaps in seq and steps in ts."""
    records: list[Stored] = []
    seq, ts = first, first
    for one, step in zip(kinds * repeat, steps, strict=False):
        seq, ts = seq + 1 + step, ts + step // 2
        records.append(one._replace(seq=seq, ts=ts))
    expected = [plainly(one, view) for one in records]
    run = run_of(records)
    rendered = render(run, None, view).each()
    assert list(map(msgspec.json.decode, map(masked, rendered))) == list(
        map(msgspec.json.decode, map(masked, expected))
    )
    assert render(run, None, view).whole == b",".join(rendered)
    picks = range(0, len(records), 3)
    assert render(run, picks, view).each() == rendered[::3]
    assert render(run, picks, view).whole == b",".join(rendered[::3])


def masked(text: bytes) -> bytes:
    return text.replace(b"\\ud800", b"\\ufffd")


@pytest.mark.parametrize("count", [1, 23, 24, 100])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(count: int, kind: type[bytes] | type[bytearray] | type[memoryview]) -> None:
    records = [FULL._replace(seq=at, data=b"%d" % at) for at in range(1, count + 1)]
    run = run_of(records)
    buf: Buffer = kind(run.buf)
    other = RecordRun(buf, run.body_offs, run.flags)
    assert render(other, None, VIEWS[0]).each() == [plainly(one, VIEWS[0]) for one in records]
    if isinstance(buf, bytearray):
        buf += b"more"  # a growing buffer is not held


@pytest.mark.parametrize("count", [2, 60])
def test_a_long_sparse_stretch_is_not_copied_whole(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_SPAN_BYTES_MAX", 100)
    records = [FULL._replace(seq=at, data=b"%d" % at) for at in range(1, count + 1)]
    run = run_of(records, pad=b"x" * 500)
    other = RecordRun(memoryview(run.buf), run.body_offs, run.flags)
    assert render(other, [0, count - 1], VIEWS[0]).each() == [
        plainly(one, VIEWS[0]) for one in (records[0], records[-1])
    ]


def test_nothing_renders_to_nothing() -> None:
    assert render(run_of([]), None, View()).whole == b""
    assert render(run_of([]), None, View()).each() == []
    assert render(run_of([FULL]), [], View()).each() == []
    assert render_jobs(run_of([]), None, lease_ids=[], deadlines=[], deliveries=[]) == []


def test_job_bodies() -> None:
    run = run_of([Stored(seq=3, ts=9, tag="m-3", node="n", data=b'{"to":"x"}', meta=b'{"k":"v"}'), Stored(seq=4, ts=9)])
    assert render_jobs(run, None, lease_ids=["lease_5", "lease_6"], deadlines=[10, 11], deliveries=[1, 2]) == [
        b'{"$seq":3,"lease_id":"lease_5","deadline":10,"$ts":9,"$tag":"m-3","deliveries":1,"data":{"to":"x"},"meta":{"k":"v"}}',
        b'{"$seq":4,"lease_id":"lease_6","deadline":11,"$ts":9,"deliveries":2,"data":{"n":8}}',
    ]


@pytest.mark.parametrize("count", [1, 23, 24, 200])
@pytest.mark.parametrize("tag", [None, "m"])
def test_many_job_bodies_are_like_one(count: int, tag: str | None) -> None:
    records = [Stored(seq=seq, ts=9, tag=tag if seq % 2 else None) for seq in range(count)]
    leases = [f"lease_{seq:x}" for seq in range(count)]
    together = render_jobs(run_of(records), None, lease_ids=leases, deadlines=[5] * count, deliveries=[1] * count)
    one_by_one = [
        render_jobs(run_of([record]), None, lease_ids=[lease], deadlines=[5], deliveries=[1])
        for record, lease in zip(records, leases, strict=True)
    ]
    assert [[body] for body in together] == one_by_one


@given(st.text(max_size=10))
def test_json_text(text: str) -> None:
    assert msgspec.json.decode(json_text(text.encode())) == text
