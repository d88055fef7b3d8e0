"""Texts: what is kept equals what is rendered, and is bounded."""

from __future__ import annotations

import gc
from array import array
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core.reading.recent import Chunk, make_chunk
from topics.formats.wal.frame import encode_appends
from topics.wire.outgoing.records import View, render_runs
from topics.wire.outgoing.render_cache import BLOCK, RenderCache

VIEWS = [View(*flags) for flags in product((False, True), repeat=3)]


def chunk_of(first_seq: int, count: int, *, grows: bool = False, size: int = 10) -> Chunk:
    encoded = encode_appends(
        topic_id=1,
        first_seq=first_seq,
        ts=1_755_000_000_000,
        datas=[b'{"data":"%0*d"%b}' % (size, seq, b',"meta":{"k":1}' if seq % 5 == 0 else b"") for seq in range(count)],
        nodes=[b"n" if seq % 3 else None for seq in range(count)],
        tags=[b"t" if seq % 2 else None for seq in range(count)],
        durable=False,
    )
    flags = array("B", [(2 if seq % 3 else 0) | seq % 2 for seq in range(count)])
    chunk = make_chunk(first_seq, bytes(encoded.buffer), array("I", encoded.offsets), flags)
    chunk.buf = bytearray(chunk.buf) if grows else bytes(chunk.buf)
    return chunk


CHUNKS = [chunk_of(1, 100), chunk_of(101, 300), chunk_of(401, 300, grows=True), chunk_of(701, 1)]
TEXTS = RenderCache(bytes_max=40_000)  # less than all of it: texts come and go


@given(lo=st.integers(1, 701), count=st.integers(1, 701), view=st.sampled_from(VIEWS))
def test_a_text_is_what_rendering_gives(lo: int, count: int, view: View) -> None:
    hi = min(lo + count, 702)
    runs = [
        chunk.run(max(lo, chunk.first_seq), min(hi, chunk.next_seq))
        for chunk in CHUNKS
        if lo < chunk.next_seq and hi > chunk.first_seq
    ]
    for _ in range(2):
        assert TEXTS.join(runs, view) == render_runs(runs, view)
    assert 0 <= TEXTS.bytes <= 40_000


def test_records_picked_one_by_one_are_rendered_for_themselves() -> None:
    texts, chunk = RenderCache(), chunk_of(1, 10)
    picked = chunk.pick(array("q", [2, 4, 9]))  # type: ignore[arg-type]
    assert texts.join([picked], VIEWS[-1]) == render_runs([picked], VIEWS[-1])
    assert texts.bytes == 0


def test_what_can_still_grow_is_not_kept() -> None:
    texts, chunk = RenderCache(), chunk_of(1, BLOCK + 5, grows=True)
    run = chunk.run(1, BLOCK + 6)
    texts.join([run], VIEWS[-1])
    assert chunk.texts is not None
    assert [len(text.ends) for text in chunk.texts.values()] == [BLOCK]


def test_a_reader_of_few_records_does_not_pay_for_their_neighbours() -> None:
    texts, chunk = RenderCache(), chunk_of(1, 100)
    texts.join([chunk.run(1, 10)], VIEWS[-1])
    assert chunk.texts is None
    texts.join([chunk.run(1, 60)], VIEWS[-1])
    kept = texts.bytes
    texts.join([chunk.run(1, 10)], VIEWS[-1])
    assert texts.bytes == kept > 0


@pytest.mark.parametrize("many", [3, 30])
def test_the_oldest_texts_make_room(many: int) -> None:
    chunks = [chunk_of(1001 + 100 * at, 100) for at in range(many)]
    size = len(render_runs([chunks[0].run(1001, 1101)], VIEWS[-1]))
    texts = RenderCache(bytes_max=2 * size)
    for chunk in chunks:
        texts.join([chunk.run(chunk.first_seq, chunk.next_seq)], VIEWS[-1])
    assert [bool(chunk.texts) for chunk in chunks] == [False] * (many - 2) + [True] * 2
    assert texts.bytes == 2 * size


def test_texts_go_with_their_records() -> None:
    texts = RenderCache(bytes_max=20_000)
    for at in range(50):
        texts.join([chunk_of(1 + at, 100).run(1 + at, 101 + at)], VIEWS[-1])
    gc.collect()
    assert all(kept.source() is None for kept in list(texts._order))
    assert texts.bytes <= 20_000


def test_a_huge_text_is_not_kept() -> None:
    texts, chunk = RenderCache(), chunk_of(1, 100, size=5000)
    run = chunk.run(1, 101)
    assert texts.join([run], VIEWS[-1]) == render_runs([run], VIEWS[-1])
    assert texts.bytes == 0
