"""The bytes on disk are what the specification and the golden files say; a difference is a change of the format."""

import pytest
import xxhash
from tests.formats.samples import (
    BODIES,
    EXAMPLE_BLOB,
    FORKED,
    GOLDEN,
    LAGGING_SNAPSHOT,
    SNAPSHOT,
    TS,
    golden_bytes,
    read_golden,
)

from topics.formats import file_names as names
from topics.formats.segments import decode_columns, encode_segment_frames, idx_agrees, read_idx, segment_frames_from_wal
from topics.formats.segments.sidecar import TagSidecar, sidecar_matches
from topics.formats.snapshot import decode_snapshot, wrap_body
from topics.formats.versions import (
    SEGMENT_FORMAT_VERSION,
    SNAPSHOT_VERSION,
    STORAGE_FORMAT_VERSION,
    WAL_FORMAT_VERSION,
)
from topics.formats.wal import Stop, scan_wal
from topics.formats.wal.bodies import decode_body, encode_body, kind_of
from topics.formats.wal.frame import HEAD_BYTES, FrameType, encode_appends, encode_frame
from topics.model.ops import HeadMark

# `docs/spec/storage.md#sec-3-9`
SPEC_APPEND = bytes.fromhex(
    "50 00 00 00 01 07 0a 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 01 68 e5 cf 8b 01 00 00"
    "02 00 07 00 1d 00 00 00 6e 31 6f 72 64 65 72 2d 37 7b 22 64 22 3a 7b 22 71 74 79 22 3a 31"
    "7d 2c 22 6d 22 3a 7b 22 6b 22 3a 22 76 22 7d 7d 1f 09 25 fc 6b 54 88 d1"
)
SPEC_HEAD_WATERMARK = bytes.fromhex(
    "36 00 00 00 0b 04 0a 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 68 e5 cf 8b 01 00 00"
    "00 00 00 00 0c 00 00 00 81 a7 63 65 69 6c 69 6e 67 cd 01 00 f4 db ea 99 70 63 b5 25"
)
# `docs/spec/storage.md#sec-6-2`
SPEC_SEGMENT_FRAME = bytes.fromhex(
    "48 00 00 00 03 01 00 00 00 00 00 00 00 01 68 e5 cf 8b 01 00 00 02 00 07 00 1d 00 00 00 6e"
    "31 6f 72 64 65 72 2d 37 7b 22 64 22 3a 7b 22 71 74 79 22 3a 31 7d 2c 22 6d 22 3a 7b 22 6b"
    "22 3a 22 76 22 7d 7d 6a 92 ec 26 f5 e7 6b ba 00"
)
SPEC_IDX_ENTRY = bytes.fromhex("00 00 00 00 4c 00 00 00 01 68 e5 cf 8b 01 00 00 03 00 00 00")
# `docs/spec/storage.md#sec-8-1`
SPEC_SNAPSHOT = bytes.fromhex("53 4e 50 31 03 00 00 00 05 00 00 00 00 00 00 00 2d c3 23 f0 4d 0a 72 0e 81 a2 69 64 01")


def test_the_worked_append_frame_is_encoded_as_specified() -> None:
    one = encode_frame(1, topic_id=10, seq=1, ts=TS, node=b"n1", tag=b"order-7", data=EXAMPLE_BLOB, durable=True)
    run = encode_appends(
        topic_id=10, first_seq=1, ts=TS, datas=[EXAMPLE_BLOB], nodes=b"n1", tags=[b"order-7"], durable=True
    )
    assert one == SPEC_APPEND
    assert (run.buffer, run.offsets.tolist(), run.lengths.tolist()) == (SPEC_APPEND, [0], [84])


def test_the_worked_head_watermark_is_encoded_as_specified() -> None:
    body = encode_body(HeadMark(ceiling=256))
    assert encode_frame(11, topic_id=10, ts=TS, data=body, durable=True) == SPEC_HEAD_WATERMARK


def test_the_worked_segment_frame_and_entry_are_encoded_as_specified() -> None:
    from_wal = segment_frames_from_wal(SPEC_APPEND, [0], [84])
    fresh = encode_segment_frames(seqs=[1], ts=[TS], datas=[EXAMPLE_BLOB], nodes=[b"n1"], tags=[b"order-7"])
    for frames in (from_wal, fresh):
        assert frames.buffer == SPEC_SEGMENT_FRAME
        assert frames.idx.tobytes() == SPEC_IDX_ENTRY


def test_the_worked_snapshot_envelope_is_encoded_as_specified() -> None:
    assert wrap_body(bytes.fromhex("81a2696401")) == SPEC_SNAPSHOT


def test_checksums_are_xxh3_64_with_seed_zero() -> None:
    assert xxhash.xxh3_64_intdigest(b"") == 0x2D06800538D394C2
    assert xxhash.xxh3_64_intdigest((10).to_bytes(8, "little")) == 0xE6AD1BE9A8972875


@pytest.mark.parametrize(
    ("shards", "expected"),
    [(2, "0 1 1 0 0 1 1 0 1 1"), (4, "2 3 1 0 0 3 3 2 3 1"), (8, "6 3 5 0 4 3 7 6 7 5")],
)
def test_topics_lie_in_the_shards_of_the_table(shards: int, expected: str) -> None:
    assert " ".join(str(names.shard_of(topic_id, shards)) for topic_id in range(1, 11)) == expected
    assert names.shard_of(0, shards) == 0


def test_versions_are_those_of_the_specification() -> None:
    versions = (STORAGE_FORMAT_VERSION, WAL_FORMAT_VERSION, SEGMENT_FORMAT_VERSION, SNAPSHOT_VERSION)
    assert versions == (2, 2, 1, 3)


def test_every_frame_type_has_a_golden_file() -> None:
    assert {kind for kind, *_ in BODIES.values()} == set(FrameType) - {FrameType.APPEND}
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(golden_bytes())


@pytest.mark.parametrize("name", sorted(golden_bytes()))
def test_encoding_gives_the_golden_file(name: str) -> None:
    assert golden_bytes()[name].hex(" ") == read_golden(name).hex(" ")


@pytest.mark.parametrize("name", sorted(BODIES))
def test_a_golden_control_frame_decodes_to_its_body(name: str) -> None:
    kind, topic_id, seq, body = BODIES[name]
    frame = read_golden(name)
    found = scan_wal(frame)
    assert (found.stop, found.bodies) == (Stop.EOF, {0: body})
    assert (found.type[0], found.topic_id[0], found.seq[0], found.ts[0]) == (kind, topic_id, seq, TS)
    assert decode_body(kind, frame[HEAD_BYTES:-8]) == body
    assert kind_of(body) is kind


def test_the_golden_appends_decode_to_their_columns() -> None:
    found = scan_wal(read_golden("append"))
    assert found.seq.tolist() == [1, 2, 3, 4, 5]
    assert found.flags.tolist() == [0x0F, 0x0D, 0x0E, 0x0F, 0x04]
    assert found.node_len.tolist() == [2, 0, 0, 3, 0]
    assert found.tag_len.tolist() == [7, 0, 0, 1, 0]
    assert found.data_len.tolist() == [29, 7, 10, 8, 17]


def test_the_golden_segment_pair_agrees_and_decodes() -> None:
    data, idx = read_golden("segment-data"), read_golden("segment-idx")
    assert idx_agrees(idx, len(data), data) is None
    assert decode_columns(data, read_idx(idx), first_seq=1).seq.tolist() == [1, 4]


def test_the_golden_snapshot_decodes_to_its_body() -> None:
    assert decode_snapshot(read_golden("snapshot")) == SNAPSHOT
    assert decode_snapshot(read_golden("snapshot-forked")) == FORKED
    assert decode_snapshot(read_golden("snapshot-lag")) == LAGGING_SNAPSHOT


def test_the_golden_sidecar_answers() -> None:
    content = read_golden("sidecar")
    assert sidecar_matches(content, count=4, data_len=len(read_golden("segment-data")))
    assert TagSidecar(content).lookup_eq(b"b").tolist() == [0, 3]
