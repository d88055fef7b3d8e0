"""Scanning a log: exactly the frames that a plain reader finds, whatever happened to the bytes."""

import mmap
import struct
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from tests.formats.plain import wal_frames
from tests.formats.samples import BODIES, TS, append_run, control_frame
from tests.formats.strategies import damaged, logs

from topics.formats.buffers import Buffer
from topics.formats.wal import Stop, WalColumns, complete_count, complete_end, scan_wal
from topics.formats.wal.bodies import OpenMark, encode_body
from topics.formats.wal.frame import FRAME_LEN_MAX, FrameType, blob, encode_appends, encode_frame
from topics.model.ops import HeadMark


def append(seq: int, *, more: bool = False) -> bytes:
    return encode_frame(1, topic_id=1, seq=seq, ts=TS, data=blob(b"%d" % seq), more=more)


def reseal(frame: bytes, **changes: int) -> bytes:
    """The frame with header fields changed and its checksum made to match again."""
    names = ("frame_len", "type", "flags", "topic_id", "seq", "ts", "node_len", "tag_len", "data_len")
    fields = dict(zip(names, struct.unpack_from("<IBBQQQHHI", frame), strict=True)) | changes
    return resum(struct.pack("<IBBQQQHHI", *fields.values()) + frame[38:])


def resum(frame: bytes) -> bytes:
    return frame[:-8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(frame[4:-8]))


def ending(found: WalColumns) -> str:
    return found.reason or found.stop.value


def assert_same(found: WalColumns, log: bytes, start: int = 0) -> None:
    frames, end = wal_frames(log, start)
    assert ending(found) == end
    assert found.offset.tolist() == [frame.offset for frame in frames]
    assert found.length.tolist() == [frame.length for frame in frames]
    for name in ("type", "flags", "topic_id", "seq", "ts"):
        assert getattr(found, name).tolist() == [getattr(frame, name) for frame in frames]
    for name in ("node", "tag", "data"):
        starts, lengths = getattr(found, f"{name}_offset"), getattr(found, f"{name}_len")
        texts = [log[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
        assert texts == [getattr(frame, name) for frame in frames]
    assert found.end == (frames[-1].offset + frames[-1].length if frames else start)
    assert set(found.bodies) == {row for row, frame in enumerate(frames) if frame.type != 1}


@given(logs)
def test_a_healthy_log_reads_to_its_end(log: bytes) -> None:
    found = scan_wal(log)
    assert found.stop is Stop.EOF
    assert_same(found, log)


@given(damaged(logs))
def test_a_damaged_log_reads_as_a_plain_reader_reads_it(log: bytes) -> None:
    assert_same(scan_wal(log), log)


def test_every_truncation_of_a_log_yields_the_frames_in_front_of_it() -> None:
    log = append_run() + b"".join(control_frame(name) for name in BODIES)
    for size in range(len(log)):
        found = scan_wal(log[:size])
        whole = [frame for frame in wal_frames(log)[0] if frame.offset + frame.length <= size]
        assert len(found) == len(whole)
        assert found.stop is (Stop.EOF if found.end == size else Stop.BAD)


@pytest.mark.parametrize("name", ["append", *sorted(BODIES)])
def test_every_bit_flip_in_a_frame_makes_it_bad(name: str) -> None:
    first, flipped, last = append(1), append(2) if name == "append" else control_frame(name), append(3)
    for bit in range(8 * len(flipped)):
        frame = bytearray(flipped)
        frame[bit // 8] ^= 1 << bit % 8
        found = scan_wal(first + bytes(frame) + last)
        assert (len(found), found.stop, found.end) == (1, Stop.BAD, len(first))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, mmap.mmap])
def test_any_buffer_can_be_scanned_and_closed_afterwards(kind: type, tmp_path: Path) -> None:
    log = append_run()
    buffer: Buffer
    if kind is mmap.mmap:
        (tmp_path / "log").write_bytes(log)
        with open(tmp_path / "log", "rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    else:
        buffer = kind(log)
    assert_same(scan_wal(buffer), log)
    if isinstance(buffer, mmap.mmap):
        buffer.close()


def test_a_log_longer_than_one_stretch_is_one_scan() -> None:
    pieces = [
        encode_appends(topic_id=7, first_seq=1 + 5000 * i, ts=TS, datas=[blob(b"1")] * 5000, durable=False).buffer
        + encode_frame(11, topic_id=7, ts=TS, data=encode_body(HeadMark(ceiling=i)))
        for i in range(3)
    ]
    found = scan_wal(b"".join(pieces))
    assert len(found) == 15003
    assert {row: body.ceiling for row, body in found.bodies.items() if isinstance(body, HeadMark)} == {
        5000: 0,
        10001: 1,
        15002: 2,
    }
    assert found.seq[found.type == 1].tolist() == list(range(1, 15001))


@pytest.mark.parametrize("zeros", [1, 3, 4, 41, 46, 4096, 3 << 20])
def test_zeros_behind_the_last_frame_are_the_clean_end(zeros: int) -> None:
    log = append(1)
    found = scan_wal(log + bytes(zeros))
    assert (found.stop, found.end, found.reason) == (Stop.CLEAN, len(log), "")


@pytest.mark.parametrize("at", [4, 4096, (1 << 20) - 1, 1 << 20, (3 << 20) - 1])
def test_one_byte_in_the_zeros_is_a_bad_frame(at: int) -> None:
    log = bytearray(append(1) + bytes(3 << 20))
    log[len(append(1)) + at] = 1
    found = scan_wal(bytes(log))
    assert (found.stop, found.reason, found.end) == (Stop.BAD, "frame_len", len(append(1)))


def test_an_empty_buffer_ends_at_once() -> None:
    assert (scan_wal(b"").stop, len(scan_wal(b""))) == (Stop.EOF, 0)


def test_a_scan_may_start_and_end_inside_a_buffer() -> None:
    a, b, c = append(1), append(2), append(3)
    found = scan_wal(a + b + c, len(a), len(a) + len(b))
    assert (found.seq.tolist(), found.offset.tolist(), found.stop) == ([2], [len(a)], Stop.EOF)
    short = scan_wal(a + b + c, len(a), len(a) + len(b) + 5)
    assert (short.seq.tolist(), short.reason) == ([2], "short")


# Fault matrix 45.
@pytest.mark.parametrize("frame_len", [0xFFFFFFFF, FRAME_LEN_MAX + 1, 41, 1])
def test_an_impossible_length_is_a_bad_frame(frame_len: int) -> None:
    log = append(1) + struct.pack("<I", frame_len) + append(2)[4:]
    found = scan_wal(log)
    assert (len(found), found.stop, found.reason) == (1, Stop.BAD, "frame_len")


def test_a_length_beyond_the_file_is_a_bad_frame() -> None:
    found = scan_wal(struct.pack("<I", FRAME_LEN_MAX) + append(2)[4:])
    assert (len(found), found.reason) == (0, "short")


# Fault matrix 46: the checksum is right, the content is not.
TAGGED = encode_frame(1, topic_id=1, seq=1, ts=TS, tag=b"ab", data=blob(b"1"))
NODED = encode_frame(1, topic_id=1, seq=1, ts=TS, node=b"ab", data=blob(b"1"))
OPEN = encode_frame(8, ts=TS, data=encode_body(OpenMark(gen=1, shards=1, first=1, group="")))


@pytest.mark.parametrize(
    ("reason", "frame"),
    [
        ("type", reseal(append(1), type=0)),
        ("type", reseal(append(1), type=15)),
        ("flags", reseal(append(1), flags=0x10)),
        ("flags", reseal(append(1), flags=0x80)),
        ("lengths", reseal(append(1), data_len=6)),
        ("lengths", reseal(append(1), data_len=2**32 - 1)),
        ("lengths", reseal(TAGGED, tag_len=1)),
        ("lengths", reseal(append(1), data_len=6, flags=0x10)),
        ("flags", reseal(TAGGED, flags=0x10, type=0)),
        ("presence", reseal(TAGGED, flags=0, type=0)),
        ("presence", reseal(TAGGED, flags=0)),
        ("presence", reseal(TAGGED, flags=2)),
        ("presence", reseal(NODED, flags=1)),
        ("utf8", resum(TAGGED.replace(b"ab", b"\xff\xfe"))),
        ("utf8", resum(NODED.replace(b"ab", b"\xc3\x28"))),
        ("utf8", encode_frame(1, ts=TS, node=b"\xc3", tag=b"\xa9", data=blob(b"1"))),
        ("utf8", encode_frame(1, ts=TS, tag=b"\xed\xa0\x80", data=blob(b"1"))),
        ("blob", encode_frame(1, ts=TS, data=b'{"d":')),
        ("blob", encode_frame(1, ts=TS, data=b'{"e":1}')),
        ("blob", encode_frame(1, ts=TS, data=b'{"d":1]')),
        ("blob", encode_frame(1, ts=TS, data=b"")),
        ("body", encode_frame(8, ts=TS, data=b"")),
        ("body", encode_frame(8, ts=TS, data=b"\x80")),
        ("body", encode_frame(11, ts=TS, data=b"\x81\xa7ceiling")),
        ("body", encode_frame(11, ts=TS, data=b"\x81\xa7ceiling\x01\x00")),
        ("body", encode_frame(11, ts=TS, data=b"\x81\xa7ceiling\xff")),
        ("body", encode_frame(6, ts=TS, data=b"\x81\xa6reason\xa3api")),
    ],
)
def test_a_frame_with_a_right_checksum_and_wrong_content_is_bad(reason: str, frame: bytes) -> None:
    found = scan_wal(OPEN + frame + append(2))
    assert (len(found), found.reason, found.end) == (1, reason, len(OPEN))
    assert set(found.bodies) == {0}


def test_texts_in_other_scripts_are_good() -> None:
    frame = encode_frame(1, ts=TS, node="узел".encode(), tag="標籤".encode(), data=blob('"é"'.encode()))
    assert len(scan_wal(append(1) + frame)) == 2


def test_without_verification_only_the_checksum_is_trusted() -> None:
    broken = bytearray(append(1))
    broken[-1] ^= 1
    assert len(scan_wal(bytes(broken), verify=False)) == 1
    assert len(scan_wal(reseal(append(1), type=0), verify=False)) == 0


def test_an_unknown_key_in_a_body_is_ignored() -> None:
    frame = encode_frame(11, ts=TS, data=b"\x82\xa3new\x01\xa7ceiling\x05")
    assert scan_wal(frame).bodies == {0: HeadMark(ceiling=5)}


# Fault matrix 15, seen from the codec: submissions of 1, 3 and 2 frames torn at every byte.
def test_a_torn_batch_ends_behind_its_last_whole_submission() -> None:
    pieces = [append(1), append(2, more=True) + append(3, more=True) + append(4), append(5, more=True) + append(6)]
    ends = [len(b"".join(pieces[:i])) for i in range(4)]
    log = b"".join(pieces)
    for size in range(len(log) + 1):
        found = scan_wal(log[:size])
        assert complete_end(found) == max(end for end in ends if end <= size)
        assert complete_count(found) in (0, 1, 4, 6)


def test_without_a_whole_submission_the_log_ends_where_it_started() -> None:
    log = append(1) + append(2, more=True)
    assert complete_end(scan_wal(log, len(append(1))), len(append(1))) == len(append(1))


def test_every_type_of_frame_is_known() -> None:
    log = append_run() + b"".join(control_frame(name) for name in BODIES)
    assert set(scan_wal(log).type.tolist()) == {int(kind) for kind in FrameType}
