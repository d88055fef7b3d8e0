"""Segment frames: from the log or fresh, scanned, verified, and every damage seen."""

import struct

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.plain import PlainRecord, segment_frames
from tests.formats.samples import TS, append_run
from tests.formats.strategies import Record, damaged, names, records, seqs, times

from topics.errors import Corruption
from topics.formats.segments import (
    DELETED_BYTE,
    SegmentFrames,
    encode_segment_frames,
    idx_agrees,
    scan_segment,
    segment_frames_from_wal,
    verify_frames,
)
from topics.formats.segments.frame import segment_frames_of
from topics.formats.wal import scan_wal
from topics.formats.wal.blob import blob
from topics.formats.wal.frame import encode_appends
from topics.model.run import RecordRun

batches = st.lists(records, min_size=1, max_size=6)


def encode(batch: list[Record], first_seq: int = 1, ts: int = TS) -> SegmentFrames:
    return encode_segment_frames(
        seqs=range(first_seq, first_seq + len(batch)),
        ts=[ts] * len(batch),
        datas=[record.data for record in batch],
        nodes=[record.node for record in batch],
        tags=[record.tag for record in batch],
    )


segments = batches.map(lambda batch: encode(batch).buffer)


@given(batches, seqs, times, st.booleans(), st.integers(0, 2**31))
def test_frames_from_the_log_are_the_frames_of_the_records(
    batch: list[Record], first_seq: int, ts: int, durable: bool, base: int
) -> None:
    run = encode_appends(
        topic_id=77,
        first_seq=first_seq,
        ts=ts,
        datas=[record.data for record in batch],
        nodes=[record.node for record in batch],
        tags=[record.tag for record in batch],
        durable=durable,
    )
    copied = segment_frames_from_wal(run.buffer, run.offsets, run.lengths, base=base)
    fresh = encode(batch, first_seq, ts)
    assert copied.buffer == fresh.buffer
    assert copied.idx["offset"].tolist() == [at + base for at in fresh.idx["offset"].tolist()]
    for name in ("len", "ts", "flags", "pad"):
        assert copied.idx[name].tobytes() == fresh.idx[name].tobytes()


@given(batches, seqs, times)
def test_a_segment_reads_back_frame_by_frame_and_agrees_with_its_index(
    batch: list[Record], first_seq: int, ts: int
) -> None:
    frames = encode(batch, first_seq, ts)
    plain = segment_frames(frames.buffer)
    assert [(r.seq, r.ts, r.node, r.tag, r.data) for r in plain] == [
        (first_seq + i, ts, r.node or b"", r.tag or b"", r.data) for i, r in enumerate(batch)
    ]
    assert idx_agrees(frames.idx, len(frames.buffer), frames.buffer) is None


@given(damaged(segments))
def test_a_damaged_segment_scans_as_a_plain_reader_reads_it(data: bytes) -> None:
    found = scan_segment(data)
    plain = segment_frames(data)
    assert [
        PlainRecord(
            at,
            n,
            flags,
            seq,
            ts,
            data[a : a + nl],
            data[a + nl : a + nl + tl],
            data[a + nl + tl : a + nl + tl + dl],
            del_flag,
        )
        for at, n, flags, seq, ts, a, nl, tl, dl, del_flag in zip(
            found.offset.tolist(),
            found.length.tolist(),
            found.flags.tolist(),
            found.seq.tolist(),
            found.ts.tolist(),
            found.node_offset.tolist(),
            found.node_len.tolist(),
            found.tag_len.tolist(),
            found.data_len.tolist(),
            found.del_flag.tolist(),
            strict=True,
        )
    ] == plain
    assert found.end == sum(frame.length for frame in plain)
    assert bool(found.reason) == (found.end < len(data))


def test_part_of_a_log_may_become_a_segment() -> None:
    log = append_run()
    found = scan_wal(log)
    frames = segment_frames_from_wal(memoryview(log), found.offset[[0, 2]], found.length[[0, 2]], base=100)
    assert [frame.seq for frame in segment_frames(frames.buffer)] == [1, 3]
    assert frames.idx["offset"].tolist() == [100, 176]


def test_more_records_than_one_inner_run_are_one_buffer() -> None:
    datas = [blob(b"%d" % i) for i in range(5000)]
    run = encode_appends(topic_id=1, first_seq=1, ts=TS, datas=datas, durable=False)
    frames = segment_frames_from_wal(run.buffer, run.offsets, run.lengths)
    assert [frame.data for frame in segment_frames(frames.buffer)] == datas
    assert idx_agrees(frames.idx, len(frames.buffer), frames.buffer) is None


def test_no_records_are_no_bytes() -> None:
    assert segment_frames_from_wal(b"", [], []).buffer == b""
    assert encode_segment_frames(seqs=[], ts=[], datas=[]).buffer == b""
    assert len(scan_segment(b"")) == 0


def test_damage_in_the_log_never_gets_a_matching_checksum() -> None:
    log = bytearray(append_run())
    found = scan_wal(bytes(log))
    log[int(found.data_offset[1])] ^= 1
    with pytest.raises(Corruption) as caught:
        segment_frames_from_wal(log, found.offset, found.length, file="wal-1")
    assert (caught.value.file, caught.value.offset, caught.value.reason) == ("wal-1", int(found.offset[1]), "xxh3")


def test_every_bit_flip_but_those_of_the_flag_byte_is_seen() -> None:
    batch = [Record(b"n", b"t", blob(b"1")), Record(None, b"", blob(b"2", b"{}")), Record(None, None, blob(b"3"))]
    frames = encode(batch)
    first, second = frames.idx["len"][:2].tolist()
    for bit in range(8 * second):
        data = bytearray(frames.buffer)
        data[first + bit // 8] ^= 1 << bit % 8
        good = len(scan_segment(bytes(data)))
        assert good == (3 if bit // 8 == second - 1 else 1)


# Fault matrix 78.
def test_only_0xd5_means_deleted() -> None:
    frames = encode([Record(None, None, blob(b"1"))])
    for value in range(256):
        found = scan_segment(frames.buffer[:-1] + bytes((value,)))
        assert found.deleted.tolist() == [value == DELETED_BYTE]


def test_every_truncation_yields_the_frames_in_front_of_it() -> None:
    frames = encode([Record(b"n", b"t", blob(b"1")), Record(None, None, blob(b"2"))])
    first = int(frames.idx["len"][0])
    for size in range(len(frames.buffer)):
        found = scan_segment(frames.buffer[:size])
        assert len(found) == (1 if size >= first else 0)
        assert found.reason == ("" if size in (0, first) else "short")


@given(names, names, st.integers(4, 255))
def test_a_frame_with_unknown_flags_is_bad_even_with_a_right_checksum(
    node: bytes | None, tag: bytes | None, flags: int
) -> None:
    raw = bytearray(encode([Record(node, tag, blob(b"1"))]).buffer)
    raw[4] = flags
    raw[-9:-1] = struct.pack("<Q", xxhash.xxh3_64_intdigest(raw[4:-9]))
    assert scan_segment(raw).reason == "lengths"


@given(batches, st.data())
def test_checksums_of_a_run_are_verified_one_by_one(batch: list[Record], data: st.DataObject) -> None:
    frames = encode(batch)
    broken = data.draw(st.sets(st.integers(0, len(batch) - 1)))
    raw = bytearray(frames.buffer)
    for row in broken:
        raw[int(frames.idx["offset"][row]) + 4 + data.draw(st.integers(0, 24))] ^= 0x80
    good = verify_frames(raw, frames.idx["offset"], frames.idx["len"])
    assert good.tolist() == [row not in broken for row in range(len(batch))]


@given(batches, seqs, times)
def test_frames_of_a_record_run_are_the_frames_of_the_records(batch: list[Record], first_seq: int, ts: int) -> None:
    expected = encode(batch, first_seq, ts)
    found = scan_segment(expected.buffer)
    run = RecordRun(expected.buffer, (found.offset + 5).tolist(), found.flags.tobytes())
    assert b"".join(segment_frames_of(run)) == expected.buffer


def test_a_frame_of_another_seq_never_gets_its_place() -> None:
    log = append_run()
    found = scan_wal(log)
    with pytest.raises(Corruption, match="seq"):
        segment_frames_from_wal(log, found.offset, found.length, seqs=found.seq + np.uint64(1))
