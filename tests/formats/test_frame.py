"""Encoding of WAL frames: the plural encoder gives what the single one gives, and both read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.plain import PlainFrame, wal_frame_at, wal_frames
from tests.formats.strategies import Record, names, records, seqs, times, u64

from topics.formats.wal.frame import DURABLE, FRAME_LEN_MAX, HAS_NODE, HAS_TAG, MORE, blob, encode_appends, encode_frame

batches = st.lists(records, min_size=1, max_size=6)


def single(record: Record, *, topic_id: int, seq: int, ts: int, durable: bool, more: bool) -> bytes:
    return encode_frame(
        1,
        topic_id=topic_id,
        seq=seq,
        ts=ts,
        node=record.node,
        tag=record.tag,
        data=record.data,
        durable=durable,
        more=more,
    )


@given(batches, u64, seqs, times, st.booleans(), st.booleans())
def test_a_batch_is_its_single_frames_back_to_back(
    batch: list[Record], topic_id: int, first_seq: int, ts: int, durable: bool, more_after: bool
) -> None:
    run = encode_appends(
        topic_id=topic_id,
        first_seq=first_seq,
        ts=ts,
        datas=[record.data for record in batch],
        nodes=[record.node for record in batch],
        tags=[record.tag for record in batch],
        durable=durable,
        more_after=more_after,
    )
    singles = [
        single(
            record,
            topic_id=topic_id,
            seq=first_seq + i,
            ts=ts,
            durable=durable,
            more=more_after or i < len(batch) - 1,
        )
        for i, record in enumerate(batch)
    ]
    assert run.buffer == b"".join(singles)
    assert [run.buffer[at : at + n] for at, n in zip(run.offsets, run.lengths, strict=True)] == singles


@given(batches, names, st.booleans(), st.booleans())
def test_one_node_for_all_is_the_same_as_that_node_for_each(
    batch: list[Record], node: bytes | None, with_tags: bool, more_after: bool
) -> None:
    datas = [record.data for record in batch]
    tags = [record.tag for record in batch] if with_tags else None
    common = encode_appends(
        topic_id=3, first_seq=9, ts=5, datas=datas, nodes=node, tags=tags, durable=True, more_after=more_after
    )
    each = encode_appends(
        topic_id=3,
        first_seq=9,
        ts=5,
        datas=datas,
        nodes=[node] * len(batch),
        tags=tags or [None] * len(batch),
        durable=True,
        more_after=more_after,
    )
    assert common == each


@given(records, st.sampled_from([(False, False), (True, False), (False, True), (True, True)]))
def test_a_frame_reads_back_field_by_field(record: Record, gates: tuple[bool, bool]) -> None:
    durable, more = gates
    raw = single(record, topic_id=2**64 - 1, seq=2**64 - 2, ts=2**64 - 3, durable=durable, more=more)
    flags = (record.tag is not None) * HAS_TAG | (record.node is not None) * HAS_NODE | durable * DURABLE | more * MORE
    assert wal_frame_at(raw, 0) == PlainFrame(
        0, len(raw), 1, flags, 2**64 - 1, 2**64 - 2, 2**64 - 3, record.node or b"", record.tag or b"", record.data
    )


def test_all_but_the_last_frame_of_a_submission_have_more_set() -> None:
    run = encode_appends(topic_id=1, first_seq=1, ts=1, datas=[blob(b"1")] * 3, durable=False)
    frames, _ = wal_frames(run.buffer)
    assert [frame.flags & MORE for frame in frames] == [MORE, MORE, 0]


def test_a_submission_that_goes_on_has_more_set_on_its_last_frame_too() -> None:
    run = encode_appends(topic_id=1, first_seq=1, ts=1, datas=[blob(b"1")] * 2, durable=False, more_after=True)
    frames, _ = wal_frames(run.buffer)
    assert [frame.flags & MORE for frame in frames] == [MORE, MORE]


def test_an_empty_batch_is_no_bytes() -> None:
    run = encode_appends(topic_id=1, first_seq=1, ts=1, datas=[], durable=False)
    assert (run.buffer, len(run.offsets), len(run.lengths)) == (b"", 0, 0)


def test_payloads_may_be_memory_views() -> None:
    datas = [blob(b"1"), blob(b"22")]
    views = [memoryview(data) for data in datas]
    plain = encode_appends(topic_id=1, first_seq=1, ts=1, datas=datas, nodes=b"n", durable=False)
    assert encode_appends(topic_id=1, first_seq=1, ts=1, datas=views, nodes=b"n", durable=False) == plain  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2])
def test_a_frame_that_no_reader_would_take_is_not_written(count: int) -> None:
    huge = bytes(FRAME_LEN_MAX - 41)
    with pytest.raises(ValueError, match="67108864"):
        encode_appends(topic_id=1, first_seq=1, ts=1, datas=[huge] * count, durable=False)


def test_the_largest_frame_is_written() -> None:
    largest = bytes(FRAME_LEN_MAX - 42)
    assert encode_frame(1, ts=1, data=largest)[:4] == FRAME_LEN_MAX.to_bytes(4, "little")


def test_a_column_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 nodes or tags for 2 records"):
        encode_appends(topic_id=1, first_seq=1, ts=1, datas=[blob(b"1")] * 2, tags=[b"a"] * 3, durable=False)
